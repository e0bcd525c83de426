# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read history.json and manifest.json; an error says in one sentence which value is wrong, and where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import MAX_HISTORY, digest, read_json
from fedpeft.core.settings import MAX_ROUNDS
from fedpeft.core.workspace import HISTORY, MANIFEST
from fedpeft.report.history import (
    MAX,
    Aligned,
    History,
    HistoryError,
    RoundRecord,
    Schedule,
    as_count,
    as_mapping,
    as_name,
    as_number,
    as_sentence,
    by_name,
    checked,
    fail,
    must,
    need,
)

MAX_SITES = 1_000
MAX_FIGURES = 3_000_000  # rounds times sites, which pictures draw
MAX_LAYERS = 4_096
MAX_SETTINGS, MAX_SETTING_NAME = 20_000, 1_000


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
        record = read_json(file, max_bytes=MAX_HISTORY)
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
    """Check a decoded history.json; error messages call it `origin`, such as the file's path."""
    top = as_mapping(record, origin, "the whole file")
    rounds = need(top, "rounds", origin)
    if not isinstance(rounds, list):
        fail(origin, "'rounds'", rounds, "a list of rounds")
    if len(rounds) > MAX_ROUNDS:
        raise HistoryError(f"{origin} has {len(rounds):,} rounds, at most {MAX_ROUNDS:,} are read.")
    if not rounds:
        raise HistoryError(f"{origin} holds no finished round: nothing to report; let the run end a round first.")
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
    settings = flat_settings(as_mapping(top.get("settings", {}), origin, "'settings'"), origin)
    history = checked(History, top, origin, rounds=parsed, settings=settings)
    if not history.sites:
        raise HistoryError(f"{origin}: no round names a site, so there is nothing to report: copy it again.")
    if len(history.sites) > MAX_SITES:
        raise HistoryError(f"{origin} has {len(history.sites):,} sites, at most {MAX_SITES:,} are read.")
    if len(rounds) * len(history.sites) > MAX_FIGURES:
        raise HistoryError(
            f"{origin} has {len(rounds):,} rounds of {len(history.sites):,} sites, and rounds times sites may be at "
            f"most {MAX_FIGURES:,}: read its figures with another program."
        )
    return history


def flat_settings(settings: Mapping[str, Any], origin: str, prefix: str = "") -> dict[str, str]:
    """Return nested settings of a run under dotted names, each value as text."""
    flat: dict[str, str] = {}
    for key, value in settings.items():
        name = prefix + as_name(key, origin, "a setting's name")
        if len(name) > MAX_SETTING_NAME:
            raise HistoryError(
                f"{origin} has a setting with a name of {len(name):,} characters, at most {MAX_SETTING_NAME:,} are "
                f"read: {name!r:.80}; take the file from the run again."
            )
        if len(flat) >= MAX_SETTINGS:
            raise HistoryError(f"{origin} has more than {MAX_SETTINGS:,} settings: take it from the run again.")
        if isinstance(value, Mapping):
            flat |= flat_settings(value, origin, f"{name}.")
        else:
            flat[name] = as_sentence(
                value if isinstance(value, str) else json.dumps(value), origin, f"setting {name!r}"
            )
    return flat


def _round(entry: Any, where: str) -> RoundRecord:
    entry = as_mapping(entry, where, "the entry")
    aligned = _aligned(entry.get("alignment_report", {}), where)
    return checked(RoundRecord, entry, where, aligned=aligned, schedule=_schedule(entry.get("schedule", {}), where))


def _aligned(report: Any, where: str) -> dict[str, Aligned]:
    report, where = as_mapping(report, where, "'alignment_report'"), f"{where}, 'alignment_report'"
    sites, decisions = (as_mapping(report.get(name, {}), where, repr(name)) for name in ("sites", "decisions"))
    found = {}
    for name, entry in sites.items():
        site = f"{where}, site {as_name(name, where, 'a site')!r}"
        counts = as_mapping(decisions.get(name, {}), site, "'decisions'")
        moved, stayed, held = (as_count(counts.get(key, 0), site, repr(key)) for key in ("moved", "stayed", "held"))
        places = {"places": moved + stayed, "moved_places": moved, "held": held}
        found[name] = checked(Aligned, as_mapping(entry, site, "the entry"), site, **places)
    return found


def _schedule(entry: Any, where: str) -> Schedule | None:
    entry, where = as_mapping(entry, where, "'schedule'"), f"{where}, 'schedule'"
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
    assigned = {site: _assigned(layers[site], f"{where}, site {site!r}", numbers) for site in table or layers}
    return checked(Schedule, entry, where, numbers=numbers, layers=assigned, scores=table)


def _scores(values: Any, where: str) -> tuple[float, ...]:
    if not isinstance(values, list) or not values or None in values:
        fail(where, "'scores'", values, "a list with one number for each layer")
    if len(values) > MAX_LAYERS:
        fail(where, "the number of scores", len(values), f"at most {MAX_LAYERS:,}")
    return tuple(as_number(value, where, f"the score of layer {n}", low=-MAX) for n, value in enumerate(values))


def _layers(values: Any, where: str, what: str) -> tuple[int, ...]:
    if not isinstance(values, list):
        fail(where, what, values, "a list of layer numbers")
    if len(values) > MAX_LAYERS:
        fail(where, f"the number of layers in {what}", len(values), f"at most {MAX_LAYERS:,}")
    layers = tuple(as_count(value, where, f"a layer in {what}") for value in values)
    return (
        layers if sorted(set(layers)) == list(layers) else fail(where, what, values, "rising layer numbers, each once")
    )


def _assigned(values: Any, where: str, numbers: tuple[int, ...]) -> tuple[int, ...]:
    layers = _layers(values, where, "'layers'")
    return layers if set(layers) <= set(numbers) else fail(where, "'layers'", values, "layers that have a score")


def verify(run: Path) -> dict[str, Any]:
    """Check a run and return its manifest."""
    if not (run / MANIFEST).is_file():
        raise FedpeftError(f"{run} holds no {MANIFEST}: the job did not finish, the server's log says why.")
    manifest = read_manifest(run / MANIFEST)
    if manifest["status"] != "completed":
        raise FedpeftError(f"{manifest['reason']}\nFinished rounds: {manifest['rounds']}.")
    for name, written in manifest["files"].items():
        if not _is_same(run, name, written):
            raise FedpeftError(f"{run / name} is missing or not what the server wrote: download the result again.")
    return manifest


def _is_same(run: Path, name: str, written: str) -> bool:
    """Return whether a file of a run, not one outside it, has the digest that the manifest says."""
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts or "\0" in name:
        return False
    try:
        return digest(run / inside) == written
    except (OSError, ValueError):  # of a name that no file can have
        return False


def _digests(values: Any, where: str, what: str) -> dict[str, str]:
    return {name: as_sentence(written, where, "a digest") for name, written in as_mapping(values, where, what).items()}


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    status: str = must(as_sentence)
    rounds: int = must(as_count)
    reason: str = must(as_sentence, default="no reason given")
    lineage: str = must(as_sentence, default="")
    files: Mapping[str, str] = must(_digests)
    sites: Mapping[str, Any] = must(by_name(lambda about, where, what: about), default_factory=dict)
    ended_early: Mapping[str, int] = must(by_name(as_count, "value"), default_factory=dict)


def read_manifest(file: Path) -> dict[str, Any]:
    """Read a manifest."""
    try:
        manifest = as_mapping(read_json(file, max_bytes=MAX_HISTORY), "it", "the whole file")
        known = checked(_Manifest, manifest, "it")
        if known.ended_early:
            need(known.ended_early, "best_round", "it")
        return {**manifest, **vars(known)}
    except (OSError, ValueError) as error:
        raise FedpeftError(f"{file} is not a manifest ({error!s:.200}): download the result again.") from error
