# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Questions about a scene, and their answers as concepts ("ring", "top left", "yes"), which a site puts into words.

Words for the phantom's concepts: PLAIN, used to pre-train the tiny backbone, and CLINICAL, used by the sites.

Every CLINICAL word is absent from pre-training, so its embedding is random, and its meaning has to be learned inside
the layers. All sites share the words, and each site alone has few questions with each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedpeft.data.phantom_scene import KINDS, QUADRANTS, Finding, Scene

Language = Mapping[str, str]  # concept -> word

PLAIN: Language = {
    "disc": "disc",
    "ring": "ring",
    "cross": "cross",
    "stripes": "stripes",
    "bar": "bar",
    "column": "column",
    "wedge": "wedge",
    "crescent": "crescent",
    "top": "top",
    "bottom": "bottom",
    "left": "left",
    "right": "right",
    "bright": "bright",
    "dark": "dark",
}

CLINICAL: Language = {
    "disc": "nodule",
    "ring": "cyst",
    "cross": "calcification",
    "stripes": "fibrosis",
    "bar": "effusion",
    "column": "stenosis",
    "wedge": "infarct",
    "crescent": "hematoma",
    "top": "cranial",
    "bottom": "caudal",
    "left": "dextral",
    "right": "sinistral",
    "bright": "hyperdense",
    "dark": "hypodense",
}

# concepts whose words a site may use the other way round: left of the patient or left of the picture
PAIRS = (
    ("left", "right"),
    ("disc", "ring"),
    ("bright", "dark"),
    ("top", "bottom"),
    ("cross", "stripes"),
    ("bar", "column"),
    ("wedge", "crescent"),
)


def dialect(language: Language, pairs: Iterable[tuple[str, str]]) -> Language:
    """The language of a site that uses the words of some pairs of concepts the other way round."""
    other = {concept: partner for pair in pairs for concept, partner in (pair, pair[::-1])}
    return {concept: language[other.get(concept, concept)] for concept in language}


# question type -> wordings; {finding}, {place}, {density} are filled from a language
TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "presence": (
        "is there evidence of {finding} ?",
        "does the image show {finding} ?",
        "can {finding} be seen in this image ?",
    ),
    "placement": (
        "is the {finding} in the {place} part ?",
        "does the {finding} lie in the {place} part of the image ?",
        "is the {finding} seen at the {place} ?",
    ),
    "density": (
        "is the {finding} {density} ?",
        "does the {finding} look {density} ?",
        "is the {finding} in this image {density} ?",
    ),
    "location": (
        "where is the {finding} ?",
        "in which part of the image is the {finding} ?",
        "where does the {finding} lie ?",
    ),
    "abnormality": (
        "what is in the {place} part ?",
        "what is seen at the {place} of the image ?",
        "what does the {place} part show ?",
    ),
    "shade": (
        "what is the shade of the {finding} ?",
        "which shade does the {finding} have ?",
        "how does the {finding} look ?",
    ),
    "count": (
        "how many findings are there ?",
        "how many findings does the image show ?",
        "what is the number of findings ?",
    ),
    "organ": (
        "what part of the body is this ?",
        "which body part does the image show ?",
        "what organ region is seen ?",
    ),
    "modality": (
        "what kind of image is this ?",
        "how was this image taken ?",
        "which modality is this ?",
    ),
}
QUESTION_TYPES = tuple(TEMPLATES)
CLOSED_TYPES = frozenset({"presence", "placement", "density"})


PLACES = ("top left", "top right", "bottom left", "bottom right")
NOTHING = "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A worded question, its answer as a concept, and the quadrants that one has to look at."""

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
    """Ask one question of a type; yes and no are equally likely, whatever the scene.

    Args:
        scene: what the image shows, with at least one finding.
        question_type: key of TEMPLATES.
        rng: source of randomness.
        languages: PLAIN, CLINICAL or a mixture; every word is taken from one of them at random.
        kinds: the kinds of finding that questions may be about.
        wordings: which wordings of the type may be used.
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
        slots["place"] = _place(quadrant, languages, rng)
    elif question_type == "density":
        slots["density"] = _word(_density(target, flip=not truth), languages, rng)
    elif question_type == "location":
        answer = PLACES[target.quadrant]
    elif question_type == "abnormality":
        quadrant = target.quadrant if rng.random() < 0.9 else int(rng.integers(QUADRANTS))
        finding = scene.at(quadrant)
        answer, quadrants = (finding.kind if finding else NOTHING), (quadrant,)
        slots["place"] = _place(quadrant, languages, rng)
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


def _place(quadrant: int, languages: tuple[Language, ...], rng: np.random.Generator) -> str:
    return " ".join(_word(concept, languages, rng) for concept in PLACES[quadrant].split())


def _density(finding: Finding, flip: bool = False) -> str:
    return "bright" if finding.bright != flip else "dark"
