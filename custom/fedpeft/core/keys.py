# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Keys: the names of tensors in states, messages and files. Their grammar, and functions that read them.

    layer.<l>.<slot>.<tensor>    of an adapter, in a slot ("attention", "output", "query") of transformer layer l
    shared.<tensor>              of an adapter, shared by all its layers (Compacter's rule)
    backbone.<parameter>         of the backbone itself, by its name in the model
    head.<parameter>             of the head, where it is federated
    private.<key>                any of these, of a tensor that never leaves its site: no message has such a key

A slot in one layer, `layer.<l>.<slot>`, is a place. Only the keys of the backbone depend on the names of its modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fedpeft.core.errors import FedpeftError

SHARED, BACKBONE, HEAD, PRIVATE = "shared.", "backbone.", "head.", "private."
SLOT = r"[a-z][a-z0-9_]*"
_SLOT_KEY = re.compile(rf"layer\.(\d{{1,5}})\.({SLOT})\.([A-Za-z_][A-Za-z_0-9.]*)")
_SHARED_KEY = re.compile(r"shared\.[a-z_]+")
_BACKBONE_KEY = re.compile(r"backbone(\.[A-Za-z_0-9]+)+")
_HEAD_KEY = re.compile(r"head(\.[A-Za-z_0-9]+)+")
_LAYER_IN_BACKBONE = re.compile(r"\.(?:layers?|h|blocks)\.(\d+)\.")


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
    """Return whether a name has one of the four forms that messages may have."""
    return any(form.fullmatch(key) for form in (_SLOT_KEY, _SHARED_KEY, _BACKBONE_KEY, _HEAD_KEY))


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


def belongs(key: str, layers: Sequence[int] | None) -> bool:
    """Return whether a tensor is trained and sent with these layers: theirs, shared (Compacter's rule), or the head."""
    if layers is None or key.startswith(HEAD):
        return True
    return layer_of(key) in layers or (bool(layers) and key.removeprefix(PRIVATE).startswith(SHARED))


def by_place(keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group keys: place -> tensor name -> key; a key without a slot forms a place of its own."""
    grouped: dict[str, dict[str, str]] = {}
    for key in keys:
        match = _SLOT_KEY.fullmatch(key)
        place, name = (place_of(int(match[1]), match[2]), match[3]) if match else (key, key)
        grouped.setdefault(place, {})[name] = key
    return grouped
