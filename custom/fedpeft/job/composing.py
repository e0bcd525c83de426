# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Compose FLARE job folders from app_configs/: plain JSON, no code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import read_json, read_text, replacing
from fedpeft.core.registry import Registry
from fedpeft.core.settings import SECONDS, build, check_ranges, drop_former_settings, suggestion, unread, within
from fedpeft.job.yaml_values import MAX_LEVELS, parse, parse_argument

if TYPE_CHECKING:
    from fedpeft.data.settings import DataSettings

RECIPES = "jobs.yml"
CONFIGS = Path("app_configs")
TASK = "tasks/"  # before the name of a part that is a task
PACKAGED = Path(__file__).parents[1] / CONFIGS  # in a clone a link to the folder at its root
SHORT_NAMES = {"resume_from": "federation.resume_from"}  # settings that --set takes without their section
SECTIONS = ("backbone", "method", "training", "data", "schedule", "federation", "flare")
PERSISTOR = "fedpeft.flare.persistor.SafetensorsPersistor"
AGGREGATOR = "fedpeft.flare.aggregator.PIAAggregator"
CONTROLLER = "fedpeft.flare.controller.FederationController"
EXECUTOR = "fedpeft.flare.executor.SiteExecutor"
ARGUMENTS = {  # class -> the sections of the job that it receives; a site admits no other classes
    PERSISTOR: (),
    AGGREGATOR: ("method",),
    CONTROLLER: ("job", "federation", "method", "training", "schedule"),
    EXECUTOR: ("backbone", "method", "training", "data", "schedule"),
}
ORDERS = ("hello", "score", "train")
TASKS: Registry[Mapping[str, Any]] = Registry("task", "fedpeft.tasks", Mapping)  # of installed packages


@dataclass(frozen=True, kw_only=True)
class FlareSettings:
    """FLARE's own intervals and timeouts, in seconds; FLARE waits forever where none is set.

    Args:
        task_request_interval: how often a site asks for its next task, from 0.01 to 3600; FLARE's default of 2 s
            dominates short rounds.
        get_task_timeout: fetching a task and its adapter.
        submit_task_result_timeout: sending a reply and its adapter; set it above the time of the longest upload,
            because FLARE sends the whole reply again when it has passed.
        tensor_min_download_timeout: silence after which a download of large tensors is abandoned.
        tensor_streaming_per_request_timeout: one chunk of such a download.
    """

    task_request_interval: float = field(metadata=within(0.01, 3600))
    get_task_timeout: float = field(metadata=SECONDS)
    submit_task_result_timeout: float = field(metadata=SECONDS)
    tensor_min_download_timeout: float = field(metadata=SECONDS)
    tensor_streaming_per_request_timeout: float = field(metadata=SECONDS)

    def __post_init__(self) -> None:
        check_ranges(self)


def default_configs() -> Path:
    """Return the folder `app_configs` here, or where there is none the one that comes with the package."""
    return CONFIGS if CONFIGS.is_dir() else PACKAGED


def recipes(configs: Path) -> dict[str, list[str]]:
    """Return job name -> parts that it is composed of, from `app_configs/jobs.yml`."""
    file = configs / RECIPES
    found = read_yaml(file, may_be_empty=True)
    for job, parts in found.items():
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise FedpeftError(
                f"{file}: {job!r:.80} is {parts!r:.80}, it must be a list of parts: write [tasks/own, ...]."
            )
    return found


def known_jobs(configs: Path) -> dict[str, list[str]]:
    """Return the recipes of a folder, and those that come with the package."""
    return recipes(PACKAGED) | own_recipes(configs)


def own_recipes(configs: Path) -> dict[str, list[str]]:
    """Return the recipes of a folder, which may have parts alone."""
    return recipes(configs) if (configs / RECIPES).exists() or not configs.is_dir() else {}


def name_of(job: Path | str) -> str:
    """Return the name of a job that is written as a name or as its folder: `jobs/vqa_rad` is `vqa_rad`."""
    return Path(job).as_posix().removeprefix("jobs/")


def configs_of(folder: Path) -> Path | None:
    """Return the `app_configs` folder beside the `jobs/` that holds a job folder; None: the folder is elsewhere."""
    folder = folder.resolve()
    beside = (root / CONFIGS for root in folder.parents if (root / "jobs") in folder.parents)
    return next((configs for configs in beside if configs.is_dir()), None)


def name_in(folder: Path) -> str:
    """Return the name of the job in a folder, as the configuration of its server has it."""
    try:
        name = read_json(folder / "app" / "config" / "config_fed_server.json")["workflows"][0]["args"]["job"]
    except (OSError, ValueError, LookupError, TypeError):
        name = ""
    if not isinstance(name, str) or not name:
        raise FedpeftError(
            f"{folder} has no server configuration with a job's name: write it again with `fedpeft jobs`."
        )
    return name


def compose(configs: str | Path, job: str, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Merge a job's parts and overrides into sections, and check all of them.

    Args:
        configs: the `app_configs` folder; what it lacks, job or part, is taken from the one of the package.
        overrides: settings as `section.name=value`; the value is read as YAML.
    """
    configs = Path(configs)
    return compose_parts(configs, parts_of(configs, job), overrides)


def parts_of(configs: Path, job: str) -> list[str]:
    """Return the parts that a job is composed of."""
    known = known_jobs(configs)
    if job not in known:
        raise FedpeftError(f"{job!r} is not a job of {configs / RECIPES}: {suggestion(job, known)}.")
    return known[job]


def compose_parts(configs: Path, parts: Iterable[str], overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Merge parts, later ones over earlier ones, and overrides into sections, and check all of them; see `compose`."""
    return compose_sections([part_of(configs, part) for part in parts], overrides)


def compose_sections(parts: Iterable[Mapping[str, Any]], overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Merge the sections of parts, later ones over earlier ones, then overrides, and check all of them.

    `method.settings`, `training.learning_rate` and `training.features_mib` get what the backbone (`Pretrained`)
    declares, so that a job says all that its sites build, and another backbone is one setting (where the job sets
    nothing that only its own backbone reads).
    """
    sections: dict[str, Any] = {"schedule": {}}
    for part in parts:
        sections = overlay(sections, part)
    sections = _add_declared_settings(_overridden(sections, overrides))
    check_sections(sections)
    return sections


def check_used(settings: Iterable[str], sections: Mapping[str, Any], *, job: str) -> None:
    """Refuse settings that would change nothing: of a method, schedule or scheme that a job does not have."""
    from fedpeft.answering.training_settings import TrainingSettings
    from fedpeft.job.federation import BY_SITE, unread_at
    from fedpeft.job.settings import unread_in
    from fedpeft.methods import METHODS
    from fedpeft.methods.settings import NESTED, MethodSettings

    settings, sections_of = list(settings), {"method": MethodSettings, "training": TrainingSettings}
    for section, names in parse_overrides(settings).items():
        of_sites = names.pop("sites", {}) if section in BY_SITE else {}
        of_section = sections_of.get(section)
        if sections["federation"].get("resume_from"):  # its settings must stay as they were
            of_sites, of_section = {}, None
        for site, name in ((site, name) for site, own in of_sites.items() for name in own):
            if remedy := unread_at(section, name, [site], sections):
                raise FedpeftError(f"{section}.sites.{site}.{name} changes nothing in {job}: {remedy}.")
        nested = [f"{part}.{name}" for part in NESTED for name in names.pop(part, {})] if section == "method" else []
        for name in (*names, *nested):
            needed = unread(of_section, sections[section], name) if of_section else None
            remedy = f"set {section}.{needed} as well" if needed else unread_in(section, name, sections)
            if remedy:
                raise FedpeftError(f"{section}.{name} changes nothing in {job}: {remedy}.")
    method = sections["method"].get("name", MethodSettings.name)
    for name in unused_methods(settings, method):
        if name in METHODS.get(method).parts:
            remedy = f"write method.settings.{method}.{name}"
        else:
            remedy = f"set method.name={name} as well, or change those of {method}"
        raise FedpeftError(f"method.settings.{name} changes nothing in {job}, whose method is {method}: {remedy}.")


def unused_methods(settings: Iterable[str], method: str) -> list[str]:
    """Return the methods whose settings are given although `method` does not read them."""
    from fedpeft.methods import with_bases

    named = parse_overrides(settings).get("method", {}).get("settings", {})
    return [name for name in named if name not in with_bases(method)]


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Return settings written as `section.name=value` as sections."""
    return _overridden({}, overrides)


def check_known(sections: Iterable[str]) -> None:
    """Refuse the name of a section that no job has."""
    if unknown := sorted(set(sections) - set(SECTIONS)):
        raise FedpeftError(f"{unknown[0]!r} is not a section of a job: {suggestion(unknown[0], SECTIONS)}.")


def check_sections(sections: Mapping[str, Any]) -> None:
    """Check every section as server and sites will."""
    from fedpeft.job.settings import ServerJob, SiteJob, check_validated
    from fedpeft.job.strict_files import check_texts

    check_known(sections)
    for name, section in sections.items():
        check_texts(section, name)
    job = ServerJob.from_sections(sections)
    build(FlareSettings, sections.get("flare"), section="flare")
    job.method.check_settings()
    sites = job.federation.sites
    holders = set(sites)
    owners: dict[tuple[str, str, int | str], tuple[str, str]] = {}
    sizes: list[int | None] = []  # of validation splits
    for site in sites:
        own = SiteJob.from_sections(sections, site=site)
        holders |= {one.site for one in own.pooled}
        for part in own.pooled or (own.data,):
            sizes.append(part.validation_size)
            holder = site, part.site or site
            for claim in _claims(part, holder[1]):
                if (other := owners.setdefault(claim, holder)) != holder:
                    raise _same_part_error(part, other, holder)
    by_site = {"backbone.sites": sections["backbone"].get("sites", {}), "data.sites": sections["data"].get("sites", {})}
    if not job.federation.resume_from:  # whose settings must stay as they were, those of sites that left included
        check_validated(job.training, sizes)
        by_site |= {
            "method.site_settings": job.method.site_settings,
            "schedule.joins": job.schedule.joins,
            "schedule.site_budgets": job.schedule.site_budgets,
        }
    for where, named in by_site.items():
        if unknown_sites := sorted(set(named) - (holders if where == "data.sites" else set(sites))):
            raise FedpeftError(
                f"{where} names {unknown_sites[0]!r}, which is not in federation.sites: "
                f"{suggestion(unknown_sites[0], sites)}."
            )


def _claims(part: DataSettings, name: str) -> list[tuple[str, str, int | str]]:
    """List what no other site may have: a part of a data set that is shared out, or sites of the data set itself."""
    from fedpeft.data.partition import part_of
    from fedpeft.data.registry import DATASETS
    from fedpeft.data.settings import NATURAL

    data_set, place = DATASETS.get(part.dataset), str(part.root)
    claims: list[int | str] = [name]
    if part.partition != NATURAL:
        claims = [part_of(part)]
    elif data_set.procedural:
        place = str(part.seed)
    elif data_set.whole and name == data_set.whole:
        claims += data_set.sites
    elif name not in data_set.sites:
        return []
    return [(part.dataset, place, claim) for claim in claims]


def _same_part_error(part: DataSettings, one: tuple[str, str], other: tuple[str, str]) -> FedpeftError:
    """Return the error for two holders of the same data; each is a site and the name of its data."""
    if part.parts > 1 and one[1] != other[1]:
        return FedpeftError(
            f"{one[1]} and {other[1]} end with one number, which gives them the same part of "
            f"{part.dataset}: number the sites from 1 to {part.parts}."
        )
    places = [site if site == name else f"{site} ({name})" for site, name in (one, other)]
    return FedpeftError(
        f"{places[0]} and {places[1]} would have the same samples of {part.dataset}: give each another part of it "
        f"with data.sites.{other[0]}.site."
    )


def write_job(folder: Path, name: str, sections: Mapping[str, Any]) -> None:
    """Write one FLARE job folder: `meta.json` and the two configurations under `app/config`."""
    for path, content in job_files(name, sections).items():
        file = folder / path
        with replacing(file) as draft:
            draft.write_text(content, encoding="utf-8")


def outdated(folder: Path, name: str, sections: Mapping[str, Any]) -> list[Path]:
    """Return the files of a job folder that are missing or differ from what the sections give."""
    files = {folder / path: content for path, content in job_files(name, sections).items()}
    return [file for file, content in files.items() if not file.is_file() or file.read_bytes() != content.encode()]


def check_current(job: Path, configs: Path, name: str) -> None:
    """Refuse a job's folder that differs from what `configs` gives, since the job would be composed of `configs`."""
    if not (job / "meta.json").is_file() or name not in known_jobs(configs):
        return
    if stale := outdated(job, name, compose(configs, name)):
        raise FedpeftError(
            f"{stale[0]} is not what {configs} gives, and this command composes the job of that: name {name} instead "
            f"of the folder, and give what differs with --set."
        )


def job_files(name: str, sections: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of a job folder: relative path -> text."""
    federation, flare = sections["federation"], dict(sections["flare"])
    sites = list(federation["sites"])

    def arguments(path: str) -> dict[str, Any]:
        return {section: name if section == "job" else sections[section] for section in ARGUMENTS[path]}

    server = {
        "format_version": 2,
        "server": {"task_request_interval": flare.pop("task_request_interval")},
        **flare,
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [
            {"id": "persistor", "path": PERSISTOR, "args": arguments(PERSISTOR)},
            {"id": "aggregator", "path": AGGREGATOR, "args": arguments(AGGREGATOR)},
        ],
        "workflows": [{"id": "rounds", "path": CONTROLLER, "args": arguments(CONTROLLER)}],
    }
    client = {
        "format_version": 2,
        **flare,
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        "executors": [{"tasks": list(ORDERS), "executor": {"path": EXECUTOR, "args": arguments(EXECUTOR)}}],
    }
    meta = {
        "name": name.replace("/", "_"),
        "resource_spec": {},
        "min_clients": federation.get("quorum") or len(sites),
        "deploy_map": {"app": ["server", *sites]},
    }
    files = {
        "meta.json": meta,
        "app/config/config_fed_server.json": server,
        "app/config/config_fed_client.json": client,
    }
    return {path: json.dumps(content, indent=2) + "\n" for path, content in files.items()}


def _add_declared_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Add what the backbone of sections declares; leave wrong sections as they are, for `check_sections` to refuse."""
    from fedpeft.backbones import BACKBONES, BackboneSettings

    backbone, method = sections.get("backbone"), sections.get("method")
    name = backbone.get("name", BackboneSettings.name) if isinstance(backbone, Mapping) else None
    if name not in BACKBONES.names() or not isinstance(method, Mapping):
        return dict(sections)
    declared = BACKBONES.get(name)
    if declared.method_settings:
        method = _put({"settings": deepcopy(declared.method_settings)}, method, empties=False)
    training = sections.get("training", {})
    if isinstance(training, Mapping):
        fitting = {"learning_rate": declared.learning_rate}
        if declared.features_mib:
            fitting["features_mib"] = declared.features_mib
        training = {**training, **{name: value for name, value in fitting.items() if name not in training}}
    return {**sections, "method": method, "training": training}


def _overridden(sections: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return sections with settings as `section.name=value`; their order matters only where they name one setting."""
    each = [_parse_override(override) for override in overrides]
    result = _without_former(sections, reduce(_put, each, {}))
    return reduce(_put, each, result)


def _parse_override(text: str) -> dict[str, Any]:
    path, equals, value = text.partition("=")
    names = SHORT_NAMES.get(path.strip(), path.strip()).split(".")
    if not equals or len(names) < 2 or not all(names):
        raise FedpeftError(f"--set {text!r:.80} is not of the form section.name=value, e.g. method.name=compacter.")
    if len(names) > MAX_LEVELS:
        raise FedpeftError(f"--set {text!r:.80} names a setting {len(names)} levels deep: at most {MAX_LEVELS}.")
    try:
        nested: Any = parse_argument(value)
    except ValueError as error:
        raise FedpeftError(f"--set {text!r:.80} has a value that cannot be used ({error}): correct it.") from error
    for name in reversed(names):
        nested = {name: nested}
    return nested


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections in which those of `over` replace or add to those of `base`, setting by setting.

    A mapping is emptied by an empty one; those of whole sections add nothing. Settings of a score or solver are dropped
    where `over` names another one.
    """
    given = {section: values for section, values in over.items() if values or section not in base}
    return _put(_without_former(base, given), given)


def _without_former(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections without settings of what `over` replaces (`fedpeft.core.settings.drop_former_settings`)."""
    from fedpeft.scheduling.settings import ScheduleSettings

    before, chosen = base.get("schedule"), over.get("schedule")
    if not isinstance(before, Mapping) or not isinstance(chosen, Mapping):
        return dict(base)
    return {**base, "schedule": drop_former_settings(ScheduleSettings, before, chosen)}


def _put(base: Mapping[str, Any], over: Mapping[str, Any], *, empties: bool = True) -> dict[str, Any]:
    """Return `base` with the values of `over`, mappings name by name.

    An empty mapping clears the former one; without `empties` it leaves it.
    """
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping) and (value or not empties)
        result[key] = _put(result[key], value, empties=empties) if both else value
    return result


def part_of(configs: Path, part: str) -> Mapping[str, Any]:
    """Read a file of `app_configs/`, of the package's own, or a task of an installed package."""
    task = part.removeprefix(TASK)
    own, packaged = configs / f"{part}.yml", PACKAGED / f"{part}.yml"
    file = packaged if packaged.exists() and not own.exists() else own
    return TASKS.get(task) if task != part and task in TASKS.names() and not file.exists() else read_yaml(file)


def read_yaml(file: Path, *, may_be_empty: bool = False) -> dict[str, Any]:
    """Return the mapping that a YAML file holds, an empty one for a file without any if it may be so."""
    try:
        content = parse(read_text(file))
    except FileNotFoundError as error:
        raise FedpeftError(
            f"there is no {file}: run in a clone of the repository, or name its app_configs folder."
        ) from error
    except OSError as error:
        raise FedpeftError(f"{file} cannot be read ({error.strerror}): check its permissions.") from error
    except ValueError as error:
        raise FedpeftError(f"{file} cannot be used ({error}): correct it.") from error
    if content is None and may_be_empty:
        return {}
    if not isinstance(content, dict):
        raise FedpeftError(f"{file} must hold sections, it holds {type(content).__name__}.")
    return content
