# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Train the classifier alone: the backbone is frozen and nothing is exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from fedpeft.backbones.backbone import Backbone
from fedpeft.core.settings import no_settings
from fedpeft.methods.trainable import Trainable, Tuning


class HeadOnly(Trainable):
    """A frozen backbone: no parameter besides the head is trained."""

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return no parameters."""
        return {}

    def merge(self) -> None:
        """Do nothing: the backbone is as it was."""


class ClassifierTuning(Tuning):
    """The tuning method `classifier`."""

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse any settings."""
        no_settings("classifier", settings)

    def prepare(self, backbone: Backbone, settings: Mapping[str, Any], *, seed: int) -> Trainable:
        """Freeze the backbone."""
        self.check(settings)
        backbone.requires_grad_(False)
        return HeadOnly()


TUNING = ClassifierTuning()
