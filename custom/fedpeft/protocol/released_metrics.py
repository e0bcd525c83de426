# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Limit the figures that leave a site, accuracies, losses and layer scores: rounded, once per round of a job.

The server chooses the model that they are measured on. Exact numbers of two models, or of a group of one question,
would reveal how single samples are answered. A group with few questions is withheld. Rounding only delays that;
`metrics: false` prevents it, and `scores: false` for the scores. Numbers of samples are rounded for secure sums.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpeft.core.errors import LocalError
from fedpeft.core.files import write_json
from fedpeft.core.metrics import BELOW_CONSTANT, VALIDATION

ACCURACY_DECIMALS = 2  # whole percent
LOSS_DIGITS = 3
OVERALL = "overall"
FILE, SCORES_FILE = "released-metrics.json", "released-scores-{task}.json"
SCORE_DIGITS = 3
COUNT_STEP = 10
Metrics = dict[str, float | None]


def rounded_count(count: int) -> int:
    """Round a number of samples to two digits, and to tens at least, so that one sample rarely shows; 0 stays 0."""
    step = max(COUNT_STEP, 10 ** (len(str(count)) - 2))
    return max(step, (count + step // 2) // step * step) if count else 0


def released_metrics(
    measured: Mapping[str, float | None], questions: Mapping[str, int], *, least: int, enough_validation: bool = True
) -> Metrics:
    """Round accuracies to whole percent and losses to three digits; withheld values become None.

    If one group is too small, all groups are withheld: it could be computed from the others and the overall accuracy.
    So is `below_constant`, as the best constant answer may be the small group's, and the server can find how often.

    Args:
        measured: fractions and losses by name; None: not measured.
        questions: number of questions in each group, by the name of its fraction.
        least: the smallest group whose fraction may leave.
        enough_validation: whether the validation split has as many samples as the site requires.
    """
    small = any(0 < count < least for count in questions.values())
    withheld = {*questions, BELOW_CONSTANT} if small else set()
    withheld |= set() if enough_validation else {VALIDATION}
    fractions = {OVERALL, VALIDATION, *questions}
    return {
        name: None if value is None or name in withheld else _rounded(value, fraction=name in fractions)
        for name, value in measured.items()
    }


def first_of_round(metrics: Metrics, round: int, folder: Path) -> Metrics:
    """Return these metrics, or those already sent in this round, so that a repeated order reveals nothing new.

    Args:
        metrics: about to leave the site.
        round: number of the round; it never decreases within a job.
        folder: the job's run folder.

    Raises:
        LocalError: the record of sent metrics cannot be read or written.
    """
    before = _first(metrics, round, folder / FILE)
    return {name: before.get(name) for name in metrics}


def first_scores_of_round(scores: Sequence[float], task: str, round: int, folder: Path) -> list[float]:
    """Return these layer scores, rounded to three digits, or those already sent in this round for the same task.

    Args:
        scores: about to leave the site.
        task: that they answer.
        round, folder: as in `first_of_round`.

    Raises:
        LocalError: the record of sent scores cannot be read or written.
    """
    rounded = [float(f"{score:.{SCORE_DIGITS}g}") for score in scores]
    return list(_first(rounded, round, folder / SCORES_FILE.format(task=task)))


def _first(value: Any, round: int, file: Path) -> Any:
    try:
        before: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"round": 0}
        if before["round"] == round:
            return before["value"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalError(f"{file} cannot be read ({error}): submit the job again.") from error
    write_json(file, {"round": round, "value": value})
    return value


def _rounded(value: float, *, fraction: bool) -> float:
    return round(value, ACCURACY_DECIMALS) if fraction else float(f"{value:.{LOSS_DIGITS}g}")
