# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""history.json: what a run leaves behind of every round, read and checked.

    {"job": "fedpia_task1", "method": "FedPIA, Houlsby adapters", "source": "where from", "procedural": true,
     "tiny": true, "settings": {"method": {"gamma": 0.1}},
     "rounds": [{"round": 1, "seconds": 3.2,
                 "sites": {"slake": {"overall": 0.51, "open": 0.4, "closed": 0.6, "loss": 1.2, "samples": 300}},
                 "alignment": {"slake": 0.12},
                 "schedule": {"layers": {"slake": [0, 2]}, "scores": {"slake": [0.4, 0.1, 0.3, 0.2]},
                              "importance": 0.7, "variance": 0.25},
                 "rejected": {"vqa-rad": "the reason, one sentence"}}]}

Accuracies are fractions in [0, 1] or null where the test split has no such questions; ``loss`` is the mean training
loss, ``samples`` the number of training examples, ``alignment`` the transport distance of a site's adapter;
``schedule`` says which layers each site was to train and its score of every layer; the scored layers are those in its
``numbers``, or where that is left out 0, 1, 2 and so on.
``settings``, ``seconds``, ``alignment``, ``schedule``, ``rejected``, ``loss`` and ``samples`` may be left out; a round
may lack any site, and an empty schedule is none. Keys that are not listed here are ignored, so that
an older plugin reads a newer run.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from fedpeft.errors import FedpeftError

FILE_NAME = "history.json"


class HistoryError(FedpeftError):
    """A history.json that is missing, broken or incomplete."""


@dataclass(frozen=True, kw_only=True)
class SiteResult:
    """One site in one round: accuracies are fractions or None."""

    overall: float | None
    open: float | None
    closed: float | None
    loss: float | None = None
    samples: int | None = None


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Which layers each site trains in a round, its score of each of the L layers in ``numbers``, and what was weighed:
    the sum of the chosen scores and the variance of how many sites train a layer."""

    numbers: tuple[int, ...]
    layers: Mapping[str, tuple[int, ...]]
    scores: Mapping[str, tuple[float, ...]]
    importance: float | None = None
    variance: float | None = None


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round: ``sites`` holds those that replied, ``rejected`` those whose reply was refused, with the reason."""

    round: int
    sites: Mapping[str, SiteResult]
    alignment: Mapping[str, float | None] = field(default_factory=dict)
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

    @property
    def scheduled(self) -> tuple[Round, ...]:
        """The rounds that have a schedule."""
        return tuple(one for one in self.rounds if one.schedule)

    @property
    def sites(self) -> tuple[str, ...]:
        """Every site that some round names, in order of appearance."""
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


def read(path: str | Path) -> History:
    """Read and check a history.

    Args:
        path: the run's folder, or its history.json itself.

    Raises:
        HistoryError: one sentence with the file, the round and the site, and what is wrong there.
    """
    file = Path(path)
    if file.is_dir():
        file = file / FILE_NAME
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise HistoryError(
            f"{file} does not exist; name a run's folder or its {FILE_NAME}, which a run writes after its first round."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise HistoryError(f"{file} cannot be read as UTF-8 text ({error}); copy it from the run again.") from error
    try:
        record = json.loads(text)
    except ValueError as error:
        raise HistoryError(
            f"{file} is not valid JSON ({error}): it was cut off or edited; take it from the run again."
        ) from error
    except RecursionError as error:
        raise HistoryError(f"{file} is nested too deeply to be a history; copy it from the run again.") from error
    return parse(record, origin=str(file))


def parse(record: Any, *, origin: str) -> History:
    """Check a decoded history.json.

    Args:
        record: the decoded JSON.
        origin: what error messages call it, such as the file's path.

    Raises:
        HistoryError: one sentence with the origin, the round and the site, and what is wrong there.
    """
    top = _mapping(record, origin, "the whole file")
    rounds = _need(top, "rounds", origin)
    if not isinstance(rounds, list):
        _fail(origin, "'rounds'", rounds, "a list of rounds")
    if not rounds:
        raise HistoryError(f"{origin} holds no finished round: nothing to report; let the run end a round first.")
    procedural = _need(top, "procedural", origin)
    if not isinstance(procedural, bool):
        _fail(origin, "'procedural'", procedural, "true or false")
    tiny = top.get("tiny", False)
    if not isinstance(tiny, bool):
        _fail(origin, "'tiny'", tiny, "true or false")
    parsed = tuple(_round(entry, f"{origin}, entry {index} of 'rounds'") for index, entry in enumerate(rounds, 1))
    for before, after in pairwise(parsed):
        if after.round <= before.round:
            raise HistoryError(
                f"{origin}: round {after.round} follows round {before.round}; rounds must rise, "
                "so write each round once and in order."
            )
    kinds = {one.schedule.numbers: one.round for one in parsed if one.schedule}
    if len(kinds) > 1:
        (one, first), (other, second), *_ = kinds.items()
        raise HistoryError(
            f"{origin}: the schedule of round {first} scores {len(one)} layers, that of round {second} {len(other)} or "
            "others; a run schedules the same layers in every round, so copy the file from the run again."
        )
    return History(
        job=_name(_need(top, "job", origin), origin, "'job'"),
        method=_name(_need(top, "method", origin), origin, "'method'"),
        procedural=procedural,
        source=_sentence(_need(top, "source", origin), origin, "'source'"),
        rounds=parsed,
        tiny=tiny,
        settings=_flat(_mapping(top.get("settings", {}), origin, "'settings'"), origin),
    )


def _flat(settings: Mapping[str, Any], origin: str, prefix: str = "") -> dict[str, str]:
    """Nested settings under dotted names, each value as text."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        name = prefix + _name(key, origin, "a setting's name")
        if isinstance(value, Mapping):
            found |= _flat(value, origin, f"{name}.")
        else:
            found[name] = _sentence(value if isinstance(value, str) else json.dumps(value), origin, f"setting {name!r}")
    return found


def _round(entry: Any, where: str) -> Round:
    entry = _mapping(entry, where, "the entry")
    number = _count(_need(entry, "round", where), where, "'round'")
    sites = _mapping(_need(entry, "sites", where), where, "'sites'")
    alignment = _mapping(entry.get("alignment", {}), where, "'alignment'")
    rejected = _mapping(entry.get("rejected", {}), where, "'rejected'")
    return Round(
        round=number,
        sites={
            _name(name, where, "a site's name"): _site(value, f"{where}, site {name!r}")
            for name, value in sites.items()
        },
        alignment={
            _name(name, where, "a site's name"): _number(value, f"{where}, 'alignment'", repr(name))
            for name, value in alignment.items()
        },
        rejected={
            _name(name, where, "a site's name"): _sentence(value, f"{where}, 'rejected'", repr(name))
            for name, value in rejected.items()
        },
        seconds=_number(entry.get("seconds"), where, "'seconds'"),
        schedule=_schedule(entry.get("schedule", {}), f"{where}, 'schedule'"),
    )


def _schedule(entry: Any, where: str) -> Schedule | None:
    entry = _mapping(entry, where, "the entry")
    if not entry:
        return None
    layers = _mapping(_need(entry, "layers", where), where, "'layers'")
    scores = _mapping(_need(entry, "scores", where), where, "'scores'")
    if not layers or set(layers) != set(scores):
        raise HistoryError(
            f"{where}: 'layers' names the sites {sorted(layers)} and 'scores' {sorted(scores)}; both must name "
            "the same, at least one; copy the file from the run again."
        )
    table = {
        _name(site, where, "a site's name"): _scores(values, f"{where}, site {site!r}")
        for site, values in scores.items()
    }
    count = len(next(iter(table.values())))
    for site, values in table.items():
        if len(values) != count:
            _fail(f"{where}, site {site!r}", "the number of scores", len(values), f"{count} as for the other sites")
    numbers = _layers(entry.get("numbers", list(range(count))), where, "'numbers'")
    if len(numbers) != count:
        _fail(where, "the number of 'numbers'", len(numbers), f"{count}, one for each score")
    return Schedule(
        numbers=numbers,
        layers={site: _chosen(layers[site], f"{where}, site {site!r}", numbers) for site in table},
        scores=table,
        importance=_number(entry.get("importance"), where, "'importance'", low=-math.inf),
        variance=_number(entry.get("variance"), where, "'variance'"),
    )


def _scores(values: Any, where: str) -> tuple[float, ...]:
    if not isinstance(values, list) or not values or None in values:
        _fail(where, "'scores'", values, "a list with one number for each layer")
    return tuple(_number(value, where, f"the score of layer {n}", low=-math.inf) for n, value in enumerate(values))


def _layers(values: Any, where: str, what: str) -> tuple[int, ...]:
    if not isinstance(values, list):
        _fail(where, what, values, "a list of layer numbers")
    found = tuple(_count(value, where, f"a layer in {what}") for value in values)
    return found if sorted(set(found)) == list(found) else _fail(where, what, values, "rising layer numbers, each once")


def _chosen(values: Any, where: str, numbers: tuple[int, ...]) -> tuple[int, ...]:
    found = _layers(values, where, "'layers'")
    return found if set(found) <= set(numbers) else _fail(where, "'layers'", values, "layers that have a score")


def _site(entry: Any, where: str) -> SiteResult:
    entry = _mapping(entry, where, "the entry")
    samples = entry.get("samples")
    return SiteResult(
        **{key: _number(_need(entry, key, where), where, repr(key), high=1) for key in ("overall", "open", "closed")},
        loss=_number(entry.get("loss"), where, "'loss'", low=-math.inf),
        samples=None if samples is None else _count(samples, where, "'samples'"),
    )


def _need(entry: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in entry:
        raise HistoryError(f"{where}: {key!r} is missing; the file is incomplete; copy it from the run again.")
    return entry[key]


def _mapping(value: Any, where: str, what: str) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else _fail(where, what, value, "a JSON object")


def _number(value: Any, where: str, what: str, *, low: float = 0, high: float = math.inf) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        _fail(where, what, value, "a number or null")
    if not (math.isfinite(value) and low <= value <= high):
        span = "a finite number" if high == math.inf else f"a fraction from {low} to {high}"
        _fail(where, what, value, f"{span}{' of at least 0' if high == math.inf and low == 0 else ''} or null")
    return float(value)


def _count(value: Any, where: str, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        _fail(where, what, value, "a whole number of at least 0")
    return value


def _name(value: Any, where: str, what: str) -> str:
    if not isinstance(value, str) or not value.strip() or _clean(value) != value:
        _fail(where, what, value, "a text that is not empty and has no control characters")
    return value


def _sentence(value: Any, where: str, what: str) -> str:
    # a reason may carry another program's message: its line breaks and terminal codes go, its words stay
    return _clean(" ".join(value.split())) if isinstance(value, str) else _fail(where, what, value, "a text")


def _clean(text: str) -> str:
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} else c for c in text
    )


def _fail(where: str, what: str, value: Any, allowed: str) -> NoReturn:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    raise HistoryError(f"{where}: {what} is {shown} but must be {allowed}; correct it or copy the file again.")
