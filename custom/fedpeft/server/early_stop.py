# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""End a job whose sites no longer improve on their validation splits (`training.patience`)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from fedpeft.core.metrics import VALIDATION

Sites = Mapping[str, Mapping[str, float | None]]


def median_figures(rounds: Iterable[Sites]) -> list[float | None]:
    """Return for each round the median over all sites so far of their latest figure on the validation split.

    A site that takes no part in a round counts with what it reached before; one that never reports a figure does not
    count. None: no site has reported one yet.

    Args:
        rounds: by site, the metrics of each round.
    """
    latest: dict[str, float] = {}
    medians: list[float | None] = []
    for sites in rounds:
        latest |= _reported(sites)
        medians.append(statistics.median(latest.values()) if latest else None)
    return medians


def best_before_end(rounds: Sequence[Sites], patience: int) -> int | None:
    """Return the number of the best round if as many rounds as `patience` have brought nothing better; else None.

    The median must not have risen, and fewer than half of the sites may have a figure above all of their own earlier
    ones. A single site can move the median between the figures of the others, so the median alone does not decide.

    Args:
        rounds: by site, the metrics of each round so far, from round 1.
        patience: 0: a job never ends early.
    """
    measured = {number: median for number, median in enumerate(median_figures(rounds), 1) if median is not None}
    if not patience or not measured:
        return None
    best = max(measured, key=lambda number: (measured[number], -number))
    if len(rounds) - best < patience:
        return None
    improved = _improved(rounds[:-patience], rounds[-patience:])
    return best if not improved or 2 * sum(improved) < len(improved) else None


def _improved(before: Iterable[Sites], since: Iterable[Sites]) -> list[bool]:
    """Whether each site that reported in both has reached more since than ever before."""
    earlier, later = _best(before), _best(since)
    return [later[site] > figure for site, figure in earlier.items() if site in later]


def _best(rounds: Iterable[Sites]) -> dict[str, float]:
    best: dict[str, float] = {}
    for sites in rounds:
        best |= {site: max(value, best.get(site, value)) for site, value in _reported(sites).items()}
    return best


def _reported(sites: Sites) -> dict[str, float]:
    return {site: value for site, one in sites.items() if (value := one.get(VALIDATION)) is not None}
