# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The interface of data sets: examples, and one site's three splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import ACCURACY, MACRO_F1
from fedpeft.data.answers import AnswerVocabulary, normalize

if TYPE_CHECKING:
    import numpy as np

    from fedpeft.data.images import ChosenImage, EncodedImage

EXCLUDED = "its image is excluded"


@dataclass(frozen=True, slots=True)
class Example:
    """One question about one image, or the labels of one image.

    Args:
        image: path of the image file, or its place in a table, decoded when it is needed (`fedpeft.data.images`), or
            an (H, W, 3) uint8 array.
        question: as its author wrote it, or another text for the image, for instance a report; empty: there is none.
        answer: normalized (`fedpeft.data.answers.normalize`), also the class of an image; empty where there are labels.
        closed: the question offers its answers (yes/no, or a choice); open otherwise.
        image_id: the same for all questions about one image, and in every data set that has the image (`synpic54610`).
        question_type: the publisher's category, empty where there is none.
        alternatives: further answers that the publisher accepts as right, normalized.
        labels: what is in the image, of `SiteData.labels`; None: this is a question with an answer.
        unknown_labels: labels that may or may not apply; neither trained nor measured.
        group: a patient, or the like, whose images are never in two splits or at two sites; empty: only the image.
        written: class and labels as their author wrote them, where that differs from the normal form.
    """

    image: Path | np.ndarray | EncodedImage | ChosenImage = field(compare=False)
    question: str
    answer: str
    closed: bool
    image_id: str
    question_type: str = ""
    alternatives: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None
    unknown_labels: tuple[str, ...] = ()
    group: str = ""
    written: tuple[str, ...] = field(default=(), compare=False)

    @property
    def unit(self) -> str:
        """The group, or else the image, which is never divided."""
        return self.group or self.image_id


@dataclass(frozen=True, slots=True)
class SiteData:
    """One site's examples; they stay on the site.

    Args:
        site: the site's name.
        train, validation, test: the splits; train and test hold at least one example.
        source: one sentence for tables and pictures on the data's origin, procedural or real.
        labels: all labels, sorted, where images have any number of them; empty: there are questions with one answer.
        metric: the site's metric (`fedpeft.core.metrics`).
        left_out: samples of the publisher's files that are in no split: (reason, number). With the examples they add up
            to all samples in those files, so that none is lost silently.
        own_ids: ids of its images are names in its own folder, and say nothing about images of other sites.
        notes: one sentence for each difference between the data and what their papers print; counts, no answers.

    Raises:
        DataError: train or test is empty, or an example does not have what the others have.
    """

    site: str
    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]
    source: str
    labels: tuple[str, ...] = ()
    metric: str = ACCURACY
    left_out: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    own_ids: bool = False

    def __post_init__(self) -> None:
        for split in ("train", "validation", "test"):
            object.__setattr__(self, split, tuple(getattr(self, split)))  # a loader may give lists or iterators
            if split != "validation" and not getattr(self, split):
                gone = "".join(f"; {count:,} left out: {why}" for why, count in self.left_out)
                raise DataError(
                    f"Site {self.site!r} has an empty {split} split; check its data folder and fractions{gone}."
                )
        known = set(self.labels)
        for example in chain.from_iterable(self.splits().values()):
            has = None if example.labels is None else {*example.labels, *example.unknown_labels}
            if (has is None) is bool(known) or not known.issuperset(has or ()):
                raise DataError(
                    f"Site {self.site!r} has images with labels that it does not declare, or questions among images "
                    f"with labels; load either of them."
                )

    @property
    def answers_in_training(self) -> int:
        """How many different answers, or labels, training has."""
        if self.labels:
            return len({label for example in self.train for label in example.labels or ()})
        return len({normalize(example.answer) for example in self.train})

    def unseen_classes(self, vocabulary: AnswerVocabulary, examples: Iterable[Example], *, min_images: int = 1) -> int:
        """How many answers outside a vocabulary have examples of at least `min_images` images."""
        return 0 if self.labels else vocabulary.unseen_classes(examples, min_images=min_images)

    def rare_classes(
        self, vocabulary: AnswerVocabulary, examples: Iterable[Example], *, min_images: int
    ) -> frozenset[int]:
        """The numbers of the answers that examples of fewer images have."""
        if self.labels or min_images <= 1:
            return frozenset()
        return vocabulary.rare_classes(examples, min_images=min_images)

    def unseen(self, vocabulary: AnswerVocabulary) -> int:
        """How many test questions have no accepted answer in a vocabulary; 0 where images have labels."""
        return 0 if self.labels else vocabulary.unseen(self.test)

    def spellings(self) -> dict[str, str]:
        """Return by class or label its most frequent spelling, where that differs from the normal form."""
        written: dict[str, Counter[str]] = {}
        total: Counter[str] = Counter()
        for example in chain.from_iterable(self.splits().values()):
            total.update((example.answer,) if example.labels is None else (*example.labels, *example.unknown_labels))
            for name in example.written:
                written.setdefault(normalize(name), Counter())[name] += 1
        found = {}
        for name, counts in sorted(written.items()):
            counts[name] = total[name] - counts.total()
            found[name] = max(sorted(counts), key=lambda spelling: counts[spelling])
        return {name: spelling for name, spelling in found.items() if name != spelling}

    def splits(self) -> dict[str, tuple[Example, ...]]:
        """Return the three splits by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def measured_by(self, metric: str) -> SiteData:
        """Return the site's data with another metric.

        Raises:
            DataError: its images have labels, which are only measured by macro-F1.
        """
        if self.labels and metric != MACRO_F1:
            raise DataError(
                f"metric={metric!r} is none of images with labels, as site {self.site!r} has; leave it out, or set "
                f"{MACRO_F1}.",
                setting="data.metric",
            )
        return replace(self, metric=metric)

    def without_images(self, image_ids: Iterable[str]) -> SiteData:
        """Return the site's data without images that another site has as well.

        Raises:
            DataError: an id is not in the data, or a split becomes empty.
        """
        dropped = self.resolved(image_ids)
        if unknown := dropped - self._image_ids():
            raise DataError(f"Site {self.site!r} has no image {min(unknown)!r}; remove it from exclude.")
        return self.without(dropped, EXCLUDED)

    def resolved(self, image_ids: Iterable[str]) -> set[str]:
        """Return ids as the data have them, of images that a table may name in other ways."""
        from fedpeft.data.chosen_image import canonical_id

        known = self._image_ids()
        return {one if one in known else canonical_id(one) for one in image_ids}

    def unknown_among(self, image_ids: Iterable[str]) -> tuple[str, ...]:
        """Return a note on ids that no image of these data has; empty: all are there."""
        resolved = self.resolved(image_ids)
        unknown = len(resolved - self._image_ids())
        return (f"{unknown} of {len(resolved)} excluded ids are of no image of these data.",) if unknown else ()

    def _image_ids(self) -> set[str]:
        return {example.image_id for examples in self.splits().values() for example in examples}

    def without(self, image_ids: Container[str], why: str, *notes: str) -> SiteData:
        """Return the site's data without some images, with the reason and the number of samples in `left_out`."""
        kept: dict[str, Any] = {
            name: tuple(e for e in examples if e.image_id not in image_ids) for name, examples in self.splits().items()
        }
        gone = sum(map(len, self.splits().values())) - sum(map(len, kept.values()))
        return replace(self, **kept, left_out=added(self.left_out, [(why, gone)]), notes=(*self.notes, *notes))


def added(*counts: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Add up counts by reason, in the order of their first mention, without those of 0."""
    total: Counter[str] = Counter()
    for reason, count in chain.from_iterable(counts):
        total[reason] += count
    return tuple((reason, count) for reason, count in total.items() if count)


def balancing(examples: Sequence[Example]) -> list[float]:
    """Return for each example one over the number of examples of its class, or of the rarest of its labels."""
    classes = [(e.answer,) if e.labels is None else e.labels or ("",) for e in examples]
    counts = Counter(name for names in classes for name in names)
    return [1 / min(counts[name] for name in names) for names in classes]
