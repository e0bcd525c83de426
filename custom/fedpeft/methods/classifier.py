# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The classifier alone: the backbone is frozen, nothing travels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from fedpeft.methods.trainable import Trainable, Tuning
from fedpeft.settings import no_settings


class NothingButHead(Trainable):
    """No parameter beside the head."""

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """No parameters."""
        return {}

    def train_only(self, layers: Sequence[int] | None) -> None:
        """Nothing to freeze."""


class ClassifierTuning(Tuning):
    """See the head of this file."""

    def prepare(self, backbone: nn.Module, settings: Mapping[str, Any], *, seed: int) -> Trainable:
        """Freeze the backbone."""
        no_settings("classifier", settings)
        backbone.requires_grad_(False)
        return NothingButHead()


TUNING = ClassifierTuning()
