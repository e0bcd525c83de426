# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Procedural skin lesions with eight classes, as Fed-ISIC2019 and HAM10000 are used: out of the backbones' domain.

The tiny backbones saw gray shapes in quadrants; these are colored spots of any outline and texture. Six names of sites
are centers, each with its own camera (tint, light, magnification) and mix of classes; any other name has the first
center's. Shared out (`partition`), all images are of one center.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.data.labelled_images import class_example
from fedpeft.data.phantom_colors import Color
from fedpeft.data.phantom_pictures import NO_PIXELS, TAKES, collection, generator, number_of_images, pictured
from fedpeft.data.registry import DataSet
from fedpeft.data.schema import SiteData

if TYPE_CHECKING:
    from fedpeft.data.settings import DataSettings

SIZE = 48
SKIN: Color = (222, 180, 158)
PIGMENT: Color = (150, 95, 75)  # what all spots have in common
MIDDLE = (SIZE - 1) / 2
_ROWS, _COLUMNS = (axis.astype(np.float64) - MIDDLE for axis in np.mgrid[0:SIZE, 0:SIZE])


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesion:
    """How a class looks.

    Args:
        color, second: of the spot and of its texture.
        lobes: discs that make the outline; one is round.
        sharp: how fast the edge falls off, 1 / pixel.
        texture: plain, lines, dots, core (a disc in the middle) or scales.
    """

    color: Color
    second: Color
    lobes: int
    sharp: float
    texture: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Center:
    """A camera and the classes of its patients.

    Args:
        tint: factors of red, green and blue.
        vignette: how much darker the corners are, 0 to 1.
        magnification: of the spots.
        weights: of the classes, in their order.
    """

    tint: tuple[float, float, float]
    vignette: float
    magnification: float
    weights: tuple[int, ...]


LESIONS = {
    "melanoma": Lesion(color=(70, 40, 35), second=(30, 25, 45), lobes=4, sharp=0.5, texture="dots"),
    "melanocytic nevus": Lesion(color=(140, 90, 60), second=(110, 65, 45), lobes=1, sharp=0.4, texture="plain"),
    "basal cell carcinoma": Lesion(color=(215, 150, 145), second=(165, 40, 50), lobes=2, sharp=0.3, texture="lines"),
    "actinic keratosis": Lesion(color=(205, 130, 115), second=(235, 205, 180), lobes=3, sharp=0.2, texture="scales"),
    "benign keratosis": Lesion(color=(150, 105, 70), second=(225, 190, 130), lobes=2, sharp=1.0, texture="dots"),
    "dermatofibroma": Lesion(color=(165, 110, 85), second=(240, 215, 205), lobes=1, sharp=0.3, texture="core"),
    "vascular lesion": Lesion(color=(165, 35, 60), second=(110, 15, 50), lobes=2, sharp=0.6, texture="plain"),
    "squamous cell carcinoma": Lesion(
        color=(210, 125, 120), second=(245, 225, 205), lobes=4, sharp=0.5, texture="core"
    ),
}
CLASSES = tuple(LESIONS)
CENTERS = {
    "bcn": Center(tint=(1.0, 1.0, 1.0), vignette=0.0, magnification=1.0, weights=(5, 6, 5, 2, 2, 1, 1, 2)),
    "vidir-molemax": Center(tint=(1.05, 0.92, 0.9), vignette=0.0, magnification=0.8, weights=(1, 8, 1, 1, 3, 1, 1, 0)),
    "vidir-modern": Center(tint=(0.95, 1.0, 1.05), vignette=0.1, magnification=1.1, weights=(4, 6, 2, 1, 3, 1, 1, 0)),
    "rosendahl": Center(tint=(1.0, 0.95, 0.85), vignette=0.3, magnification=1.2, weights=(3, 3, 4, 3, 4, 1, 1, 3)),
    "mskcc": Center(tint=(0.9, 0.9, 0.95), vignette=0.0, magnification=1.3, weights=(3, 8, 0, 0, 2, 0, 0, 0)),
    "vienna-dias": Center(tint=(0.85, 0.8, 0.9), vignette=0.4, magnification=0.9, weights=(4, 8, 2, 0, 1, 0, 1, 0)),
}
USUAL = next(iter(CENTERS))


def load(settings: DataSettings) -> SiteData:
    """Make the images of one center, or a site's part of those of the first center.

    Args:
        settings: `site` (None: bcn), `seed`, `partition`, and `train_size`, `validation_size`, `test_size` (None: 210,
            30, 90).
    """
    center = CENTERS.get(settings.site or USUAL, CENTERS[USUAL])
    name = collection(settings)
    rng = generator(settings.seed, name)
    share = np.array(center.weights) / sum(center.weights)
    kinds = [CLASSES[kind] for kind in rng.choice(len(CLASSES), size=number_of_images(settings), p=share)]
    examples = (class_example(NO_PIXELS, kind, image_id=f"{name}-{n:05d}") for n, kind in enumerate(kinds))

    def draw(number: int, rng: np.random.Generator) -> np.ndarray:
        return render(LESIONS[kinds[number]], center, rng)

    return pictured(settings, USUAL, examples, draw)


def render(lesion: Lesion, center: Center, rng: np.random.Generator) -> np.ndarray:
    """Draw a lesion as a (SIZE, SIZE, 3) uint8 image."""
    inside = _outline(lesion.lobes, center.magnification, rng)
    spot = np.clip(inside * lesion.sharp, 0, 1)
    second = _TEXTURES[lesion.texture](inside, rng) * spot
    image = np.empty((SIZE, SIZE, 3))
    tone, light = 0.9 + 0.15 * rng.random(), 0.8 + 0.35 * rng.random()
    own_share = (
        0.3 + 0.5 * rng.random()
    )  # of the class in the color; the rest is pigment, so that color alone says little
    shade = 1 - center.vignette * (_ROWS**2 + _COLUMNS**2) / (2 * MIDDLE**2)
    for channel in range(3):
        color = PIGMENT[channel] + (lesion.color[channel] - PIGMENT[channel]) * own_share
        own = (color + (lesion.second[channel] - color) * second) * light
        image[:, :, channel] = (SKIN[channel] * tone * (1 - spot) + own * spot) * center.tint[channel]
    noise = rng.integers(-128, 129, size=(SIZE, SIZE, 3)) / 16  # of about 5 of 255
    return np.rint(np.clip(image * shade[:, :, None] + noise, 0, 255)).astype(np.uint8)


def _outline(lobes: int, magnification: float, rng: np.random.Generator) -> np.ndarray:
    """Return how far inside the spot a pixel lies, in pixels (negative outside)."""
    middle = (rng.random(2) - 0.5) * 8
    radius = (10 + 5 * rng.random()) * magnification
    inside = np.full((SIZE, SIZE), -np.inf)
    for number in range(lobes):
        away = (rng.random(2) - 0.5) * (1.4 * radius if number else 0)
        own = radius * (1 if lobes == 1 else 0.55 + 0.25 * rng.random())
        distance = np.sqrt((_ROWS - middle[0] - away[0]) ** 2 + (_COLUMNS - middle[1] - away[1]) ** 2)
        inside = np.maximum(inside, own - distance)
    return inside


def _lines(inside: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    slope, phase = 1 + rng.integers(0, 3), rng.random() * 9
    return ((_ROWS + slope * _COLUMNS + phase) % 9 < 2.5).astype(np.float64)


def _scales(inside: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    row, column = rng.random(2) * 6
    return np.maximum((_ROWS + row) % 6 < 2, (_COLUMNS + column) % 6 < 2).astype(np.float64)


def _dots(inside: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    places = (rng.random((14, 2)) - 0.5) * 30
    squares = [(_ROWS - row) ** 2 + (_COLUMNS - column) ** 2 for row, column in places]
    return (np.minimum.reduce(squares) < 6).astype(np.float64)


def _core(inside: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.clip((inside - 0.55 * inside.max()) * 0.6, 0, 1)


def _plain(inside: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.zeros_like(inside)


# where the second color is, 0 to 1, from how far inside the spot a pixel lies
_TEXTURES: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "plain": _plain,
    "lines": _lines,
    "dots": _dots,
    "core": _core,
    "scales": _scales,
}
DATASET = DataSet(load=load, procedural=True, answers=lambda: CLASSES, takes=TAKES)
