# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One quantity of a history over its rounds, per site and as the mean of the sites."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from fedpeft.core.errors import FedpeftError
from fedpeft.report.history import History

ACCURACIES = ("overall", "open", "closed")
QUANTITIES = (*ACCURACIES, "validation", "loss", "samples", "sent", "alignment")


@dataclass(frozen=True, kw_only=True)
class Mean:
    """The mean of the sites in one round; not complete where a site that has figures elsewhere has none."""

    value: float | None
    complete: bool


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the figures of each site, and those of their mean, stand in a picture from left to right in each round."""

    sites: Mapping[str, np.ndarray]
    mean: np.ndarray


def series(history: History, quantity: str) -> dict[str, list[float | None]]:
    """Return a quantity of every site, round by round; None if the site has no figure in that round.

    Args:
        history: the run.
        quantity: one of ``QUANTITIES``.

    Raises:
        FedpeftError: an unknown quantity.
    """
    if quantity not in QUANTITIES:
        raise FedpeftError(f"There is no quantity {quantity!r} in a history; choose from {', '.join(QUANTITIES)}.")
    if quantity == "alignment":
        return {site: [one.alignment.get(site) for one in history.rounds] for site in history.sites}
    return {site: [getattr(one.sites.get(site), quantity, None) for one in history.rounds] for site in history.sites}


def means(
    history: History,
    quantity: str,
    *,
    sites: Collection[str] | None = None,
    weights: Mapping[str, float] | None = None,
) -> list[Mean]:
    """Return the mean of a quantity over the sites, round by round: sum_i w_i x_i / sum_i w_i over those with a figure.

    Args:
        history: the run.
        quantity: one of ``QUANTITIES``.
        sites: only these; None: all.
        weights: by site; a site without one counts as without a figure. None: all sites count alike.

    Raises:
        FedpeftError: an unknown quantity.
    """
    lines = [
        (line, 1 if weights is None else weights.get(site, 0))
        for site, line in series(history, quantity).items()
        if (sites is None or site in sites) and any(value is not None for value in line)
    ]
    averages = []
    for index in range(len(history.rounds)):
        known = [(line[index], weight) for line, weight in lines if line[index] is not None and weight]
        total = sum(weight for _, weight in known)
        mean = sum(value * weight for value, weight in known) / total if known else None
        averages.append(Mean(value=mean, complete=len(known) == len(lines)))
    return averages


def tested_weights(history: History, sites: Collection[str]) -> dict[str, int]:
    """Return the test samples of some sites by which their figures are weighted; empty where they are not all known."""
    known = {site: tested.samples for site, tested in history.tested.items() if site in sites}
    return known if len(known) == len(sites) > 1 and any(known.values()) else {}
