# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The content of history.json: the results of every round of a run, and each quantity over the rounds.

    {"job": "fedpia_task1", "method": "FedPIA, Houlsby adapters", "source": "where from", "procedural": true,
     "tiny": true, "settings": {"method": {"gamma": 0.1}}, "metrics": {"slake": "accuracy"},
     "tested": {"slake": {"samples": 120, "baseline": 0.3}},
     "rounds": [{"round": 1, "seconds": 3.2,
                 "sites": {"slake": {"overall": 0.51, "open": 0.4, "closed": 0.6, "loss": 1.2, "samples": 300,
                                     "sent": 9216}},
                 "alignment": {"slake": 0.12},
                 "alignment_report": {"sites": {"slake": {"before": 0.2, "after": 0.12, "moved": 0.7}},
                                      "decisions": {"slake": {"moved": 20, "stayed": 4, "held": 0}}},
                 "schedule": {"layers": {"slake": [0, 2]}, "scores": {"slake": [0.4, 0.1, 0.3, 0.2]},
                              "importance": 0.7, "variance": 0.25},
                 "rejected": {"vqa-rad": "the reason, one sentence"}}]}

``metrics`` says by what a site is measured (``fedpeft.core.metrics``), which is its ``overall``; accuracy, where
nothing is said. ``tested`` is how many test samples a site has, and what the best constant answer reaches on them, or
null where that is not known, as in a consortium. ``open`` and ``closed`` are accuracies of questions of these kinds.
All are fractions in [0, 1], or null where the test split has no such questions or nothing was measured; so is
``validation``, the same on the validation split, which may be left out; ``loss`` is the mean training loss, ``samples``
the number of training examples, ``below_constant`` is 1 where the site was no better than its best constant answer in
each of its last three rounds, else 0 or null; ``sent`` the bytes of the adapter that the site sent, ``alignment`` the
transport distance of a site's adapter and ``alignment_report`` what the alignment changed; ``schedule`` says which
layers each site was to train and its score of every layer; the scored layers are those in its ``numbers``, or where
that is left out 0, 1, 2 and so on. Where layers are drawn, ``scores`` is empty. ``settings``, ``metrics``, ``tested``,
``seconds``, ``alignment``, ``alignment_report``, ``schedule``, ``rejected``, ``loss``, ``samples``, ``below_constant``
and ``sent`` may be left out; a round may lack any site, and an empty schedule means none. Unknown keys are ignored, so
that an older version reads a newer run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY, title_of


@dataclass(frozen=True, kw_only=True)
class SiteResult:
    """One site in one round: accuracies are fractions or None."""

    overall: float | None
    open: float | None
    closed: float | None
    loss: float | None = None
    samples: int | None = None
    validation: float | None = None
    sent: int | None = None
    below_constant: float | None = None


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """What an alignment did to a site's adapter: the mean distance of its neurons from the reference's before and
    after, and the fraction that moved; None where nothing was aligned. ``places`` are its modules whose neurons could
    have stayed as they were; of these ``moved_places`` did not, and ``held`` did only because of the margin."""

    before: float | None = None
    after: float | None = None
    moved: float | None = None
    places: int = 0
    moved_places: int = 0
    held: int = 0


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A site's test split: its samples, and what the best constant answer reaches on them, a fraction or None."""

    samples: int
    baseline: float | None = None


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Which layers each site trains in a round, its score of each of the L layers in ``numbers`` (none where layers are
    drawn), and the objectives: the sum of the scores of the assigned layers, and the variance of the number of sites
    per layer."""

    numbers: tuple[int, ...]
    layers: Mapping[str, tuple[int, ...]]
    scores: Mapping[str, tuple[float, ...]]
    importance: float | None = None
    variance: float | None = None

    @property
    def undecided(self) -> tuple[str, ...]:
        """The sites whose scores are equal for all of several layers."""
        return tuple(site for site, row in self.scores.items() if len(row) > 1 and len(set(row)) == 1)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round: ``sites`` holds those that replied, ``rejected`` those whose reply was refused, with the reason."""

    round: int
    sites: Mapping[str, SiteResult]
    alignment: Mapping[str, float | None] = field(default_factory=dict)
    aligned: Mapping[str, Aligned] = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    schedule: Schedule | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """A whole run; ``rounds`` is never empty and its numbers rise; nested settings have dotted names."""

    job: str
    method: str
    procedural: bool
    source: str
    rounds: tuple[Round, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    tiny: bool = False
    metrics: Mapping[str, str] = field(default_factory=dict)
    tested: Mapping[str, Tested] = field(default_factory=dict)

    @property
    def by_metric(self) -> dict[str, tuple[str, ...]]:
        """The sites that are measured by each metric, in order of appearance."""
        metrics = {site: self.metrics.get(site, ACCURACY) for site in self.sites}
        return {name: tuple(s for s, own in metrics.items() if own == name) for name in dict.fromkeys(metrics.values())}

    @property
    def below_constant(self) -> tuple[str, ...]:
        """The sites that were no better than their best constant answer in each of their last three rounds."""
        last = {site: result.below_constant for one in self.rounds for site, result in one.sites.items()}
        return tuple(site for site in self.sites if last.get(site) == 1)

    @property
    def measured_by(self) -> str:
        """The metrics in words, as in "accuracy or macro-F1"."""
        return title_of(self.by_metric)

    @property
    def scheduled(self) -> tuple[Round, ...]:
        """The rounds that have a schedule."""
        return tuple(one for one in self.rounds if one.schedule)

    @property
    def sites(self) -> tuple[str, ...]:
        """Every site that any round names, in order of appearance."""
        return tuple(
            dict.fromkeys(
                name
                for one in self.rounds
                for name in (
                    *one.sites,
                    *one.alignment,
                    *one.rejected,
                    *(one.schedule.layers if one.schedule else ()),
                )
            )
        )


ACCURACIES = ("overall", "open", "closed")
QUANTITIES = (*ACCURACIES, "validation", "loss", "samples", "sent", "alignment")


@dataclass(frozen=True, kw_only=True)
class Mean:
    """The mean of the sites in one round; not complete where a site that has figures elsewhere has none."""

    value: float | None
    complete: bool


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
