# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Any Hugging Face `datasets` folder on disk that has questions about images.

    data/train-00000-of-00001.parquet, data/test-...        as the hub has them, with or without the folder data/
    default/train/0000.parquet                              as the hub converts other sets
    dataset_dict.json, train/{state.json,data-00000-of-00001.arrow}, ...         as `save_to_disk` writes them

`columns` names the columns: image, question and answer, by default with these names, and, only if it names them,
answer_type, question_type, split and id (of the image). An image is a cell with the file's bytes, or a path inside the
folder. An answer is text, a whole number, a class, or a list: its first entry is learned, and all count as right.
Images are recognized by their bytes where there is no id column, or where several images have one id. Without `root`
the folder is FEDPEFT_DATA/<site>.

Rows without an image, or with several, without a question or an answer, and splits other than train, validation and
test are counted and left out. Where there is no train or no test, everything is split by image.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedpeft.core.errors import DataError
from fedpeft.data.answers import closed_by_answer, closed_by_type, is_missing, normalize
from fedpeft.data.folders import Listing, dataset_folder, image_file, inside, tree
from fedpeft.data.hub_files import SeveralSetsError, Shard, columns_of, encoded, image_bytes, rows, shards
from fedpeft.data.images import EncodedImage
from fedpeft.data.loaders import refuse_paper
from fedpeft.data.partition import SPELLINGS, Splits, arrange, pooled, published
from fedpeft.data.records import BadRows, Row, reading
from fedpeft.data.registry import DataSet
from fedpeft.data.schema import Example, SiteData, added
from fedpeft.data.settings import DataSettings

REQUIRED = ("image", "question", "answer")
MAX_LETTERS = 2**16  # of a text: a short book
_INCOMPLETE = "no image or several, no question or no answer"
_OTHER_SPLIT = "its split is none of train, validation and test"


def load(settings: DataSettings) -> SiteData:
    """Load the data of such a folder as one site."""
    refuse_paper(settings, "a hugging_face folder")
    root = dataset_folder(settings, (settings.site or "hugging_face",))
    files = shards(root)
    parts: dict[str, list[Example]] = {"train": [], "validation": [], "test": [], "": []}
    left_out: Counter[str] = Counter()
    images: dict[str, Path | EncodedImage] = {}
    texts: dict[str, str] = {}
    ids: dict[str, dict[str, None]] = {}
    for shard in files:
        for split, example in _examples(root, shard, settings.columns, images, texts, ids):
            if split in parts and example is not None:
                parts[split].append(example)
            else:
                left_out[_INCOMPLETE if example is None else _OTHER_SPLIT] += 1
    if not _divided(parts) and left_out[_OTHER_SPLIT]:
        others = sorted({shard.split for shard in files} - SPELLINGS.keys() - {""})
        named = f" ({', '.join(others):.200})" if others else ""
        raise DataError(
            f"{root} has no train or no test split, and rows of splits with other names{named}: call them train, "
            f"validation and test."
        )
    names, unusual = _names(ids, images)
    stays = _keeps_splits(settings, parts)

    def renamed(example: Example) -> Example:
        """Return the example with its image's name; where everything is split anew, images of one id stay together."""
        own, name = next(iter(ids[example.image_id])), names[example.image_id]
        return replace(example, image_id=name, group="" if stays or name == own else own)

    parts = {split: list(map(renamed, examples)) for split, examples in parts.items()}
    splits, notes = _arranged(settings, parts)
    notes += unusual
    site = settings.site or root.resolve().name
    source = f"the site's own data ({site}), real data as its Hugging Face folder lists them"
    # other images have a digest of the file as their id
    own_ids = "id" in settings.columns or any(isinstance(image, Path) for image in images.values())
    return SiteData(site, *splits, source, left_out=added(left_out.items()), notes=tuple(notes), own_ids=own_ids)


def _names(
    ids: Mapping[str, Mapping[str, None]], images: Mapping[str, Path | EncodedImage]
) -> tuple[dict[str, str], list[str]]:
    """Return the id of each image by its digest, and sentences on ids that do not distinguish images.

    Args:
        ids: by digest or path of an image, the ids that rows give it.
        images: by digest or path.
    """
    first = {digest: next(iter(own)) for digest, own in ids.items()}
    count = Counter(first.values())
    content = {digest: _content_digest(digest, images[digest]) for digest, own in first.items() if count[own] > 1}
    several_of = Counter(own for own, _ in {(first[digest], of_bytes) for digest, of_bytes in content.items()})
    notes = []
    if several := sum(len(own) for own in ids.values() if len(own) > 1):
        notes.append(
            f"{several:,} ids name images that other ids name too, and each of these counts as one image: where ids "
            f"are those of rows, leave data.columns.id out."
        )
    if shared := sum(number > 1 for number in several_of.values()):
        notes.append(
            f"{shared:,} ids name several images each, which are told apart by their bytes: where ids begin anew in "
            f"each split or are no names of images, leave data.columns.id out."
        )
    return {digest: content[digest] if several_of[own] > 1 else own for digest, own in first.items()}, notes


def _content_digest(digest: str, image: Path | EncodedImage) -> str:
    """Return the digest of an image's bytes, whether the table or a file has them."""
    if not isinstance(image, Path):
        return digest
    try:
        return hashlib.sha256(image.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{image} cannot be read ({error.strerror}): copy it again.") from error


def _divided(parts: Mapping[str, list[Example]]) -> bool:
    """Return whether the folder divides its rows into splits."""
    return bool(parts["train"] and parts["test"] and not parts[""])


def _keeps_splits(settings: DataSettings, parts: Mapping[str, list[Example]]) -> bool:
    """Return whether the site keeps the folder's splits."""
    return _divided(parts) and settings.split == "published"


def _arranged(settings: DataSettings, parts: Mapping[str, list[Example]]) -> tuple[Splits, list[str]]:
    """Return the site's splits, and sentences on what is unusual in the folder's splits."""
    stays = _keeps_splits(settings, parts)
    notes = published([(split if stays else None, e) for split, examples in parts.items() for e in examples])
    if _divided(parts):
        validation = parts["validation"] or None
        return arrange(settings, train=parts["train"], validation=validation, test=parts["test"]), notes
    notes.append("The folder has no train or no test split; all of it is split by image.")
    return pooled([example for examples in parts.values() for example in examples], settings), notes


def _examples(
    root: Path,
    shard: Shard,
    named: Mapping[str, str],
    images: dict[str, Path | EncodedImage],
    texts: dict[str, str],
    ids: dict[str, dict[str, None]],
) -> Any:
    """Yield the split and the example of each row of a file; None where the row is incomplete.

    The example's id is the digest or path of its image; `ids` gathers the ids that rows give by it.
    """
    columns = {**{key: key for key in REQUIRED}, **named}
    there, classes = columns_of(shard.file)
    for key, name in columns.items():
        if name not in there:
            raise DataError(
                f"{shard.file} has no column {name!r:.80}; it has {', '.join(there):.200}: set data.columns.{key}."
            )
    of_file, bad, count = SPELLINGS.get(shard.split, shard.split), BadRows(shard.file), 0
    for number, values in enumerate(rows(shard.file, list(columns.values()))):
        where, count = f"{shard.file}, row {number + 1}", number + 1
        named_cells = zip(columns, values, strict=True)
        split, example = of_file, None
        with bad.gathering():
            row = Row(where, {key: _class_name(value, classes.get(columns[key]), where) for key, value in named_cells})
            cells = row.values
            if "split" in named:
                split = SPELLINGS.get(row.label("split").lower(), "other")
            image = encoded(cells["image"])
            if image is not None and all(_filled(cells[key]) for key in ("question", "answer")):
                digest = (
                    hashlib.sha256(image).hexdigest() if isinstance(image, bytes) else inside(root, image, where=where)
                )
                if digest not in images:
                    images[digest] = (
                        EncodedImage(where, partial(image_bytes, shard.file, columns["image"], number))
                        if isinstance(image, bytes)
                        else image_file(root, digest, where=where)
                    )
                example = _example(row, images[digest], digest, texts)
                ids.setdefault(digest, {})[example.image_id] = None
                example = replace(example, image_id=digest)
        yield split, example
    bad.refuse_any(count)


def _class_name(value: Any, classes: list[str] | None, where: str) -> Any:
    """Return the name of the class whose number a cell holds, None if it is unknown, and any other value as it is."""
    if classes and isinstance(value, list):
        return [_class_name(entry, classes, where) for entry in value]
    if not classes or not isinstance(value, int):
        return value
    if value >= len(classes):
        raise DataError(f"{where}: a class has the number {value}, and there are {len(classes)}; correct that row.")
    return classes[value] if value >= 0 else None  # -1: `datasets` has no label


def _filled(cell: Any) -> bool:
    entries = cell if isinstance(cell, list) else [cell]
    return not all(map(is_missing, entries))


def _example(row: Row, image: Path | EncodedImage, digest: str, texts: dict[str, str]) -> Example:
    """Return the example of a row; equal texts are kept once, as the file's dictionaries do."""
    answers = row.values["answer"]

    def once(text: str) -> str:
        if len(text) > MAX_LETTERS:
            raise DataError(
                f"{row.where}: a text of {len(text):,} characters, allowed are {MAX_LETTERS:,}; shorten it."
            )
        return texts.setdefault(text, text)

    with reading(row):
        entries = answers if isinstance(answers, list) else [answers]
        normal = tuple(dict.fromkeys(once(normalize(entry)) for entry in entries if _filled(entry)))
        kind = row.label("answer_type")
        closed = closed_by_type(kind) if kind else closed_by_answer(normal[0])
    return Example(
        image=image,
        question=once(row.text("question")),
        answer=normal[0],
        closed=closed,
        image_id=once(digest if is_missing(row.values.get("id"), or_none=True) else row.label("id")),
        question_type=once(row.label("question_type")),
        alternatives=normal[1:],
    )


def recognized(seen: Listing) -> bool:
    """Return whether a folder holds the rows of one data set, and not of several."""
    if not seen.has("*.parquet") and not seen.has("*/state.json"):
        return False
    try:
        return bool(shards(seen.root))
    except SeveralSetsError:
        return False
    except DataError:  # loading raises it again
        return True


DATASET = DataSet(
    load=load, takes=frozenset({"columns"}), recognized=recognized, layout=tree(__doc__), folders=("{site}",)
)
