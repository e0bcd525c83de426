# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Procedural images with classes or labels: objects, flowers, skin lesions, and radiographs with a report.

The content of all images is drawn first, so that every site knows who gets which; pixels are computed only for the
site's own images. The random numbers of an image depend only on the seed and its number.

`phantom_objects` and `phantom_flowers` are in the domain of the tiny backbones, like Caltech101 and Flowers102 in that
of ViT. They are drawn like the pictures of pre-training, but no backbone saw their classes. Objects have 32 that differ
much, a kind of finding in a region of the body. Flowers have 32 that differ in details: a kind, its shade, and whether
it is in the upper or the lower half of a head.

`phantom_skin` has lesions of eight classes, like Fed-ISIC2019 and HAM10000, outside that domain: the tiny backbones saw
gray shapes in quadrants; these are colored spots of any outline and texture. Six names of sites are centers, each with
its own camera (tint, light, magnification) and mix of classes; any other name is like the first center. Where sites
share the set (`partition`), all images are of one center.

`phantom_chest` has radiographs with a report and 15 labels, like Open-I and MIMIC-CXR, split by patient and measured by
macro-F1. Eight labels name a kind of finding, from frequent to rare; six follow from all findings together, as "lung
opacity" does from several diseases; the last one is for an image without findings. A report names some of the findings
and denies some absent ones, in the sites' clinical words; the rest has to be seen in the image. The images of a patient
have the same findings in other places.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.data.loaders import class_example, label_example, site_of
from fedpeft.data.partition import Parts
from fedpeft.data.phantom import LANGUAGES
from fedpeft.data.phantom_scene import (
    CLINICAL,
    KINDS,
    MODALITIES,
    PLACES,
    QUADRANTS,
    REGIONS,
    Color,
    Finding,
    Scene,
    draw_findings,
    draw_look,
    render,
)
from fedpeft.data.registry import DataSet
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import NATURAL

if TYPE_CHECKING:
    from fedpeft.data.settings import DataSettings


SIZES = {"train": 210, "validation": 30, "test": 90}
TAKES = frozenset({"train_size", "validation_size", "test_size", "partition"})
NO_PIXELS = np.zeros((0, 0, 3), dtype=np.uint8)

Draw = Callable[[np.random.Generator], Scene]

SIZE = 48
SKIN: Color = (222, 180, 158)
PIGMENT: Color = (150, 95, 75)  # common to all spots
MIDDLE = (SIZE - 1) / 2
_ROWS, _COLUMNS = (axis.astype(np.float64) - MIDDLE for axis in np.mgrid[0:SIZE, 0:SIZE])

KIND_LABELS = {kind: CLINICAL[kind] for kind in KINDS}
SCENE_LABELS = ("dense finding", "lucent finding", "large finding", "several findings", "upper zone", "lower zone")
NOTHING = "no finding"
LABELS = (*KIND_LABELS.values(), *SCENE_LABELS, NOTHING)
_FREQUENCY = np.array([8, 7, 6, 5, 4, 3, 2, 1]) / 36  # of KINDS among findings
_NUMBERS_OF_FINDINGS = (0, 1, 1, 2, 2, 3)
_NUMBERS_OF_IMAGES = (1, 1, 2)  # of a patient
_NAMED_SHARE, _DENIED_FINDINGS = 0.6, 2


def number_of_images(settings: DataSettings) -> int:
    """Return how many images the data set has: those of the splits, times `parts` where sites share it."""
    return sum(settings.sizes(SIZES).values()) * (1 if settings.partition == NATURAL else settings.parts)


def collection(settings: DataSettings) -> str:
    """Return the name of a site's images: its own name, or one for all sites that share them."""
    return settings.dataset if settings.partition != NATURAL else settings.site or settings.dataset


def generator(seed: int, collection: str, *image: int) -> np.random.Generator:
    """Return the random numbers of a collection, or of one of its images."""
    return np.random.default_rng([seed, zlib.crc32(collection.encode()), *image])


def pictured(
    settings: DataSettings,
    default_name: str,
    examples: Iterable[Example],
    draw: Callable[[int, np.random.Generator], np.ndarray],
    *,
    labels: Iterable[str] = (),
) -> SiteData:
    """Return a site's part of the examples, with pixels; the sizes in the settings are the shares of the splits.

    The id of an image ends with its number. `draw` makes an image (H, W, 3) uint8 from it and its random numbers.
    """
    where = f"procedural images ({settings.dataset}, seed {settings.seed}); no image of any person"
    parts = _parts(settings.dataset, settings.seed, number_of_images(settings))
    data = site_of(_set_fractions(settings), default_name, where, train=tuple(examples), labels=labels, parts=parts)

    def draw_pixels(example: Example) -> Example:
        number = int(example.image_id.rpartition("-")[2])
        image = draw(number, generator(settings.seed, collection(settings), number))
        image.flags.writeable = False
        return replace(example, image=image)

    train, validation, test = (tuple(map(draw_pixels, split)) for split in (data.train, data.validation, data.test))
    return replace(data, train=train, validation=validation, test=test)


@lru_cache(maxsize=1)  # like `_drawn`: the first site that a process reads divides the images
def _parts(dataset: str, seed: int, total: int) -> Parts:
    """Return the cached parts of a data set that sites share; empty before the first site is read."""
    return {}


def _set_fractions(settings: DataSettings) -> DataSettings:
    sizes = settings.sizes(SIZES)
    total = sum(sizes.values())
    return replace(settings, validation_fraction=sizes["validation"] / total, test_fraction=sizes["test"] / total)


def load_objects(settings: DataSettings, *, classes: dict[str, Draw]) -> SiteData:
    """Make the images of one site, or its part of a data set that is shared out; all classes are equally likely."""
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
OBJECTS_DATASET = DataSet(
    load=partial(load_objects, classes=OBJECTS), procedural=True, answers=lambda: tuple(sorted(OBJECTS)), takes=TAKES
)
FLOWERS_DATASET = DataSet(
    load=partial(load_objects, classes=FLOWERS), procedural=True, answers=lambda: tuple(sorted(FLOWERS)), takes=TAKES
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesion:
    """How a class looks."""

    color: Color  # of the spot
    second: Color  # of its texture
    lobes: int  # discs that make the outline; one is round
    sharp: float  # how fast the edge falls off, 1 / pixel
    texture: str  # plain, lines, dots, core (a disc in the middle) or scales


@dataclass(frozen=True, kw_only=True, slots=True)
class Center:
    """A camera and the classes of its patients."""

    tint: tuple[float, float, float]  # factors of red, green and blue
    vignette: float  # how much darker the corners are, 0 to 1
    magnification: float  # of the spots
    weights: tuple[int, ...]  # of the classes, in their order


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
LESION_CLASSES = tuple(LESIONS)
CENTERS = {
    "bcn": Center(tint=(1.0, 1.0, 1.0), vignette=0.0, magnification=1.0, weights=(5, 6, 5, 2, 2, 1, 1, 2)),
    "vidir-molemax": Center(tint=(1.05, 0.92, 0.9), vignette=0.0, magnification=0.8, weights=(1, 8, 1, 1, 3, 1, 1, 0)),
    "vidir-modern": Center(tint=(0.95, 1.0, 1.05), vignette=0.1, magnification=1.1, weights=(4, 6, 2, 1, 3, 1, 1, 0)),
    "rosendahl": Center(tint=(1.0, 0.95, 0.85), vignette=0.3, magnification=1.2, weights=(3, 3, 4, 3, 4, 1, 1, 3)),
    "mskcc": Center(tint=(0.9, 0.9, 0.95), vignette=0.0, magnification=1.3, weights=(3, 8, 0, 0, 2, 0, 0, 0)),
    "vienna-dias": Center(tint=(0.85, 0.8, 0.9), vignette=0.4, magnification=0.9, weights=(4, 8, 2, 0, 1, 0, 1, 0)),
}
DEFAULT_CENTER = next(iter(CENTERS))


def load_skin(settings: DataSettings) -> SiteData:
    """Make the images of one center, or a site's part of those of the first center."""
    center = CENTERS.get(settings.site or DEFAULT_CENTER, CENTERS[DEFAULT_CENTER])
    name = collection(settings)
    rng = generator(settings.seed, name)
    share = np.array(center.weights) / sum(center.weights)
    kinds = [LESION_CLASSES[kind] for kind in rng.choice(len(LESION_CLASSES), size=number_of_images(settings), p=share)]
    examples = (class_example(NO_PIXELS, kind, image_id=f"{name}-{n:05d}") for n, kind in enumerate(kinds))

    def draw(number: int, rng: np.random.Generator) -> np.ndarray:
        return render_lesion(LESIONS[kinds[number]], center, rng)

    return pictured(settings, DEFAULT_CENTER, examples, draw)


def render_lesion(lesion: Lesion, center: Center, rng: np.random.Generator) -> np.ndarray:
    """Draw a lesion as a (SIZE, SIZE, 3) uint8 image."""
    inside = _outline(lesion.lobes, center.magnification, rng)
    spot = np.clip(inside * lesion.sharp, 0, 1)
    second = _TEXTURES[lesion.texture](inside, rng) * spot
    image = np.empty((SIZE, SIZE, 3))
    tone, light = 0.9 + 0.15 * rng.random(), 0.8 + 0.35 * rng.random()
    # share of the class in the color; the rest is pigment, so that the color does not give the class away
    own_share = 0.3 + 0.5 * rng.random()
    shade = 1 - center.vignette * (_ROWS**2 + _COLUMNS**2) / (2 * MIDDLE**2)
    for channel in range(3):
        color = PIGMENT[channel] + (lesion.color[channel] - PIGMENT[channel]) * own_share
        own = (color + (lesion.second[channel] - color) * second) * light
        image[:, :, channel] = (SKIN[channel] * tone * (1 - spot) + own * spot) * center.tint[channel]
    noise = rng.integers(-128, 129, size=(SIZE, SIZE, 3)) / 16  # of about 5 of 255
    return np.rint(np.clip(image * shade[:, :, None] + noise, 0, 255)).astype(np.uint8)


def _outline(lobes: int, magnification: float, rng: np.random.Generator) -> np.ndarray:
    """Return how far inside the spot each pixel is, in pixels (negative outside)."""
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


# share of the second color, 0 to 1, from how far inside the spot a pixel is
_TEXTURES: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "plain": _plain,
    "lines": _lines,
    "dots": _dots,
    "core": _core,
    "scales": _scales,
}
SKIN_DATASET = DataSet(load=load_skin, procedural=True, answers=lambda: LESION_CLASSES, takes=TAKES)


def load(settings: DataSettings) -> SiteData:
    """Make the images of one site, or its part of a data set that is shared out."""
    scenes, examples = _drawn(settings.seed, collection(settings), number_of_images(settings))

    def draw(number: int, rng: np.random.Generator) -> np.ndarray:
        return render(scenes[number], draw_look("xray", rng), rng)

    return pictured(settings, "phantom-chest", examples, draw, labels=LABELS)


def labels_of(scene: Scene) -> tuple[str, ...]:
    """Return the labels of an image, of LABELS."""
    findings = scene.findings
    if not findings:
        return (NOTHING,)
    holds = (
        any(finding.bright for finding in findings),
        any(not finding.bright for finding in findings),
        any(finding.large for finding in findings),
        len(findings) > 1,
        any(finding.quadrant < QUADRANTS // 2 for finding in findings),
        any(finding.quadrant >= QUADRANTS // 2 for finding in findings),
    )
    kinds = tuple(KIND_LABELS[finding.kind] for finding in findings)
    return (*kinds, *(label for label, true in zip(SCENE_LABELS, holds, strict=True) if true))


def report(scene: Scene, rng: np.random.Generator) -> str:
    """Return the text of a report: some findings that are there, and some that it denies."""
    sentences = []
    for finding in scene.findings:
        if rng.random() < _NAMED_SHARE:
            place = " ".join(_word(concept, rng) for concept in PLACES[finding.quadrant].split())
            sentences.append(f"{_word(finding.kind, rng)} in the {place} part .")
    absent = [kind for kind in KINDS if kind not in {finding.kind for finding in scene.findings}]
    sentences += [f"no {_word(absent[i], rng)} ." for i in rng.permutation(len(absent))[:_DENIED_FINDINGS]]
    return " ".join(sentences)


@lru_cache(maxsize=1)  # the sites of one data set are read one after the other
def _drawn(seed: int, name: str, total: int) -> tuple[list[Scene], tuple[Example, ...]]:
    """Draw all scenes of a collection, and their examples without pixels."""
    rng = generator(seed, name)
    scenes: list[Scene] = []
    examples: list[Example] = []
    patient = 0
    while len(scenes) < total:
        patient += 1
        kinds = rng.choice(
            len(KINDS), size=_NUMBERS_OF_FINDINGS[rng.integers(len(_NUMBERS_OF_FINDINGS))], replace=False, p=_FREQUENCY
        )
        for _ in range(min(_NUMBERS_OF_IMAGES[rng.integers(len(_NUMBERS_OF_IMAGES))], total - len(scenes))):
            findings = draw_findings([KINDS[kind] for kind in kinds], rng)
            scene = Scene(region="chest", modality="xray", findings=findings)
            examples.append(
                label_example(
                    NO_PIXELS,
                    labels_of(scene),
                    image_id=f"{name}-{len(scenes):05d}",
                    group=f"{name}, patient {patient}",
                    text=report(scene, rng),
                )
            )
            scenes.append(scene)
    return scenes, tuple(examples)


def _word(concept: str, rng: np.random.Generator) -> str:
    return LANGUAGES[rng.integers(len(LANGUAGES))][concept]


CHEST_DATASET = DataSet(load=load, procedural=True, answers=lambda: LABELS, takes=TAKES)
