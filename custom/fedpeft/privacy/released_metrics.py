# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site's own file lets out of accuracies and losses: rounded, of no small group, once for each round of a job.

The server chooses the model that they are measured on. Exact numbers of two models, or of a group of one question,
would tell how single samples are answered; rounded ones tell it later, and not for ever (`metrics: false` does).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedpeft.errors import LocalError
from fedpeft.files import write_json

ACCURACY_DECIMALS = 2  # whole percent
LOSS_DIGITS = 3
OVERALL = "overall"
FILE = "released-metrics.json"
Metrics = dict[str, float | None]


def released_metrics(measured: Mapping[str, float | None], questions: Mapping[str, int], *, least: int) -> Metrics:
    """Accuracies to whole percent and losses to three digits, None for what is withheld.

    With one small group all are withheld: the others and the overall accuracy would give it away.

    Args:
        measured: by name, fractions and losses; None: not measured.
        questions: by group of questions, how many of them the fraction of that name is of.
        least: of which a fraction may leave.
    """
    withheld = set(questions) if any(0 < count < least for count in questions.values()) else set()
    fractions = {OVERALL, *questions}
    return {
        name: None if value is None or name in withheld else _rounded(value, fraction=name in fractions)
        for name, value in measured.items()
    }


def first_of_round(metrics: Metrics, round: int, folder: Path) -> Metrics:
    """These metrics, or those that have left in this round before: an order that is repeated learns nothing new.

    Args:
        metrics: that are about to leave.
        round: of the job.
        folder: the job's run folder; the rounds of a job never fall.

    Raises:
        LocalError: what has left cannot be read or noted.
    """
    file = folder / FILE
    try:
        before = json.loads(file.read_text()) if file.exists() else {"round": 0}
        if before["round"] == round:
            return {name: before["metrics"][name] for name in metrics}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalError(f"{file} cannot be read ({error}): submit the job again.") from error
    write_json(file, {"round": round, "metrics": metrics})
    return metrics


def _rounded(value: float, *, fraction: bool) -> float:
    return round(value, ACCURACY_DECIMALS) if fraction else float(f"{value:.{LOSS_DIGITS}g}")
