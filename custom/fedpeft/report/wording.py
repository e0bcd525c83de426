# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What tables, pictures and page share: each quantity over the rounds, captions, notes, legend, format of figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import fmean

from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY, NO_BETTER
from fedpeft.core.metrics import TITLES as METRICS
from fedpeft.core.text import capitalized
from fedpeft.report.history import History

NOTHING_MEDICAL = "these figures say nothing about medicine"
DASH = "–"
REJECTED = "×"
FEWER = "*"
FEWER_SITES = (
    f"{FEWER} of some sites or rounds: others are not in the job, were not drawn, did not answer, were refused, "
    "or tell no figure."
)
IDENTITY = "identity"  # the solver that moves nothing
STAY_ALIGNED = "sites that start from one adapter stay aligned"
TITLES = {"overall": "all questions", "open": "open questions", "closed": "closed questions"}
ACCURACIES = ("overall", "open", "closed")
QUANTITIES = (*ACCURACIES, "validation", "loss", "samples", "sent", "alignment")


def caption(history: History) -> str:
    """Return the line under every table and picture: job, method and, if it applies, that the data are procedural."""
    return " · ".join(part for part in (history.job, history.method, note(history)) if part)


def note(history: History) -> str:
    """Return a note that the data are procedural or the backbone tiny; empty if neither is the case."""
    return caution(procedural=history.procedural, tiny=history.tiny)


def caution(*, procedural: bool, tiny: bool) -> str:
    """Return the caution for figures of procedural data or a tiny backbone; empty for others."""
    facts = ["procedural data"] * procedural + ["tiny backbone"] * tiny
    return f"{', '.join(facts)}: {NOTHING_MEDICAL}" if facts else ""


def heading(history: History, metric: str = "overall") -> str:
    """Return the title of figures, for instance "Accuracy (%) on all questions"."""
    questions = metric != "overall" or set(history.by_metric) == {ACCURACY}
    return f"Accuracy (%) on {TITLES[metric]}" if questions else f"{_measured(history)} (%)"


def plot_title(history: History) -> str:
    """Return the title of the curves."""
    on = f", {TITLES['overall']}" if set(history.by_metric) == {ACCURACY} else ""
    return f"{_measured(history)}{on} (%)"


def last_round_title(history: History) -> str:
    """Return the title of the last round's table."""
    return f"{_measured(history)} (%) after round {history.rounds[-1].round}"


def _measured(history: History) -> str:
    return capitalized(history.measured_by)


def parts(history: History) -> tuple[str, ...]:
    """Return the figures that a run has: those of open and closed questions only where sites answer questions."""
    return tuple(TITLES) if ACCURACY in history.by_metric else ("overall",)


def percent(fraction: float | None) -> str:
    """Format a fraction in percent with one decimal; a dash for none."""
    return DASH if fraction is None else f"{100 * fraction:.1f}"


def legend(cells: set[str]) -> str:
    """Return the meaning of the marks that a table holds."""
    meanings = []
    if DASH in cells:
        meanings.append(f"{DASH} no figure")
    if REJECTED in cells:
        meanings.append(f"{REJECTED} reply rejected")
    if any(cell.endswith(FEWER) for cell in cells):
        meanings.append(f"{FEWER} mean over fewer sites")
    return ", ".join(meanings)


def not_learning(history: History) -> list[str]:
    """Return one sentence for every site that is no better than a constant answer."""
    return [f"{site}: {NO_BETTER}" for site in history.below_constant]


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """What became of the places that a server's alignment could have moved, in all rounds of a run or of several.

    A place is one module of one site's adapter in one round.
    """

    places: int = 0  # those whose neurons could have stayed as they were, because widths are equal
    moved: int = 0  # those of them where neurons moved
    held: int = 0  # those where all stayed because of the margin
    last: int = 0  # the last round in which one moved; 0: there is none
    # sites need not be aligned from the start: each has a first adapter of its own or joins later, or nothing was to
    # move
    apart: bool = False

    def __add__(self, other: Alignment) -> Alignment:
        return Alignment(
            places=self.places + other.places,
            moved=self.moved + other.moved,
            held=self.held + other.held,
            last=max(self.last, other.last),
            apart=self.apart or other.apart,
        )

    @property
    def counted(self) -> bool:
        """Whether these numbers can be counts."""
        return 0 <= self.moved <= self.places and 0 <= self.held <= self.places - self.moved and self.last >= 0

    def sentence(self) -> str:
        """Return how many places moved, and why if none did; empty if nothing of equal width was aligned."""
        if not self.places:
            return ""
        text = f"{self.moved:,} of {self.places:,} places moved" + f", the last in round {self.last}" * (self.moved > 0)
        if self.held:
            return f"{text}; {self.held:,} stayed because they would have gained less than method.pia.margin"
        return text + (": " + STAY_ALIGNED) * (not self.moved and not self.apart)


def alignment_of(history: History) -> Alignment:
    """Return the counts of a run's alignment."""
    settings, rounds = history.settings, history.rounds
    aligned = [value for one in rounds for value in one.aligned.values()]
    together = settings.get("method.initialization") == "shared" and settings.get("method.pia.solver") != IDENTITY
    return Alignment(
        places=sum(value.places for value in aligned),
        moved=sum(value.moved_places for value in aligned),
        held=sum(value.held for value in aligned),
        last=max((one.round for one in rounds if any(v.moved_places for v in one.aligned.values())), default=0),
        apart=not together or any(name.startswith("schedule.joins.") for name in settings),
    )


def moved_places(history: History) -> str:
    """Return how many places the alignment of a run moved, and why if it moved none."""
    return alignment_of(history).sentence()


def rejections(history: History) -> list[str]:
    """Return one sentence for every site and reason of rejection, with the rounds."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for one in history.rounds:
        for site, reason in one.rejected.items():
            rounds.setdefault((site, reason), []).append(one.round)
    return [
        f"{site}, round{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}: reply rejected: {reason}"
        for (site, reason), numbers in rounds.items()
    ]


@dataclass(frozen=True, kw_only=True)
class Mean:
    """The mean of the sites in one round, of those that have a figure.

    Args:
        value: None where no site has one.
        count: sites with a figure in this round.
        every: sites that have one in some round, or whose replies were refused; not those that withhold it.
    """

    value: float | None
    count: int
    every: int

    @property
    def complete(self) -> bool:
        """Whether no site lacks its figure."""
        return self.count == self.every


def series(history: History, quantity: str) -> dict[str, list[float | None]]:
    """Return a quantity of every site, round by round; None if the site has no figure in that round."""
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
    """Return the mean of one of `QUANTITIES` over sites, by round: sum_i w_i x_i / sum_i w_i over those with a figure.

    A site without a weight counts as without a figure; without weights all sites count alike.
    """
    refused = {site for one in history.rounds for site in one.rejected} if quantity == "overall" else set()
    refused -= {site for one in history.rounds for site in one.sites}  # what these withhold is never missed
    lines = [
        (line, 1 if weights is None else weights.get(site, 0))
        for site, line in series(history, quantity).items()
        if (sites is None or site in sites) and (site in refused or any(value is not None for value in line))
    ]
    averages = []
    for index in range(len(history.rounds)):
        known = [(line[index], weight) for line, weight in lines if line[index] is not None and weight]
        mean = fmean(*zip(*known, strict=True)) if known else None  # exact, so that equal figures have equal means
        averages.append(Mean(value=mean, count=len(known), every=len(lines)))
    return averages


def mean_lines(history: History, quantity: str = "overall") -> dict[str, tuple[list[Mean], tuple[str, ...]]]:
    """Return means and their sites by their names in a picture; figures of two metrics have no common mean."""
    groups = {f"mean {METRICS[metric]}": sites for metric, sites in history.by_metric.items()}
    if quantity != "overall" or len(groups) == 1:
        groups = {"mean": history.sites}
    return {name: (means(history, quantity, sites=sites), sites) for name, sites in groups.items() if len(sites) > 1}


def tested_weights(history: History, sites: Collection[str]) -> dict[str, int]:
    """Return the numbers of test samples of some sites, as weights of their figures; empty if some are unknown."""
    known = {site: tested.samples for site, tested in history.tested.items() if site in sites}
    return known if len(known) == len(sites) > 1 and any(known.values()) else {}
