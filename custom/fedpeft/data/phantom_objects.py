# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Procedural images with many classes in the domain of the tiny backbones, as Caltech101 and Flowers102 are of ViT's.

The pictures are drawn as those of pre-training were; no backbone saw these classes. `phantom_objects` has 32 that
differ much, a kind of finding in a region of the body; `phantom_flowers` has 32 that differ in details, a kind, its
shade and whether it lies in the upper or the lower half of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.data.labelled_images import class_example
from fedpeft.data.phantom_pictures import NO_PIXELS, TAKES, collection, generator, number_of_images, pictured
from fedpeft.data.phantom_scene import KINDS, MODALITIES, REGIONS, Finding, Scene, draw_look, render
from fedpeft.data.registry import DataSet
from fedpeft.data.schema import SiteData

if TYPE_CHECKING:
    from fedpeft.data.settings import DataSettings

Draw = Callable[[np.random.Generator], Scene]


def load(settings: DataSettings, *, classes: dict[str, Draw]) -> SiteData:
    """Make the images of one site, or its part of a data set that is shared out; all classes are equally likely.

    Args:
        settings: `site`, `seed`, `partition`, and `train_size`, `validation_size`, `test_size` (None: 210, 30, 90).
        classes: name -> how a scene of the class is drawn.
    """
    names, name = sorted(classes), collection(settings)
    drawn = generator(settings.seed, name).integers(len(names), size=number_of_images(settings))
    kinds = [names[i] for i in drawn]
    examples = (class_example(NO_PIXELS, kind, image_id=f"{name}-{n:05d}") for n, kind in enumerate(kinds))

    def draw(number: int, rng: np.random.Generator) -> np.ndarray:
        scene = classes[kinds[number]](rng)
        return render(scene, draw_look(scene.modality, rng), rng)

    return pictured(settings, settings.dataset, examples, draw)


def _scene(region: str, kind: str, quadrant: int, bright: bool, rng: np.random.Generator) -> Scene:
    finding = Finding(kind=kind, quadrant=quadrant, bright=bright, large=bool(rng.integers(2)))
    return Scene(region=region, modality=MODALITIES[rng.integers(len(MODALITIES))], findings=(finding,))


def _object(region: str, kind: str, rng: np.random.Generator) -> Scene:
    return _scene(region, kind, int(rng.integers(4)), bool(rng.integers(2)), rng)


def _flower(kind: str, bright: bool, upper: bool, rng: np.random.Generator) -> Scene:
    return _scene("head", kind, int(rng.integers(2)) + (0 if upper else 2), bright, rng)


OBJECTS: dict[str, Draw] = {
    f"{kind} in the {region}": partial(_object, region, kind) for region, kind in product(REGIONS, KINDS)
}
FLOWERS: dict[str, Draw] = {
    f"{shade} {kind}, {half}": partial(_flower, kind, shade == "bright", half == "upper")
    for kind, shade, half in product(KINDS, ("bright", "dark"), ("upper", "lower"))
}
DATASET = DataSet(
    load=partial(load, classes=OBJECTS), procedural=True, answers=lambda: tuple(sorted(OBJECTS)), takes=TAKES
)
FLOWERS_DATASET = DataSet(
    load=partial(load, classes=FLOWERS), procedural=True, answers=lambda: tuple(sorted(FLOWERS)), takes=TAKES
)
