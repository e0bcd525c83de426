# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Names of tensors as they travel and are kept: the one grammar, and all that is read off a name.

    layer.<l>.<slot>.<tensor>    of an adapter, in a slot ("attention", "output", "query") of transformer layer l
    shared.<tensor>              of an adapter, shared by all its layers (Compacter's rule)
    backbone.<parameter>         of the backbone itself, by its name in the model

A slot in one layer, `layer.<l>.<slot>`, is a place. No name depends on how the backbone calls its modules, but for the
last form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedpeft.errors import FedpeftError

SHARED, BACKBONE = "shared.", "backbone."
SLOT = r"[a-z][a-z0-9_]*"
_SLOT_KEY = re.compile(rf"layer\.(\d{{1,5}})\.({SLOT})\.([A-Za-z_][A-Za-z_0-9.]*)")
_SHARED_KEY = re.compile(r"shared\.[a-z_]+")
_BACKBONE_KEY = re.compile(r"backbone(\.[A-Za-z_0-9]+)+")
_LAYER_IN_BACKBONE = re.compile(r"\.layer\.(\d+)\.")


class SlotKey(NamedTuple):
    """A key taken apart: `layer.<layer>.<slot>.<tensor>`."""

    layer: int
    slot: str
    tensor: str

    @property
    def place(self) -> str:
        """`layer.<layer>.<slot>`."""
        return place_of(self.layer, self.slot)


def place_of(layer: int, slot: str) -> str:
    """`layer.<layer>.<slot>`."""
    return f"layer.{layer}.{slot}"


def parse_key(key: str) -> SlotKey | None:
    """Take an adapter's key apart; None for one that is shared between layers (`shared.rule`).

    Raises:
        FedpeftError: it is neither.
    """
    if match := _SLOT_KEY.fullmatch(key):
        return SlotKey(int(match[1]), match[2], match[3])
    if _SHARED_KEY.fullmatch(key):
        return None
    raise FedpeftError(
        f"key {key!r:.120} is not an adapter key: it should read layer.<number>.<slot>.<tensor> or shared.<name>."
    )


def is_key(key: str) -> bool:
    """Whether a name is of one of the three forms."""
    return any(form.fullmatch(key) for form in (_SLOT_KEY, _SHARED_KEY, _BACKBONE_KEY))


def layer_of(key: str) -> int | None:
    """The transformer layer of a tensor, None where it belongs to none."""
    if key.startswith(BACKBONE):
        match = _LAYER_IN_BACKBONE.search(key)
        return int(match[1]) if match else None
    match = _SLOT_KEY.fullmatch(key)
    return int(match[1]) if match else None


def layers_of(keys: Iterable[str]) -> list[int]:
    """The transformer layers among keys, rising."""
    return sorted({layer for key in keys if (layer := layer_of(key)) is not None})


def belongs(key: str, layers: Sequence[int] | None) -> bool:
    """Whether a tensor is trained and sent with these layers: theirs, or shared by all (Compacter's rule)."""
    return layers is None or layer_of(key) in layers or (bool(layers) and key.startswith(SHARED))


def by_place(keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group keys: place -> tensor name -> key; a key that is of no slot is a place of its own."""
    grouped: dict[str, dict[str, str]] = {}
    for key in keys:
        match = _SLOT_KEY.fullmatch(key)
        place, name = (place_of(int(match[1]), match[2]), match[3]) if match else (key, key)
        grouped.setdefault(place, {})[name] = key
    return grouped
