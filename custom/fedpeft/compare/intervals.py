# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Differences between methods, seed by seed, with an interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from scipy import stats

LEVEL = 0.95
TWO_SEEDS = (
    "Two seeds: an interval of two differences has one degree of freedom. Its width is largely chance: three seeds or "
    "more say whether methods differ."
)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the mean of paired differences and half the width of its 95 % interval (Student's t); infinite for one."""
    mean, count = statistics.fmean(differences), len(differences)
    if count < 2:
        return mean, math.inf
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    return mean, quantile * statistics.stdev(differences) / math.sqrt(count)


def paired(mine: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Return my figure minus theirs for each seed that both have."""
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def signed(differences: Sequence[float]) -> str:
    """Return their mean with its interval as text; one or two seeds stand beside it."""
    mean, half = interval(differences)
    if len(differences) == 1:
        return f"{mean:+.1f}, one seed"
    return f"{mean:+.1f} ± {half:.1f}" + ", two seeds" * (len(differences) == 2)
