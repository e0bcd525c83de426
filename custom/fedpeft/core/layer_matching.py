# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Match the layers of backbones of different depth: what travels has the layer numbers of the deepest backbone.

A site numbers its own L_s layers from 0. With L layers in the deepest backbone, its layer l is the layer

    l  ->  floor(l (L - 1) / (L_s - 1) + 1/2)

of that one: the first is the first, the last is the last, and no two are the same because L_s <= L. A single layer is
the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import layers_of, parse_key, place_of, renumbered

T = TypeVar("T")
SETTING = "method.matched_layers"
MAX_LISTED = 12  # numbers in an error


def matched(own: int, deepest: int, *, owner: str = "this backbone") -> tuple[int, ...]:
    """Return the number of each of L_s layers of a backbone in the deepest one, of L layers."""
    if own > deepest:
        raise FedpeftError(
            f"{owner} has {own} layers, and {SETTING} is {deepest}: set it to the layers of the deepest backbone.",
            setting=SETTING,
        )
    if own == 1:
        return (deepest - 1,)
    return tuple((2 * layer * (deepest - 1) + own - 1) // (2 * (own - 1)) for layer in range(own))


def all_layers(keys: Iterable[str], deepest: int) -> bool:
    """Return whether tensors are those of a backbone as deep as the deepest."""
    return layers_of(keys) == list(range(deepest))


def one_layer(shapes: Mapping[str, Sequence[int]], deepest: int, *, owner: str) -> dict[str, list[int]]:
    """Return an adapter's shapes as if its backbone had one layer, so that backbones of any depth can be compared."""
    reduced: dict[str, list[int]] = {}
    layers: dict[str, list[int]] = {}
    for key, shape in shapes.items():
        parts = parse_key(key) if key.startswith("layer.") else None
        name = f"{place_of(0, parts.slot)}.{parts.tensor}" if parts else key
        if parts:
            layers.setdefault(name, []).append(parts.layer)
        if reduced.setdefault(name, list(shape)) != list(shape):
            raise FedpeftError(
                f"{owner} has {key} with shape {list(shape)} and the same tensor of another layer with "
                f"{reduced[name]}: layers are matched where all of a site are alike, make method.settings so.",
                setting=SETTING,
            )
    own = len(layers_of(shapes))
    expected = list(matched(own, deepest, owner=owner)) if layers else []
    for name, numbers in layers.items():
        if sorted(numbers) != expected:
            raise FedpeftError(
                f"{owner} has {name.removeprefix('layer.0.')} in layers {_listed(sorted(numbers))}, and {own} "
                f"layers are matched with {_listed(expected)} of {deepest}: the adapter must be in all layers of a "
                f"backbone whose stacks are equally deep.",
                setting=SETTING,
            )
    return reduced


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:MAX_LISTED])) + ", ..." * (len(numbers) > MAX_LISTED)


@dataclass(frozen=True)
class LayerNumbers:
    """The numbers of a site's layers in what it sends and receives, by its own number; None: the same."""

    sent: Mapping[int, int] | None = None

    @classmethod
    def of(cls, layers: int, deepest: int | None) -> LayerNumbers:
        """Return those of a backbone."""
        return cls(None if deepest is None else dict(enumerate(matched(layers, deepest))))

    @classmethod
    def of_adapter(cls, shapes: Mapping[str, Sequence[int]], *, layers: int, deepest: int | None) -> LayerNumbers:
        """Return those of a backbone with an adapter in it."""
        numbers = cls.of(layers, deepest)
        if deepest is not None:
            one_layer(numbers.to_send(shapes), deepest, owner="this backbone")
        return numbers

    def to_send(self, state: Mapping[str, T]) -> dict[str, T]:
        """Return a state of the site with the numbers that travel."""
        return _with_numbers(state, self.sent)

    def received(self, state: Mapping[str, T]) -> dict[str, T]:
        """Return a received state with the site's own numbers."""
        return _with_numbers(state, self.sent and {number: own for own, number in self.sent.items()})


def _with_numbers(state: Mapping[str, T], numbers: Mapping[int, int] | None) -> dict[str, T]:
    if numbers is None:
        return dict(state)
    return {renumbered(key, numbers): value for key, value in state.items()}
