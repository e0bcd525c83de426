# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Refuse federated schemes of the section `training` that mean nothing with a job's method."""

from __future__ import annotations

from typing import cast

from fedpeft.alignment.settings import PIASettings
from fedpeft.answering.personalizations import NONE
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.settings import MethodSettings


def check_schemes(method: MethodSettings, training: TrainingSettings) -> None:
    """Refuse FedProx and personalization where nothing global has the shape and the meaning of what a site trains.

    Raises:
        FedpeftError: names both settings, and what to use.
    """
    if training.proximal_mu:
        _check_global(method, "proximal_mu", "holds what is trained near the global adapter")
    if training.personalization == NONE:
        return
    chosen = f"is {training.personalization!r} and compares a site's own adapter with the global one"
    _check_global(method, "personalization", chosen)
    if not method.rule.averages:
        raise _refused(method, "personalization", chosen, "makes new factors in every round")
    reason = ""
    if method.aligns and cast(PIASettings, method.pia).client:
        reason = "with client PIA a site keeps its own adapter already: set method.pia.client to false"
    elif method.method.base:
        reason = f"method.name={method.name!r} keeps tensors of the site's own already: use {method.method.base!r}"
    elif not method.method.exchanges:
        reason = f"method.name={method.name!r} exchanges no adapter: use another method"
    if reason:
        raise FedpeftError(
            f"training.personalization is {training.personalization!r}, and {reason}, or leave "
            f"training.personalization out.",
            setting="training.personalization",
        )


def _check_global(method: MethodSettings, setting: str, does: str) -> None:
    if not method.exchanges:
        raise _refused(method, setting, does, "makes no global adapter")
    if method.rule.stacks:
        raise _refused(method, setting, does, "adds its factors to the frozen weights")


def _refused(method: MethodSettings, setting: str, does: str, why: str) -> FedpeftError:
    return FedpeftError(
        f"training.{setting} {does}, and method.aggregation={method.aggregation!r} {why}: use 'fedavg' or 'pia', or "
        f"leave training.{setting} out.",
        setting=f"training.{setting}",
    )
