# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The rows of a comparison: what `--methods` may name, a job with it, and the finished runs that belong to it.

fedavg, fedpia, local, ...     a file of app_configs/methods/
pfeiffer+f3ocus                with a file of app_configs/schedules/, or with several
compacter, lora, vpt, ...      a method of `fedpeft methods`, its parts averaged (FedAvg)
NAME: METHOD SETTING=VALUE     any of these with settings, called NAME

Runs that only differ in their seed share a row. The job of a finished run and the settings that it left say which
method of `app_configs/` it is.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os.path import normpath
from pathlib import Path
from typing import Any

from fedpeft.backbones import BACKBONES, BackboneSettings
from fedpeft.compare.outcome import Outcome, outcome_of
from fedpeft.compare.published import methods_of
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import read_json
from fedpeft.core.settings import build, suggestion
from fedpeft.data import is_procedural
from fedpeft.job.composing import PACKAGED, TASK, compose, compose_sections, known_jobs, overlay, part_of, parts_of
from fedpeft.job.federation import site_backbone, site_data
from fedpeft.job.settings import CommonSettings
from fedpeft.methods import names as method_names
from fedpeft.report.history import History
from fedpeft.report.history_reader import flat_settings, read
from fedpeft.report.status import run_folder
from fedpeft.scheduling.settings import OF_SITES
from fedpeft.server.run_recorder import origin, settings_of

AVERAGED = "fedavg"
METHODS, SCHEDULES = "methods", "schedules"
WITHOUT_EFFECT = {
    f"training.{name}" for name in ("seed", "threads", "workers", "device", "keep", "images_mib", "measure")
}
SEED, BACKBONE = "training.seed", "backbone."
DEPLOYED = Path("app_server", "config", "config_fed_client.json")
MAX_SHOWN = 3  # settings in a row's name, unless it takes more to tell it from another


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A row of the comparison: its name, the method, and settings as `section.name=value`."""

    name: str
    method: str
    settings: tuple[str, ...] = ()
    of_job: bool = False  # the job's own method, with what its task sets of it


def variants(texts: Sequence[str]) -> list[Variant]:
    """Read what the command line says."""
    found = [_parse_variant(text) for text in texts]
    names = [one.name for one in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise FedpeftError(f"two methods are called {twice[0]!r}: give one another name, as in 'NAME: METHOD'.")
    return found


def sections_of(configs: Path, task: str, variant: Variant, overrides: Sequence[str]) -> dict[str, Any]:
    """Compose the task's job with another method instead of its method and schedule.

    `overrides` are settings of all methods of the comparison; the variant's own win. Of a task that comes after the
    method the row gets neither the schedule of layers nor what the row's own files set of the method.
    """
    if variant.of_job:
        return compose(configs, task, [*overrides, *variant.settings])
    method, *schedules = variant.method.split("+")
    own = [f"{METHODS}/{method}"] if _exists(configs, METHODS, method) else [f"{METHODS}/{AVERAGED}"]
    named = [] if _exists(configs, METHODS, method) else [f"method.name={_known_method(configs, method)}"]
    for schedule in schedules:
        if not _exists(configs, SCHEDULES, schedule):
            raise FedpeftError(
                f"{variant.method!r}: {schedule!r} is no schedule: {suggestion(schedule, _files(configs, SCHEDULES))}."
            )
        own.append(f"{SCHEDULES}/{schedule}")
    parts = parts_of(configs, task)
    replaced = [number for number, part in enumerate(parts) if part.partition("/")[0] in (METHODS, SCHEDULES)]
    first = min(replaced, default=len(parts))
    kept = [(number, part) for number, part in enumerate(parts) if number not in replaced]
    before, after = ([part_of(configs, p) for n, p in kept if (n < first) is wanted] for wanted in (True, False))
    of_row = [part_of(configs, part) for part in own]
    of_tasks = [part.startswith(TASK) for number, part in kept if number >= first]
    chosen: dict[str, Any] = {"method": {"name": None} if named else {}}
    for part in of_row:
        chosen = overlay(chosen, {"method": part.get("method") or {}})
    after = [
        _beside(part, chosen["method"]) if of_task else part for part, of_task in zip(after, of_tasks, strict=True)
    ]
    return compose_sections([*before, *of_row, *after], [*named, *overrides, *variant.settings])


def _beside(task: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a task without its schedule of layers and what a row has chosen of its method."""
    method, schedule = (task.get(name) or {} for name in ("method", "schedule"))
    if not isinstance(method, Mapping) or not isinstance(schedule, Mapping):
        return dict(task)  # which composing refuses
    of_sites = {name: value for name, value in schedule.items() if name in OF_SITES}
    return {**task, "method": _without(method, chosen), "schedule": of_sites}


def _without(values: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values that are not chosen, of a mapping those within it, if any: an empty one clears another."""
    left = {}
    for name, value in values.items():
        both = isinstance(value, Mapping) and isinstance(chosen.get(name), Mapping)
        if name not in chosen:
            left[name] = value
        elif both and (rest := _without(value, chosen[name])):
            left[name] = rest
    return left


def variant_of(configs: Path, task: str) -> Variant:
    """Return the method and the schedules of a job as its recipe names them."""
    parts = [part.partition("/") for part in parts_of(configs, task)]
    methods, schedules = ([name for folder, _, name in parts if folder == one] for one in (METHODS, SCHEDULES))
    if not methods:
        raise FedpeftError(f"the job {task} names no method of app_configs/{METHODS}: name some with --methods.")
    name = "+".join([methods[-1], *schedules])
    return Variant(name=name, method=name, of_job=True)


def _parse_variant(text: str) -> Variant:
    name, colon, rest = text.partition(":")
    words = (rest if colon else text).split()
    if not words or not name.strip():
        raise FedpeftError(f"{text!r:.80} names no method: write METHOD, or NAME: METHOD SETTING=VALUE.")
    return Variant(name=name.strip() if colon else words[0], method=words[0], settings=tuple(words[1:]))


def _known_method(configs: Path, method: str) -> str:
    if method not in method_names():
        known = dict.fromkeys([*_files(configs, METHODS), *method_names()])
        raise FedpeftError(f"{method!r} is no method: {suggestion(method, known)}.")
    return method


def _exists(configs: Path, folder: str, name: str) -> bool:
    return name in _files(configs, folder)


def _files(configs: Path, folder: str) -> list[str]:
    return sorted({file.stem for root in (configs, PACKAGED) for file in (root / folder).glob("*.yml")})


def recipe_of(history: History) -> str:
    """Return the method with published figures that has the settings of a run; empty: none has.

    The run must be of the packaged job of that name: its sites, data sets, backbone, and the settings of method,
    training and schedule, and of the backbone where they are known. Other settings of the data are not in what a run
    leaves.
    """
    if history.job not in known_jobs(PACKAGED):
        return ""
    for method in methods_of(history.job):
        sections, settings = _published_job(history.job, method)
        if _with_effect(history.settings) == settings and _is_of_job(history, sections):
            return method
    return ""


@functools.cache  # many runs of one job are compared
def _published_job(job: str, method: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return a packaged job's sections with this method, and what the server would write of their settings."""
    sections = sections_of(PACKAGED, job, _parse_variant(method), [])
    return sections, _settings(sections)


def _settings(sections: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that a server would write for a job."""
    return _with_effect(flat_settings(settings_of(*CommonSettings.from_sections(sections)), "the packaged job"))


def _is_of_job(history: History, sections: Mapping[str, Any]) -> bool:
    """Return whether a run had the sites, data sets and backbones of a job."""
    sites = sections["federation"]["sites"]
    datasets = [site_data(sections["data"], site)["dataset"] for site in sites]
    backbones = [site_backbone(sections["backbone"], site)["name"] for site in sites]
    known = {name: value for name, value in history.settings.items() if name.startswith(BACKBONE)}
    if set(history.sites) != set(sites) or known not in ({}, _backbone_settings(sections["backbone"], sites)):
        return False
    return history.source == origin(datasets, backbones, procedural=any(map(is_procedural, datasets)))


def _with_effect(settings: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in settings.items() if name not in WITHOUT_EFFECT and not name.startswith(BACKBONE)
    }


def outcomes(folders: Sequence[Path]) -> list[Outcome]:
    """Read the runs in these folders."""
    return outcomes_of(read_runs(folders))


def read_runs(folders: Iterable[Path]) -> dict[Path, History]:
    """Read runs by folder, with the settings of their backbones if all runs have their jobs beside them.

    A server does not receive the section `backbone`, so that `history.json` lacks it.
    """
    runs = {folder: run_folder(folder) for folder in folders}
    histories = {folder: read(run) for folder, run in runs.items()}
    beside = {folder: _backbone_beside(run, histories[folder].sites) for folder, run in runs.items()}
    if None in beside.values():
        return histories
    return {
        folder: replace(one, settings={**one.settings, **(beside[folder] or {})}) for folder, one in histories.items()
    }


def _backbone_beside(run: Path, sites: Iterable[str]) -> dict[str, str] | None:
    """Return the settings of the backbone of the job that FLARE keeps beside a run; None: there is none to be read."""
    file = run.resolve().parent / DEPLOYED
    if file.resolve() != file:  # a link, which no page of `fedpeft serve` follows
        return None
    try:
        (executor,) = read_json(file)["executors"]
        return _backbone_settings(executor["executor"]["args"]["backbone"], sites)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, FedpeftError):
        return None


def _backbone_settings(section: Mapping[str, Any], sites: Iterable[str]) -> dict[str, str]:
    """Return the settings of a job's backbone with its defaults; those in which sites differ are under each site."""
    of_sites = {
        site: _resolve_sources(build(BackboneSettings, site_backbone(section, site), section="backbone"))
        for site in sorted(sites)
    }
    first, *others = of_sites.values()
    common = {name: value for name, value in first.items() if all(other[name] == value for other in others)}
    unlike = {site: {name: own[name] for name in own.keys() - common.keys()} for site, own in of_sites.items()}
    return flat_settings({"backbone": common | ({"sites": unlike} if len(common) < len(first) else {})}, "the job")


def _resolve_sources(backbone: BackboneSettings) -> dict[str, Any]:
    """Return a site's settings of the backbone, in which a source is one text however its path was written."""
    settings = asdict(backbone)
    for source in ("source", "image_source"):
        default = getattr(BACKBONES.get(backbone.name), f"default_{source}")
        named = settings[source]
        if named == default:
            settings[source] = None
        elif named:
            folder = Path(os.path.expanduser(named))
            settings[source] = str(folder.resolve()) if folder.is_dir() else normpath(named)
    return settings


def outcomes_of(histories: Mapping[Path, History]) -> list[Outcome]:
    """Return the rows of runs."""
    _check_one_task(histories)
    every = list(histories.values())
    found = [outcome_of(one, method=_row_name(one, every), recipe=recipe_of(one)) for one in every]
    keys = [(one.method, one.seed) for one in found]
    for folder, key in zip(histories, keys, strict=True):
        if keys.count(key) > 1:
            raise FedpeftError(
                f"{folder} has method, settings and seed of another run ({key[0]}, seed {key[1]}): name one of them."
            )
    return found


def _check_one_task(histories: Mapping[Path, History]) -> None:
    (first, one), *others = histories.items()
    for folder, other in others:
        if set(other.sites) != set(one.sites):
            raise FedpeftError(
                f"{folder} has the sites {', '.join(other.sites)}, {first} has {', '.join(one.sites)}: runs of "
                f"different sites cannot be compared."
            )
        if any(_other_counts(other, one, site) for site in one.sites):
            raise FedpeftError(
                f"{folder} and {first} have other numbers of examples at a site: compare runs of one task."
            )
        if other.source != one.source:
            raise FedpeftError(f"{folder} is of {other.source!r}, {first} of {one.source!r}: compare runs of one task.")
        if {name: set(sites) for name, sites in other.by_metric.items()} != {
            name: set(sites) for name, sites in one.by_metric.items()
        }:
            raise FedpeftError(
                f"{folder} and {first} measure a site by different metrics: compare runs with one data.metric."
            )


def _other_counts(history: History, other: History, site: str) -> bool:
    """Return whether a site has other numbers of test samples in two runs, or of training samples if both have them."""
    (trained, tested), (known, others) = (_sample_counts(one, site) for one in (history, other))
    return bool(tested != others or (trained and known and trained != known))


def _sample_counts(history: History, site: str) -> tuple[set[int | None], int | None]:
    """Return a site's numbers of training and test samples, as far as the history has them."""
    tested = history.tested.get(site)
    trained = {result.samples for one in history.rounds if (result := one.sites.get(site))} - {None}
    return trained, tested.samples if tested else None


def _row_name(history: History, all_of_them: list[History]) -> str:
    """Return the method's name, and the settings in which runs of this name differ.

    Of many settings the first are shown, and of the others those that the run needs to be told from another.
    """
    alike = [other.settings for other in all_of_them if other.method == history.method]
    different = _different(alike)
    first = different[:MAX_SHOWN]
    telling = _different([one for one in alike if all(one.get(name) == history.settings.get(name) for name in first)])
    words = {name: name.rpartition(".")[2] for name in different}
    unlike = {name: word if [*words.values()].count(word) == 1 else name for name, word in words.items()}
    shown = [f"{unlike[name]}={history.settings.get(name, '-')}" for name in (*first, *telling)]
    if more := len(different) - len(shown):
        shown.append(f"{more} more")
    return history.method + (f" ({', '.join(shown)})" if shown else "")


def _different(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of the settings in which these runs differ, the seed aside."""
    names = sorted({name for one in settings for name in one} - {SEED})
    return [name for name in names if len({one.get(name) for one in settings}) > 1]
