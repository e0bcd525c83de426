# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Draw images with findings in the quadrants of a body region, and questions about them with answers as concepts.

Only arithmetic that IEEE 754 fixes and integer noise are used: one seed gives the same bytes on every machine. A scale
of colors, in whole numbers, can replace the scale of grays.

There are two sets of words for the concepts ("ring", "top left", "yes"): PLAIN, used to pre-train the tiny backbones,
and CLINICAL, used by the sites. No CLINICAL word occurs in pre-training, so its embedding is random, and the layers
have to learn its meaning. All sites share the words, and no single site has many questions with any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpeft.data.registry import packaged

Color = tuple[int, int, int]
Scale = tuple[Color, Color, Color]  # of the darkest, the middle and the brightest gray

GRAY: Scale = ((0, 0, 0), (128, 128, 128), (255, 255, 255))
SCALES: dict[str, Scale] = {
    "fundus": ((25, 5, 0), (190, 80, 25), (255, 235, 140)),
    "microscopy": ((60, 10, 90), (205, 130, 175), (250, 245, 250)),
    "histopathology": ((60, 20, 100), (215, 120, 170), (255, 235, 245)),
    "dermatoscopy": ((45, 20, 15), (185, 115, 85), (255, 220, 195)),
}

SIZE = 48
KINDS = ("disc", "ring", "cross", "stripes", "bar", "column", "wedge", "crescent")
REGIONS = ("head", "chest", "abdomen", "limb")
MODALITIES = ("ct", "mr", "xray", "ultrasound", "nuclear")  # those that the tiny backbones saw in pre-training
QUADRANTS = 4  # 2 * row + column
_ROWS, _COLUMNS = (axis.astype(np.float64) for axis in np.mgrid[0:SIZE, 0:SIZE])

# modality -> (low, high) of air, body, contrast, |shade|, noise, speckle, blur passes
_LOOKS = {
    "ct": ((0.00, 0.08), (0.38, 0.52), (0.24, 0.36), (0.00, 0.05), (0.01, 0.04), (0.00, 0.05), (0, 1)),
    "mr": ((0.02, 0.12), (0.36, 0.52), (0.20, 0.32), (0.12, 0.30), (0.02, 0.06), (0.00, 0.08), (0, 2)),
    "xray": ((0.82, 0.98), (0.45, 0.60), (0.18, 0.30), (0.00, 0.12), (0.02, 0.05), (0.00, 0.06), (0, 2)),
    "ultrasound": ((0.00, 0.10), (0.34, 0.50), (0.20, 0.32), (0.05, 0.20), (0.02, 0.05), (0.08, 0.20), (0, 1)),
    "nuclear": ((0.10, 0.25), (0.40, 0.55), (0.22, 0.34), (0.00, 0.12), (0.02, 0.06), (0.00, 0.06), (1, 2)),
    "oct": ((0.02, 0.10), (0.30, 0.44), (0.24, 0.36), (0.00, 0.06), (0.02, 0.05), (0.15, 0.30), (0, 0)),
    "fundus": ((0.00, 0.05), (0.48, 0.60), (0.22, 0.34), (0.10, 0.25), (0.01, 0.03), (0.00, 0.04), (0, 2)),
    "microscopy": ((0.78, 0.92), (0.52, 0.64), (0.24, 0.36), (0.00, 0.08), (0.01, 0.03), (0.00, 0.04), (0, 1)),
    "histopathology": ((0.82, 0.95), (0.46, 0.60), (0.24, 0.36), (0.00, 0.06), (0.04, 0.08), (0.05, 0.15), (0, 0)),
    "dermatoscopy": ((0.66, 0.78), (0.44, 0.56), (0.24, 0.34), (0.05, 0.15), (0.01, 0.04), (0.00, 0.06), (0, 2)),
}

Language = Mapping[str, str]  # concept -> word
_WORDS = packaged("phantom_words")
CLINICAL: Language = _WORDS["clinical"]
PLAIN: Language = {concept: concept for concept in CLINICAL}
# concepts whose words a site may swap: left of the patient or left of the picture
PAIRS = (
    ("left", "right"),
    ("disc", "ring"),
    ("bright", "dark"),
    ("top", "bottom"),
    ("cross", "stripes"),
    ("bar", "column"),
    ("wedge", "crescent"),
)

# question type -> wordings; {finding}, {place}, {density} are filled from a language
TEMPLATES: Mapping[str, list[str]] = _WORDS["templates"]
QUESTION_TYPES = tuple(TEMPLATES)
CLOSED_TYPES = frozenset({"presence", "placement", "density"})

PLACES = ("top left", "top right", "bottom left", "bottom right")
NOTHING = "nothing"


def colored(image: np.ndarray, scale: Scale) -> np.ndarray:
    """Return a gray (H, W, 3) uint8 image in the colors of a scale."""
    dark, middle, bright = (np.array(color) for color in scale)
    gray = np.arange(256)[:, None]
    below = (dark * (128 - gray) + middle * gray) // 128
    above = (middle * (255 - gray) + bright * (gray - 128)) // 127
    return np.where(gray < 128, below, above).astype(np.uint8)[image[:, :, 0]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One structure, always wider than a patch of the backbone (12 px): 12.4 to 18.8 px across."""

    kind: str
    quadrant: int
    bright: bool
    large: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What an image shows; every answer follows from it."""

    region: str
    modality: str
    findings: tuple[Finding, ...]

    def at(self, quadrant: int) -> Finding | None:
        return next((finding for finding in self.findings if finding.quadrant == quadrant), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """How a scanner turns tissue into gray values, all from 0 to 1."""

    air: float
    body: float
    contrast: float
    shade_x: float
    shade_y: float
    noise: float
    speckle: float
    blur: int


def draw_look(modality: str, rng: np.random.Generator, spread: float = 1.0) -> Look:
    """Draw gray-value parameters of a modality.

    A spread of 1 draws from the modality's whole range; less keeps to its middle (one scanner).
    """

    def pick(bounds: tuple[float, float]) -> float:
        low, high = bounds
        return (low + high) / 2 + (rng.random() - 0.5) * (high - low) * spread

    air, body, contrast, shade, noise, speckle, blur = _LOOKS[modality]
    sign_x, sign_y = rng.integers(0, 2, size=2) * 2 - 1
    return Look(
        air=pick(air),
        body=pick(body),
        contrast=pick(contrast),
        shade_x=float(sign_x) * pick(shade),
        shade_y=float(sign_y) * pick(shade),
        noise=pick(noise),
        speckle=pick(speckle),
        blur=int(rng.integers(blur[0], blur[1] + 1)),
    )


def draw_scene(
    rng: np.random.Generator,
    *,
    kinds: tuple[str, ...] = KINDS,
    modality: str,
    counts: tuple[int, ...] = (1, 2, 3, 4),
) -> Scene:
    """Draw a scene: findings of different kinds in different quadrants, so that a kind names at most one of them."""
    count = counts[rng.integers(len(counts))]
    findings = draw_findings([kinds[k] for k in rng.permutation(len(kinds))[:count]], rng)
    return Scene(region=REGIONS[rng.integers(len(REGIONS))], modality=modality, findings=findings)


def draw_findings(kinds: Sequence[str], rng: np.random.Generator) -> tuple[Finding, ...]:
    """Draw a finding of each of these kinds, at most QUADRANTS, in different quadrants, of any shade and size."""
    quadrants = rng.permutation(QUADRANTS)[: len(kinds)]
    flags = rng.integers(0, 2, size=(len(kinds), 2))
    return tuple(
        Finding(kind=kind, quadrant=int(quadrant), bright=bool(bright), large=bool(large))
        for kind, quadrant, (bright, large) in zip(kinds, quadrants, flags, strict=True)
    )


def render(scene: Scene, look: Look, rng: np.random.Generator) -> np.ndarray:
    """Draw a scene as an (SIZE, SIZE, 3) uint8 image."""
    body, detail = _anatomy(scene.region, rng)
    image = look.air + (look.body - look.air) * body + 0.5 * look.contrast * detail
    for finding in scene.findings:
        _stamp(image, finding, look, rng)
    image = image * (1 + look.shade_x * (_COLUMNS / (SIZE / 2) - 1) + look.shade_y * (_ROWS / (SIZE / 2) - 1))
    for _ in range(look.blur):
        image = _smooth(image)
    noise = rng.integers(-128, 129, size=(3, SIZE, SIZE)).sum(0) / 128  # variance 1, nearly normal, exact arithmetic
    grain = rng.integers(-128, 129, size=(SIZE, SIZE)) / 74  # variance 1, uniform
    image = image * (1 + look.speckle * grain) + look.noise * noise
    gray = np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
    return np.repeat(gray[:, :, None], 3, axis=2)


def _anatomy(region: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the body mask (SIZE, SIZE) in [0, 1] and the region's landmarks, as contrast in [-1, 1]."""
    center = (SIZE - 1) / 2 + (rng.random(2) - 0.5) * 2
    dy, dx = _ROWS - center[0], _COLUMNS - center[1]
    if region == "limb":
        body = np.clip(21.5 - np.abs(dx), 0, 1)
        return body, -np.clip(2.0 - np.abs(dy), 0, 1) * body
    a, b = {"head": (22.0, 23.5), "chest": (24.0, 21.0), "abdomen": (23.5, 22.0)}[region]
    radius = (dx / a) ** 2 + (dy / b) ** 2  # 1 on the outline
    body = np.clip((1 - radius) * 10, 0, 1)
    if region == "head":
        return body, np.clip(1 - np.abs(radius - 0.88) * 12, 0, 1)
    if region == "chest":
        return body, np.clip(2.0 - np.abs(dx), 0, 1) * body
    return body, np.clip(4.5 - np.sqrt(dx**2 + dy**2), 0, 1)


def _stamp(image: np.ndarray, finding: Finding, look: Look, rng: np.random.Generator) -> None:
    """Add a finding to the image, in place, with soft edges."""
    row, column = divmod(finding.quadrant, 2)
    jitter = (rng.random(2) - 0.5) * 2
    half = (8.4 if finding.large else 6.2) + rng.random()
    dy = _ROWS - (12.0 + 23 * row + jitter[0])
    dx = _COLUMNS - (12.0 + 23 * column + jitter[1])
    shape = _shape(finding.kind, dy / half, dx / half)
    edge = np.clip(shape * half, 0, 1)  # one pixel wide
    image += (look.contrast if finding.bright else -look.contrast) * (0.85 + 0.3 * rng.random()) * edge


def _shape(kind: str, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return how far inside the shape each point is, in half-widths (positive inside, 0 on the outline)."""
    radius = np.sqrt(x**2 + y**2)
    box = 1 - np.maximum(np.abs(x), np.abs(y))
    if kind == "disc":
        return 1 - radius
    if kind == "ring":
        return 0.26 - np.abs(radius - 0.78)
    if kind == "cross":
        return np.minimum(box, 0.3 - np.minimum(np.abs(x), np.abs(y)))
    if kind == "stripes":
        return np.minimum(box, 0.17 - np.abs((y + 1) % 0.66 - 0.33))
    if kind == "bar":
        return np.minimum(box, 0.36 - np.abs(y))
    if kind == "column":
        return np.minimum(box, 0.36 - np.abs(x))
    if kind == "wedge":
        return np.minimum(0.9 - y, (y + 0.9) * 0.5 - np.abs(x)) * 0.9
    return np.minimum(1 - radius, np.sqrt((x - 0.55) ** 2 + y**2) - 0.75)


def _smooth(image: np.ndarray) -> np.ndarray:
    """Blur an image by a binomial 3x3 filter with repeated borders."""
    padded = np.pad(image, 1, mode="edge")
    rows = (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4
    return (rows[:, :-2] + 2 * rows[:, 1:-1] + rows[:, 2:]) / 4


def dialect(language: Language, pairs: Iterable[tuple[str, str]]) -> Language:
    """Return the language of a site that swaps the words of some pairs of concepts."""
    other = {concept: partner for pair in pairs for concept, partner in (pair, pair[::-1])}
    return {concept: language[other.get(concept, concept)] for concept in language}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A worded question, its answer as a concept, and the quadrants that the answer depends on."""

    text: str
    answer: str
    question_type: str
    closed: bool
    quadrants: tuple[int, ...]


def ask(
    scene: Scene,
    question_type: str,
    rng: np.random.Generator,
    *,
    languages: tuple[Language, ...],
    kinds: tuple[str, ...] = KINDS,
    wordings: tuple[int, ...] = (0, 1, 2),
) -> Question:
    """Ask one question of a type about a scene with a finding; yes and no are equally likely, whatever the scene.

    Each word comes from one of the languages at random; `kinds` and `wordings` limit the findings and wordings of
    questions.
    """
    present = [finding for finding in scene.findings if finding.kind in kinds]
    target = present[rng.integers(len(present))]
    truth = bool(rng.integers(2))
    slots: dict[str, str] = {}
    quadrants: tuple[int, ...] = (target.quadrant,)
    answer = "yes" if truth else "no"
    kind = target.kind
    if question_type == "presence":
        if not truth:
            absent = [k for k in kinds if k not in {finding.kind for finding in scene.findings}]
            kind, quadrants = absent[rng.integers(len(absent))], ()
    elif question_type == "placement":
        quadrant = target.quadrant if truth else (target.quadrant + int(rng.integers(1, QUADRANTS))) % QUADRANTS
        slots["place"] = _place_words(quadrant, languages, rng)
    elif question_type == "density":
        slots["density"] = _word(_density(target, flip=not truth), languages, rng)
    elif question_type == "location":
        answer = PLACES[target.quadrant]
    elif question_type == "abnormality":
        quadrant = target.quadrant if rng.random() < 0.9 else int(rng.integers(QUADRANTS))
        finding = scene.at(quadrant)
        answer, quadrants = (finding.kind if finding else NOTHING), (quadrant,)
        slots["place"] = _place_words(quadrant, languages, rng)
    elif question_type == "shade":
        answer = _density(target)
    elif question_type == "count":
        answer, quadrants = str(len(scene.findings)), tuple(finding.quadrant for finding in scene.findings)
    elif question_type == "organ":
        answer, quadrants = scene.region, ()
    else:
        answer, quadrants = scene.modality, ()
    slots["finding"] = _word(kind, languages, rng)
    template = TEMPLATES[question_type][wordings[rng.integers(len(wordings))]]
    return Question(
        text=template.format(**slots),
        answer=answer,
        question_type=question_type,
        closed=question_type in CLOSED_TYPES,
        quadrants=quadrants,
    )


def _word(concept: str, languages: tuple[Language, ...], rng: np.random.Generator) -> str:
    return languages[rng.integers(len(languages))][concept]


def _place_words(quadrant: int, languages: tuple[Language, ...], rng: np.random.Generator) -> str:
    return " ".join(_word(concept, languages, rng) for concept in PLACES[quadrant].split())


def _density(finding: Finding, flip: bool = False) -> str:
    return "bright" if finding.bright != flip else "dark"
