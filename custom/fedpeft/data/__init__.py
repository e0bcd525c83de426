# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Data sets of the federation's sites. A new one is one file with `load(settings)` and one line below."""

from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.errors import DataError
from fedpeft.data.registry import is_procedural, load, names, register
from fedpeft.data.schema import DataSettings, Example, SiteData

__all__ = [
    "AnswerVocabulary",
    "DataError",
    "DataSettings",
    "Example",
    "SiteData",
    "is_procedural",
    "load",
    "names",
    "register",
]

register("phantom", "fedpeft.data.phantom", procedural=True)
register("slake", "fedpeft.data.slake")
register("vqa_rad", "fedpeft.data.vqa_rad")
register("vqa_med_2019", "fedpeft.data.vqa_med_2019")
register("vqa_med_2020", "fedpeft.data.vqa_med_2020")
register("vqa_med_2021", "fedpeft.data.vqa_med_2021")
register("manifest", "fedpeft.data.manifest")
