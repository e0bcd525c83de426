# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""End a job whose sites no longer improve on their validation splits (`training.patience`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedpeft.metrics import VALIDATION

Sites = Mapping[str, Mapping[str, float | None]]


def mean_figures(rounds: Iterable[Sites]) -> list[float | None]:
    """Return for each round the mean over all sites so far of their latest figure on the validation split.

    A site that takes no part in a round counts with what it reached before; one that never reports a figure does not
    count. None: no site has reported one yet.

    Args:
        rounds: by site, the metrics of each round.
    """
    latest: dict[str, float] = {}
    means: list[float | None] = []
    for sites in rounds:
        latest |= {site: value for site, one in sites.items() if (value := one.get(VALIDATION)) is not None}
        means.append(sum(latest.values()) / len(latest) if latest else None)
    return means


def best_before_end(rounds: Sequence[Sites], patience: int) -> int | None:
    """Return the number of the best round if as many rounds as `patience` have brought nothing better; else None.

    Args:
        rounds: by site, the metrics of each round so far, from round 1.
        patience: 0: a job never ends early.
    """
    measured = {number: mean for number, mean in enumerate(mean_figures(rounds), 1) if mean is not None}
    if not patience or not measured:
        return None
    best = max(measured, key=lambda number: (measured[number], -number))
    return best if len(rounds) - best >= patience else None
