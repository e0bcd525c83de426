# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Keys: the names of tensors in states, messages and files. Their grammar, and functions that read them.

    layer.<l>.<slot>.<tensor>    of an adapter, in a slot ("attention", "output", "query") of transformer layer l
    shared.<tensor>              of an adapter, shared by all its layers (Compacter's rule)
    backbone.<parameter>         of the backbone itself, by its name in the model
    connector.<parameter>        of the backbone's connector, which trains beside the adapter in every round
    head.<parameter>             of the head, where it is federated
    private.<key>                any of these, for a tensor that never leaves its site: no message has such a key

A slot in one layer, `layer.<l>.<slot>`, is a place. Only the keys of the backbone depend on the names of its modules.

Where backbones differ in depth, messages have the layer numbers of the deepest. A site numbers its own L_s layers from
0. With L layers in the deepest backbone, the site's layer l has there the number

    l  ->  floor(l (L - 1) / (L_s - 1) + 1/2)

The first is the first, the last is the last, and no two are the same because L_s <= L. A single layer is the last one.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from fedpeft.core.errors import FedpeftError

SHARED, BACKBONE, CONNECTOR, HEAD, PRIVATE = "shared.", "backbone.", "connector.", "head.", "private."
SLOT = r"[a-z][a-z0-9_]*"
# one spelling for each place, so that no two keys are one tensor
_SLOT_KEY = re.compile(rf"layer\.(0|[1-9][0-9]{{0,4}})\.({SLOT})\.([A-Za-z_][A-Za-z_0-9.]*)")
_SHARED_KEY = re.compile(r"shared\.[a-z_]+")
_BACKBONE_KEY = re.compile(r"backbone(\.[A-Za-z_0-9]+)+")
_WHOLE_KEY = re.compile(r"(connector|head)(\.[A-Za-z_0-9]+)+")
_LAYER_IN_BACKBONE = re.compile(r"\.(?:layers?|h|blocks)\.([0-9]+)\.")


class SlotKey(NamedTuple):
    """The parts of a key `layer.<layer>.<slot>.<tensor>`."""

    layer: int
    slot: str
    tensor: str

    @property
    def place(self) -> str:
        """The key's place, `layer.<layer>.<slot>`."""
        return place_of(self.layer, self.slot)


def place_of(layer: int, slot: str) -> str:
    """Return the name of a place, `layer.<layer>.<slot>`."""
    return f"layer.{layer}.{slot}"


def parse_key(key: str) -> SlotKey | None:
    """Split an adapter's key into its parts; None for a key that layers share (`shared.rule`)."""
    if match := _SLOT_KEY.fullmatch(key):
        return SlotKey(int(match[1]), match[2], match[3])
    if _SHARED_KEY.fullmatch(key):
        return None
    raise FedpeftError(
        f"key {key!r:.120} is not an adapter key: it must read layer.<number>.<slot>.<tensor> or shared.<name>."
    )


def is_key(key: str) -> bool:
    """Return whether a name has one of the five forms that messages may have."""
    return any(form.fullmatch(key) for form in (_SLOT_KEY, _SHARED_KEY, _BACKBONE_KEY, _WHOLE_KEY))


def layer_of(key: str) -> int | None:
    """Return the transformer layer of a tensor, or None if it belongs to no layer."""
    key = key.removeprefix(PRIVATE)
    if key.startswith(BACKBONE):
        match = _LAYER_IN_BACKBONE.search(key)
        return int(match[1]) if match else None
    match = _SLOT_KEY.fullmatch(key)
    return int(match[1]) if match else None


def renumbered(key: str, numbers: Mapping[int, int]) -> str:
    """Return a key of a slot with another number of its layer; any other key stays as it is."""
    match = _SLOT_KEY.fullmatch(key)
    if not match:
        return key
    if (layer := int(match[1])) not in numbers:
        raise FedpeftError(f"{key} is of a layer that this backbone lacks: send a site the tensors of its own layers.")
    return f"{place_of(numbers[layer], match[2])}.{match[3]}"


def layers_of(keys: Iterable[str]) -> list[int]:
    """Return the transformer layers that occur in keys, ascending."""
    return sorted({layer for key in keys if (layer := layer_of(key)) is not None})


def layer_numbers(layers: Iterable[int] | None) -> list[int] | None:
    """Return the layers that someone chose as plain numbers, None for all.

    Raises:
        FedpeftError: a mask, whose True would be layer 1, or no whole numbers.
    """
    if layers is None:
        return None
    numbers = []
    try:
        for layer in layers:
            if isinstance(layer, bool) or str(getattr(layer, "dtype", "")).endswith("bool"):
                raise FedpeftError(
                    "layers is a mask of True and False, it must be the numbers of layers: give np.flatnonzero(mask)."
                )
            numbers.append(operator.index(layer))
    except TypeError:
        raise FedpeftError(f"layers is {layers!r:.80}, it must be a list of whole numbers, counted from 0.") from None
    return numbers


def belongs(key: str, layers: Sequence[int] | None) -> bool:
    """Return whether a tensor is trained and sent with these layers: as theirs, shared by all, or always."""
    if layers is None or key.startswith((CONNECTOR, HEAD)):
        return True
    return layer_of(key) in layers or (bool(layers) and key.removeprefix(PRIVATE).startswith(SHARED))


def only_connector(state: Mapping[str, T]) -> dict[str, T]:
    """Return the tensors of the backbone's connector."""
    return {key: value for key, value in state.items() if key.startswith(CONNECTOR)}


def without_connector(state: Mapping[str, T]) -> dict[str, T]:
    """Return all tensors but those of the backbone's connector."""
    return {key: value for key, value in state.items() if not key.startswith(CONNECTOR)}


def only_head(state: Mapping[str, T]) -> dict[str, T]:
    """Return the head of a state by its own names, empty if it has none."""
    return {key.removeprefix(HEAD): value for key, value in state.items() if key.startswith(HEAD)}


def without_head(state: Mapping[str, T]) -> dict[str, T]:
    """Return all tensors but those of a head."""
    return {key: value for key, value in state.items() if not key.startswith(HEAD)}


def group_by_place(keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group keys: place -> tensor name -> key; a key without a slot forms a place of its own.

    Places are sorted by layer and slot, names by the alphabet, so that results do not depend on the order of tensors.
    """
    grouped: dict[tuple[int, str, str], dict[str, str]] = {}
    for key in sorted(keys):
        match = _SLOT_KEY.fullmatch(key)
        layer, slot, name = (int(match[1]), match[2], match[3]) if match else (-1, key, key)
        place = place_of(layer, slot) if match else key
        grouped.setdefault((layer, slot, place), {})[name] = key
    return {place: names for (*_, place), names in sorted(grouped.items(), key=lambda one: one[0])}


T = TypeVar("T")
MATCHED_LAYERS = "method.matched_layers"
MAX_LISTED = 12  # layer numbers in an error


def matched_layers(own: int, deepest: int, *, owner: str = "this backbone") -> tuple[int, ...]:
    """Return the number of each of L_s layers of a backbone in the deepest one, of L layers."""
    if own > deepest:
        raise FedpeftError(
            f"{owner} has {own} layers, and {MATCHED_LAYERS} is {deepest}: set it to the layers of the deepest "
            f"backbone.",
            setting=MATCHED_LAYERS,
        )
    if own == 1:
        return (deepest - 1,)
    return tuple((2 * layer * (deepest - 1) + own - 1) // (2 * (own - 1)) for layer in range(own))


def all_layers(keys: Iterable[str], deepest: int) -> bool:
    """Return whether tensors have all layers of the deepest backbone."""
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
                setting=MATCHED_LAYERS,
            )
    own = len(layers_of(shapes))
    expected = list(matched_layers(own, deepest, owner=owner)) if layers else []
    for name, numbers in layers.items():
        if sorted(numbers) != expected:
            raise FedpeftError(
                f"{owner} has {name.removeprefix('layer.0.')} in layers {_listed(sorted(numbers))}, and {own} "
                f"layers are matched with {_listed(expected)} of {deepest}: the adapter must be in all layers of a "
                f"backbone whose stacks are equally deep.",
                setting=MATCHED_LAYERS,
            )
    return reduced


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:MAX_LISTED])) + ", ..." * (len(numbers) > MAX_LISTED)


@dataclass(frozen=True)
class LayerNumbers:
    """The numbers of a site's layers in what it sends and receives, by its own number; None: the same."""

    sent: Mapping[int, int] | None = None

    @classmethod
    def for_backbone(cls, layers: int, deepest: int | None) -> LayerNumbers:
        """Return the numbers of a backbone's layers."""
        return cls(None if deepest is None else dict(enumerate(matched_layers(layers, deepest))))

    @classmethod
    def for_adapter(cls, shapes: Mapping[str, Sequence[int]], *, layers: int, deepest: int | None) -> LayerNumbers:
        """Return the numbers of a backbone's layers; refuse an adapter that cannot be matched."""
        numbers = cls.for_backbone(layers, deepest)
        if deepest is not None:
            one_layer(numbers.renumber_to_send(shapes), deepest, owner="this backbone")
        return numbers

    def renumber_to_send(self, state: Mapping[str, T]) -> dict[str, T]:
        """Return a state of the site with the layer numbers of messages."""
        return _renumber_layers(state, self.sent)

    def received(self, state: Mapping[str, T]) -> dict[str, T]:
        """Return a received state with the site's own layer numbers."""
        return _renumber_layers(state, self.sent and {number: own for own, number in self.sent.items()})


def _renumber_layers(state: Mapping[str, T], numbers: Mapping[int, int] | None) -> dict[str, T]:
    if numbers is None:
        return dict(state)
    return {renumbered(key, numbers): value for key, value in state.items()}
