# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read history.json and check every value; an error says in one sentence which one is wrong, and where.

Check values of a decoded JSON file; `where` and `what` go into the error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import read_json
from fedpeft.core.metrics import BELOW_CONSTANT, TITLES
from fedpeft.core.text import one_line, printable
from fedpeft.core.workspace import HISTORY
from fedpeft.report.history import Aligned, History, Round, Schedule, SiteResult, Tested

MAX_NAME = 200  # characters
MAX_COUNT = 10**15
MAX = 1e39  # beyond what a number of 32 bits holds; larger ones are in no run, and cannot be drawn
MAX_SECONDS_READ = 1e9


class HistoryError(FedpeftError):
    """A history.json is missing, damaged or incomplete."""


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
    if isinstance(value, bool) or not isinstance(value, int | float):
        fail(where, what, value, "a number or null")
    if not low <= value <= high:
        fail(where, what, value, f"a {'fraction' if high == 1 else 'finite number'} from {low:g} to {high:g} or null")
    return float(value)


def as_count(value: Any, where: str, what: str) -> int:
    """Return a value that must be a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
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


MAX_ROUNDS = 10_000
MAX_SITES = 1_000


def read(path: str | Path) -> History:
    """Read and check a history.

    Args:
        path: the run's folder, or its history.json itself.

    Raises:
        HistoryError: one sentence with the file, the round and the site, and what is wrong there.
    """
    file = Path(path)
    if file.is_dir():
        file = file / HISTORY
    try:
        record = read_json(file)
    except FileNotFoundError as error:
        raise HistoryError(
            f"{file} does not exist; name a run's folder or its {HISTORY}, which a run writes after its first round."
        ) from error
    except OSError as error:
        raise HistoryError(f"{file} cannot be read ({error.strerror}); copy it from the run again.") from error
    except UnicodeDecodeError as error:
        raise HistoryError(f"{file} cannot be read as UTF-8 text ({error}); copy it from the run again.") from error
    except ValueError as error:
        raise HistoryError(
            f"{file} is not valid JSON ({error}): it was cut off or edited; take it from the run again."
        ) from error
    return parse(record, origin=str(file))


def parse(record: Any, *, origin: str) -> History:
    """Check a decoded history.json.

    Args:
        record: the decoded JSON.
        origin: what error messages call it, such as the file's path.

    Raises:
        HistoryError: one sentence with the origin, the round and the site, and what is wrong there.
    """
    top = as_mapping(record, origin, "the whole file")
    rounds = need(top, "rounds", origin)
    if not isinstance(rounds, list):
        fail(origin, "'rounds'", rounds, "a list of rounds")
    if len(rounds) > MAX_ROUNDS:
        raise HistoryError(f"{origin} has {len(rounds):,} rounds, at most {MAX_ROUNDS:,} are read.")
    if not rounds:
        raise HistoryError(f"{origin} holds no finished round: nothing to report; let the run end a round first.")
    procedural = need(top, "procedural", origin)
    if not isinstance(procedural, bool):
        fail(origin, "'procedural'", procedural, "true or false")
    tiny = top.get("tiny", False)
    if not isinstance(tiny, bool):
        fail(origin, "'tiny'", tiny, "true or false")
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
    history = History(
        job=as_name(need(top, "job", origin), origin, "'job'"),
        method=as_name(need(top, "method", origin), origin, "'method'"),
        procedural=procedural,
        source=as_sentence(need(top, "source", origin), origin, "'source'"),
        rounds=parsed,
        tiny=tiny,
        metrics=_metrics(top.get("metrics", {}), origin),
        tested=_tested(top.get("tested", {}), origin),
        settings=flat_settings(as_mapping(top.get("settings", {}), origin, "'settings'"), origin),
    )
    if len(history.sites) > MAX_SITES:
        raise HistoryError(f"{origin} has {len(history.sites):,} sites, at most {MAX_SITES:,} are read.")
    return history


def _metrics(entry: Any, origin: str) -> dict[str, str]:
    metrics = {
        as_name(site, origin, "a site's name"): name for site, name in as_mapping(entry, origin, "'metrics'").items()
    }
    for site, name in metrics.items():
        if not isinstance(name, str) or name not in TITLES:
            fail(f"{origin}, site {site!r}", "'metrics'", name, f"one of {', '.join(TITLES)}")
    return metrics


def _tested(entry: Any, origin: str) -> dict[str, Tested]:
    tested = {}
    for name, values in as_mapping(entry, origin, "'tested'").items():
        where = f"{origin}, site {as_name(name, origin, 'a site')!r}"
        values = as_mapping(values, where, "'tested'")
        tested[name] = Tested(
            samples=as_count(need(values, "samples", where), where, "'samples'"),
            baseline=as_number(values.get("baseline"), where, "'baseline'", high=1),
        )
    return tested


def flat_settings(settings: Mapping[str, Any], origin: str, prefix: str = "") -> dict[str, str]:
    """Return nested settings under dotted names, each value as text.

    Args:
        settings: of a run.
        origin: for errors.
        prefix: of the names.
    """
    flat: dict[str, str] = {}
    for key, value in settings.items():
        name = prefix + as_name(key, origin, "a setting's name")
        if isinstance(value, Mapping):
            flat |= flat_settings(value, origin, f"{name}.")
        else:
            flat[name] = as_sentence(
                value if isinstance(value, str) else json.dumps(value), origin, f"setting {name!r}"
            )
    return flat


def _round(entry: Any, where: str) -> Round:
    entry = as_mapping(entry, where, "the entry")
    number = as_count(need(entry, "round", where), where, "'round'")
    sites = as_mapping(need(entry, "sites", where), where, "'sites'")
    alignment = as_mapping(entry.get("alignment", {}), where, "'alignment'")
    rejected = as_mapping(entry.get("rejected", {}), where, "'rejected'")
    report = as_mapping(entry.get("alignment_report", {}), where, "'alignment_report'")
    aligned = as_mapping(report.get("sites", {}), where, "'sites' of 'alignment_report'")
    decisions = as_mapping(report.get("decisions", {}), where, "'decisions' of 'alignment_report'")
    return Round(
        round=number,
        sites={
            as_name(name, where, "a site's name"): _site(value, f"{where}, site {name!r}")
            for name, value in sites.items()
        },
        alignment={
            as_name(name, where, "a site's name"): as_number(value, f"{where}, 'alignment'", repr(name))
            for name, value in alignment.items()
        },
        aligned={
            as_name(name, where, "a site's name"): _aligned(
                value, decisions.get(name, {}), f"{where}, 'alignment_report', site {name!r}"
            )
            for name, value in aligned.items()
        },
        rejected={
            as_name(name, where, "a site's name"): as_sentence(value, f"{where}, 'rejected'", repr(name))
            for name, value in rejected.items()
        },
        seconds=as_number(entry.get("seconds"), where, "'seconds'", high=MAX_SECONDS_READ),
        schedule=_schedule(entry.get("schedule", {}), f"{where}, 'schedule'"),
    )


def _aligned(entry: Any, decisions: Any, where: str) -> Aligned:
    entry, decisions = as_mapping(entry, where, "the entry"), as_mapping(decisions, where, "'decisions'")
    high = {"before": MAX, "after": MAX, "moved": 1}
    moved, stayed, held = (as_count(decisions.get(key, 0), where, repr(key)) for key in ("moved", "stayed", "held"))
    return Aligned(
        **{key: as_number(entry.get(key), where, repr(key), high=most) for key, most in high.items()},
        places=moved + stayed,
        moved_places=moved,
        held=held,
    )


def _schedule(entry: Any, where: str) -> Schedule | None:
    entry = as_mapping(entry, where, "the entry")
    if not entry:
        return None
    layers = as_mapping(need(entry, "layers", where), where, "'layers'")
    scores = as_mapping(need(entry, "scores", where), where, "'scores'")
    for name in (*layers, *scores):
        as_name(name, where, "a site's name")
    if not layers or (scores and set(layers) != set(scores)):
        raise HistoryError(
            f"{where}: 'layers' names the sites {sorted(layers)} and 'scores' {sorted(scores)}; both must name "
            "the same, at least one; copy the file from the run again."
        )
    table = {site: _scores(values, f"{where}, site {site!r}") for site, values in scores.items()}
    numbers = entry.get("numbers") if not table else None
    count = len(next(iter(table.values()))) if table else len(_layers(numbers, where, "'numbers'"))
    for site, values in table.items():
        if len(values) != count:
            fail(f"{where}, site {site!r}", "the number of scores", len(values), f"{count} as for the other sites")
    numbers = _layers(entry.get("numbers", list(range(count))), where, "'numbers'")
    if len(numbers) != count:
        fail(where, "the number of 'numbers'", len(numbers), f"{count}, one for each score")
    return Schedule(
        numbers=numbers,
        layers={site: _assigned(layers[site], f"{where}, site {site!r}", numbers) for site in table or layers},
        scores=table,
        importance=as_number(entry.get("importance"), where, "'importance'", low=-MAX),
        variance=as_number(entry.get("variance"), where, "'variance'"),
    )


def _scores(values: Any, where: str) -> tuple[float, ...]:
    if not isinstance(values, list) or not values or None in values:
        fail(where, "'scores'", values, "a list with one number for each layer")
    return tuple(as_number(value, where, f"the score of layer {n}", low=-MAX) for n, value in enumerate(values))


def _layers(values: Any, where: str, what: str) -> tuple[int, ...]:
    if not isinstance(values, list):
        fail(where, what, values, "a list of layer numbers")
    layers = tuple(as_count(value, where, f"a layer in {what}") for value in values)
    return (
        layers if sorted(set(layers)) == list(layers) else fail(where, what, values, "rising layer numbers, each once")
    )


def _assigned(values: Any, where: str, numbers: tuple[int, ...]) -> tuple[int, ...]:
    layers = _layers(values, where, "'layers'")
    return layers if set(layers) <= set(numbers) else fail(where, "'layers'", values, "layers that have a score")


def _site(entry: Any, where: str) -> SiteResult:
    entry = as_mapping(entry, where, "the entry")
    samples, sent = entry.get("samples"), entry.get("sent")
    return SiteResult(
        **{key: as_number(need(entry, key, where), where, repr(key), high=1) for key in ("overall", "open", "closed")},
        loss=as_number(entry.get("loss"), where, "'loss'", low=-MAX),
        validation=as_number(entry.get("validation"), where, "'validation'", high=1),
        below_constant=as_number(entry.get(BELOW_CONSTANT), where, repr(BELOW_CONSTANT), high=1),
        samples=None if samples is None else as_count(samples, where, "'samples'"),
        sent=None if sent is None else as_count(sent, where, "'sent'"),
    )
