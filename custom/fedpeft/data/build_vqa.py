# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Make question-answer pairs from class-labelled images, one about each, as Ultra-MedVQA does (F3OCUS, supplement C.1).

    OUT/<site>/manifest.csv, OUT/<site>/images/..., OUT/statistics.md

The paper prints shares of six types of questions over all sites. Not every type can be asked about every set, so the
number of each type per set is fitted: near to the shares as far as the sets allow it, with one question for each image.
Of the 707,962 images of the paper a third have a disease as their class, so that 39 % cannot be reached with them; the
page of statistics has both figures. Images are split 80:20 at random; the paper says no more.
"""

from __future__ import annotations

import csv
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpeft.core.files import replacing
from fedpeft.data.errors import DataError
from fedpeft.data.vqa_sources import Source
from fedpeft.data.vqa_templates import SHARES, Subject, ask

_HEADER = ("image", "question", "answer", "answer_type", "question_type", "split")
_ROUNDS, _LEAST = 200, 0.25


def build(parts: Sequence[Source], out: Path, *, seed: int = 0, test_fraction: float = 0.2) -> None:
    """Write the sites' folders and the page of statistics.

    Args:
        parts: the sets; those of one site go into one folder.
        out: a folder that does not exist yet.
        seed: of types, wordings and splits.
        test_fraction: share of the images in the test split.

    Raises:
        DataError: `out` exists, the seed is negative, a set has fewer than two images, the fraction is not between 0
            and 1, or an image cannot be read.
    """
    if out.exists():
        raise DataError(f"{out} exists; name a folder that does not, or remove it.")
    if seed < 0:
        raise DataError(f"seed={seed} must be 0 or more.")
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction={test_fraction} must be above 0 and below 1.")
    if few := [part.name for part in parts if len(part.items) < 2]:
        raise DataError(f"The set {few[0]!r} has fewer than two images; add some, or leave it out.")
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


def numbers(sets: Sequence[tuple[Subject, int]]) -> np.ndarray:
    """Return how many questions of each type a set gets, (sets, 6): one for each image.

    Rows and columns are scaled in turn to the images of the sets and to the published shares (iterative proportional
    fitting), rows last; remainders go to the largest fractions. No set loses a type to that: in each pass it
    keeps `_LEAST` of what it would have alone, in the published shares of the types that can be asked about it.

    Args:
        sets: what is known of the images of each set, and how many there are.
    """
    kinds = tuple(SHARES)
    allowed = np.array([[kind in subject.types for kind in kinds] for subject, _ in sets], dtype=float)
    images = np.array([count for _, count in sets], dtype=float)
    shares = np.array([SHARES[kind] for kind in kinds]) * allowed.any(axis=0)
    alone = allowed * shares
    alone *= (images / alone.sum(axis=1))[:, None]
    fit = alone
    for _ in range(_ROUNDS):
        columns = fit.sum(axis=0)
        scale = np.divide(shares / shares.sum() * images.sum(), columns, out=np.zeros_like(columns), where=columns > 0)
        fit = np.maximum(fit * scale, _LEAST * alone)
        fit *= (images / fit.sum(axis=1))[:, None]
    whole = np.floor(fit).astype(int)
    for row, exact, total in zip(whole, fit, images.astype(int), strict=True):
        row[np.argsort(row - exact, kind="stable")[: total - row.sum()]] += 1
    return whole


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
