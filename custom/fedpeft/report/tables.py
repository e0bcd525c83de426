# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The content of the tables as text; terminal, Markdown and page lay it out."""

from __future__ import annotations

from dataclasses import dataclass

from fedpeft.errors import FedpeftError
from fedpeft.report.history import History, Round
from fedpeft.report.series import ACCURACIES, means, series
from fedpeft.report.wording import DASH, FEWER, REJECTED, TITLES, legend, percent


@dataclass(frozen=True, kw_only=True)
class Table:
    """A title, the heads of the columns, the rows and a line that explains the marks; the first column holds names."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: str


def last_round(history: History) -> Table:
    """Return the last round of every site: accuracies in percent, training loss, number of training examples."""
    last = history.rounds[-1]
    rows = []
    for site in history.sites:
        result = last.sites.get(site)
        accuracies = [_cell(last, site, getattr(result, metric, None)) for metric in ACCURACIES]
        loss = DASH if result is None or result.loss is None else f"{result.loss:.3f}"
        samples = DASH if result is None or result.samples is None else str(result.samples)
        rows.append((site, *accuracies, loss, samples))
    loss, samples = (_mean(history, name, -1, form) for name, form in (("loss", "{:.3f}"), ("samples", "{:.0f}")))
    rows.append(("mean", *(_mean(history, metric, -1) for metric in ACCURACIES), loss, samples))
    return _table(
        f"Accuracy (%) after round {last.round}",
        ("site", *ACCURACIES, "training loss", "training examples"),
        rows,
    )


def by_round(history: History, metric: str = "overall") -> Table:
    """Return one accuracy in percent: a row for every round, a column for every site, the mean of the sites last.

    Args:
        history: the run.
        metric: "overall", "open" or "closed".

    Raises:
        FedpeftError: an unknown metric.
    """
    if metric not in ACCURACIES:
        raise FedpeftError(f"There is no accuracy {metric!r}; choose from {', '.join(ACCURACIES)}.")
    lines = series(history, metric)
    rows = [
        (str(one.round), *(_cell(one, site, lines[site][index]) for site in lines), _mean(history, metric, index))
        for index, one in enumerate(history.rounds)
    ]
    return _table(f"Accuracy (%) on {TITLES[metric]}, round by round", ("round", *lines, "mean"), rows)


def trained_layers(history: History) -> Table:
    """Return what the schedule saved: a row for every scheduled site, the mean of the sites last.

    A site trains and uploads share = (mean number of its layers over scheduled rounds) / L of all layers, in percent;
    saved is 100 less that.

    Args:
        history: a run with at least one scheduled round.
    """
    plans = [one.schedule for one in history.scheduled]
    total = len(plans[0].numbers)
    rows, averages = [], []
    for site in history.sites:
        counts = [len(plan.layers[site]) for plan in plans if site in plan.layers]
        if counts:
            averages.append(sum(counts) / len(counts))
            rows.append((site, str(len(counts)), *_trained(averages[-1], total)))
    rounds = sum(int(row[1]) for row in rows) / len(rows)
    rows.append(("mean", f"{rounds:.1f}".removesuffix(".0"), *_trained(sum(averages) / len(averages), total)))
    columns = ("site", "scheduled rounds", f"layers trained of {total}", "share (%)", "training and upload saved (%)")
    marks = "Means over the scheduled rounds; saved: share of layers that a site neither trained nor uploaded"
    return Table(title="Layers trained", columns=columns, rows=tuple(rows), marks=marks)


def all_tables(history: History) -> tuple[Table, ...]:
    """Return the last round, the three accuracies by round, and the trained layers if any round was scheduled."""
    scheduled = (trained_layers(history),) if history.scheduled else ()
    return (last_round(history), *(by_round(history, metric) for metric in ACCURACIES), *scheduled)


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    marks = legend({cell for row in rows for cell in row[1:]})
    return Table(title=title, columns=columns, rows=tuple(rows), marks=marks)


def _trained(average: float, total: int) -> tuple[str, str, str]:
    return f"{average:.2f}", percent(average / total), percent(1 - average / total)


def _cell(one: Round, site: str, value: float | None) -> str:
    return REJECTED if value is None and site in one.rejected else percent(value)


def _mean(history: History, quantity: str, index: int, form: str | None = None) -> str:
    mean = means(history, quantity)[index]
    if mean.value is None:
        return DASH
    return (form.format(mean.value) if form else percent(mean.value)) + ("" if mean.complete else FEWER)
