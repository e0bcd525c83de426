# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Make question-answer pairs from class-labelled images, one about each, as Ultra-MedVQA does (F3OCUS, supplement C.1).

    OUT/<site>/manifest.csv, OUT/<site>/images/..., OUT/statistics.md

The paper prints shares of six types of questions over all sites. Not every type can be asked about every set, so the
number of each type per set is fitted as near to the shares as the sets allow, with one question for each image. Only a
third of the paper's 707,962 images have a disease as their class, so that its 39 % cannot be reached; the page of
statistics has both figures. Images are split 80:20 at random; the paper says no more.

Class-labelled images from which questions are made: MedMNIST's files, and folders of class folders.

    <name>.npz, <name>_64.npz, ...                          MedMNIST: a file, or a folder of them (the largest of each)
    SOURCE/<class>/*.png                                    one set
    SOURCE/{train,val,test}/<class>/*.png                   one set; its splits are joined
    SOURCE/<set>/<class>/*.png                              several sets, a site each

MedMNIST's sets belong to the nine sites of Ultra-MedVQA (F3OCUS, supplement C.1).
"""

from __future__ import annotations

import csv
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedpeft.core.errors import DataError
from fedpeft.core.files import replacing
from fedpeft.data.answers import is_missing, normalize, whole_text
from fedpeft.data.folders import files_below, is_hidden, is_image
from fedpeft.data.images import open_image
from fedpeft.data.medmnist import SETS, SIZES, SPLITS, stored_arrays
from fedpeft.data.partition import SPELLINGS
from fedpeft.data.ultra_med_vqa import SHARES, Subject, ask, numbers

EXPECTED = """
    SOURCE/<class>/*.png            one folder of images for each class, or
    SOURCE/<set>/<class>/*.png      several such sets, or
    <name>.npz                      a file of MedMNIST, or a folder of them"""
_SHOWN = 8

_HEADER = ("image", "question", "answer", "answer_type", "question_type", "split")


class Item(NamedTuple):
    """One image: its path in the site's folder, its classes, and how it is written there."""

    name: str
    names: tuple[str, ...]
    write: Callable[[Path], object]


class Source(NamedTuple):
    """One set: the site that gets it, its name, what is known of all images, the images, and other files."""

    site: str
    name: str
    subject: Subject
    items: list[Item]
    left_out: tuple[tuple[str, int], ...] = ()


def sources(path: Path, *, modality: str = "", anatomy: str = "", classes_are: str = "disease") -> list[Source]:
    """Return the sets at a path."""
    for name, value in (("modality", modality), ("anatomy", anatomy)):
        try:
            whole_text(value)
        except DataError as error:
            raise DataError(f"--{name} cannot be read: {error}; write it in UTF-8.") from error
        if value and is_missing(value):
            raise DataError(f"--{name} is {value!r}, which programs write where a value is missing: leave it out.")
    if path.suffix == ".npz" and path.is_file():
        return [_medmnist(path)]
    if not path.is_dir():
        raise DataError(f"{path} is neither a folder nor a file of MedMNIST (.npz); correct the path.")
    if files := _largest(path):
        return [_medmnist(file) for file in files]
    known = {"modality": modality, "anatomy": anatomy, "classes_are": classes_are}
    below = _folders(path)
    if any(_holds_images(folder) for folder in below):
        return [_folder(path, below, **known)]
    inner = {folder: _folders(folder) for folder in below}
    with_classes = {folder: own for folder, own in inner.items() if any(map(_holds_images, own))}
    if not with_classes:
        here = ", ".join(repr(entry.name) for entry in sorted(path.iterdir())[:_SHOWN]) or "nothing"
        raise DataError(f"{path} holds no images in class folders. Expected:{EXPECTED}\nThere is {here}.")
    if {folder.name.lower() for folder in with_classes} <= SPELLINGS.keys():
        return [_folder(path, [own for folders in with_classes.values() for own in folders], **known)]
    inside = [own for classes in with_classes.values() for own in classes]
    images = sum(is_image(file) for own in inside for file in own.iterdir())
    apart = len({own.name for own in inside}) == len(inside)
    if len(with_classes) > 1 and apart and images * len(with_classes) < len(inside) ** 2:
        raise DataError(
            f"the folders in those of {path} have fewer images each than there are of them, as patients' folders have: "
            f"put the images of each class into one folder."
        )
    return [_folder(folder, own, **known) for folder, own in with_classes.items()]


def _folders(path: Path) -> list[Path]:
    return [e for e in sorted(path.iterdir()) if e.is_dir() and not is_hidden(e.name)]


def _holds_images(folder: Path) -> bool:
    return any(is_image(file) for file in folder.iterdir())


def _folder(root: Path, classes: list[Path], *, modality: str, anatomy: str, classes_are: str) -> Source:
    items = []
    for folder in classes:
        for file in sorted(filter(is_image, folder.iterdir())):
            name = f"images/{root.resolve().name}/{file.relative_to(root).as_posix()}"
            items.append(Item(name, (_class(folder),), partial(_copy, file)))
    others = len(files_below(root)) - len(items)
    known = tuple(sorted({name for item in items for name in item.names}))
    subject = Subject(modality, anatomy, known, classes_are)
    left_out = (("no image in a class folder", others),) if others else ()
    return Source(_site_of(root.resolve().name), root.resolve().name, subject, items, left_out)


def _site_of(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "site"


def _class(folder: Path) -> str:
    name = normalize(folder.name.replace("_", " "))
    if is_missing(name):
        raise DataError(
            f"the class folder {folder} has a name that programs write for a missing value, which no manifest may have "
            f"as an answer; rename the folder."
        )
    return name


def _copy(file: Path, target: Path) -> None:
    open_image(file)  # refuse unreadable images now, not in a round of a federation
    shutil.copyfile(file, target)


def _largest(path: Path) -> list[Path]:
    """Return the files of MedMNIST in a folder: the one with the largest images of each set."""
    of_sets = ([path / f"{kind.name}{size}.npz" for size in SIZES] for kind in SETS)
    return [files[0] for named in of_sets if (files := [file for file in named if file.is_file()])]


def _medmnist(file: Path) -> Source:
    kind = next((kind for kind in SETS if any(file.stem == f"{kind.name}{size}" for size in SIZES)), None)
    if kind is None:
        raise DataError(f"{file} is none of MedMNIST's files, so its classes have no names; use class folders.")
    classes = (*kind.classes, "no finding") if kind.labelled else kind.classes
    items = []
    for split in SPLITS:
        images, labels = stored_arrays(file, split, kind)
        for number, (image, row) in enumerate(zip(images, labels, strict=True)):
            numbers = np.flatnonzero(row) if kind.labelled else row
            names = tuple(kind.classes[int(index)] for index in numbers) or ("no finding",)
            items.append(Item(f"images/{kind.name}/{split}-{number}.png", names, partial(_save, image)))
    return Source(kind.site, kind.name, Subject(kind.modality, kind.anatomy, classes, kind.classes_are), items)


def _save(image: np.ndarray, target: Path) -> None:
    Image.fromarray(image).save(target)


def _check_sites(folders: Sequence[str]) -> None:
    """Refuse folders whose names differ only in letter case and punctuation: they would be one site."""
    seen: dict[str, str] = {}
    for name in folders:
        if (site := _site_of(name)) in seen:
            raise DataError(f"the folders {seen[site]!r} and {name!r} would both be the site {site!r}; rename one.")
        seen[site] = name


def build(parts: Sequence[Source], out: Path, *, seed: int = 0, test_fraction: float = 0.2) -> None:
    """Write the sites' folders and the page of statistics."""
    if out.exists():
        raise DataError(f"{out} exists; name a folder that does not, or remove it.")
    if seed < 0:
        raise DataError(f"seed={seed} must be 0 or more.")
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction={test_fraction} must be above 0 and below 1.")
    if few := [part.name for part in parts if len(part.items) < 2]:
        raise DataError(f"The set {few[0]!r} has fewer than two images; add some, or leave it out.")
    _check_sites([part.name for part in parts if part.name not in {kind.name for kind in SETS}])
    counts = numbers([(part.subject, len(part.items)) for part in parts])
    rows: dict[str, list[dict[str, str]]] = {part.site: [] for part in parts}
    with replacing(out) as draft:
        for part, of_types in zip(parts, counts, strict=True):
            rows[part.site] += _written(part, of_types, draft / part.site, seed=seed, test_fraction=test_fraction)
        for site, of_site in rows.items():
            with open(draft / site / "manifest.csv", "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, _HEADER)
                writer.writeheader()
                writer.writerows(of_site)
        (draft / "statistics.md").write_text(statistics(parts, rows, seed=seed), encoding="utf-8")


def _written(
    part: Source, of_types: np.ndarray, folder: Path, *, seed: int, test_fraction: float
) -> list[dict[str, str]]:
    """Write the images of a set and return its rows of the manifest."""
    rng = np.random.default_rng([seed, zlib.crc32(part.name.encode())])
    kinds = rng.permutation(np.repeat(list(SHARES), of_types))
    tested = min(max(1, round(test_fraction * len(part.items))), len(part.items) - 1)
    test = set(rng.permutation(len(part.items))[:tested].tolist())
    rows = []
    for number, (item, kind) in enumerate(zip(part.items, kinds, strict=True)):
        target = folder / item.name
        target.parent.mkdir(parents=True, exist_ok=True)
        item.write(target)
        question = ask(str(kind), part.subject, item.names, rng)
        split = "test" if number in test else "train"
        values = (item.name, question.text, question.answer, ("OPEN", "CLOSED")[question.closed], str(kind), split)
        rows.append(dict(zip(_HEADER, values, strict=True)))
    return rows


def statistics(parts: Sequence[Source], rows: dict[str, list[dict[str, str]]], *, seed: int) -> str:
    """Return the page of statistics (Markdown): counts by site, by type and by set."""
    everything = [row for of_site in rows.values() for row in of_site]
    asked = Counter(row["question_type"] for row in everything)
    total = len(everything)
    lines = [
        "# Questions made from class labels",
        "",
        f"{total} questions about {total} images at {len(rows)} sites, made by program from templates (seed {seed}).",
        "",
        *_table(
            ("site", "images", "train", "test", "answers", "closed"),
            [
                (
                    site,
                    len(of_site),
                    sum(row["split"] == "train" for row in of_site),
                    sum(row["split"] == "test" for row in of_site),
                    len({row["answer"] for row in of_site}),
                    sum(row["answer_type"] == "CLOSED" for row in of_site),
                )
                for site, of_site in rows.items()
            ],
        ),
        *_table(
            ("type of question", "questions", "share (%)", "published (%)"),
            [(kind, asked[kind], f"{100 * asked[kind] / total:.1f}", f"{100 * SHARES[kind]:.0f}") for kind in SHARES],
        ),
        *_table(
            ("set", "site", "images", "classes", "left out", "types of questions"),
            [
                (
                    part.name,
                    part.site,
                    len(part.items),
                    len(part.subject.classes),
                    "; ".join(f"{count} {reason}" for reason, count in part.left_out) or "none",
                    ", ".join(part.subject.types),
                )
                for part in parts
            ],
        ),
    ]
    return "\n".join(lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    cells = [header, ["---"] * len(header), *rows]
    return [*("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in cells), ""]
