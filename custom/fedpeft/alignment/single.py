# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The barycenter of single adapters: `integrate` without sites, layers or rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor

from fedpeft.alignment.checks import check_tensors
from fedpeft.alignment.integration import integrate_owned
from fedpeft.alignment.neurons import KINDS, Bottleneck, Tensors, neurons_of
from fedpeft.alignment.settings import PIASettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import suggestion

BOTTLENECK_NAMES = ("down.weight", "down.bias", "up.weight", "up.bias")
PLACE = "layer.0.adapter"  # `integrate` needs keys with a place; errors do not show this one


def barycenter(
    adapters: Sequence[Bottleneck | Tensors | tuple[Tensor | None, ...]],
    weights: Sequence[float] | None = None,
    **settings: Any,
) -> Bottleneck | dict[str, Tensor]:
    """Return the Wasserstein barycenter of single adapters, of any width.

    Args:
        adapters: each a `Bottleneck`, a tuple (down (r, d), down_bias (r), up (d, r), up_bias (d)) with None for a bias
            that does not exist, or a dictionary of one adapter's tensors (`A` and `B` for LoRA; `down.left`, ... and
            `shared.rule` for Compacter).
        weights: relative weights n_k; default: equal.
        **settings: of `PIASettings`, e.g. gamma=0.1.

    Returns:
        The barycenter, in the form of the first adapter, as wide as the widest.

    Raises:
        FedpeftError: an adapter in another form, adapters that do not fit together, an unknown setting; names the
            adapter as `adapters[k]`.

    Example:
        >>> merged = barycenter([site_a, site_b, site_c], gamma=0.1)
    """
    known = [field.name for field in fields(PIASettings)]
    for name in settings:
        if name not in known:
            raise FedpeftError(f"barycenter has no setting {name!r}: {suggestion(name, known)}.")
    owners = [f"adapters[{k}]" for k in range(len(adapters))]
    if not owners:
        raise FedpeftError("barycenter got no adapters: pass at least one Bottleneck(down, down_bias, up, up_bias).")
    tables = [_table(adapter, owner) for adapter, owner in zip(adapters, owners, strict=True)]
    states = [{_key(name): tensor for name, tensor in table.items()} for table in tables]
    try:
        merged, _ = integrate_owned(states, _weights(weights, owners), PIASettings(**settings), owners)
    except FedpeftError as error:
        raise FedpeftError(str(error).replace(f" in {PLACE},", ",").replace(f"{PLACE}.", "")) from error
    if isinstance(adapters[0], Mapping):
        return {name: merged[_key(name)] for name in tables[0]}
    return Bottleneck(*(merged.get(_key(name)) for name in BOTTLENECK_NAMES))


def _table(adapter: Any, owner: str) -> dict[str, Tensor]:
    """Return tensor name -> tensor of one adapter."""
    if isinstance(adapter, Mapping):
        table = {name: tensor for name, tensor in adapter.items() if tensor is not None}
        if neurons_of(table) is None:
            forms = "; ".join(", ".join(sorted(neurons.needs)) for neurons in KINDS.values())
            raise FedpeftError(f"{owner} has the tensors {', '.join(table) or 'none'}: an adapter has {forms}.")
    elif isinstance(adapter, tuple | list) and len(adapter) == len(BOTTLENECK_NAMES):
        table = {name: t for name, t in zip(BOTTLENECK_NAMES, adapter, strict=True) if t is not None}
        if not {"down.weight", "up.weight"} <= set(table):
            raise FedpeftError(f"{owner} has None for down or up: only a bias may be None.")
    else:
        form = f"a {type(adapter).__name__}" + (f" of {len(adapter)}" if isinstance(adapter, tuple | list) else "")
        raise FedpeftError(
            f"{owner} is {form}: pass Bottleneck(down, down_bias, up, up_bias), with None for a bias that does not "
            f"exist, or a dictionary of tensors."
        )
    check_tensors(table, owner, check_keys=False)
    return table


def _weights(weights: Sequence[float] | None, owners: Sequence[str]) -> list[float]:
    if weights is None:
        return [1.0] * len(owners)
    if len(weights) != len(owners):
        raise FedpeftError(f"weights has {len(weights)} numbers for {len(owners)} adapters: give one for each.")
    for weight, owner in zip(weights, owners, strict=True):
        if not (math.isfinite(weight) and weight > 0):
            raise FedpeftError(f"{owner} has the weight {weight!r}: it must be a finite number above 0.")
    return list(weights)


def _key(name: str) -> str:
    return name if name.startswith("shared.") else f"{PLACE}.{name}"
