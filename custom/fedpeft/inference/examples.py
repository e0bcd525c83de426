# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read what is to be predicted: one image, a folder of images, a table, or a split of the site's own data.

A table is a manifest (`fedpeft.data.manifest`) whose column of answers, classes or labels may be missing; an answer or
class may be missing in some rows, while an image without labels has none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpeft.core.errors import DataError, FedpeftError, UnreadableImage
from fedpeft.data.answers import AnswerVocabulary, clean_text, is_missing, whole_text
from fedpeft.data.chosen_image import image_of, is_nifti
from fedpeft.data.dicom import is_dicom
from fedpeft.data.dicom_grays import SET_WINDOW
from fedpeft.data.folders import check_name, files_below, inside, is_image
from fedpeft.data.images import EIGHT_BITS, ChosenImage, check_header
from fedpeft.data.loaders import label_example
from fedpeft.data.manifest import FILES, KINDS, optional, table
from fedpeft.data.records import Row, convert_rows, reading
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import Window, window_of
from fedpeft.inference.kept_model import KeptModel
from fedpeft.job.settings import SiteJob
from fedpeft.protocol.job_against_policy import admitted, load_data
from fedpeft.site.site_state import ModelRecord, examples_digest

AS_IN_TRAINING = "save it with 8 bits, shown as the images of training were: the model was trained without data.window"
CHANGED = "The data of this site are not those that the model was trained with."


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The examples to predict."""

    examples: tuple[Example, ...]  # an unknown answer is replaced by the site's first one
    known: tuple[bool, ...]  # for each, whether its answer, class or labels are known
    unseen: int = 0  # see `fedpeft.site.metrics.Measure`
    rare: frozenset[int] = frozenset()
    remarks: tuple[str, ...] = ()  # lines for the user


def window_at(kept: KeptModel) -> Window | None:
    """Return the window through which the images of training were shown; None: there was none."""
    return window_of(kept.record.window)


def check_grays(wanted: Wanted, record: ModelRecord) -> None:
    """Refuse images whose header says that they cannot be shown, those of more than 8 bits with a remedy.

    A window that the model was not trained with would show it unknown grays.
    """
    for image in {example.image_id: example.image for example in wanted.examples}.values():
        try:
            check_header(image, inside_tables=True)
        except UnreadableImage as error:
            if error.remedy in (EIGHT_BITS, SET_WINDOW) and not record.window:
                raise UnreadableImage.of(error.image, error.why, AS_IN_TRAINING) from error
            raise


def read_images(named: Path, question: str | None, record: ModelRecord, *, window: Window | None = None) -> Wanted:
    """Return an image of any kind that a manifest may name, or all pictures of a folder, with one question."""
    try:
        question = whole_text(question or "").strip()
    except DataError as error:
        raise FedpeftError(f"--question cannot be read: {error}; write it in UTF-8.") from error
    if record.asks and not question:
        raise FedpeftError("this model answers questions: give one with --question.")
    if question and not (record.asks or record.labelled):
        raise FedpeftError("this model tells classes of images apart and reads no question: leave --question out.")
    if not named.exists():
        raise FedpeftError(f"{named} does not exist: name an image, or a folder of images.")
    inside = files_below(named) if named.is_dir() else []
    files = list(filter(is_image, inside)) if named.is_dir() else [check_name(named)]
    others = [file for file in inside if not is_image(file) and (is_nifti(file) or is_dicom(file))]
    if not files:
        raise FedpeftError(f"{named} holds no image: name an image, or a folder of images.")
    names = [str(file.relative_to(named)) if named.is_dir() else file.name for file in files]
    images = [image_of(file.parent, file.name, window, where="the command")[0] for file in files]
    examples = tuple(_unknown_example(image, name, question, record) for image, name in zip(images, names, strict=True))
    left_out = f"{len(others)} DICOM or NIfTI files of the folder were left out: use a command for each, or a manifest."
    remarks = (*([left_out] if others else []), *_text_remarks(examples, record))
    return Wanted(examples=examples, known=(False,) * len(examples), remarks=remarks)


def read_table(named: Path, kept: KeptModel) -> Wanted:
    """Return the rows of a manifest, or of that in a folder, each with its answer, class or labels if it has them."""
    record, window = kept.record, window_at(kept)
    root = named.parent if named.name.lower() in FILES else named
    read = table(root, ("image", "question", "answer", "answer_type", "label", "labels", "text"))
    needed = ("image", "question") if record.asks else ("image",)
    keys = ("labels",) if record.labelled else ("question", "answer") if record.asks else ("label",)
    kind = next(kind for kind in KINDS if kind.keys == keys)
    vocabulary = AnswerVocabulary(record.answers)
    there = {name for row in read.rows for name in row.values}
    if read.rows and (absent := [key for key in needed if key not in there]):
        raise DataError(
            f"the table in {root} has no column {absent[0]!r}, which this model needs, and has "
            f"{', '.join(map(repr, read.columns)):.200}: add it, or name one of them so."
        )

    def example_of(row: Row) -> tuple[Example, bool]:
        if lacking := [key for key in needed if key not in row.values]:
            raise DataError(f"{row.where}: {lacking[0]!r} is missing, which this model needs: add it.")
        name = inside(root, row.text("image"), where=row.where)
        image, _ = image_of(root, name, window, where=row.where)
        is_known = "labels" in row.values if record.labelled else _is_known(row.values.get(keys[-1]), record)
        with reading(row):
            example = kind.example(row, image, name) if is_known else _unknown_row(row, image, name, record)
            _check_labels(example, vocabulary)
        return example, is_known

    pairs = convert_rows(read.rows, example_of, read.bad)
    read.bad.refuse_any(read.total)
    examples, known = [example for example, _ in pairs], [is_known for _, is_known in pairs]
    measured = [example for example, is_known in zip(examples, known, strict=True) if is_known]
    remarks = (*read.notes, *_text_remarks(examples, record))
    return Wanted(examples=tuple(examples), known=tuple(known), remarks=remarks, **_counts(measured, kept))


def _text_remarks(examples: Sequence[Example], record: ModelRecord) -> list[str]:
    """Return a sentence if images with labels have a text and those of this site's training had none, or lack it."""
    if not record.labelled or record.reads_text is None:
        return []
    with_text = sum(bool(example.question) for example in examples)
    if record.reads_text and (lacking := len(examples) - with_text):
        return [
            f"{lacking:,} of {len(examples):,} images have no text, and this site's training had texts beside images: "
            f"give each with --question, or in the column 'text' of a manifest."
        ]
    if with_text and not record.reads_text:
        return [
            f"{with_text:,} of {len(examples):,} images have a text, and this site's training had none beside images: "
            f"the prediction changes with it; leave --question, or the column 'text', out."
        ]
    return []


def _is_known(value: Any, record: ModelRecord) -> bool:
    """Return whether a cell has an answer; the name of a class may be that of a missing value."""
    if value is None:
        return False
    return not is_missing(value) or " ".join(clean_text(str(value)).lower().split()) in record.answers


def read_split(split: str, kept: KeptModel) -> Wanted:
    """Return a split of the site's own data, as the job chose them."""
    if "data" not in kept.record.sections:
        raise FedpeftError(
            f"{kept.folder} is an exported folder, which does not say where data are: use --image or --manifest."
        )
    return split_of(own_data(kept), split, kept)


def own_data(kept: KeptModel) -> SiteData:
    """Return the site's own data, as the job chose them; nothing leaves, and no server moves the model any more."""
    job = SiteJob.from_sections(kept.record.sections, site=kept.record.site, policy=kept.policy)
    job = replace(job, training=replace(job.training, scaffold=False))
    return load_data(kept.policy, admitted(kept.policy, job) if kept.policy else job, trains=False)


def split_of(data: SiteData, split: str, kept: KeptModel) -> Wanted:
    """Return a split of the site's own data."""
    examples = data.splits()[split]
    if not examples:
        raise FedpeftError(f"site {kept.record.site} has no {split} split: choose another --split.")
    try:
        for example in examples:
            _check_labels(example, AnswerVocabulary(kept.record.answers))
    except DataError as error:
        raise FedpeftError(f"the {split} split: {error}: the data have changed since the run, train again.") from error
    same = examples_digest(data) == kept.state.facts.get("examples")
    return Wanted(
        examples=examples,
        known=(True,) * len(examples),
        remarks=() if same else (CHANGED,),
        **_counts(examples, kept),
    )


def _unknown_example(image: Path | ChosenImage, name: str, question: str, record: ModelRecord) -> Example:
    if record.labelled:
        return label_example(image, (), image_id=name, text=question)
    return Example(image, question, record.answers[0], closed=False, image_id=name)


def _unknown_row(row: Row, image: Path | ChosenImage, name: str, record: ModelRecord) -> Example:
    text = row.text("question") if record.asks else optional(row, "text") if record.labelled else ""
    return _unknown_example(image, name, text, record)


def _check_labels(example: Example, vocabulary: AnswerVocabulary) -> None:
    for label in (*(example.labels or ()), *example.unknown_labels):
        vocabulary.index_of_label(label)


def _counts(examples: Sequence[Example], kept: KeptModel) -> dict[str, Any]:
    vocabulary, least = AnswerVocabulary(kept.record.answers), kept.min_class_images
    if kept.record.labelled:
        return {}
    rare = vocabulary.rare_classes(examples, min_images=least)
    return {"unseen": vocabulary.unseen_classes(examples, min_images=least), "rare": rare}


def with_label(example: Example, label: str, record: ModelRecord) -> Example:
    """Return an example whose right answer, or only known label, is `label`."""
    if not record.labelled:
        return replace(example, answer=label)
    others = tuple(other for other in record.answers if other != label)
    return replace(example, labels=(label,), unknown_labels=others)
