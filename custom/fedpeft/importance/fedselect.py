# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FedSelect: layers that the last local training changed most.

    S^l = mean |theta_t - theta_previous|

Source: Tamirisa et al. 2024, FedSelect: Personalized Federated Learning with Customized Selection of Parameters.
"""

from __future__ import annotations

from torch import Tensor

from fedpeft.errors import FedpeftError
from fedpeft.importance.problem import Problem
from fedpeft.importance.saliency import over_layers
from fedpeft.importance.settings import LayerMean


def fedselect(problem: Problem, settings: LayerMean) -> Tensor:
    """Mean change of every layer's parameters, (L,) float64; looks at no data.

    Raises:
        FedpeftError: the previous parameters are missing or not those of the same layers.
    """
    if problem.previous is None:
        raise FedpeftError("fedselect compares with the parameters before the last training: pass previous=.")
    values = {}
    for number, (layer, group) in enumerate(problem.layers.items()):
        before = problem.previous.get(layer, ())
        if [tuple(t.shape) for t in before] != [tuple(p.shape) for p in group]:
            raise FedpeftError(
                f"the previous parameters of {problem.name(number)} have other shapes or are missing: give one "
                f"tensor for each of its {len(group)} parameters, in the same order."
            )
        values |= {id(p): (p.detach() - old.to(p)).abs() for p, old in zip(group, before, strict=True)}
    return over_layers(problem, values, settings.reduce)
