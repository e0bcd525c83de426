# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The 15 labels of FedPIA's tasks 3 and 4 (Open-I, MIMIC-CXR), and how the owners' labels become them.

One text of FedPIA names all 15: CheXpert's 14 labels and "Others", for a report with none of them. Table 2 of F3OCUS's
supplement shows reports with 13 of the 14, "No Finding" among them. The numbers that they print, 3,547 pairs of Open-I
and 73,348 training samples of MIMIC-CXR (80 % of 91,685), are those of MedViLL (Moon et al., 2022), which has the same
15 labels.

The papers do not say how Open-I's MeSH terms become labels. Here a term counts for a label where CheXpert's labeler
(Irvin et al., AAAI 2019) counts the same words in a report: a scar or interstitial markings are Lung Opacity, a nodule
or a cavity Lung Lesion, congestion Edema, fibrosis or thickened pleura Pleural Other. What it has no label for, such as
a calcified granuloma or a degenerative spine, has none here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedpeft.core.errors import DataError
from fedpeft.data.registry import packaged
from fedpeft.data.settings import AS_POSITIVE, IGNORED

# by label of CheXpert the MeSH terms that count for it, each alone or with one of its qualifiers
MESH: dict[str, list[list[str]]] = packaged("chest_labels")
CHEXPERT = tuple(MESH)
OTHERS = "Others"
LABELS = (*CHEXPERT, OTHERS)
NOT_INDEXED = "no indexing"
_YES, _NO, _UNCERTAIN = 1.0, 0.0, -1.0


def of_mesh(terms: Iterable[str]) -> tuple[str, ...] | None:
    """Return the labels of terms such as `Opacity/lung/base/left` (Open-I); None: nobody indexed the report."""
    split = [[" ".join(part.lower().split()) for part in term.split("/")] for term in terms]
    split = [parts for parts in split if parts[0]]
    if not split or any(parts[0] == NOT_INDEXED for parts in split):
        return None
    return _or_others(
        label
        for label, rules in MESH.items()
        if any(parts[0] == head and {*qualifier} <= {*parts[1:]} for parts in split for head, *qualifier in rules)
    )


def of_chexpert(values: Sequence[str], uncertain: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the labels of a study of MIMIC-CXR, and those of which nobody knows whether they apply.

    Args:
        values: of CheXpert's 14 labels in the order of `CHEXPERT`: 1.0 (yes), 0.0 (no), -1.0 (uncertain) or empty
            (not mentioned, so no).
        uncertain: `data.uncertain`.
    """
    numbers = {label: _number(value, label) for label, value in zip(CHEXPERT, values, strict=True)}
    counts = (_YES, _UNCERTAIN) if uncertain == AS_POSITIVE else (_YES,)
    labels = [label for label, number in numbers.items() if number in counts]
    unknown = [label for label, number in numbers.items() if number == _UNCERTAIN and uncertain == IGNORED]
    if unknown and not labels:
        return (), (*unknown, OTHERS)
    return _or_others(labels), tuple(unknown)


def _or_others(labels: Iterable[str]) -> tuple[str, ...]:
    return tuple(labels) or (OTHERS,)


def _number(value: str, label: str) -> float:
    try:
        number = float(value or _NO)
    except ValueError:
        number = float("nan")
    if number not in (_YES, _NO, _UNCERTAIN):
        raise DataError(f"the value of {label!r} is none of 1.0, 0.0, -1.0 and empty")
    return number
