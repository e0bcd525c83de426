# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""States with factors: which multiply to a product, how LoRA's stand side by side, are added and drawn anew.

In FLoRA a site adds the products of what all sites have learned to the frozen matrices beside which they stand, and
trains on with fresh factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import SHARED, group_by_place
from fedpeft.core.seeds import derive
from fedpeft.core.states import State, computable, plain

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
    places, pairs = group_by_place(keys), []
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
    for place, names in group_by_place(state).items():
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


XAVIER = "xavier"
StartStd = float | str | None  # deviation of A's first values, or XAVIER; None: as PEFT draws them


class Product(NamedTuple):
    """A frozen matrix (m, n) and the scale with which a product `B A` is added to it."""

    weight: Tensor
    scale: float


class FrozenProducts:
    """The frozen matrices of a model, by place, to which products are added and then taken away again."""

    def __init__(self, products: Mapping[str, Product]) -> None:
        for place, product in products.items():
            if not product.weight.is_floating_point():
                raise FedpeftError(
                    f"the weights of {place} are quantized, which aggregation='stack' adds to: use aggregation='svd'."
                )
        self._products = dict(products)
        self._first = {place: product.weight.detach().clone() for place, product in products.items()}

    @plain
    def set(self, factors: State) -> None:
        """Make every matrix its first value plus its product: `<place>.B` (m, R) times `<place>.A` (R, n), if any."""
        for place, (weight, scale) in self._products.items():
            first = self._first[place]
            down, up = factors.get(f"{place}.A"), factors.get(f"{place}.B")
            if down is None or up is None:
                weight.copy_(first)
                continue
            if down.shape[0] != up.shape[1]:
                raise FedpeftError(f"{place} has factors of rank {down.shape[0]} and {up.shape[1]}: send equal ones.")
            added = computable(up).to(weight.device) @ computable(down).to(weight.device)
            weight.copy_(computable(first).to(weight.device) + scale * added)


def start_deviation(start_std: float | str, shape: tuple[int, ...]) -> float:
    """Return the deviation of first values of a factor (r, n): a number, or for XAVIER sqrt(2 / (r + n)).

    Source: Glorot and Bengio 2010, Understanding the difficulty of training deep feedforward neural networks.
    """
    return math.sqrt(2 / sum(shape)) if start_std == XAVIER else float(start_std)


def first_factor(shape: tuple[int, ...], seed: int, key: str, *, start_std: StartStd) -> Tensor:
    """Return first values of a factor A (r, n), float32 on the CPU; see `fresh_factors`."""
    generator = torch.Generator().manual_seed(derive(seed, key))
    empty = torch.empty(shape, device="cpu", dtype=torch.float32)
    if start_std is not None:
        return empty.normal_(0.0, start_deviation(start_std, shape), generator=generator)
    bound = 1 / math.sqrt(shape[1])
    return empty.uniform_(-bound, bound, generator=generator)


def fresh_factors(state: State, seed: int, *, start_std: StartStd = None) -> State:
    """Return a state whose factors are drawn anew, as LoRA begins: A uniform in 1 / sqrt(n), or normal, and B zero."""
    fresh = dict(state)
    for key, tensor in state.items():
        if key.endswith(".A"):
            fresh[key] = first_factor(tuple(tensor.shape), seed, key, start_std=start_std).to(tensor.dtype)
        elif key.endswith(".B"):
            fresh[key] = torch.zeros_like(tensor)
    return fresh
