# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""States with factors: which multiply to a product, where those of LoRA are, and how they stand side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import SHARED, by_place
from fedpeft.core.states import State

FACTORS = ("A", "B")
RANK_AXIS = {"A": 0, "B": 1}
MAX_RANKS = 2  # times the largest rank that a product can have
PAIRS = (FACTORS, ("basis", "coefficients"))  # of a place; LoRA's, and those of prompts (`fedpeft.methods.prompts`)


class Pair(NamedTuple):
    """Keys of two factors that are averaged by their product."""

    place: str
    down: str
    ups: tuple[str, ...]


def lora_pairs(keys: Iterable[str]) -> list[Pair]:
    """Return the pairs A and B."""
    return [pair for pair in product_pairs(keys) if pair.down.endswith(".A")]


def product_pairs(keys: Iterable[str]) -> list[Pair]:
    """Return the pairs of all kinds, in which places may share their first factor, `shared.basis`."""
    places, pairs = by_place(keys), []
    for down, up in PAIRS:
        pairs += [Pair(place, names[down], (names[up],)) for place, names in places.items() if {down, up} <= {*names}]
        ups = tuple(names[up] for names in places.values() if up in names and down not in names)
        if ups and f"{SHARED}{down}" in places:
            pairs.append(Pair("", f"{SHARED}{down}", ups))
    return pairs


def is_factor(key: str) -> bool:
    """Return whether a key is that of one of the two factors."""
    return key.endswith((".A", ".B"))


def factor_places(state: State) -> dict[str, dict[str, str]]:
    """Return the places that have factors, with the keys of all their tensors; each must have both."""
    places = {}
    for place, names in by_place(state).items():
        if has := set(FACTORS) & names.keys():
            if len(has) < len(FACTORS):
                raise FedpeftError(f"{place} has only the factor {min(has)}: send both.")
            places[place] = names
    return places


def extended(before: State, added: State) -> State:
    """Return an adapter with further factors behind those that it has; other tensors are replaced.

    More of them than `MAX_RANKS` times the largest rank of their product are refused: they would grow without end.
    """
    whole = {**before, **added}
    for names in factor_places(added).values():
        if added[names["A"]].shape[0] != added[names["B"]].shape[1]:
            raise FedpeftError(f"{names['A']} and {names['B']} have different ranks: send the adapter whole.")
        if names["A"] in before:
            for name, axis in RANK_AXIS.items():
                whole[names[name]] = torch.cat([before[names[name]], added[names[name]]], dim=axis)
        rank, largest = whole[names["A"]].shape[0], min(whole[names["A"]].shape[1], whole[names["B"]].shape[0])
        if rank > MAX_RANKS * largest:
            raise FedpeftError(
                f"{names['A']} would have {rank} rows, {MAX_RANKS * largest} are enough for any product: send the "
                f"adapter whole."
            )
    return whole


def of_equal_rank(state: State) -> State:
    """Return factors with the same product, in all places of the largest rank: zeros stand behind shorter ones."""
    places = factor_places(state)
    largest = max((state[names["A"]].shape[0] for names in places.values()), default=0)
    equal = dict(state)
    for names in places.values():
        for name, axis in RANK_AXIS.items():
            tensor = state[names[name]]
            shape = list(tensor.shape)
            shape[axis] = largest - shape[axis]
            equal[names[name]] = torch.cat([tensor, tensor.new_zeros(shape)], dim=axis)
    return equal
