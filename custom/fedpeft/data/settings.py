# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The section `data` of a job: which examples a site holds.

A window says which part of the range of an image with more than 8 bits becomes the 256 grays that a model sees.
`{"center": 40, "width": 400}` is the part from center - width / 2 to center + width / 2, in Hounsfield units or the
values after the image's own rescaling. `{"percentiles": [1, 99]}` is the part between two percentiles of each image,
for images without fixed units such as MRI.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import TITLES
from fedpeft.core.settings import BY_SITE, MAX_BY, READ_WITH, is_finite, is_number, is_whole, one_of
from fedpeft.data.answers import normalize
from fedpeft.data.registry import DATASETS, require_known

if TYPE_CHECKING:
    import numpy as np

SPLITS = ("published", "image_disjoint", "paper")
MAX_DIALECTS = 7
OWN_MIX = 1.0  # a label skew that changes nothing
MAX_LABEL_SKEW = 10
NATURAL, IID, DIRICHLET = PARTITIONS = ("natural", "iid", "dirichlet")
IGNORED, AS_POSITIVE, AS_NEGATIVE = UNCERTAIN = ("ignore", "positive", "negative")
MAX_PARTS = 10_000
MAX_ANSWERS = 10_000
COLUMNS = ("image", "question", "answer", "answer_type", "question_type", "split", "id")

# which samples of a shared data set a site has
SIZES = ("train_size", "validation_size", "test_size")
DECIDE_PARTS = ("partition", "parts", "alpha", "seed", "samples", "uncertain", *SIZES)


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the range: in the image's units, or in percentiles of the image."""

    low: float
    high: float
    percentiles: bool = False

    def grays(self, values: np.ndarray) -> np.ndarray:
        """Return values (...) as uint8 (...): 0 up to `low`, 255 from `high` on, linear between them."""
        import numpy as np

        values = np.nan_to_num(np.asarray(values, np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        low, high = self.low, self.high
        if self.percentiles:
            finite = values[np.isfinite(values)]
            low, high = np.percentile(finite, (low, high)) if finite.size else (0.0, 1.0)
        if high <= low:
            return np.where(values > low, np.uint8(255), np.uint8(0))
        return np.round((np.clip(values, low, high) - low) * 255 / (high - low)).astype(np.uint8)


def window_of(settings: Mapping[str, Any]) -> Window | None:
    """Return the window of the settings; None: there is none."""
    if not settings:
        return None
    if isinstance(settings, Mapping) and set(settings) == {"center", "width"}:
        center, width = settings["center"], settings["width"]
        if is_finite(center) and is_finite(width) and width > 0:
            return Window(center - width / 2, center + width / 2)
    if isinstance(settings, Mapping) and set(settings) == {"percentiles"}:
        ends = settings["percentiles"]
        numbers = isinstance(ends, list | tuple) and len(ends) == 2 and all(map(is_finite, ends))
        if numbers and 0 <= ends[0] < ends[1] <= 100:
            return Window(ends[0], ends[1], percentiles=True)
    raise DataError(
        f"window={settings!r:.120} must be {{center: C, width: W}} with a width above 0, or {{percentiles: [A, B]}} "
        f"with 0 <= A < B <= 100.",
        setting="window",
    )


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which examples a site holds.

    Args:
        dataset: registered name (`fedpeft.data.names()`).
        root: the data set's own folder; None: look for it by its documented names under the environment variable
            FEDPEFT_DATA. Phantom needs none.
        site: the site's name; None: the data set's default name. VQA-RAD: head, chest-a, chest-b, abd-a, abd-b choose a
            part of it, vqa-rad all of it. Phantom: which of its sites.
        split: "published": as the owner published it (a validation set is cut out of train, by image, where the owner
            has none). "image_disjoint": all pairs of the site split again by image. "paper": as FedPIA and F3OCUS used
            it (VQA-Med 2019: train with validation; 2020 and 2021: validation and test pooled and split 80:20). The
            federated tuning of vision transformers trains Flowers102 on train and validation.
        seed: of every random choice; for procedural data also of the data.
        validation_fraction: share of the images (of train, or of all with "image_disjoint") in a validation set that
            has to be cut; 0: none.
        test_fraction: share of the images in a test set that has to be cut ("image_disjoint", "paper", a manifest
            without split).
        train_size: training examples of a site, procedural data only; None: the data set's own number. Where several
            images belong to a patient, or sites share them, the three sizes are the shares by which they are split.
        validation_size: validation examples of a site, likewise.
        test_size: test examples of a site, likewise.
        dialects: phantom and phantom_modalities only: how many of seven pairs of words (left and right, disc and ring,
            ...) mean the opposite at about half of the sites, others for each pair. 0: all sites mean the same.
        label_skew: phantom only: how much the sites differ in the types of question that they ask. 0: all ask the nine
            types equally often; 1: each has its own mix; between, a share of it. Above 1, at most 10: its weights of
            the types to this power, which makes the mix sharper.
        partition: how sites share one data set: "natural", as the data set itself has sites, or none; "iid", at random;
            "dirichlet", each label in other proportions. The number at the end of a site's name (client-3) is that of
            its part. No patient or image is at two sites.
        parts: number of sites that share it, with "iid" and "dirichlet".
        alpha: concentration of "dirichlet"; the smaller, the more the sites differ in their labels.
        samples: the most samples of the data set that are used, drawn by `seed` before sites share them; all or none of
            a patient or an image. None: all.
        train_share: share of a site's training samples, drawn by `seed` after all cuts; all or none of a patient or an
            image. A smaller share is a part of a larger one. Validation and test stay whole.
        metric: the metric of sites: "accuracy", "balanced_accuracy" or "macro_f1"; empty: what their data declare.
            Labels only have macro_f1. For questions it is the mean, over the answers that occur in the test
            split, of the F1 of one answer against all others. Several right answers count as one.
        columns: hugging_face only: what the columns of its tables are called, for instance {question: prompt}, of
            image, question, answer, answer_type, question_type, split, id.
        window: manifest only: which part of the range of gray values of more than 8 bits is shown (DICOM, NIfTI, 16-bit
            PNG and TIFF), {center: 40, width: 400} or {percentiles: [1, 99]}; not set: that of the file itself.
        uncertain: MIMIC-CXR-JPG only: labels that the report is uncertain about are neither trained nor measured
            ("ignore"), or count as "positive" or "negative".
        exclude: ids of images to leave out, for images that another site has (`fedpeft.data.duplicates`).
        unreadable: share of a site's images that may be unreadable and are then skipped and counted; above 0, every
            image is decoded once before training (`fedpeft.data.readable`).
        pool: names of sites whose data this one holds together: centralized training, in the simulator only.
        answers: what a federated head distinguishes (`method.head`), one list for all sites, in any order; not set:
            what the data set itself declares. Training rows with other answers are left out, such test questions count
            as wrong, and only the site's own log says how many. The file of each site must name the same list.

    Raises:
        DataError: names the argument, its value and what is allowed.
    """

    dataset: str = "phantom"
    root: Path | str | None = None
    site: str | None = None
    split: str = "published"
    seed: int = 0
    validation_fraction: float = 0.1
    test_fraction: float = 0.2
    train_size: int | None = field(default=None, metadata={MAX_BY: "max_samples"})
    validation_size: int | None = field(default=None, metadata={MAX_BY: "max_samples"})
    test_size: int | None = field(default=None, metadata={MAX_BY: "max_samples"})
    dialects: int = 0
    label_skew: float = OWN_MIX
    partition: str = NATURAL
    parts: int = 1
    alpha: float = field(default=0.5, metadata={READ_WITH: {"partition": (DIRICHLET,)}})
    samples: int | None = None
    train_share: float = 1.0
    metric: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    window: Mapping[str, Any] = field(default_factory=dict)
    uncertain: str = IGNORED
    exclude: tuple[str, ...] = ()
    unreadable: float = 0.0
    pool: tuple[str, ...] = field(default=(), metadata=BY_SITE)
    answers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_known(self.dataset)
        if self.root is not None:
            if not isinstance(self.root, str | Path) or not str(self.root):
                raise DataError(
                    f"root={self.root!r} is not a folder name; give a path, or None to use FEDPEFT_DATA.",
                    setting="root",
                )
            object.__setattr__(self, "root", _folder(self.root))
        if self.site is not None and (not isinstance(self.site, str) or not self.site.strip()):
            raise DataError(
                f"site={self.site!r} is not a site's name; give text, or None for the data set's own name.",
                setting="site",
            )
        one_of("split", self.split, SPLITS)
        if not is_whole(self.seed) or not 0 <= self.seed < 2**63:
            raise DataError(f"seed={self.seed!r:.80} must be a whole number from 0 to 2^63 - 1.", setting="seed")
        self._check_fractions()
        self._check_sizes()
        self._check_dialects()
        self._check_label_skew()
        self._check_partition()
        self._check_columns()
        self._check_window()
        self._check_subsampling()
        if self.metric != "":
            one_of("metric", self.metric, TITLES)
        one_of("uncertain", self.uncertain, UNCERTAIN)
        if self.uncertain != IGNORED:
            self._check_taken("uncertain")
        check_unreadable(self.unreadable)
        if not isinstance(self.exclude, tuple | list) or not all(isinstance(i, str) for i in self.exclude):
            raise DataError(f"exclude={self.exclude!r:.200} must be a list of image ids (text).", setting="exclude")
        object.__setattr__(self, "exclude", tuple(self.exclude))
        if not all(isinstance(name, str) and name for name in self.pool) or len(set(self.pool)) < len(self.pool):
            raise DataError(f"pool={list(self.pool)!r:.200} must name sites, each once.", setting="pool")
        object.__setattr__(self, "answers", listed_answers(self.answers))

    def sizes(self, defaults: Mapping[str, int]) -> dict[str, int]:
        """Return the number of examples in each split of procedural data: the settings, or else the defaults."""
        own = {"train": self.train_size, "validation": self.validation_size, "test": self.test_size}
        return {split: size if own[split] is None else own[split] for split, size in defaults.items()}

    def check_parts(self, common: Mapping[str, Any], of_sites: Mapping[str, Any]) -> None:
        """Refuse sites that share this one's data set by other settings, because a sample could be at two sites.

        `common` is the section of all sites, `of_sites` what single sites replace in it.
        """
        defaults = {declared.name: declared.default for declared in fields(self)}
        for site, own in of_sites.items():
            theirs = {**defaults, **common, **(own if isinstance(own, Mapping) else {})}
            shared = (theirs["dataset"], _folder(theirs["root"])) == (self.dataset, self.root)
            if not shared or theirs["partition"] == self.partition == NATURAL:
                continue
            for name in DECIDE_PARTS:
                if theirs[name] != (mine := getattr(self, name)):
                    raise DataError(
                        f"{name} is {theirs[name]!r:.80} at site {site} and {mine!r:.80} at another, and sites that "
                        f"share out one data set need the same: set data.{name} for all.",
                        setting=f"data.sites.{site}.{name}",
                    )

    def _check_subsampling(self) -> None:
        """Check the settings that leave out samples."""
        if self.samples is not None and (not is_whole(self.samples) or self.samples < 1):
            raise DataError(f"samples={self.samples!r} must be a whole number, 1 or more, or None.", setting="samples")
        if not is_finite(self.train_share) or not 0 < self.train_share <= 1:
            raise DataError(
                f"train_share={self.train_share!r:.80} must be above 0 and at most 1.", setting="train_share"
            )

    def _check_fractions(self) -> None:
        for name in ("validation_fraction", "test_fraction"):
            value = getattr(self, name)
            if not is_number(value) or not (0 <= value < 1) or (value == 0 and name == "test_fraction"):
                least = "above 0" if name == "test_fraction" else "from 0"
                raise DataError(f"{name}={value!r} must be a number {least} to below 1.", setting=name)
        if self.validation_fraction + self.test_fraction >= 1:
            raise DataError(
                f"validation_fraction={self.validation_fraction} and test_fraction={self.test_fraction} leave nothing "
                "to train on; their sum must be below 1.",
                setting="test_fraction",
            )

    def _check_sizes(self) -> None:
        for name, least in (("train_size", 1), ("validation_size", 0), ("test_size", 1)):
            value = getattr(self, name)
            if value is None:
                continue
            if not is_whole(value) or value < least:
                raise DataError(f"{name}={value!r} must be a whole number, {least} or more, or None.", setting=name)
            self._check_taken(name)

    def _check_dialects(self) -> None:
        if not is_whole(self.dialects) or not 0 <= self.dialects <= MAX_DIALECTS:
            raise DataError(
                f"dialects={self.dialects!r} must be a whole number from 0 to {MAX_DIALECTS}.", setting="dialects"
            )
        if self.dialects:
            self._check_taken("dialects")

    def _check_label_skew(self) -> None:
        number = isinstance(self.label_skew, int | float) and not isinstance(self.label_skew, bool)
        if not number or not 0 <= self.label_skew <= MAX_LABEL_SKEW:  # NaN is in no range
            raise DataError(
                f"label_skew={self.label_skew!r:.80} must be a number from 0 (all sites ask alike) to "
                f"{MAX_LABEL_SKEW}; 1 is each site's own mix.",
                setting="label_skew",
            )
        if self.label_skew != OWN_MIX:
            self._check_taken("label_skew")

    def _check_partition(self) -> None:
        one_of("partition", self.partition, PARTITIONS)
        if not is_whole(self.parts) or not 1 <= self.parts <= MAX_PARTS:
            raise DataError(f"parts={self.parts!r} must be a whole number from 1 to {MAX_PARTS:,}.", setting="parts")
        if not isinstance(self.alpha, int | float) or not 0.001 <= self.alpha <= 1e6:
            raise DataError(f"alpha={self.alpha!r} must be a number from 0.001 to 1,000,000.", setting="alpha")
        if self.partition != NATURAL:
            self._check_taken("partition")
        elif self.parts != 1:
            raise DataError(
                f"parts={self.parts}, and partition={NATURAL!r} shares nothing out; choose iid or dirichlet.",
                setting="parts",
            )

    def _check_columns(self) -> None:
        check_columns(self.columns)
        if self.columns:
            self._check_taken("columns")

    def _check_window(self) -> None:
        window_of(self.window)
        if self.window:
            self._check_taken("window")

    def _check_taken(self, name: str) -> None:
        if name not in DATASETS.get(self.dataset).takes:
            raise DataError(
                f"{name}={getattr(self, name)!r} is not a setting of dataset={self.dataset!r}; remove it.", setting=name
            )


def _folder(root: Any) -> Path | None:
    """Return a folder in one spelling; a missing home stays, as no error must tell a job which users a site has."""
    return Path(os.path.expanduser(root)) if isinstance(root, str | Path) else None


def listed_answers(answers: Any) -> tuple[str, ...]:
    """Return a job's list of answers in their normal form."""
    if not isinstance(answers, tuple | list) or not all(isinstance(a, str) and a.strip() for a in answers):
        raise DataError("answers must be a list of texts that are not empty.", setting="answers")
    normal = tuple(map(normalize, answers))
    if len(set(normal)) < len(normal) or len(normal) > MAX_ANSWERS:
        raise DataError(
            f"answers has {len(normal)} entries, {len(set(normal))} of them different: name each once, whatever its "
            f"case and spaces, and at most {MAX_ANSWERS:,}.",
            setting="answers",
        )
    return normal


def check_unreadable(unreadable: float) -> None:
    """Refuse a value that is no share of images that may be unreadable."""
    if not is_number(unreadable) or not 0 <= unreadable < 1:
        raise DataError(f"unreadable={unreadable!r:.80} must be a number from 0 to below 1.", setting="unreadable")


def check_columns(columns: Mapping[str, str]) -> None:
    """Refuse names of columns that are not text, and keys that no table has."""
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) and name for name in columns.values()):
        raise DataError(f"columns={columns!r:.200} must give names of columns (text).", setting="columns")
    if unknown := [str(key) for key in columns if key not in COLUMNS]:
        raise DataError(
            f"columns names {unknown[0]!r:.80}, which is none of {', '.join(COLUMNS)}; remove it.", setting="columns"
        )
