# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Refuse adapters that cannot be averaged before anything is computed; errors name site and key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedpeft.alignment.neurons import Neurons, neurons_of
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import by_place, is_key
from fedpeft.core.states import State

GLOBAL = "the global adapter"


def check_round(
    states: Sequence[State], counts: Sequence[float], owners: Sequence[str], previous: State | None
) -> dict[str, Tensor]:
    """Refuse a round whose adapters do not fit together.

    Args:
        states: one adapter state for each site.
        counts: training samples of each site.
        owners: their names in errors, e.g. `site slake`.
        previous: the global adapter so far, or None.

    Returns:
        Every key of the federation with an example of its tensor, in the order of `previous`.

    Raises:
        FedpeftError: names the site, and the key if one is wrong.
    """
    if not states or not len(states) == len(counts) == len(owners) == len(set(owners)):
        raise FedpeftError(
            f"there are {len(states)} adapters, {len(counts)} counts and {len(set(owners))} different names: give one "
            f"of each for every site, and at least one site."
        )
    model = dict(previous or {})
    check_tensors(model, GLOBAL)
    for owner, count, state in zip(owners, counts, states, strict=True):
        if not (math.isfinite(count) and count > 0):
            raise FedpeftError(f"{owner} counts {count} training samples: it must be a finite number above 0.")
        check_tensors(state, owner)
        check_alike(state, owner, model, GLOBAL if previous else "another adapter", complete=bool(previous))
        model = model | {key: tensor for key, tensor in state.items() if key not in model}
    if not model:
        raise FedpeftError("no adapter has a tensor, so there is nothing to average: give at least one.")
    return model


def check_tensors(state: State, owner: str, *, check_keys: bool = True) -> None:
    """Refuse values that are not finite floating-point tensors, and wrong keys.

    Without a schema (that is `fedpeft.core.states`): widths may differ between sites, and whoever calls this from
    a notebook has announced nothing.

    Args:
        state: key -> tensor.
        owner: its name in errors, e.g. `site slake`.
        check_keys: whether keys must follow the grammar of `fedpeft.core.keys`.

    Raises:
        FedpeftError: names owner and key.
    """
    for key, tensor in state.items():
        if check_keys and not is_key(key):
            raise FedpeftError(
                f"{owner} has {key!r}, which is not a key such as layer.0.output.down.weight: make states with "
                f"fedpeft.adapters.adapter_state(model), not with PEFT's get_peft_model_state_dict."
            )
        if not isinstance(tensor, Tensor):
            raise FedpeftError(
                f"{owner} has {key} as {_type_name(tensor)}: pass torch tensors, for instance torch.as_tensor(...)."
            )
        if not tensor.is_floating_point():
            raise FedpeftError(f"{owner} has {key} as {tensor.dtype}: only floating-point tensors can be averaged.")
        # A finite sum proves finite elements, ten times faster than checking each; an infinite one may be an overflow.
        total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
        if not torch.isfinite(total) and not torch.isfinite(tensor).all():
            raise FedpeftError(f"{owner} has NaN or infinity in {key}: its training diverged, leave out this round.")


def check_alike(state: State, owner: str, model: State, model_owner: str, *, complete: bool = True) -> None:
    """Refuse an adapter that differs from another in more than the number of its hidden neurons.

    Args:
        state: may lack whole places (layers that were not trained), but no tensor of a place that it has.
        owner: its name in errors.
        model: the state that it must match.
        model_owner: the name of that in errors.
        complete: whether the model has all places; otherwise only common places are compared.

    Raises:
        FedpeftError: a tensor is missing, unknown or of another shape; names owner and key.
    """
    expected = by_place(model)
    for place, names in by_place(state).items():
        neurons = neurons_of(names)
        if neurons is not None:
            _check_width(state, place, names, neurons, owner)
        if place not in expected and not complete:
            continue
        for key in names.values():
            if key not in model:
                raise FedpeftError(f"{owner} has {key}, which {model_owner} lacks: use one kind of adapter everywhere.")
        for key in expected[place].values():
            if key not in state:
                raise FedpeftError(f"{owner} lacks {key}: a layer that is sent must be sent with all its tensors.")
        for name, key in names.items():
            if _free_shape(state[key], name, neurons) != _free_shape(model[key], name, neurons):
                raise FedpeftError(
                    f"{owner} has {key} with shape {tuple(state[key].shape)}, {model_owner} has it with "
                    f"{tuple(model[key].shape)}: nothing but an adapter's number of neurons may differ."
                )


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _check_width(state: State, place: str, names: Mapping[str, str], neurons: Neurons, owner: str) -> None:
    """Refuse a place whose tensors differ in the number of neurons, or which lacks a shared tensor of its kind."""
    for key in neurons.shared:
        if key not in state:
            raise FedpeftError(f"{owner} has {place} without {key}, which an adapter of kind {neurons.kind} needs.")
    first, width = "", 0
    for name, axis in {**neurons.incoming, **neurons.outgoing}.items():
        if name not in names:
            continue
        key, shape = names[name], tuple(state[names[name]].shape)
        blocks = state[names[neurons.counts_blocks]].shape[0] if name in neurons.blocked else 1
        if axis >= len(shape) or shape[axis] == 0 or shape[axis] % blocks:
            raise FedpeftError(
                f"{owner} has {key} with shape {shape}: its axis {axis} must hold the adapter's neurons."
            )
        if not first:
            first, width = key, shape[axis] // blocks
        elif shape[axis] // blocks != width:
            raise FedpeftError(
                f"{owner} has {width} neurons in {first} but {shape[axis] // blocks} in {key}: one adapter, one width."
            )


def _free_shape(tensor: Tensor, name: str, neurons: Neurons | None) -> tuple[int | None, ...]:
    """Return the shape with None at the axis of the hidden neurons."""
    axis = {**neurons.incoming, **neurons.outgoing}.get(name) if neurons else None
    return tuple(None if i == axis else size for i, size in enumerate(tensor.shape))
