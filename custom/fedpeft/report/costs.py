# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Tables of what a run cost and did: bytes sent, distances before and after alignment, ranks of layers."""

from __future__ import annotations

import statistics

from scipy.stats import rankdata

from fedpeft.protocol.limits import MB
from fedpeft.report.history import History
from fedpeft.report.series import series
from fedpeft.report.table import MEAN, SHADES, Table
from fedpeft.report.wording import DASH, FEWER, moved_places, percent

DISTANCE = "Distance: mean of a site's neurons from those of the reference at their index"


def sent(history: History) -> Table | None:
    """Return what the sites sent, in MB: a row for every round; None where nobody counted.

    The last columns are the sum over the sites, and that over all rounds so far.
    """
    lines = series(history, "sent")
    if all(value is None for line in lines.values() for value in line):
        return None
    rows, so_far, counted = [], 0.0, True
    for index, one in enumerate(history.rounds):
        known = [line[index] for line in lines.values() if line[index] is not None]
        so_far += sum(known) / MB
        counted = counted and len(known) >= len(one.sites)
        cells = [_megabytes(line[index]) for line in lines.values()]
        rows.append(
            (
                str(one.round),
                *cells,
                _megabytes(sum(known) if known else None),
                f"{so_far:.3f}{'' if counted else FEWER}",
            )
        )
    marks = "MB: a million bytes of adapters, without FLARE's own messages and what the server sends to the sites"
    marks += "" if counted else f"; {FEWER} without what sites sent in rounds where nobody counted"
    return Table(
        title="Sent by the sites (MB)",
        columns=("round", *lines, "all sites", "so far"),
        rows=tuple(rows),
        marks=marks,
        averages=0,
    )


def aligned(history: History) -> Table | None:
    """Return what the last aligned round did to every site's adapter; None where nothing was aligned."""
    rounds = [one for one in history.rounds if any(None not in (v.before, v.after) for v in one.aligned.values())]
    if not rounds:
        return None
    last = rounds[-1]
    by_site = {s: v for s, v in last.aligned.items() if v.before is not None and v.after is not None}
    closer = [1 - value.after / value.before if value.before else 0.0 for value in by_site.values()]
    rows = [
        (site, f"{value.before:.4f}", f"{value.after:.4f}", percent(nearer), percent(value.moved))
        for (site, value), nearer in zip(by_site.items(), closer, strict=True)
    ]
    known = list(by_site.values())
    moved = [value.moved for value in known if value.moved is not None]
    before, after = (f"{statistics.fmean(getattr(v, name) for v in known):.4f}" for name in ("before", "after"))
    average = percent(statistics.fmean(moved) if moved else None)
    rows.append((MEAN, before, after, percent(statistics.fmean(closer)), average))
    return Table(
        title=f"Alignment in round {last.round}",
        columns=("site", "distance before", "distance after", "closer by (%)", "neurons moved (%)"),
        rows=tuple(rows),
        marks="; ".join(filter(None, (DISTANCE, moved_places(history)))),
    )


def ranks(history: History) -> Table | None:
    """Return the mean rank of every layer at every site over the scheduled rounds; None where no layer was scored.

    Rank 1 is the layer with a site's highest score; layers of equal scores share the mean of their ranks.
    """
    plans = [one.schedule for one in history.scheduled if one.schedule.scores]
    if not plans:
        return None
    rows = []
    for site in history.sites:
        places = [rankdata([-score for score in plan.scores[site]]) for plan in plans if site in plan.scores]
        if places:
            rows.append((site, *(f"{statistics.fmean(column):.1f}" for column in zip(*places, strict=True))))
    equal, scored = sum(len(plan.undecided) for plan in plans), sum(len(plan.scores) for plan in plans)
    note = f"; {equal} of {scored} times a site scored all layers the same, so that its score chose none"
    return Table(
        title="Rank of the layers",
        columns=("site", *map(str, plans[0].numbers)),
        rows=tuple(rows),
        marks=f"Mean over {len(plans)} scored round{'s' * (len(plans) > 1)}; 1: the site's highest score"
        + note * (equal > 0),
        averages=0,
        shades=tuple(tuple(_shade(float(rank), len(row) - 1) for rank in row[1:]) for row in rows),
    )


def _shade(rank: float, count: int) -> int:
    """Return the shade of a rank from 1 to `count`, the darkest for the best."""
    return min(SHADES - 1, int(SHADES * (rank - 1) / count))


def _megabytes(value: float | None) -> str:
    return DASH if value is None else f"{value / MB:.3f}"
