# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site's model is, beside its tensors: with both it can be built again, where its training data are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ROUNDS_BELOW, TITLES, VALIDATION
from fedpeft.core.settings import one_of

Figures = Mapping[str, float | int | None]
ROUNDING = 1e-6  # of means in single precision


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """A site's model after a round. It holds the site's answers and stays with its head.

    Args:
        site: the site's name.
        fedpeft: version that wrote it.
        sections: of the job; empty: the learner was made without a job.
        answers: what the head tells apart, or the answers of training; labels where images have these.
        spellings: by class or label how the site writes it, where that differs from the answer.
        labelled: whether images have labels instead of a question with one answer.
        asks: whether its examples have questions.
        metric: by which the site is measured (`fedpeft.core.metrics`).
        thresholds: of each label, from which on it counts as predicted; None: one half, or there are no labels.
        share: of the tensors beside the trained ones in what an adapter adds (`fedpeft.site.site_state`).
        window: through which its images were shown (`fedpeft.data.window`), where they have more than 8 bits.
        procedural, tiny: whether the data are computed, and whether the backbone is too small for medicine.
        source: one sentence on the origin of the data.
        samples: of each split.
        rounds: the figures of every round until this one, with its number as `round`.
    """

    site: str
    fedpeft: str
    sections: Mapping[str, Any]
    answers: tuple[str, ...]
    labelled: bool
    asks: bool
    metric: str
    thresholds: tuple[float, ...] | None = None
    share: float = 0.0
    window: Mapping[str, Any] = field(default_factory=dict)
    procedural: bool = False
    tiny: bool = False
    source: str = ""
    samples: Mapping[str, int] = field(default_factory=dict)
    rounds: tuple[Figures, ...] = ()
    spellings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        one_of("metric", self.metric, TITLES)
        if not self.answers or (self.thresholds is not None and len(self.thresholds) != len(self.answers)):
            raise FedpeftError(
                f"a model has {len(self.answers)} answers and {len(self.thresholds or ())} thresholds: it needs one "
                f"answer at least, and as many thresholds or none."
            )
        if not all(type(one.get("round")) is int for one in self.rounds):
            raise FedpeftError("rounds has an entry without a number as round: leave it out.")
        if not all(isinstance(one, str) for one in self.spellings.values()):
            raise FedpeftError("spellings has a value that is no text: leave it out.")


def as_json(record: ModelRecord) -> dict[str, Any]:
    """Return what `fedpeft.core.settings.build` reads back; what is None is left out."""
    return {name: value for name, value in asdict(record).items() if value is not None}


def with_round(rounds: tuple[Figures, ...], number: int, figures: Figures) -> tuple[Figures, ...]:
    """Return the figures of the rounds before one, and behind them its own."""
    return (*(one for one in rounds if one["round"] < number), {"round": number, **figures})


def below_constant(rounds: tuple[Figures, ...], constant: float | None) -> float | None:
    """Return 1 if a site was no better than a constant answer in each of its last rounds, else 0; None: not measured.

    Args:
        rounds: the figures of every round.
        constant: what the best constant answer reaches; None: nothing can be measured.
    """
    figures = [one.get("overall") for one in rounds[-ROUNDS_BELOW:]]
    if constant is None or figures[-1] is None:
        return None
    below = [figure is not None and figure <= constant + ROUNDING and figure < 1 for figure in figures]
    return float(len(below) == ROUNDS_BELOW and all(below))


def best_round(rounds: tuple[Figures, ...]) -> int | None:
    """Return the round with the best figure on the validation split, the first of several; None: none was measured."""
    measured = {int(one["round"]): one[VALIDATION] for one in rounds if one.get(VALIDATION) is not None}
    return max(measured, key=lambda number: (measured[number], -number)) if measured else None
