# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The content of history.json: the results of every round of a run, and what each value must be.

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

metrics          by site, the metric of its `overall` (`fedpeft.core.metrics`); default: accuracy
tested           test samples, and what a constant answer reaches on them; null: unknown, as in a consortium
open, closed     accuracies of questions of these kinds
validation       as `overall`, on the validation split
loss             mean training loss; loss_start, loss_end: mean on the probe samples at the ends of the round
samples          training examples
below_constant   1: no better than a constant answer in each of the last three rounds; else 0 or null
sent             bytes of the adapter that the site sent
alignment        transport distance of a site's adapter; alignment_report: what the alignment changed
schedule         layers that each site was to train, and its score of every layer, none if layers are drawn; `numbers`
                 are the scored layers, by default 0, 1, 2 and so on; an empty schedule means none

Metrics and accuracies are fractions in [0, 1], or null if nothing was measured. A round may lack any site. `settings`,
`metrics`, `tested`, `validation`, `seconds`, `alignment`, `alignment_report`, `schedule`, `rejected`, `loss`,
`loss_start`, `loss_end`, `samples`, `below_constant` and `sent` may be left out. Unknown keys are ignored, so that an
older version reads a newer run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY, TITLES, title_of
from fedpeft.core.settings import is_number, is_whole
from fedpeft.core.text import one_line, printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Check = Callable[[Any, str, str], Any]
T = TypeVar("T", bound="DataclassInstance")
MAX_NAME = 200  # characters
MAX_COUNT = 10**15
MAX = 1e39  # beyond what a number of 32 bits holds; larger ones are in no run, and cannot be drawn
MAX_SECONDS = 1e9


class HistoryError(FedpeftError):
    """A history.json is missing, damaged or incomplete."""


# A check returns a value of a decoded JSON file, or refuses it; the error names `where` and `what`.
def need(entry: Mapping[str, Any], key: str, where: str) -> Any:
    """Return the value of a required key."""
    if key not in entry:
        raise HistoryError(f"{where}: {key!r} is missing; the file is incomplete; copy it from the run again.")
    return entry[key]


def as_mapping(value: Any, where: str, what: str) -> Mapping[str, Any]:
    """Return a value that must be a JSON object."""
    return value if isinstance(value, Mapping) else fail(where, what, value, "a JSON object")


def as_number(value: Any, where: str, what: str, *, low: float = 0, high: float = MAX) -> float | None:
    """Return a value that must be a finite number from low to high, or None."""
    if value is None:
        return None
    if not is_number(value):
        fail(where, what, value, "a number or null")
    if not low <= value <= high:
        fail(where, what, value, f"a {'fraction' if high == 1 else 'finite number'} from {low:g} to {high:g} or null")
    return float(value)


def as_count(value: Any, where: str, what: str) -> int:
    """Return a value that must be a whole number of at least 0."""
    if not is_whole(value) or not 0 <= value <= MAX_COUNT:
        fail(where, what, value, f"a whole number from 0 to {MAX_COUNT:,}")
    return value


def as_name(value: Any, where: str, what: str) -> str:
    """Return a value that must be a text that is not empty and has no control characters."""
    if (
        not isinstance(value, str)
        or not value.strip()
        or printable(value, max_length=MAX_NAME) != value
        or "\n" in value
    ):
        fail(where, what, value, "a text that is not empty, not too long, and has no control characters")
    return value


def as_sentence(value: Any, where: str, what: str) -> str:
    """Return a text on one line, without control characters."""
    # a reason may hold another program's message
    return one_line(value) if isinstance(value, str) else fail(where, what, value, "a text")


def fail(where: str, what: str, value: Any, allowed: str) -> NoReturn:
    """Raise a HistoryError that names place, value and what is allowed."""
    shown = one_line(repr(value))
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    raise HistoryError(f"{where}: {what} is {shown} but must be {allowed}; correct it or copy the file again.")


def as_truth(value: Any, where: str, what: str) -> bool:
    """Return a value that must be true or false."""
    return value if isinstance(value, bool) else fail(where, what, value, "true or false")


def as_count_or_none(value: Any, where: str, what: str) -> int | None:
    """Return a count, or None."""
    return None if value is None else as_count(value, where, what)


def as_fraction(value: Any, where: str, what: str) -> float | None:
    """Return a number from 0 to 1, or None."""
    return as_number(value, where, what, high=1)


def as_seconds(value: Any, where: str, what: str) -> float | None:
    """Return a duration that a calendar has, or None."""
    return as_number(value, where, what, high=MAX_SECONDS)


def as_metric(value: Any, where: str, what: str) -> str:
    """Return the name of a metric."""
    known = isinstance(value, str) and value in TITLES
    return value if known else fail(where, what, value, f"one of {', '.join(TITLES)}")


def by_name(check: Check, kind: str = "site") -> Check:
    """Return the check of a JSON object by names of a kind, whose values all pass `check`."""

    def check_all(values: Any, where: str, what: str) -> dict[str, Any]:
        values = as_mapping(values, where, what)
        return {
            as_name(name, where, f"a {kind}'s name"): check(value, f"{where}, {kind} {name!r}", what)
            for name, value in values.items()
        }

    return check_all


def object_of(cls: type) -> Check:
    """Return the check of a JSON object that is built as a dataclass; see `checked`."""
    return lambda value, where, what: checked(cls, as_mapping(value, where, what), where)


def must(check: Check, **default: Any) -> Any:
    """Declare a dataclass's field by the check of its value; without a default the key must be there."""
    return field(metadata={"check": check}, **default)


def checked(cls: type[T], entry: Mapping[str, Any], where: str, **more: Any) -> T:
    """Build a dataclass from a JSON object, with `more` fields; keys that another version added are ignored."""
    for one in fields(cls):
        required = one.default is MISSING and one.default_factory is MISSING
        if "check" in one.metadata and (required or one.name in entry):
            more[one.name] = one.metadata["check"](need(entry, one.name, where), where, repr(one.name))
    return cls(**more)


@dataclass(frozen=True, kw_only=True)
class SiteResult:
    """One site in one round: accuracies are fractions or None."""

    overall: float | None = must(as_fraction)
    open: float | None = must(as_fraction)
    closed: float | None = must(as_fraction)
    loss: float | None = must(partial(as_number, low=-MAX), default=None)
    loss_start: float | None = must(partial(as_number, low=-MAX), default=None)
    loss_end: float | None = must(partial(as_number, low=-MAX), default=None)
    samples: int | None = must(as_count_or_none, default=None)
    validation: float | None = must(as_fraction, default=None)
    sent: int | None = must(as_count_or_none, default=None)
    below_constant: float | None = must(as_fraction, default=None)


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """What an alignment did to a site's adapter: the mean distance of its neurons from the reference's before and
    after, and the fraction that moved; None if nothing was aligned. `places` counts its modules whose neurons could
    have stayed: in `moved_places` of them they moved, in `held` they only stayed because of the margin."""

    before: float | None = must(as_number, default=None)
    after: float | None = must(as_number, default=None)
    moved: float | None = must(as_fraction, default=None)
    places: int = 0
    moved_places: int = 0
    held: int = 0


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A site's test split: its samples, and what a constant answer reaches on them, a fraction or None."""

    samples: int = must(as_count)
    baseline: float | None = must(as_fraction, default=None)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Which layers each site trains in a round, its score of each of the L layers in `numbers` (none if layers are
    drawn), and the objectives: the sum of the scores of the assigned layers, and the variance of the number of sites
    per layer."""

    numbers: tuple[int, ...]
    layers: Mapping[str, tuple[int, ...]]
    scores: Mapping[str, tuple[float, ...]]
    importance: float | None = must(partial(as_number, low=-MAX), default=None)
    variance: float | None = must(as_number, default=None)

    @property
    def undecided(self) -> tuple[str, ...]:
        """The sites whose scores are equal for all of several layers."""
        return tuple(site for site, row in self.scores.items() if len(row) > 1 and len(set(row)) == 1)


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """One round: `sites` holds those that replied, `rejected` those whose reply was refused, with the reason."""

    round: int = must(as_count)
    sites: Mapping[str, SiteResult] = must(by_name(object_of(SiteResult)))
    alignment: Mapping[str, float | None] = must(by_name(as_number), default_factory=dict)
    aligned: Mapping[str, Aligned] = field(default_factory=dict)
    rejected: Mapping[str, str] = must(by_name(as_sentence), default_factory=dict)
    seconds: float | None = must(as_seconds, default=None)
    schedule: Schedule | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """A whole run; `rounds` is never empty and its numbers rise; nested settings have dotted names."""

    job: str = must(as_name)
    method: str = must(as_name)
    procedural: bool = must(as_truth)
    source: str = must(as_sentence)
    rounds: tuple[RoundRecord, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    tiny: bool = must(as_truth, default=False)
    metrics: Mapping[str, str] = must(by_name(as_metric), default_factory=dict)
    tested: Mapping[str, Tested] = must(by_name(object_of(Tested)), default_factory=dict)

    @property
    def by_metric(self) -> dict[str, tuple[str, ...]]:
        """The sites that are measured by each metric, in order of appearance."""
        metrics = {site: self.metrics.get(site, ACCURACY) for site in self.sites}
        return {name: tuple(s for s, own in metrics.items() if own == name) for name in dict.fromkeys(metrics.values())}

    @property
    def below_constant(self) -> tuple[str, ...]:
        """The sites that were no better than a constant answer in each of their last three rounds."""
        last = {site: result.below_constant for one in self.rounds for site, result in one.sites.items()}
        return tuple(site for site in self.sites if last.get(site) == 1)

    @property
    def measured_by(self) -> str:
        """The metrics in words, as in "accuracy or macro-F1"."""
        return title_of(self.by_metric)

    @property
    def scheduled(self) -> tuple[RoundRecord, ...]:
        """The rounds that have a schedule."""
        return tuple(one for one in self.rounds if one.schedule)

    @property
    def sites(self) -> tuple[str, ...]:
        """Every site that any round names, in order of appearance."""
        named = (
            (*one.sites, *one.alignment, *one.rejected, *(one.schedule.layers if one.schedule else ()))
            for one in self.rounds
        )
        return tuple(dict.fromkeys(name for names in named for name in names))
