# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FedSelect: layers that the last local training changed most.

    S^l = mean |theta_t - theta_previous|

Source: Tamirisa et al. 2024, FedSelect: Personalized Federated Learning with Customized Selection of Parameters.
"""

from __future__ import annotations

from torch import Tensor

from fedpeft.core.errors import FedpeftError
from fedpeft.importance.saliency import over_layers
from fedpeft.importance.scoring_task import ScoringTask
from fedpeft.importance.settings import FedSelectSettings


def fedselect(task: ScoringTask, settings: FedSelectSettings) -> Tensor:
    """Return the mean change of every layer's parameters, (L,) float64; uses no data.

    Raises:
        FedpeftError: the previous parameters are missing or of other layers.
    """
    if task.previous is None:
        raise FedpeftError("fedselect compares with the parameters before the last training: pass previous=.")
    values: dict[int, Tensor] = {}
    for number, (layer, group) in enumerate(task.layers.items()):
        before = task.previous.get(layer, ())
        if [tuple(t.shape) for t in before] != [tuple(p.shape) for p in group]:
            raise FedpeftError(
                f"the previous parameters of {task.name(number)} have other shapes or are missing: give one "
                f"tensor for each of its {len(group)} parameters, in the same order."
            )
        values |= {id(p): (p.detach() - old.to(p)).abs() for p, old in zip(group, before, strict=True)}
    return over_layers(task, values, settings.reduce)
