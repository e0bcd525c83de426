# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Admit only jobs of the form that `fedpeft.job.composing` writes: the files, meta.json and every value.

This is an allow-list, not a list of dangers: FLARE reads many kinds of components, files and variables from a job, and
several of them read files or variables of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import Registry
from fedpeft.core.settings import about, build, check_types, is_whole
from fedpeft.job.composing import (
    AGGREGATOR,
    ARGUMENTS,
    CONTROLLER,
    EXECUTOR,
    ORDERS,
    PERSISTOR,
    SECTIONS,
    FlareSettings,
)
from fedpeft.job.strict_files import (
    SITE_NAME,
    AdmissionError,
    check_keys,
    check_list,
    check_texts,
    is_count,
    parse_json,
    read_archive,
    read_folder,
    short,
    wrong,
)

META = "meta.json"
APP = "app"
META_KEYS = ("name", "resource_spec", "min_clients", "deploy_map")
# fields that the server adds to meta.json before it sends it to a site; none selects a program or a container
BOOKKEEPING = (
    "approvals",
    "cloned_from",
    "content_location",
    "data_storage_format",
    "duration",
    "job_clients",
    "job_deploy_detail",
    "job_folder_name",
    "job_id",
    "last_schedule_time",
    "result_location",
    "schedule_count",
    "schedule_history",
    "start_time",
    "status",
    "study",
    "submit_time",
    "submit_time_iso",
    "submitter_name",
    "submitter_org",
    "submitter_role",
)
MAX_SITES = 1000
MAX_NAME = 200  # characters of a job's name
NUMBER = "num_of_gpus"
_GPUS = {NUMBER: 1024, "mem_per_gpu_in_GiB": 10_000}  # the largest that a job may ask for
ALLOWED = 1.0  # instead of an interval or timeout that a file does not have
MAX_COMPARED = 20  # checked settings of earlier sites with which those of the next are compared
CONFIGURATIONS = {"server": "config/config_fed_server.json", "client": "config/config_fed_client.json"}
FILES = (META, *(f"{APP}/{name}" for name in CONFIGURATIONS.values()))
_FOLDER = re.compile(r"[^./\\{}][^/\\{}]{0,99}")
_COMMON = ("format_version", "task_data_filters", "task_result_filters", "components")
_OF_ROLE = {"server": ("server", "workflows"), "client": ("executors",)}
_COMPONENTS = {"server": (PERSISTOR, AGGREGATOR), "client": ()}
_REQUEST_INTERVAL = "task_request_interval"
# FLARE takes an object with one of these keys, at any depth, for a component, or for none whatever else it has
_BUILDS_A_CLASS = ("path", "class_path", "config_type", "args")
_NAMES_A_CLASS = "name"  # the same for this key, if its value is the name of one of FLARE's classes, as `FedAvg`


def admit_meta(meta: Mapping[str, Any], file: str = META) -> None:
    """Check the content of meta.json: the app is deployed to the server and to sites by name, and may request GPUs.

    A launcher, a container image, a privacy scope, a job id or statistics are refused.
    """
    check_keys(meta, META_KEYS, file, required=("name", "min_clients", "deploy_map"), reason="meta")
    check_texts(meta, file)
    deployed = meta["deploy_map"]
    participants = deployed.get(APP) if isinstance(deployed, dict) and len(deployed) == 1 else None
    if not isinstance(participants, list) or not 2 <= len(participants) <= MAX_SITES + 1:  # with the server
        raise wrong(file, "deploy_map", deployed, 'an object like {"app": ["server", "site"]}')
    for name in participants:
        if not isinstance(name, str) or not SITE_NAME.fullmatch(name) or participants.count(name) > 1:
            raise wrong(
                file,
                "deploy_map",
                name,
                "the server and each site once, by a letter or digit, then letters, digits, _ and -",
            )
    if "server" not in participants:
        raise wrong(file, "deploy_map", participants, "the server and each site once, by name")
    if not is_name(meta["name"]):
        raise wrong(file, "name", meta["name"], f"1 to {MAX_NAME} printable characters")
    if not is_whole(meta["min_clients"]) or not 1 <= meta["min_clients"] < len(participants):
        raise wrong(file, "min_clients", meta["min_clients"], f"a number from 1 to {len(participants) - 1}")
    resources = meta.get("resource_spec", {})
    if not isinstance(resources, dict) or not set(resources) <= set(participants):
        raise wrong(file, "resource_spec", resources, "an object with names of sites")
    for spec in resources.values():
        known = isinstance(spec, dict) and set(spec) <= set(_GPUS)
        if not known or not all(is_count(value, _GPUS[name]) for name, value in spec.items()):
            raise wrong(file, "resource_spec", spec, f"an object of {' and '.join(_GPUS)}, each a number")
        if spec and NUMBER not in spec:  # FLARE would start such a job nowhere
            raise wrong(file, "resource_spec", spec, f"an object with {NUMBER}")


def is_name(value: Any) -> bool:
    """Return whether a value can name a job, in tables and on consoles."""
    return isinstance(value, str) and bool(value.strip()) and len(value) <= MAX_NAME and value.isprintable()


def check_flare(configuration: Mapping[str, Any], file: str) -> None:
    """Refuse FLARE's intervals and timeouts that no job may have."""
    names = [field.name for field in fields(FlareSettings)]
    try:
        build(
            FlareSettings,
            {name: configuration.get(name, ALLOWED) for name in names},
            section="flare",
            source=file,
        )
    except FedpeftError as error:
        raise AdmissionError(f"{file}: {error}", reason="setting", setting=error.setting) from error


def check_values(parts: Iterable[Mapping[str, Any]], deployed: Iterable[str]) -> None:
    """Refuse settings that the server would refuse, and a section that is not the same in all places of the job."""
    from fedpeft.backbones.registry import BACKBONES, BackboneSettings
    from fedpeft.data.registry import DATASETS
    from fedpeft.data.settings import DataSettings
    from fedpeft.job.federation import site_backbone, site_data
    from fedpeft.job.settings import ServerJob

    sections: dict[str, Any] = {}
    for part in parts:
        for name in [name for name in part if name in SECTIONS]:
            if sections.setdefault(name, part[name]) != part[name]:
                raise AdmissionError(
                    f"the section {name} is not the same in all places of the job: write it again with `fedpeft jobs`.",
                    reason="setting",
                    setting=name,
                )
    if not set(ARGUMENTS[CONTROLLER]) & set(sections):
        return
    try:
        job = ServerJob.from_sections(sections)
        with about("federation.sites"):
            _check_sites(job.federation.sites, deployed)
        checked: list[Any] = []
        for site in job.federation.sites:
            data, backbone = site_data(sections.get("data"), site), site_backbone(sections.get("backbone"), site)
            rest = {**data, "site": ""}, backbone
            if rest not in checked[-MAX_COMPARED:]:  # a thousand sites without settings of their own are checked once
                _check_site_section(DataSettings, "data", data, "dataset", DATASETS)
                _check_site_section(BackboneSettings, "backbone", backbone, "name", BACKBONES)
                checked.append(rest)
    except FedpeftError as error:
        raise AdmissionError(str(error), reason="setting", setting=error.setting) from error


def _check_site_section(kind: type, section: str, values: Mapping[str, Any], key: str, registry: Registry) -> None:
    """Check a section of one site; of a plugin, which only the site may have, check names and types of settings."""
    name = values.get(key)
    known = not isinstance(name, str) or (name in registry.names() and not registry.is_plugin(name))
    (build if known else check_types)(kind, values, section=section)


def _check_sites(sites: Iterable[str], deployed: Iterable[str]) -> None:
    if others := set(sites) ^ (set(deployed) - {"server"}):
        raise FedpeftError(
            f"{min(others)!r:.80} is in one of federation.sites and the deploy_map of meta.json, and not in the other: "
            f"write the job again with `fedpeft jobs`."
        )


@dataclass(frozen=True, kw_only=True)
class AdmittedJob:
    """The three files of a job, parsed, and their folder; `Path()` if they came in an archive."""

    meta: Mapping[str, Any]
    server: Mapping[str, Any]
    client: Mapping[str, Any]
    folder: Path = Path()

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that take part."""
        return tuple(name for name in self.meta["deploy_map"][APP] if name != "server")

    @property
    def server_sections(self) -> Mapping[str, Any]:
        """The sections that the server's controller receives."""
        return self.server["workflows"][0]["args"]

    @property
    def site_sections(self) -> Mapping[str, Any]:
        """The sections that each site's executor receives."""
        return self.client["executors"][0]["executor"]["args"]

    @property
    def sections(self) -> dict[str, Any]:
        """All sections of the job."""
        at_top = {**self.server, **self.server["server"]}
        flare = {field.name: at_top[field.name] for field in fields(FlareSettings) if field.name in at_top}
        both = {**self.server_sections, **self.site_sections, "flare": flare}
        return {name: both[name] for name in SECTIONS if name in both}

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that the job loads."""
        components = (*self.server["components"], *self.server["workflows"], *self.client["components"])
        executors = (entry["executor"] for entry in self.client["executors"])
        return tuple(sorted({component["path"] for component in (*components, *executors)}))


def admit_folder(folder: Path, *, classes: Sequence[str] = ()) -> AdmittedJob:
    """Check a job folder; it may load `classes` of a simulator's allow-list, all below those that end with a dot."""
    if not (folder / META).is_file():
        raise FedpeftError(
            f"{folder} is not a FLARE job folder, it has no meta.json: name one of jobs/, which `fedpeft jobs` writes."
        )
    return replace(_admit(read_folder(folder, FILES), f"{folder}/", classes), folder=folder)


def admit_submission(data: bytes, folder: str) -> AdmittedJob:
    """Check a submitted archive, which has only the job's folder at its top."""
    if not isinstance(folder, str) or not _FOLDER.fullmatch(folder) or not folder.isprintable():
        raise AdmissionError(f"the job's folder is {short(folder)}: give it a plain name.", reason="archive")
    return _admit(read_archive(data, FILES, root=folder), "", ())


def admit_app(data: bytes, app: str, meta: Mapping[str, Any]) -> None:
    """Check an app that a server deploys at a site, with the fields that the server added to meta.json."""
    if app != APP:
        raise AdmissionError(f"the app is {short(app)}: name it {APP!r}.", reason="file")
    if not isinstance(meta, Mapping):
        raise AdmissionError(f"meta.json is {short(meta)}, not an object: submit the job again.", reason="meta")
    admit_meta({key: value for key, value in meta.items() if key not in BOOKKEEPING})
    files = read_archive(data, tuple(CONFIGURATIONS.values()))
    for role, name in CONFIGURATIONS.items():
        admit_configuration(role, parse_json(files[name], name), name)


def admit_configuration(role: str, configuration: Mapping[str, Any], file: str, classes: Sequence[str] = ()) -> None:
    """Check one parsed configuration."""
    check_texts(configuration, file)
    timeouts = tuple(field.name for field in fields(FlareSettings) if field.name != _REQUEST_INTERVAL)
    check_keys(configuration, (*_COMMON, *_OF_ROLE[role], *timeouts), file, required=(*_COMMON, *_OF_ROLE[role]))
    if configuration["format_version"] != 2 or not is_whole(configuration["format_version"]):
        raise wrong(file, "format_version", configuration["format_version"], "2", reason="shape")
    for name in ("task_data_filters", "task_result_filters"):
        if configuration[name] != []:
            raise wrong(file, name, configuration[name], "an empty list", reason="shape")
    for component in check_list(configuration["components"], file, "components"):
        _check_component(component, f"{file}: components", classes, ("id", "path", "args"), _COMPONENTS[role])
    if role == "server":
        check_keys(configuration["server"], (_REQUEST_INTERVAL,), f"{file}: server", required=(_REQUEST_INTERVAL,))
        check_flare({**configuration, **configuration["server"]}, file)
        (workflow,) = check_list(configuration["workflows"], file, "workflows", length=1)
        _check_component(workflow, f"{file}: workflows", classes, ("id", "path", "args"), (CONTROLLER,))
    else:
        check_flare(configuration, file)
        (entry,) = check_list(configuration["executors"], file, "executors", length=1)
        check_keys(entry, ("tasks", "executor"), f"{file}: executors", required=("tasks", "executor"))
        if entry["tasks"] != list(ORDERS):
            raise wrong(file, "tasks", entry["tasks"], f"{list(ORDERS)}", reason="shape")
        _check_component(entry["executor"], f"{file}: executors", classes, ("path", "args"), (EXECUTOR,))


def _admit(files: Mapping[str, bytes], where: str, classes: Sequence[str]) -> AdmittedJob:
    parsed = {name: parse_json(files[name], f"{where}{name}") for name in FILES}
    admit_meta(parsed[META], f"{where}{META}")
    both = {role: parsed[f"{APP}/{name}"] for role, name in CONFIGURATIONS.items()}
    for role, name in CONFIGURATIONS.items():
        admit_configuration(role, both[role], f"{where}{APP}/{name}", classes)
    (workflow,), (entry,) = both["server"]["workflows"], both["client"]["executors"]
    components = (*both["server"]["components"], workflow, entry["executor"])
    check_values([component["args"] for component in components], parsed[META]["deploy_map"][APP])
    return AdmittedJob(meta=parsed[META], server=both["server"], client=both["client"])


def _check_component(entry: Any, where: str, classes: Sequence[str], names: Sequence[str], ours: Sequence[str]) -> None:
    check_keys(entry, names, where, required=names)
    path, arguments = entry["path"], entry["args"]
    if not all(isinstance(entry[key], str) and entry[key] for key in names if key != "args"):
        raise AdmissionError(
            f"{where}: id and path must be texts: write the job again with `fedpeft jobs`.", reason="shape"
        )
    if path not in ours:
        if not any(path == name or (name.endswith(".") and path.startswith(name)) for name in classes):
            raise AdmissionError(f"{where}: {short(path)} is not a component of a job: remove it.", reason="class")
        return
    check_keys(arguments, ARGUMENTS[path], f"{where}: args")
    for name, value in arguments.items():
        if name != "job":
            check_keys(value, None, f"{where}: {name}")
            _refuse_classes(value, f"{where}: {name}")
        elif not is_name(value):
            raise AdmissionError(
                f"{where}: {name} is {short(value)}: write 1 to {MAX_NAME} characters that can be printed.",
                reason="shape",
            )


def _refuse_classes(value: Any, where: str) -> None:
    """Refuse what FLARE would read as a component, at any depth: it ends a job while FLARE builds it."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inner:
        if key in _BUILDS_A_CLASS:
            raise AdmissionError(f"{where} has a key {key!r}: remove it.", reason="shape")
        if key == _NAMES_A_CLASS and isinstance(entry, str) and entry[:1].isupper():
            raise AdmissionError(
                f"{where} has a name {short(entry)}, which FLARE reads as that of a class: write names in lower case.",
                reason="shape",
            )
        _refuse_classes(entry, f"{where}.{key}")
