# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""OmniMedVQA (Hu et al., CVPR 2024) as the eight clients of FedPIA's and F3OCUS's task 2, one for each modality.

    OmniMedVQA/Images/<data set>/..., OmniMedVQA/QA_information/{Open-access,Restricted-access}/<data set>.json

    {"question_id": "Chest CT Scan_0000", "question_type": "Modality Recognition", "question": "...",
     "gt_answer": "x_ray.", "image_path": "Images/...", "option_A": "...", ..., "modality_type": "X-Ray"}

The site's name chooses the client: ct, ultrasound, oct, fundus, microscopy, histopathology, dermatoscopy, x-ray. Its
data sets are those of F3OCUS, supplement C.2.2, and all in Open-access; Restricted-access may be absent. Two of them
also hold other modalities, and the paper takes one: RadImageNet (ultrasound) and OCT & X-Ray 2017 (OCT). One record of
Chest CT Scan has the key `modality` for `modality_type`.

Answers are written in several ways (`x_ray.`, `X-ray`). An answer that differs from a printed one of the supplement
only in case, blanks and punctuation becomes that one; others lose a full stop at their end. Answers that it does not
print stay and are counted (`SiteData.notes`); so are numbers of pairs and images that differ from its table 1.

The publisher has no splits. The papers split 80:20; they do not say whether by pair or by image, and print a share of
pairs. Here every `split` is by image, with `test_fraction` and `validation_fraction`, since one image has several
questions.

The supplement separates its answers by commas, and some answers hold one: omni_med_vqa.json divides them so that the
printed number comes out. Under (g) a comma is missing between "Inflammatory" and "Benign keratosis": the 36 of the text
would be 35. The numbers count spellings: "Microscopy" and "microscopy" are two of the 27 under (e), and one class in
the normal form of `fedpeft.data.answers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fedpeft.core.errors import DataError
from fedpeft.data.answers import closed_by_answer, normalize
from fedpeft.data.folders import dataset_folder, find, image_file, inside
from fedpeft.data.loaders import published_set
from fedpeft.data.partition import pooled
from fedpeft.data.records import INCOMPLETE, Row, complete, json_rows, reading
from fedpeft.data.registry import packaged
from fedpeft.data.schema import Example, SiteData, added
from fedpeft.data.settings import DataSettings

_KEYS = ("question", "gt_answer", "image_path")
_ACCESS = ("Open-access", "Restricted-access")


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """What the supplement says of one client."""

    sets: list[str]  # names of its data sets, as the publisher's files have them
    pairs: int  # this and the next two: as table 1 prints them
    images: int
    answers: list[str]
    # data set -> the first word of `modality_type` in the records that count
    only: dict[str, str] = field(default_factory=dict)


CLIENTS = {site: Client(**printed) for site, printed in packaged("omni_med_vqa").items()}


def load(settings: DataSettings) -> SiteData:
    """Load one of the eight clients."""
    if settings.site not in CLIENTS:
        raise DataError(f"site={settings.site!r} is not a client of OmniMedVQA; choose one of {', '.join(CLIENTS)}.")
    client = CLIENTS[settings.site]
    information = find(dataset_folder(settings), "QA_information", folder=True)
    files = _files(information)
    chosen, others, incomplete = [], 0, 0
    for name in client.sets:
        rows = json_rows(_file(files, name, information), _KEYS)
        whole = complete(rows, ("image_path", "question", "gt_answer"))
        incomplete += len(rows) - len(whole)
        kept = [row for row in whole if _letters(_modality(row)).startswith(client.only.get(name, ""))]
        others += len(whole) - len(kept)
        chosen += kept
    printed = _printed_by_letters(settings.site)
    examples = tuple(_example(row, information.parent, printed) for row in chosen)
    return SiteData(
        settings.site,
        *pooled(examples, settings),
        f"OmniMedVQA (Hu et al., CVPR 2024), real data, {settings.site}, split by image",
        left_out=added(
            [("another modality of a data set of which the client has one", others), (INCOMPLETE, incomplete)]
        ),
        notes=(*_deviations(client, examples, printed), *_absent(information)),
    )


def answers() -> Iterable[str]:
    """Return the answers of all clients as the supplement prints them."""
    return (answer for site in CLIENTS for answer in _printed_by_letters(site).values())


def _files(information: Path) -> dict[str, list[Path]]:
    """Return the publisher's files in both folders of access, by the letters and digits of their names."""
    files: dict[str, list[Path]] = {}
    for access in _ACCESS:
        for path in sorted((information / access).glob("*.json")):
            files.setdefault(_letters(path.stem), []).append(path)
    return files


def _file(files: dict[str, list[Path]], name: str, information: Path) -> Path:
    matches = files.get(_letters(name), [])
    if not matches:
        folder = information / _ACCESS[0]
        raise DataError(f"The file {name + '.json'!r} is missing in {folder}; unpack OmniMedVQA there.")
    if len(matches) > 1:
        raise DataError(f"Both {matches[0]} and {matches[1]} are there; keep one of them.")
    return matches[0]


def _absent(information: Path) -> tuple[str, ...]:
    if (information / _ACCESS[1]).is_dir():
        return ()
    return (f"{_ACCESS[1]} is not there; no data set of the eight clients is in it.",)


def _modality(row: Row) -> str:
    return row.label("modality_type") or row.label("modality")


def _letters(text: str) -> str:
    """Return the letters and digits of a text, in lower case."""
    return "".join(character for character in text.lower() if character.isalnum())


@cache
def _printed_by_letters(site: str) -> dict[str, str]:
    """Return a client's printed answers, normalized, by their letters; the first of those with the same letters."""
    pool: dict[str, str] = {}
    for answer in CLIENTS[site].answers:
        pool.setdefault(_letters(answer), normalize(answer))
    return pool


def _example(row: Row, root: Path, printed: dict[str, str]) -> Example:
    name = inside(root, row.text("image_path"), where=row.where)
    with reading(row):
        answer = normalize(row.values["gt_answer"])
    answer = printed.get(_letters(answer), answer.rstrip(". ") or answer)
    return Example(
        image=image_file(root, name, where=row.where),
        question=row.text("question"),
        answer=answer,
        closed=closed_by_answer(answer),
        image_id=name.removeprefix("Images/"),
        question_type=row.label("question_type").lower(),
    )


def _deviations(client: Client, examples: tuple[Example, ...], printed: dict[str, str]) -> Iterable[str]:
    images = len({example.image_id for example in examples})
    if (len(examples), images) != (client.pairs, client.images):
        yield (
            f"{len(examples)} pairs about {images} images; table 1 of F3OCUS prints {client.pairs} about "
            f"{client.images}."
        )
    pool, used = set(printed.values()), {example.answer for example in examples}
    if used - pool:
        pairs = sum(example.answer not in pool for example in examples)
        yield f"{pairs} pairs have {len(used - pool)} answers that F3OCUS does not print (C.2.2); they are kept."
    if pool - used:
        yield f"{len(pool - used)} of the {len(pool)} answers that F3OCUS prints (C.2.2) do not occur."


DATASET = published_set("omni_med_vqa", load, layout=__doc__, answers=answers, sites=tuple(CLIENTS))
