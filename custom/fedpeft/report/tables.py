# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The content of a run's tables as text; terminal, Markdown and page lay it out.

They have the figures of the sites, and what a run cost and did: bytes sent, distances before and after alignment, and
ranks of layers.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from scipy.stats import rankdata

from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY, TITLES
from fedpeft.core.text import counted
from fedpeft.protocol.fields import MB
from fedpeft.report.history import History, RoundRecord
from fedpeft.report.wording import (
    ACCURACIES,
    DASH,
    FEWER,
    REJECTED,
    heading,
    last_round_title,
    legend,
    means,
    moved_places,
    parts,
    percent,
    series,
    tested_weights,
)

MEAN, WEIGHTED = "mean", "weighted mean"
AVERAGED = (MEAN, WEIGHTED)
SHADES = 5
DISTANCE = "Distance: mean of a site's neurons from those of the reference at their index"
BASELINE = "baseline: what a constant answer reaches"
EXAMPLES = "loss: of training, examples: train"
BEST = "best: the highest mean of all sites; training.patience goes by the sites' median"
BY_SAMPLES = "weighted mean: by the number of test samples, the loss by that of training samples"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A title, the heads of the columns, the rows, a line that explains the marks, and notes; names come first.

    The last `averages` rows are means if they are named so. `shades` has the background of each figure, from 0, the
    darkest, to SHADES - 1. `best` holds (row, column) of figures in bold. `values` are the columns of a CSV: a head,
    and a name, a number or None in each row.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: str = ""
    averages: int = 1
    shades: tuple[tuple[int, ...], ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()
    notes: tuple[str, ...] = ()
    values: tuple[tuple[str, tuple[str | float | None, ...]], ...] = ()


def sent(history: History) -> Table | None:
    """Return the MB that the sites sent, a row for every round; None if not counted.

    The last columns are the sum over the sites, and that over all rounds so far.
    """
    lines = series(history, "sent")
    if all(value is None for line in lines.values() for value in line):
        return None
    rows, so_far, counted = [], 0.0, True
    for index, one in enumerate(history.rounds):
        known = [line[index] for line in lines.values() if line[index] is not None]
        so_far += sum(known) / MB
        counted = counted and len(known) >= len(one.sites) and not one.rejected
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
    marks += "" if counted else f"; {FEWER} without replies that were refused or whose size was not counted"
    return Table(
        title="Sent by the sites (MB)",
        columns=("round", *lines, "all sites", "so far"),
        rows=tuple(rows),
        marks=marks,
        averages=0,
    )


def aligned(history: History) -> Table | None:
    """Return what the last aligned round did to every site's adapter; None if nothing was aligned."""
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
    """Return the mean rank of every layer at every site over the scheduled rounds; None if no layer was scored.

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
    note = f"; {equal} of {scored} times a site's scores were the same for all layers, so that they chose none"
    return Table(
        title="Rank of the layers",
        columns=("site", *map(str, plans[0].numbers)),
        rows=tuple(rows),
        marks=f"Mean over {counted(len(plans), 'scheduled round')}; 1: the site's highest score" + note * (equal > 0),
        averages=0,
        shades=tuple(tuple(_shade(float(rank), len(row) - 1) for rank in row[1:]) for row in rows),
    )


def _shade(rank: float, count: int) -> int:
    """Return the shade of a rank from 1 to `count`, the darkest for the best."""
    return min(SHADES - 1, int(SHADES * (rank - 1) / count))


def _megabytes(value: float | None) -> str:
    return DASH if value is None else f"{value / MB:.3f}"


def last_round(history: History) -> Table:
    """Return the last round of every site: its metrics in percent, training loss, number of training examples.

    If known, the number of test examples follows, and what a constant answer reaches on them; then there is also
    a mean in which sites count by their samples. With several metrics a column names each site's, and each has means.
    """
    last, metrics, fractions, averages = history.rounds[-1], history.by_metric, parts(history), 0
    metric_of = {site: TITLES[name] for name, sites in metrics.items() for site in sites}
    rows = []
    for site in history.sites:
        result = last.sites.get(site)
        cells = [_cell(last, site, getattr(result, fraction, None)) for fraction in fractions]
        loss = DASH if result is None or result.loss is None else f"{result.loss:.3f}"
        samples = DASH if result is None or result.samples is None else str(result.samples)
        constant, tested = _tested(history, [site], 1)
        rows.append((site, metric_of[site], *cells, *constant, loss, samples, *tested))
    for name, sites in metrics.items():
        cells = [_mean(history, fraction, -1, sites=sites) for fraction in fractions]
        loss = _mean(history, "loss", -1, "{:.3f}", sites=sites)
        samples = _mean(history, "samples", -1, "{:.0f}", sites=sites)
        present = [site for site in sites if site in last.sites and last.sites[site].overall is not None]
        every = means(history, "overall", sites=sites)[-1].every
        constant, tested = _tested(history, present, every)
        rows.append((MEAN, TITLES[name], *cells, *constant, loss, samples, *tested))
        averages += 1
        if weights := tested_weights(history, sites):
            cells = [  # how many of a site's questions are open or closed no site tells
                _mean(history, fraction, -1, sites=sites, weights=weights) if fraction == "overall" else DASH
                for fraction in fractions
            ]
            trained = {site: result.samples or 0 for site, result in last.sites.items()}
            loss = _mean(history, "loss", -1, "{:.3f}", sites=sites, weights=trained)
            of_present = {site: weights[site] for site in present}
            constant = [_weighted_baseline(history, of_present, every)] * len(constant)
            rows.append((WEIGHTED, TITLES[name], *cells, *constant, loss, "", ""))
            averages += 1
    columns = ("site", "metric", *fractions, *["baseline"] * len(constant), "loss", "train", *["test"] * len(tested))
    if len(metrics) == 1:
        rows = [(row[0], *row[2:]) for row in rows]
        columns = (columns[0], *columns[2:])
    table = _table(last_round_title(history), columns, rows)
    weighted = BY_SAMPLES * any(row[0] == WEIGHTED for row in rows)
    examples = EXAMPLES + ", test" * bool(tested)
    marks = ", ".join(filter(None, (table.marks, BASELINE * bool(constant), examples, weighted)))
    return replace(table, averages=averages, marks=marks)


def _weighted_baseline(history: History, weights: Mapping[str, int], every: int) -> str:
    """Return the mean of the baselines, weighted by test samples, of the sites that have one, marked if not of all."""
    known = [(history.tested[site].baseline, weight) for site, weight in weights.items()]
    known = [(value, weight) for value, weight in known if value is not None and weight]
    return percent(statistics.fmean(*zip(*known, strict=True))) + FEWER * (len(known) < every) if known else DASH


def _tested(history: History, sites: Collection[str], every: int) -> tuple[list[str], list[str]]:
    """Return the cells with the mean baseline and the mean number of test examples of some sites; empty if unknown.

    Those of fewer than `every` sites are marked.
    """
    known = {site: tested for site, tested in history.tested.items() if site in sites}
    constants = [tested.baseline for tested in known.values() if tested.baseline is not None]
    has_constants = any(tested.baseline is not None for tested in history.tested.values())
    constant = percent(statistics.fmean(constants)) + FEWER * (len(constants) < every) if constants else DASH
    count = f"{statistics.fmean(tested.samples for tested in known.values()):.0f}" if known else DASH
    count += FEWER * (0 < len(known) < every)
    return [constant] * has_constants, [count] * bool(history.tested)


def by_round(history: History, metric: str = "overall") -> Table:
    """Return one figure in percent: a row for every round, a column for every site, the mean of the sites last.

    If sites differ in their number of test samples, the mean weighted by it follows. Open and closed questions have no
    such mean, because no site tells their numbers, and columns only for sites that answer questions.
    """
    if metric not in ACCURACIES:
        raise FedpeftError(f"There is no accuracy {metric!r}; choose from {', '.join(ACCURACIES)}.")
    metrics = history.by_metric
    if metric != "overall" and ACCURACY in metrics:
        metrics = {ACCURACY: metrics[ACCURACY]}
    shown = {site for sites in metrics.values() for site in sites}
    lines = {site: line for site, line in series(history, metric).items() if site in shown}
    averages: list[tuple[str, str, Mapping[str, int] | None]] = []
    for name, sites in metrics.items():
        averages.append((name, MEAN, None))
        if metric == "overall" and len(set((weights := tested_weights(history, sites)).values())) > 1:
            averages.append((name, WEIGHTED, weights))
    rows = [
        (
            str(one.round),
            *(_cell(one, site, lines[site][index]) for site in lines),
            *(_mean(history, metric, index, sites=metrics[name], weights=weights) for name, _, weights in averages),
        )
        for index, one in enumerate(history.rounds)
    ]
    heads = [what + f" {TITLES[name]}" * (len(metrics) > 1) for name, what, _ in averages]
    return _table(f"{heading(history, metric)}, round by round", ("round", *lines, *heads), rows)


def best_round(history: History) -> Table | None:
    """Return the round with the highest mean on the validation splits beside the last one; None: nothing was validated.

    Rounds that lack a site are not compared with others. The first of equally good rounds is the best. The test splits
    have no part in the choice. Where sites are measured by different metrics, each has its own best round.
    """
    rows: list[tuple[str, ...]] = []
    metrics = history.by_metric
    for name, sites in metrics.items():
        averages = means(history, "validation", sites=sites)
        known = [(mean.value, -index, mean.complete) for index, mean in enumerate(averages) if mean.value is not None]
        whole = [one for one in known if one[2]]
        if not whole:
            continue
        metric = f", {TITLES[name]}" * (len(metrics) > 1)
        for title, index in ((f"best by validation{metric}", -max(whole)[1]), (f"last{metric}", len(averages) - 1)):
            figures = (_mean(history, quantity, index, sites=sites) for quantity in ("validation", "overall"))
            rows.append((title, str(history.rounds[index].round), *figures))
    columns = ("round", "number", "mean on validation (%)", "mean on test (%)")
    table = _table("Best round", columns, rows)
    marks = ", ".join(filter(None, (table.marks, BEST)))
    return replace(table, marks=marks) if rows else None


def trained_layers(history: History) -> Table:
    """Return what the schedule saved: a row for every site that trained by it, then the mean of the sites.

    Rounds without a site's reply do not count for it. share = (mean number of its layers) / L of all layers, in
    percent; saved is 100 minus share. At least one scheduled round has a reply.
    """
    total = len(history.scheduled[0].schedule.numbers)
    rows, averages = [], []
    for site in history.sites:
        trained = [one.schedule.layers for one in history.scheduled if site in one.sites]
        counts = [len(layers[site]) for layers in trained if site in layers]
        if counts:
            averages.append(sum(counts) / len(counts))
            rows.append((site, str(len(counts)), *_trained(averages[-1], total)))
    rounds = sum(int(row[1]) for row in rows) / len(rows)
    rows.append((MEAN, f"{rounds:.1f}".removesuffix(".0"), *_trained(sum(averages) / len(averages), total)))
    columns = ("site", "scheduled rounds", f"layers trained of {total}", "share (%)", "training and upload saved (%)")
    marks = "Means over the scheduled rounds; saved: share of layers that a site neither trained nor uploaded"
    return Table(title="Layers trained", columns=columns, rows=tuple(rows), marks=marks)


def all_tables(history: History) -> tuple[Table, ...]:
    """Return the last round and every figure by round; then, if there are any, the distances of the alignment, what was
    sent, the trained layers and their ranks."""
    scheduled = trained_layers(history) if history.scheduled else None
    more = (aligned(history), sent(history), scheduled, ranks(history))
    accuracies = (by_round(history, metric) for metric in parts(history))
    return (*last_and_best(history), *accuracies, *(table for table in more if table))


def last_and_best(history: History) -> tuple[Table, ...]:
    """Return the last round and, where there is one, the best by validation."""
    best = best_round(history)
    return (last_round(history), best) if best else (last_round(history),)


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    marks = legend({cell for row in rows for cell in row[1:]})
    return Table(title=title, columns=columns, rows=tuple(rows), marks=marks)


def _trained(average: float, total: int) -> tuple[str, str, str]:
    return f"{average:.2f}", percent(average / total), percent(1 - average / total)


def _cell(one: RoundRecord, site: str, value: float | None) -> str:
    return REJECTED if value is None and site in one.rejected else percent(value)


def _mean(
    history: History,
    quantity: str,
    index: int,
    form: str | None = None,
    *,
    sites: Collection[str] | None = None,
    weights: Mapping[str, float] | None = None,
) -> str:
    mean = means(history, quantity, sites=sites, weights=weights)[index]
    if mean.value is None:
        return DASH
    return (form.format(mean.value) if form else percent(mean.value)) + ("" if mean.complete else FEWER)
