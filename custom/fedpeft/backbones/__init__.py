# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Backbones by name. A new one is one file and one registration in `registry.py`; imported when it is first used."""

from __future__ import annotations

from fedpeft.backbones.backbone import Backbone, Pretrained
from fedpeft.backbones.registry import BACKBONES, BackboneSettings
from fedpeft.core.errors import FedpeftError

__all__ = [
    "BACKBONES",
    "Backbone",
    "BackboneSettings",
    "Pretrained",
    "build",
    "default_source",
    "is_tiny",
    "names",
    "prepared",
    "register",
    "skeleton",
]

register, names = BACKBONES.register, BACKBONES.names


def default_source(name: str) -> str:
    """Return the folder of the package, or the hub name, of a backbone's default weights; empty: it has none."""
    return BACKBONES.get(name).default_source


def skeleton(name: str, source: str | None = None, *, download: bool = True) -> Backbone:
    """Return a backbone without weights, on torch's meta device: its modules and shapes need no memory.

    The configuration of a source, a folder or a hub name, is read; None: that of the default weights, or of the paper.
    `download` says whether a hub name's files may be fetched.
    """
    pretrained = BACKBONES.get(name)
    if source is None and not pretrained.default_source and not pretrained.sized:
        raise FedpeftError(
            f"backbone {name!r} has no weights of its own: name a folder or a hub name, fedpeft backbones SOURCE."
        )
    return pretrained.without_weights(source, download=download)


def prepared(settings: BackboneSettings, *, download: bool = True) -> Backbone | None:
    """Return a backbone without weights that prepares images and questions; None: it has no such form."""
    return BACKBONES.get(settings.name).prepared(settings, download=download)


def is_tiny(name: str) -> bool:
    """Return whether a backbone is too small for figures of medical meaning."""
    return BACKBONES.get(name).tiny


def build(settings: BackboneSettings, *, half: bool = False, download: bool = True) -> Backbone:
    """Load a backbone with its pre-trained weights in float32.

    With `half` the matrices of a large backbone are read in bfloat16, where it can do that. The site policy decides
    whether a hub name's files may be fetched (`download`).
    """
    return BACKBONES.get(settings.name).loaded(settings, half=half, download=download)
