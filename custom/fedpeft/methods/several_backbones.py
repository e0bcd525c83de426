# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Refuse settings of a method that do not go with different backbones in one federation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpeft import methods
from fedpeft.core.errors import FedpeftError
from fedpeft.core.layer_matching import SETTING
from fedpeft.methods.setting_limits import MOST_LAYERS

if TYPE_CHECKING:
    from fedpeft.methods.settings import MethodSettings


def check_backbones(method: MethodSettings) -> None:
    """Refuse several backbones where what is averaged means something else in another one.

    Raises:
        FedpeftError: naming the method.
    """
    if method.exchanges and not method.method.unequal_backbones:
        able = ", ".join(name for name in methods.METHODS.own_names() if methods.get(name).unequal_backbones)
        raise FedpeftError(
            f"method.name is {method.name!r}, which exchanges values that belong to one backbone: use the same at all "
            f"sites, or one of {able}.",
            setting="method.name",
        )


def check_depths(method: MethodSettings) -> None:
    """Refuse backbones of different depth where layers cannot be matched.

    Raises:
        FedpeftError: naming the setting.
    """
    deepest = method.matched_layers
    if deepest is None:
        return
    if not 1 <= deepest <= MOST_LAYERS:
        raise FedpeftError(
            f"matched_layers is {deepest}, it must be from 1 to {MOST_LAYERS}: give those of the deepest backbone.",
            setting=SETTING,
        )
    if not method.exchanges:
        return
    check_backbones(method)
    remedy = "leave out one of them"
    if not method.method.layers:
        reason = f"name={method.name!r} trains nothing layer by layer"
    elif method.secure_sum:
        reason = "secure_sum adds up the same tensors of all sites"
    elif method.initialization == "own":
        reason = "all sites start from the adapter of one that has all layers, not with initialization='own'"
    elif method.aligns and method.pia.follows_agreement:
        reason, remedy = "pia.share='agreement' compares whole adapters", "give a number as pia.share (the paper: 0.5)"
    else:
        return
    raise FedpeftError(f"matched_layers is {deepest}, and {reason}: {remedy}.", setting=SETTING)
