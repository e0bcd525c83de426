# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Procedural questions at eight sites with one modality each, as OmniMedVQA is used: sites differ in their pictures.

Questions, words and answers are those of `phantom`; five of the eight looks, three of them in color, are none that the
tiny backbones saw in pre-training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpeft.data.errors import DataError
from fedpeft.data.phantom import TAKES, Profile, answer_words, site_questions
from fedpeft.data.phantom_colors import GRAY, SCALES
from fedpeft.data.phantom_scene import KINDS
from fedpeft.data.phantom_words import QUESTION_TYPES
from fedpeft.data.registry import DataSet
from fedpeft.data.schema import SiteData

if TYPE_CHECKING:
    from fedpeft.data.settings import DataSettings

SITES = {  # OmniMedVQA's modalities, and their looks
    "ct": "ct",
    "ultrasound": "ultrasound",
    "oct": "oct",
    "fundus": "fundus",
    "microscopy": "microscopy",
    "histopathology": "histopathology",
    "dermatoscopy": "dermatoscopy",
    "x-ray": "xray",
}
USUAL = next(iter(SITES))
STYLES = 5
_WEIGHTS = {
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


def load(settings: DataSettings) -> SiteData:
    """Make the questions of one modality; the settings are those of `phantom`, without `label_skew`.

    Raises:
        DataError: the site is none of SITES.
    """
    site = settings.site or USUAL
    return site_questions(site, site_profile(site), settings)


def site_profile(site: str) -> Profile:
    """Return the profile of a modality.

    Raises:
        DataError: it is none of SITES.
    """
    if site not in SITES:
        raise DataError(f"site={site!r} is not a modality of phantom_modalities; choose one of {', '.join(SITES)}.")
    number, look = list(SITES).index(site), SITES[site]
    first = number * 3 % len(KINDS)
    total = sum(_WEIGHTS.values())
    return Profile(
        modality=look,
        kinds=tuple(KINDS[(first + k) % len(KINDS)] for k in range(6)),
        type_weights=tuple(_WEIGHTS[name] / total for name in QUESTION_TYPES),
        wordings=(number % 3, (number + 1) % 3),
        answers=answer_words(number % STYLES),
        others=0.0,
        colors=SCALES.get(look, GRAY),
    )


def all_answers() -> set[str]:
    """Return every answer that a site can have."""
    return {word for site in SITES for word in site_profile(site).answers.values()}


_TAKES = TAKES - {"label_skew"}  # all sites ask the same mix of types
DATASET = DataSet(load=load, procedural=True, answers=all_answers, takes=_TAKES)
