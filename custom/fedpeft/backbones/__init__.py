# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Backbones by name. A new one is one file with a `Pretrained` and one line below; imported when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpeft.errors import FedpeftError
from fedpeft.registry import Registry
from fedpeft.settings import one_of

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A backbone as it is registered.

    Args:
        build: from `BackboneSettings` to a module as `fedpeft.backbones.build` describes it.
        usual: its default weights, a folder of the package or a hub name.
        skeleton: the model of these weights, as `build` returns it, without them: on torch's meta device.
        tiny: its figures compare methods and say nothing about medicine; every table and picture of them says so.
    """

    build: Callable[[BackboneSettings], nn.Module]
    usual: str
    skeleton: Callable[[], nn.Module]
    tiny: bool = False


BACKBONES: Registry[Pretrained] = Registry("backbone", "fedpeft.backbones", Pretrained)
register, names = BACKBONES.register, BACKBONES.names


def usual_source(name: str) -> str:
    """Return the folder of the package, or the hub name, of a backbone's default weights."""
    return BACKBONES.get(name).usual


def skeleton(name: str) -> nn.Module:
    """Return a backbone without weights, on torch's meta device: its modules and shapes need neither memory nor hub."""
    return BACKBONES.get(name).skeleton()


def is_tiny(name: str) -> bool:
    """Return whether a backbone is too small for figures of medical meaning."""
    return BACKBONES.get(name).tiny


@dataclass(frozen=True, kw_only=True)
class BackboneSettings:
    """Which pre-trained model reads image and question.

    Args:
        name: registered name (`fedpeft.backbones.names()`).
        source: a local folder or a hub name in the same layout; None: the backbone's default weights.
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
    return BACKBONES.get(settings.name).build(settings)


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


register("tiny-vilt", "fedpeft.backbones.vilt:TINY_VILT")
register("vilt", "fedpeft.backbones.vilt:VILT")
