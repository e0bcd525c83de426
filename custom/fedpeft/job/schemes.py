# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Refuse federated schemes of the section `training` that mean nothing with a job's method."""

from __future__ import annotations

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.settings import MethodSettings


def check_schemes(method: MethodSettings, training: TrainingSettings) -> None:
    """Refuse FedProx where nothing global has the shape and the meaning of what a site trains.

    Raises:
        FedpeftError: names both settings, and what to use.
    """
    if not training.proximal_mu or (method.exchanges and not method.rule.stacks):
        return
    why = "adds its factors to the frozen weights" if method.rule.stacks else "makes no global adapter"
    raise FedpeftError(
        f"training.proximal_mu holds what is trained near the global adapter, and "
        f"method.aggregation={method.aggregation!r} {why}: use 'fedavg' or 'pia', or leave training.proximal_mu out.",
        setting="training.proximal_mu",
    )
