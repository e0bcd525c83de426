# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Backbones by name. A new one is one file with `build(settings)` and one line below; imported when built."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from fedpeft.errors import FedpeftError
from fedpeft.settings import one_of

if TYPE_CHECKING:
    from torch import nn

_MODULES: dict[str, str] = {}
_USUAL: dict[str, str] = {}


def register(name: str, module: str, *, usual: str) -> None:
    """Make `BackboneSettings(name=name)` build through `module.build(settings)`.

    Args:
        name: the backbone's name in settings.
        module: dotted name of a module with `build(settings)`.
        usual: its usual weights, a folder of the package or a hub name.

    Raises:
        FedpeftError: the name is taken.
    """
    if name in _MODULES:
        raise FedpeftError(f"Backbone {name!r} is already registered by {_MODULES[name]}: choose another name.")
    _MODULES[name], _USUAL[name] = module, usual


def names() -> tuple[str, ...]:
    """Names of all registered backbones, in the order of their registration."""
    return tuple(_MODULES)


def usual_source(name: str) -> str:
    """The folder of the package, or the hub name, of a backbone's usual weights."""
    return _USUAL[name]


@dataclass(frozen=True, kw_only=True)
class BackboneSettings:
    """Which pre-trained model reads image and question.

    Args:
        name: registered name (`fedpeft.backbones.names()`).
        source: a local folder or a hub name in the same layout; None: the backbone's usual weights.
        image_size: pixels: both sides for tiny-vilt (images are squeezed to a square), the shortest side for vilt
            (the aspect ratio stays); None: what the weights were trained with.
        text_length: longest question in tokens, the rest is cut.

    Raises:
        FedpeftError: names the argument, its value and what is allowed.
    """

    name: str = "tiny-vilt"
    source: str | None = None
    image_size: int | None = None
    text_length: int = 40

    def __post_init__(self) -> None:
        one_of("name", self.name, names())
        if self.source is not None and (not isinstance(self.source, str) or not self.source.strip()):
            raise FedpeftError(
                f"source is {self.source!r}: give a folder or a hub name, or leave it out.", setting="source"
            )
        if self.image_size is not None and not _positive(self.image_size):
            raise FedpeftError(
                f"image_size is {self.image_size!r}, it must be a whole number of pixels, 1 or more.",
                setting="image_size",
            )
        if not _positive(self.text_length) or self.text_length < 3:
            raise FedpeftError(
                f"text_length is {self.text_length!r}, it must be a whole number of tokens, 3 or more.",
                setting="text_length",
            )


def build(settings: BackboneSettings) -> nn.Module:
    """Load a backbone with its pre-trained weights in float32.

    Returns:
        a module with `model`, `hidden_size`, `num_layers`, `family`, `collate(images, questions)` and
        `forward(**batch) -> (B, hidden_size)`.

    Raises:
        FedpeftError: the weights are missing, unreachable, damaged or of another architecture.
    """
    return import_module(_MODULES[settings.name]).build(settings)


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


register("tiny-vilt", "fedpeft.backbones.vilt", usual=str(Path(__file__).parent / "tiny_vilt"))
register("vilt", "fedpeft.backbones.vilt", usual="dandelin/vilt-b32-mlm")
