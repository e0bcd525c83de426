# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Ultra-MedVQA (F3OCUS, supplement C.1): questions of six types at nine sites, about images with a known class.

`fedpeft build-vqa` makes it of MedMNIST's files:

    <site>/manifest.csv, <site>/images/<set>/...        a folder for each site

These folders are below FEDPEFT_DATA; `root` is that of one site.

The paper has a chat model rephrase each question. Here each type has several wordings, and a generator chooses among
them. The paper does not say what "other biological attributes" are: here the kind of a cell, or whether an image is
normal. Nor does it say how often a question is closed: here `CLOSED_SHARE` of those about the class.

The procedural set has nine sites too, each with images of one kind with classes, drawn here, and questions of the same
types, shares and wordings.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import ACCURACY
from fedpeft.data import manifest, medmnist
from fedpeft.data.folders import tree
from fedpeft.data.phantom import SIZES
from fedpeft.data.phantom_scene import (
    GRAY,
    KINDS,
    QUADRANTS,
    REGIONS,
    SCALES,
    Scene,
    colored,
    draw_findings,
    draw_look,
    render,
)
from fedpeft.data.registry import DataSet, packaged
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import DataSettings

_WORDINGS = packaged("ultra_med_vqa")
SHARES: dict[str, float] = _WORDINGS["shares"]
MODALITY, ANATOMY, DISEASE, GRADING, TISSUE, OTHER = SHARES
OF_CLASSES = {"disease": DISEASE, "grade": GRADING, "tissue": TISSUE, "anatomy": ANATOMY, "other": OTHER}
NORMAL = ("normal", "no finding", "healthy")
CLOSED_SHARE = 0.25

OPEN, CLOSED = _WORDINGS["open"], _WORDINGS["closed"]
IS_NORMAL: list[str] = _WORDINGS["normal_or_abnormal"]

_FITTING_ROUNDS, _MIN_SHARE = 200, 0.25

GRADES = tuple(f"grade {number}" for number in range(QUADRANTS + 1))

TAKES = frozenset({"train_size", "validation_size", "test_size"})


class Subject(NamedTuple):
    """What is known about all images of one set."""

    modality: str  # as answers have it; empty: not known, and not asked for
    anatomy: str  # likewise
    classes: tuple[str, ...]
    classes_are: str  # a key of `OF_CLASSES`

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


def numbers(sets: Sequence[tuple[Subject, int]]) -> np.ndarray:
    """Return how many questions of each type a set gets, (sets, 6): one for each image.

    Rows and columns are scaled in turn to the images of the sets and to the published shares (iterative proportional
    fitting), rows last; remainders go to the largest fractions. No set loses a type: in each pass it keeps `_MIN_SHARE`
    of what it would have by itself, in the published shares of the types that can be asked about it.
    """
    kinds = tuple(SHARES)
    allowed = np.array([[kind in subject.types for kind in kinds] for subject, _ in sets], dtype=float)
    images = np.array([count for _, count in sets], dtype=float)
    shares = np.array([SHARES[kind] for kind in kinds]) * allowed.any(axis=0)
    alone = allowed * shares
    alone *= (images / alone.sum(axis=1))[:, None]
    fit = alone
    for _ in range(_FITTING_ROUNDS):
        columns = fit.sum(axis=0)
        scale = np.divide(shares / shares.sum() * images.sum(), columns, out=np.zeros_like(columns), where=columns > 0)
        fit = np.maximum(fit * scale, _MIN_SHARE * alone)
        fit *= (images / fit.sum(axis=1))[:, None]
    whole = np.floor(fit).astype(int)
    for row, exact, total in zip(whole, fit, images.astype(int), strict=True):
        row[np.argsort(row - exact, kind="stable")[: total - row.sum()]] += 1
    return whole


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Collection:
    """The images of a site: their look (`phantom_scene`) and what is known about them.

    A class appears as findings of its own kind, a grade as their number; a normal image has none.
    """

    look: str
    subject: Subject


def _collection(look: str, classes: Sequence[str], **known: str) -> Collection:
    return Collection(look=look, subject=Subject(classes=tuple(classes), **known))


SITES = {name: _collection(**known) for name, known in _WORDINGS["procedural_sites"].items()}
_DEFAULT = next(iter(SITES))


def load_procedural(settings: DataSettings) -> SiteData:
    """Make the questions of one site, one about each image."""
    site = settings.site or _DEFAULT
    if site not in SITES:
        raise DataError(f"site={site!r} is not a site of phantom_ultra; choose one of {', '.join(SITES)}.")
    rng = np.random.default_rng([settings.seed, zlib.crc32(site.encode())])
    train, validation, test = (
        _drawn(site, f"{site}-{split}", size, rng) for split, size in settings.sizes(SIZES).items()
    )
    where = f"procedural images and questions from their classes ({site}, seed {settings.seed}); no image of any person"
    return SiteData(site, train, validation, test, where)


def all_answers() -> set[str]:
    """Return every answer that a site can have."""
    subjects = [collection.subject for collection in SITES.values()]
    named = {word for subject in subjects for word in (subject.modality, subject.anatomy, *subject.classes) if word}
    return named | {"yes", "no", "normal", "abnormal"}


def _drawn(site: str, prefix: str, count: int, rng: np.random.Generator) -> tuple[Example, ...]:
    """Draw a split, with the types of questions that `build_vqa` gives this site if all sites have one size."""
    own = SITES[site]
    alike = [(collection.subject, count) for collection in SITES.values()]
    of_types = numbers(alike)[list(SITES).index(site)] if count else np.zeros(len(SHARES), dtype=int)
    examples = []
    for number, kind in enumerate(rng.permutation(np.repeat(list(SHARES), of_types))):
        name = own.subject.classes[rng.integers(len(own.subject.classes))]
        image = render(_scene(site, name, rng), draw_look(own.look, rng, spread=0.5), rng)
        image = colored(image, SCALES.get(own.look, GRAY))
        image.flags.writeable = False
        question = ask(str(kind), own.subject, [name], rng)
        examples.append(
            Example(
                image=image,
                question=question.text,
                answer=question.answer,
                closed=question.closed,
                image_id=f"{prefix}-{number:04d}",
                question_type=str(kind),
            )
        )
    return tuple(examples)


def _scene(site: str, name: str, rng: np.random.Generator) -> Scene:
    """Draw what an image of a class shows."""
    region = REGIONS[list(SITES).index(site) % len(REGIONS)]
    classes = SITES[site].subject.classes
    if SITES[site].subject.classes_are == "grade":
        count, kinds = GRADES.index(name), [str(kind) for kind in rng.permutation(KINDS)]
    else:
        count = 0 if name in NORMAL else int(rng.integers(1, QUADRANTS))
        kinds = [KINDS[classes.index(name)]] * QUADRANTS
    findings = draw_findings(kinds[:count], rng)
    return Scene(region=region, modality=SITES[site].look, findings=findings)


PROCEDURAL = DataSet(load=load_procedural, procedural=True, answers=all_answers, takes=TAKES)
