# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Ultra-MedVQA (F3OCUS, supplement C.1) as `fedpeft build-vqa` makes it of MedMNIST's files: questions at nine sites.

    <site>/manifest.csv, <site>/images/<set>/...        a folder for each site

These folders lie below FEDPEFT_DATA; `root` is that of one site.

Questions for images of which a class is known, in the six types of Ultra-MedVQA (F3OCUS, supplement C.1).

The paper has a chat model rephrase each question. Here each type has several wordings, and a generator chooses among
them. What "other biological attributes" are the paper does not say: here the kind of a cell, or whether an image is
normal. How often a question is closed it does not say either: here `CLOSED_SHARE` of those about the class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import ACCURACY
from fedpeft.data import manifest, medmnist
from fedpeft.data.folders import tree
from fedpeft.data.registry import DataSet, packaged
from fedpeft.data.schema import SiteData
from fedpeft.data.settings import DataSettings

_WORDINGS = packaged("ultra_med_vqa")
SHARES: dict[str, float] = _WORDINGS["shares"]
MODALITY, ANATOMY, DISEASE, GRADING, TISSUE, OTHER = SHARES
OF_CLASSES = {"disease": DISEASE, "grade": GRADING, "tissue": TISSUE, "anatomy": ANATOMY, "other": OTHER}
NORMAL = ("normal", "no finding", "healthy")
CLOSED_SHARE = 0.25

OPEN, CLOSED = _WORDINGS["open"], _WORDINGS["closed"]
IS_NORMAL: list[str] = _WORDINGS["normal_or_abnormal"]


class Subject(NamedTuple):
    """What is known of all images of one set.

    Args:
        modality, anatomy: as answers have them; empty: not known, and not asked for.
        classes: all of the set.
        classes_are: a key of `OF_CLASSES`.
    """

    modality: str
    anatomy: str
    classes: tuple[str, ...]
    classes_are: str

    @property
    def types(self) -> tuple[str, ...]:
        """The types of questions that can be asked about every image of the set."""
        asked = {OF_CLASSES[self.classes_are]}
        asked |= {MODALITY} if self.modality else set()
        asked |= {ANATOMY} if self.anatomy else set()
        asked |= {OTHER} if self._names_normal else set()
        return tuple(kind for kind in SHARES if kind in asked)

    @property
    def _names_normal(self) -> bool:
        return self.classes_are == "disease" and any(name in NORMAL for name in self.classes)


class Question(NamedTuple):
    """A question, its answer, and whether it offers its answers."""

    text: str
    answer: str
    closed: bool


def ask(kind: str, subject: Subject, names: Sequence[str], rng: np.random.Generator) -> Question:
    """Return a question of a type about one image."""
    of_class = OF_CLASSES[subject.classes_are]
    if kind == MODALITY:
        return Question(_worded(OPEN[kind], subject, rng), subject.modality, closed=False)
    if kind == ANATOMY and of_class != ANATOMY:
        return Question(_worded(OPEN[kind], subject, rng), subject.anatomy, closed=False)
    if kind == OTHER and of_class != OTHER:
        answer = "normal" if all(name in NORMAL for name in names) else "abnormal"
        return Question(_worded(IS_NORMAL, subject, rng), answer, closed=True)
    here = [name for name in names if name not in NORMAL]
    others = [name for name in subject.classes if name not in names and name not in NORMAL]
    if not (here or others) or (len(names) == 1 and rng.random() >= CLOSED_SHARE):
        return Question(_worded(OPEN[kind], subject, rng), names[0], closed=False)
    holds = not others or (bool(here) and bool(rng.integers(2)))
    about = here if holds else others
    name = about[int(rng.integers(len(about)))]
    return Question(_worded(CLOSED[kind], subject, rng, name=name), "yes" if holds else "no", closed=True)


def _worded(wordings: Sequence[str], subject: Subject, rng: np.random.Generator, *, name: str = "") -> str:
    in_anatomy = f" of the {subject.anatomy}" if subject.anatomy else ""
    return wordings[int(rng.integers(len(wordings)))].format(name=name, in_anatomy=in_anatomy)


def load(settings: DataSettings) -> SiteData:
    """Load one site's questions."""
    data = manifest.load(settings)
    if data.metric != ACCURACY:
        raise DataError(
            f"The manifest of site {data.site!r} has no questions; put there what `fedpeft build-vqa` wrote, or set "
            f"dataset='manifest'."
        )
    return replace(data, source=f"Ultra-MedVQA ({data.site}), questions made by templates from the classes of MedMNIST")


DATASET = DataSet(
    load=load, metric=ACCURACY, origin=medmnist.ORIGIN, layout=tree(__doc__), folders=manifest.DATASET.folders
)
