# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Figures of an alignment, as dictionaries that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of one site's adapter at one place, or their mean over places.

    Args:
        before: mean distance between its neurons and the reference's of equal index, <C, I/n>; None for unequal widths.
        after: the transport distance <C, P>: the same between matching neurons.
        moved: fraction of the neurons that changed their index; None for unequal widths.
        held: whether neurons would have moved, but not by enough for `margin`; None where nothing was aligned.
        distance: D_k, Frobenius distance of the aligned adapter from the reference.
        weight: its weight in the sum over the sites; the paper's weights do not sum to 1.
    """

    before: float | None = None
    after: float | None = None
    moved: float | None = None
    held: bool | None = None
    distance: float | None = None
    weight: float | None = None


def report_of(places: Mapping[str, Mapping[str, Figures]]) -> dict[str, Any]:
    """Return the report of a round.

    Args:
        places: `layer.<l>.<slot>` -> name of the site -> figures.

    Returns:
        `transport`: site -> transport distance, mean over its places; `decisions`: site -> number of its places where
        neurons `moved`, where all `stayed`, and of these where they were `held` by the margin; `sites`: site -> means
        of all its figures; `places`: the figures themselves. None stands for a figure that does not exist.
    """
    by_site: dict[str, list[Figures]] = {}
    for sites in places.values():
        for site, figures in sites.items():
            by_site.setdefault(site, []).append(figures)
    means = {site: _mean(rows) for site, rows in by_site.items()}
    return {
        "transport": {site: mean.after for site, mean in means.items()},
        "decisions": {site: _decisions(rows) for site, rows in by_site.items()},
        "sites": {site: {**vars(mean)} for site, mean in means.items()},
        "places": {place: {site: {**vars(row)} for site, row in sites.items()} for place, sites in places.items()},
    }


def _mean(rows: list[Figures]) -> Figures:
    means = {}
    for field in fields(Figures):
        known = [value for value in (getattr(row, field.name) for row in rows) if value is not None]
        means[field.name] = sum(known) / len(known) if known else None
    return Figures(**means)


def _decisions(rows: list[Figures]) -> dict[str, int]:
    """Count what became of the places whose neurons could have stayed: those of equal width."""
    return {
        "moved": sum(row.moved is not None and row.moved > 0 for row in rows),
        "stayed": sum(row.moved == 0 for row in rows),
        "held": sum(row.held is True for row in rows),
    }
