# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Settings that limit how far a single site can move the global adapter, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import at_least, between, one_of

MEAN, MEDIAN = "mean", "median"
MAX_ATTACKERS = 1000
AVERAGES = (MEAN, MEDIAN, "trimmed_mean", "krum", "multi_krum", "geometric_median")


@dataclass(frozen=True, kw_only=True)
class RobustSettings:
    """Settings against sites that send wrong updates, by mistake or on purpose.

    Args:
        average: how the (aligned) adapters of a round become one. `mean` weighs by samples and, under PIA, by distance.
            The others weigh all sites equally, since a site could give a wrong weight: coordinate by coordinate
            the `median` or the `trimmed_mean` without the `attackers` largest and smallest values; `krum`, the adapter
            nearest to its neighbors; `multi_krum`, the mean of the K - `attackers` such adapters; `geometric_median`.
        attackers: how many sites of a round may send anything; below half of them. Where a layer has too few sites for
            that (`trimmed_mean` needs 2 f + 1, `krum` and `multi_krum` 2 f + 3), its median is taken.
        max_share: largest share of one site in the sample counts of a round (of K sites at least 1 / K): with 1/2 no
            site outweighs all others together, whatever number of samples it announces, and two sites of any sizes
            weigh the same. 1: no cap.
        update_factor: a site whose adapter moved further than this many times the round's median (root mean square over
            its numbers, from the adapter that it was sent, or from as much of its own as it may keep there) is refused
            in this round; 0: no site is. The default leaves room for sites that take ten times as many steps. Nobody is
            refused for less than the job's learning rates explain, so that sites that hardly move do not lower the
            limit. Over the rounds the root of this number counts: 3.2 times the median, or the sum of learning rates.
            With optimizer `sgd` or a kept adapter, fewer than five replies refuse only who moved by more than twice the
            adapter's size as well.

    Source: Yin et al. 2018 (median, trimmed mean), Blanchard et al. 2017 (Krum), Pillutla et al. 2022 (geometric
    median).
    """

    average: str = MEAN
    attackers: int = 1
    max_share: float = 0.5
    update_factor: float = 10.0

    def __post_init__(self) -> None:
        one_of("average", self.average, AVERAGES)
        between("attackers", self.attackers, 0, MAX_ATTACKERS)
        at_least("max_share", self.max_share, 0, exclusive=True)
        at_least("update_factor", self.update_factor, 0)
        if self.max_share > 1:
            raise FedpeftError(f"max_share is {self.max_share!r}, it must be at most 1.", setting="max_share")
        if 0 < self.update_factor <= 1:
            raise FedpeftError(
                f"update_factor is {self.update_factor!r}, which would refuse every second site: give a number above "
                f"1, or 0 for no limit.",
                setting="update_factor",
            )

    @property
    def weighs(self) -> bool:
        """Whether the average uses weights."""
        return self.average == MEAN
