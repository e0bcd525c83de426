# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Questions about a scene, and their answers as concepts ("ring", "top left", "yes"), which a site puts into words."""

from dataclasses import dataclass

import numpy as np

from fedpeft.data.phantom_scene import KINDS, QUADRANTS, Finding, Scene
from fedpeft.data.phantom_words import CLOSED_TYPES, TEMPLATES, Language

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
