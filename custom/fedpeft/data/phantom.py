# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The embedded benchmark federation: procedural medical visual questions for five named sites, or any other name.

Every site has its own scanner (gray values, noise), findings, wordings, mix of question types and answers; all share
the clinical words of `phantom_scene`, whose meaning the tiny backbone has to learn. Nothing was measured on anybody.

`phantom_modalities` has eight sites with one modality each, like the clients of OmniMedVQA: its sites differ in their
pictures. Questions, words and answers are those of `phantom`. The tiny backbones did not see five of the eight looks,
three of them in color, in pre-training.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.core.errors import DataError
from fedpeft.data.phantom_scene import (
    CLINICAL,
    CLOSED_TYPES,
    GRAY,
    KINDS,
    MODALITIES,
    NOTHING,
    PAIRS,
    PLACES,
    PLAIN,
    QUESTION_TYPES,
    REGIONS,
    SCALES,
    Language,
    Scale,
    Scene,
    ask,
    colored,
    dialect,
    draw_look,
    draw_scene,
    render,
)
from fedpeft.data.registry import DataSet
from fedpeft.data.schema import Example, SiteData

if TYPE_CHECKING:
    from fedpeft.data.settings import DataSettings


SITES = ("slake", "vqa-rad", "vqa-med-2019", "vqa-med-2020", "vqa-med-2021")
SIZES = {"train": 300, "validation": 60, "test": 150}
QUESTIONS_PER_IMAGE = 3
LANGUAGES = (CLINICAL, CLINICAL, CLINICAL, PLAIN)  # a quarter of the words is plain, so that heads can start to learn

# shares of presence, placement, density, location, abnormality, shade, count, organ, modality
_MIXES = {
    "slake": ("ct", (4, 3, 2, 4, 3, 2, 1, 1, 1)),
    "vqa-rad": ("xray", (5, 3, 2, 4, 3, 2, 1, 1, 0)),
    "vqa-med-2019": ("mr", (3, 2, 1, 4, 4, 3, 1, 1, 1)),
    "vqa-med-2020": ("ultrasound", (3, 2, 2, 4, 5, 2, 1, 0, 0)),
    "vqa-med-2021": ("nuclear", (3, 2, 2, 4, 4, 3, 0, 1, 0)),
}
_FINDING_ANSWERS = (
    ("nodule", "cyst", "calcification", "fibrosis", "effusion", "stenosis", "infarct", "hematoma"),
    ("mass", "abscess", "fracture", "atelectasis", "thickening", "narrowing", "consolidation", "hemorrhage"),
)

# by pair in PAIRS, which of SITES swap it: two or three of five, different ones for each pair
_SWAPS = ("11000", "00110", "10001", "10011", "11100", "01011", "01010")

TAKES = frozenset({"train_size", "validation_size", "test_size", "dialects", "label_skew"})

MODALITY_SITES = {  # OmniMedVQA's modalities, and their looks
    "ct": "ct",
    "ultrasound": "ultrasound",
    "oct": "oct",
    "fundus": "fundus",
    "microscopy": "microscopy",
    "histopathology": "histopathology",
    "dermatoscopy": "dermatoscopy",
    "x-ray": "xray",
}
DEFAULT_MODALITY = next(iter(MODALITY_SITES))
STYLES = 5
_MODALITY_WEIGHTS = {
    "presence": 4,
    "placement": 3,
    "density": 2,
    "location": 4,
    "abnormality": 4,
    "shade": 3,
    "count": 1,
    "organ": 1,
    "modality": 0,  # it would have one answer at a site
}

_MODALITIES_TAKE = TAKES - {"label_skew"}  # all sites ask the same mix of types


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What makes a site different from the others."""

    modality: str
    kinds: tuple[str, ...]
    type_weights: tuple[float, ...]  # one per question type
    wordings: tuple[int, ...]
    answers: dict[str, str]  # concept -> the site's words for it
    others: float = 0.15  # share of images of any of MODALITIES
    colors: Scale = GRAY


def load(settings: DataSettings) -> SiteData:
    """Make one site's questions; the same seed, site and sizes give the same bytes."""
    site = settings.site or SITES[0]
    profile = site_profile(site)
    weights = skewed(profile.type_weights, settings.label_skew)
    return site_questions(site, replace(profile, type_weights=weights), settings)


def site_questions(site: str, profile: Profile, settings: DataSettings) -> SiteData:
    """Make the questions of a site with this profile; see `load` for the settings."""
    languages = site_languages(site, settings.dialects)
    examples = {
        split: _examples(
            site,
            profile,
            languages,
            split,
            size,
            np.random.default_rng([settings.seed, zlib.crc32(site.encode()), number]),
        )
        for number, (split, size) in enumerate(settings.sizes(SIZES).items())
    }
    return SiteData(
        site=site,
        train=examples["train"],
        validation=examples["validation"],
        test=examples["test"],
        source=f"procedural phantom data for the site {site!r} (seed {settings.seed}); no image of any person",
    )


def site_profile(site: str) -> Profile:
    """Return the profile of a named site; any other name gets one derived from its letters."""
    rng = np.random.default_rng([zlib.crc32(site.encode()), len(site)])
    weights: tuple[int, ...]
    if site in _MIXES:
        modality, weights = _MIXES[site]
        style = SITES.index(site)
    else:
        modality = MODALITIES[rng.integers(len(MODALITIES))]
        weights = tuple(int(w) for w in rng.integers(1, 5, size=len(QUESTION_TYPES)))
        style = int(rng.integers(len(SITES)))
    first = style * 3 % len(KINDS)
    return Profile(
        modality=modality,
        kinds=tuple(KINDS[(first + k) % len(KINDS)] for k in range(6)),
        type_weights=tuple(w / sum(weights) for w in weights),
        wordings=(style % 3, (style + 1) % 3),
        answers=answer_words(style),
    )


def skewed(weights: tuple[float, ...], label_skew: float) -> tuple[float, ...]:
    """Return type weights (K,) of sum 1 with skew s: s w_k + (1 - s) / K up to 1, and w_k^s / sum_j w_j^s above.

    0: all types alike; 1: the weights as they are, to the bit. Powers from 0 to 1 would not do: for any s but 0 a site
    would still never ask types of weight 0, and the sites would stay far apart.
    """
    if label_skew == 1:
        return weights
    if label_skew < 1:
        return tuple(label_skew * weight + (1 - label_skew) / len(weights) for weight in weights)
    powers = [weight**label_skew for weight in weights]
    return tuple(power / sum(powers) for power in powers)


def all_answers() -> set[str]:
    """Return every answer that a site can have."""
    return {word for style in range(len(SITES)) for word in answer_words(style).values()}


def swapped_pairs(site: str, dialects: int) -> tuple[tuple[str, str], ...]:
    """Return the pairs of concepts whose words a site swaps.

    About half of the sites swap each of the first `dialects` pairs of `PAIRS`.
    """
    if site in SITES:
        swaps = [bits[SITES.index(site)] == "1" for bits in _SWAPS]
    else:
        swaps = (np.random.default_rng([zlib.crc32(site.encode()), len(PAIRS)]).random(len(PAIRS)) < 0.5).tolist()
    return tuple(pair for pair, swapped in zip(PAIRS[:dialects], swaps, strict=False) if swapped)


def site_languages(site: str, dialects: int) -> tuple[Language, ...]:
    """Return the languages that a site draws the words of a question from, all equally likely.

    A dialect concerns clinical words, which sites learn; the plain ones mean the same as in pre-training.
    """
    own = dialect(CLINICAL, swapped_pairs(site, dialects))
    return tuple(own if language is CLINICAL else language for language in LANGUAGES)


def answer_words(style: int) -> dict[str, str]:
    """Return a site's word for every answer concept: label spaces differ in names as well as in members."""
    words = {"yes": "yes", "no": "no", NOTHING: ("normal", "no abnormality", "unremarkable")[style % 3]}
    words |= dict(zip(KINDS, _FINDING_ANSWERS[style % 2], strict=True))
    form = ("{0} {1}", "{1} {0}", "{0} {1} quadrant", "{1} {0} field", "{0}-{1}")[style]
    for place in PLACES:
        words[place] = form.format(*place.replace("top", "upper").replace("bottom", "lower").split())
    words |= dict(zip(("bright", "dark"), (("hyperdense", "hypodense"), ("opaque", "lucent"))[style % 2], strict=True))
    words |= {str(n): str(n) if style % 2 else ("none", "one", "two", "three", "four")[n] for n in range(5)}
    words |= {region: region if style % 2 else f"{region} region" for region in REGIONS}
    words |= {modality: modality if style % 2 else f"{modality} scan" for modality in MODALITIES}
    return words


def _ambiguous_scene(rng: np.random.Generator, kinds: tuple[str, ...], modality: str) -> Scene:
    """Draw a scene with findings of both shades, so that only the question's words decide the answer."""
    while True:
        scene = draw_scene(rng, kinds=kinds, modality=modality, counts=(2, 3, 3, 4))
        if len({finding.bright for finding in scene.findings}) == 2:
            return scene


def _examples(
    site: str, profile: Profile, languages: tuple[Language, ...], split: str, size: int, rng: np.random.Generator
) -> tuple[Example, ...]:
    """Draw `size` questions, QUESTIONS_PER_IMAGE of different types on each image; no image is in two splits."""
    examples: list[Example] = []
    while len(examples) < size:
        own = rng.random() < 1 - profile.others
        modality = profile.modality if own else MODALITIES[rng.integers(len(MODALITIES))]
        scene = _ambiguous_scene(rng, profile.kinds, modality)
        image = colored(render(scene, draw_look(modality, rng, spread=0.5), rng), profile.colors)
        image.flags.writeable = False
        image_id = f"{site}-{split}-{len(examples) // QUESTIONS_PER_IMAGE:04d}"
        type_indices = rng.choice(
            len(QUESTION_TYPES),
            size=min(QUESTIONS_PER_IMAGE, size - len(examples)),
            replace=False,
            p=profile.type_weights,
        )
        for index in type_indices:
            question = ask(
                scene,
                QUESTION_TYPES[index],
                rng,
                languages=languages,
                kinds=profile.kinds,
                wordings=profile.wordings,
            )
            examples.append(
                Example(
                    image=image,
                    question=question.text,
                    answer=profile.answers[question.answer],
                    closed=question.question_type in CLOSED_TYPES,
                    image_id=image_id,
                    question_type=question.question_type,
                )
            )
    return tuple(examples)


DATASET = DataSet(load=load, procedural=True, answers=all_answers, takes=TAKES)


def load_modalities(settings: DataSettings) -> SiteData:
    """Make the questions of one modality; the settings are those of `phantom`, without `label_skew`."""
    site = settings.site or DEFAULT_MODALITY
    return site_questions(site, modality_profile(site), settings)


def modality_profile(site: str) -> Profile:
    """Return the profile of a modality."""
    if site not in MODALITY_SITES:
        raise DataError(
            f"site={site!r} is not a modality of phantom_modalities; choose one of {', '.join(MODALITY_SITES)}."
        )
    number, look = list(MODALITY_SITES).index(site), MODALITY_SITES[site]
    first = number * 3 % len(KINDS)
    total = sum(_MODALITY_WEIGHTS.values())
    return Profile(
        modality=look,
        kinds=tuple(KINDS[(first + k) % len(KINDS)] for k in range(6)),
        type_weights=tuple(_MODALITY_WEIGHTS[name] / total for name in QUESTION_TYPES),
        wordings=(number % 3, (number + 1) % 3),
        answers=answer_words(number % STYLES),
        others=0.0,
        colors=SCALES.get(look, GRAY),
    )


def modality_answers() -> set[str]:
    """Return every answer that a site can have."""
    return {word for site in MODALITY_SITES for word in modality_profile(site).answers.values()}


MODALITIES_DATASET = DataSet(load=load_modalities, procedural=True, answers=modality_answers, takes=_MODALITIES_TAKE)
