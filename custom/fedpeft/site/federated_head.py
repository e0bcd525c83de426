# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A head that is averaged over the sites: its tensors travel beside the adapter's, under `head.<parameter>`."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedpeft.core.keys import HEAD
from fedpeft.core.states import State


def head_state(head: Mapping[str, Tensor]) -> State:
    """Return copies of a head's tensors on the CPU, under their keys in messages."""
    return {f"{HEAD}{name}": tensor.detach().cpu().clone() for name, tensor in head.items()}


def without_head(state: State) -> State:
    """Return what of a state belongs to the adapter."""
    return {key: tensor for key, tensor in state.items() if not key.startswith(HEAD)}


def only_head(state: State) -> State:
    """Return the head of a state by its own names, empty if it has none."""
    return {key.removeprefix(HEAD): tensor for key, tensor in state.items() if key.startswith(HEAD)}
