# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The outcome of one run for a comparison: every site's figure in every round, and what was sent."""

from __future__ import annotations

import math
import re
import statistics
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ENDS, TITLES
from fedpeft.core.text import one_line
from fedpeft.protocol.fields import MB
from fedpeft.report.history import History
from fedpeft.report.wording import Alignment, alignment_of, caution

BySite = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run."""

    task: str  # name of the job
    method: str  # name of the row that it belongs to
    seed: int  # of data, initial values and order
    # for each round, site -> its metric on its test split, a fraction; a site may be missing
    figures: tuple[BySite, ...]
    # for each round, site -> bytes of the adapter that it sent; empty where it was not counted
    sent: tuple[BySite, ...]
    metrics: Mapping[str, str]  # site -> what it is measured by (`fedpeft.core.metrics`)
    seconds: float  # of the whole run, by the clock
    procedural: bool
    tiny: bool
    settings: str = ""  # that tell runs of one method from each other, a digest; empty for a finished run
    # the method of `app_configs/` that ran, and the row's settings; empty where other settings were changed
    recipe: str = ""
    # site -> training samples; a site may be missing where they were not counted
    samples: Mapping[str, int] = field(default_factory=dict)
    # for each round, the balanced accuracy on the test images of all sites together, None where no site has one; empty
    # where they were not counted by class, as in a finished run, whose sites send no such counts
    pooled: tuple[float | None, ...] = ()
    # of all threads and child processes, from the first round to the last; None where it was not measured, or an
    # accelerator did the work
    cpu_seconds: float | None = None
    # what became of the places that the server's alignment could have moved, in all rounds
    alignment: Alignment = field(default_factory=Alignment)
    # for each round, site -> the same metric on its validation split; empty for a finished run
    validation: tuple[BySite, ...] = ()
    validated: Mapping[str, int] = field(default_factory=dict)  # site -> validation samples
    # for each round, site -> its loss on the probe samples at the start of the round; empty: not measured
    loss_start: tuple[BySite, ...] = ()
    loss_end: tuple[BySite, ...] = ()  # the same at its end
    # at each point of a round's course, and for each round: site -> loss of its training batches; empty: not measured
    loss_course: tuple[tuple[BySite, ...], ...] = ()
    refused: int = 0  # replies that never came or were refused; they are in no figure

    def figure(self, metric: str, *, last: int = 1) -> float:
        """Return the mean over the sites with this metric, of each over the last rounds, in percent; NaN: none."""
        sites = (self._last_figures(site, last) for site, own in self.metrics.items() if own == metric)
        means = [statistics.fmean(values.values()) for values in sites if values]
        return 100 * statistics.fmean(means) if means else math.nan

    def minus(self, other: Outcome, metric: str, *, last: int = 1) -> float:
        """Return by how many points its figure is above another run's; NaN: they have none in common.

        Only sites and rounds that both have in this metric count; rounds are numbered back from the last one.
        """
        differences = []
        for site in (site for site, own in self.metrics.items() if own == metric == other.metrics.get(site)):
            mine, theirs = self._last_figures(site, last), other._last_figures(site, last)
            if both := mine.keys() & theirs.keys():
                differences.append(statistics.fmean(mine[back] - theirs[back] for back in sorted(both)))
        return 100 * statistics.fmean(differences) if differences else math.nan

    def site_figure(self, site: str, *, last: int = 1) -> float:
        """Return a site's mean over the last rounds, in percent; NaN: it has no figure in them."""
        values = self._last_figures(site, last)
        return 100 * statistics.fmean(values.values()) if values else math.nan

    def missing(
        self, *, last: int = 1, metric: str | None = None, beside: Iterable[Outcome] = ()
    ) -> frozenset[tuple[int, str]]:
        """Return the sites that have no figure in one of the last rounds, with that round, 0 for the last one.

        With a metric, only sites that are measured by it. A run of fewer rounds lacks the figures of the others, and
        every run those of sites that only the runs beside it have.
        """
        known = {site: self._last_figures(site, last) for site in self.sites_of(metric)}
        sites = {*known, *(site for run in beside for site in run.sites_of(metric))}
        return frozenset((back, site) for site in sites for back in range(last) if back not in known.get(site, ()))

    def sites_of(self, metric: str | None) -> list[str]:
        """Return the sites that are measured by a metric; None: all sites."""
        return [site for site, own in self.metrics.items() if metric in (None, own)]

    def _last_figures(self, site: str, last: int) -> dict[int, float]:
        """Return a site's figures in the last rounds, by how many rounds before the last one."""
        figures = (sites.get(site, math.nan) for sites in reversed(self.figures[-last:]))
        return {back: value for back, value in enumerate(figures) if math.isfinite(value)}

    def pooled_figure(self, *, last: int = 1) -> float:
        """Return the mean of `pooled` over the last rounds, in percent; NaN: there is none."""
        values = [value for value in self.pooled[-last:] if value is not None]
        return 100 * statistics.fmean(values) if values else math.nan

    @property
    def last_validation(self) -> BySite:
        """By site, its last figure on its validation split."""
        return ChainMap(*map(dict, reversed(self.validation)))

    def validation_figure(self) -> float:
        """Return the mean over the sites of their last figures on the validation splits, in percent; NaN: none."""
        values = self.last_validation.values()
        return 100 * statistics.fmean(values) if values else math.nan

    def curve(self, metric: str) -> list[float]:
        """Return the mean over the sites with this metric, round by round, in percent."""
        return [Outcome.figure(self._one_round(number), metric) for number in range(len(self.figures))]

    def megabytes(self) -> list[float]:
        """Return the MB that a site had sent after each round, the mean of all sites; empty if not counted."""
        total, sums = 0.0, []
        for sites in self.sent:
            total += sum(sites.values()) / MB
            sums.append(total / len(self.metrics))
        return sums

    def megabytes_a_round(self) -> float | None:
        """Return the MB of a reply, the mean of all replies; None: they were not counted."""
        replies = [sent for sites in self.sent for sent in sites.values()]
        return sum(replies) / len(replies) / MB if replies else None

    def as_json(self) -> dict[str, Any]:
        """Return the values that `from_json` reads."""
        return asdict(self)

    def _one_round(self, number: int) -> Outcome:
        return Outcome(**{**self.__dict__, "figures": (self.figures[number],)})


def from_json(values: Mapping[str, Any], *, origin: str) -> Outcome:
    """Return the run of one line that an experiment wrote."""
    try:
        lists = {name: tuple(values.get(name, ())) for name in ("figures", "sent", "pooled", "validation", *ENDS)}
        alignment = Alignment(**values.get("alignment", {}))
        course = tuple(tuple(point) for point in values.get("loss_course", ()))
        outcome = Outcome(**{**values, **lists, "alignment": alignment, "loss_course": course})
        fine = alignment.counted and _is_sound(outcome)
    except (TypeError, KeyError, AttributeError) as error:
        raise FedpeftError(f"{origin} is not a run of a comparison ({error!r:.80}): remove the line.") from error
    if not (fine and outcome.figures):
        raise FedpeftError(f"{origin} has a figure that is none, or no round: remove the line.")
    return outcome


def _is_sound(outcome: Outcome) -> bool:
    """Return whether all numbers of a run are in their ranges, and its metrics and names can be printed."""
    measured = (*outcome.figures, *outcome.validation)
    pooled = [value for value in outcome.pooled if value is not None]
    fractions = [*pooled, *(value for sites in measured for value in sites.values())]
    counts = [*outcome.samples.values(), *outcome.validated.values(), outcome.refused]
    lists = (outcome.loss_start, outcome.loss_end, *outcome.loss_course)
    losses = [value for rounds in lists for sites in rounds for value in sites.values()]
    amounts = [outcome.seconds, outcome.cpu_seconds or 0, *(v for sites in outcome.sent for v in sites.values())]
    return (
        all(0 <= value <= 1 for value in fractions)
        and all(0 <= value < math.inf for value in amounts)
        and all(map(math.isfinite, losses))
        and all(isinstance(count, int) and count >= 0 for count in counts)
        and isinstance(outcome.seed, int)
        and isinstance(outcome.settings, str)
        and all(map(one_line, (outcome.task, outcome.method)))
        and not re.search("[\ud800-\udfff]", outcome.task + outcome.method + outcome.settings)  # bytes of no text
        and all(TITLES[outcome.metrics[site]] for sites in outcome.figures for site in sites)
    )


def metrics_of(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the metrics of the sites of these runs, each once."""
    return list(dict.fromkeys(metric for run in outcomes for metric in run.metrics.values()))


def max_seeds(outcomes: Iterable[Outcome]) -> int:
    """Return the number of seeds of the method that has most of them."""
    seeds: dict[str, set[int]] = {}
    for run in outcomes:
        seeds.setdefault(run.method, set()).add(run.seed)
    return max(map(len, seeds.values()))


def caution_of(outcomes: Iterable[Outcome]) -> str:
    """Return the caution for figures of these runs; empty for real data and a backbone of full size."""
    runs = list(outcomes)
    return caution(procedural=any(run.procedural for run in runs), tiny=any(run.tiny for run in runs))


def outcome_of(history: History, *, method: str, recipe: str = "") -> Outcome:
    """Return the outcome of a finished run."""
    rounds = history.rounds
    counted = all(site.sent is not None for one in rounds for site in one.sites.values())
    figures = tuple({s: r.overall for s, r in one.sites.items() if r.overall is not None} for one in rounds)
    return Outcome(
        task=history.job,
        method=method,
        seed=_seed(history),
        figures=figures,
        sent=tuple({s: float(r.sent or 0) for s, r in one.sites.items()} for one in rounds) if counted else (),
        metrics={site: metric for metric, sites in history.by_metric.items() for site in sites},
        seconds=sum(one.seconds or 0 for one in rounds),
        procedural=history.procedural,
        tiny=history.tiny,
        recipe=recipe,
        samples={s: r.samples for one in rounds for s, r in one.sites.items() if r.samples is not None},
        alignment=alignment_of(history),
        refused=sum(len(one.rejected) for one in rounds),
        **_end_losses(history),
    )


def _end_losses(history: History) -> dict[str, Any]:
    """Return by name the sites' losses at both ends of each round; nothing where no site has any."""
    ends = {
        name: tuple(
            {site: value for site, result in one.sites.items() if (value := getattr(result, name)) is not None}
            for one in history.rounds
        )
        for name in ENDS
    }
    return ends if any(map(any, ends.values())) else {}


def _seed(history: History) -> int:
    text = history.settings.get("training.seed", "0")
    if not text.isdecimal():
        raise FedpeftError(f"the run of {history.job} has training.seed = {text!r:.80}: it must be a whole number.")
    return int(text)
