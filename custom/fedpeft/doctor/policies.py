# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Checks of a start-up kit: admission of jobs, the list of classes, the site policy, the filters.

This participant must check a job before anything of it is read, and read nothing from the folder of its start.
Misconfigured filters block every reply, from the handshake on; without filters every reply leaves unchecked.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from fedpeft.alignment.settings import PIASettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import read_text
from fedpeft.core.processes import SAFE_PATH, python_environment
from fedpeft.core.settings import build
from fedpeft.core.workspace import (
    ADMIN,
    COMPONENTS,
    GUARDS,
    KEY,
    PRIVACY,
    RESOURCES,
    SITE,
    Kit,
    components_of,
    read_object,
)
from fedpeft.doctor.context import Context, Finding, failed, passed, warned
from fedpeft.job.admission import FILES
from fedpeft.job.settings import SiteJob
from fedpeft.job.site_policy import RECEIVED, ZERO, PrivacySettings, SitePolicy
from fedpeft.protocol.job_against_policy import refusals, remedy

PROBE = "fedpeft.flare.hardening.jobs"
_APP_FILES = {name.rpartition("/")[2] for name in FILES}


def check_admission(context: Context) -> Iterator[Finding]:
    """Check the kit's scripts, the component in its resources.json, its hooks in FLARE, and files of earlier jobs."""
    if context.kit is None:
        return
    yield from scripts(context.kit)
    if context.kit.role == ADMIN:
        return
    yield component(context.kit.resources(), context.kit)
    yield probe()
    yield from leftovers(context.kit)


def scripts(kit: Kit) -> Iterator[Finding]:
    """Find a script of an old kit whose Python processes still import from the folder in which it is called."""
    for file in sorted((kit.folder / "startup").glob("*.sh")):
        try:
            content = read_text(file)
        except (OSError, ValueError) as error:
            yield failed(f"{file} cannot be read ({error}): unpack the kit again.")
            return
        if f"export {SAFE_PATH}=1" not in content:
            yield warned(
                f"{file} has Python import from the folder in which it is called: insert `export {SAFE_PATH}=1` as its "
                f"second line, or have the kit provisioned again."
            )
            return


def component(resources: Mapping[str, Any], kit: Kit) -> Finding:
    """Check that the kit names the component that checks jobs."""
    guard = GUARDS[kit.role]
    present = components_of(resources)
    if any(entry.get("id") == guard["id"] and entry.get("path") == guard["path"] for entry in present):
        return passed(f"this {kit.role} checks a job before FLARE reads it.")
    others = [entry.get("path") for entry in present if entry.get("id") == guard["id"]]
    change = f"replace {others[0]!r}" if others else "append an entry"
    return failed(
        f"nothing checks a job before FLARE reads it: {change} in components of {kit.resources_file}, with id "
        f"{guard['id']!r}, path {guard['path']!r} and no args."
    )


def probe() -> Finding:
    """Check the hooks in the installed FLARE; in a separate process, because they replace FLARE's functions."""
    command = [sys.executable, "-m", PROBE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=python_environment())
    if done.returncode == 0:
        return passed("HOCON, YAML and variables are refused by the installed FLARE.")
    reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return failed(
        f"the check of jobs does not work in the installed FLARE ({reason}): install the versions in constraints.txt."
    )


def leftovers(kit: Kit) -> Iterator[Finding]:
    """Find files of earlier jobs: FLARE searches their run folders for its own configuration too."""
    for app in sorted(kit.folder.glob("*/app_*")):
        if app.is_symlink():
            yield failed(f"{app} is a link, and FLARE may read what it leads to: remove it.")
            return
    for file in sorted(kit.folder.glob("*/app_*/**/*")):
        if file.is_file() and file.name not in _APP_FILES and not file.name.startswith(".__nvfl_"):
            yield failed(f"{file} is left from an earlier job, and FLARE may read it: remove {file.parents[1]}.")
            return


MODE = "class_list_enforcement_mode"
STREAMING, STREAMERS = "allow_log_streaming", ("SiteLogStreamer", "JobLogStreamer")
EVERYTHING, ANY_OF_OURS = "*", "fedpeft.anything"


def check_allow_list(context: Context) -> Iterator[Finding]:
    """Check the list that FLARE will read: the kit's, or the simulator workspace's."""
    classes = context.job.classes if context.job else COMPONENTS
    if context.kit is None:
        file = context.workspace / "local" / RESOURCES
        if not file.is_file():
            yield warned(f"{file} is not there: `fedpeft simulate` writes it, `nvflare simulator` needs a clone's.")
            return
        yield from listed(read_object(file), classes, file)
    elif context.kit.role != ADMIN:
        content = context.kit.resources()
        yield from listed(content, classes, context.kit.resources_file)
        if context.kit.role == SITE:
            yield from streaming(content, context.kit.resources_file)


def listed(resources: Mapping[str, Any], classes: Iterable[str], file: Path) -> Iterator[Finding]:
    """Check that a resources.json lists every class by name, and that the list is enforced."""
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    entries = resources.get(KEY, list(DEFAULT_CLASS_ALLOW_LIST))
    if not isinstance(entries, list) or not all(isinstance(entry, str) and entry for entry in entries):
        yield failed(f"{KEY} in {file} must be a list of class names: correct it.")
        return
    missing = sorted(name for name in classes if not any(_admits(entry, name) for entry in entries))
    if missing:
        yield failed(f"FLARE may not load {', '.join(missing)}: append to {KEY} in {file}.")
    else:
        yield passed(f"FLARE may load {', '.join(name.rpartition('.')[2] for name in classes)} ({file}).")
    if wide := [entry for entry in entries if _admits(entry, ANY_OF_OURS)]:
        yield warned(f"{wide[0]!r} in {KEY} of {file} lets a job call any function below it: name each class instead.")
    if (mode := resources.get(MODE, "enforce")) != "enforce":
        yield warned(f"{MODE} is {mode!r} in {file}, so that any class is loaded: set it to 'enforce'.")


def streaming(resources: Mapping[str, Any], file: Path) -> Iterator[Finding]:
    """Check that a site's error log, which may name files of the site, is not sent to the server."""
    streams = any(str(entry.get("path", "")).endswith(STREAMERS) for entry in components_of(resources))
    if resources.get(STREAMING, True) and streams:
        yield warned(
            f"this site's error log goes to the server, and it may name the site's files: set {STREAMING} to false "
            f"in {file}."
        )
    elif resources.get(STREAMING, True):
        yield warned(f"a job may request this site's log: set {STREAMING} to false in {file}.")
    else:
        yield passed("this site's logs stay here.")


def _admits(entry: str, name: str) -> bool:
    return entry == EVERYTHING or name == entry or name.startswith(entry if entry.endswith(".") else f"{entry}.")


def check_site_file(context: Context) -> Iterator[Finding]:
    """Check the site policy in a kit, and every setting of the job that it does not allow; nothing in the simulator."""
    if context.policy_file is None:
        return
    policy = context.policy
    differing = [f.name for f in dataclasses.fields(policy) if getattr(policy, f.name) != getattr(SitePolicy(), f.name)]
    changed = f"not default: {', '.join(differing)}" if differing else "all values are defaults"
    yield passed(f"{context.policy_file} can be used; {changed}.")
    for site in context.sites:
        refused = list(refusals(policy, context.at(site)))
        noise = policy.noise_of_sums
        if noise and (finding := _clipping_problem(context.at(site), noise, f"sum_noise of {context.policy_file}")):
            yield finding
        if noise and noise.noise and find_spec(ACCOUNTANT) is None:
            yield failed(NO_ACCOUNTANT.format(context.policy_file))
        for setting, why in refused:
            yield failed(f"{setting} {why}: {remedy(setting, context.policy_file)}")
        if not refused:
            yield passed("the site policy allows all settings of the job.")


FILTERS = {
    "task_data_filters": ("fedpeft.flare.filters.RememberOrder", "in"),
    "task_result_filters": ("fedpeft.flare.filters.AdapterOnly", "out"),
}
ACCOUNTANT, OFF = "opacus", "off"
NO_ACCOUNTANT = "{} sets noise, and the privacy accountant is missing: pip install 'flare-fedpeft[privacy]'."
WRITE = "python -m fedpeft.flare.policy > local/privacy.json"


def check_privacy(context: Context) -> Iterator[Finding]:
    """Check the file in a site's kit; the simulator does not need one."""
    if context.kit is None or context.kit.role != SITE:
        return
    file = context.kit.folder / "local" / PRIVACY
    if not file.is_file():
        yield failed(f"there is no {file}, so nothing checks what leaves this site: {WRITE}")
        return
    yield from policy(read_object(file), file, (context.at(site) for site in context.sites))


def policy(content: Mapping[str, Any], file: Path, jobs: Iterable[SiteJob] = ()) -> Iterator[Finding]:
    """Check the default scope's two filters, and that the jobs can run with the privacy settings of `AdapterOnly`."""
    scopes = content.get("scopes")
    named = [scope for scope in scopes if isinstance(scope, Mapping)] if isinstance(scopes, list) else []
    scope = next((scope for scope in named if scope.get("name") == content.get("default_scope")), None)
    if scope is None:
        yield failed(f"{file} has no default scope, so that no job is admitted: {WRITE}")
        return
    if len(named) > 1:
        yield failed(f"{file} has {len(named)} scopes, and the author of a job can choose one: keep only one.")
    filters = {chain: _filter(scope.get(chain), path, way) for chain, (path, way) in FILTERS.items()}
    missing = [path for chain, (path, _) in FILTERS.items() if filters[chain] is None]
    if len(missing) == len(FILTERS):
        yield failed(f"{file} names none of fedpeft's filters, so nothing checks what leaves this site: {WRITE}")
    elif filters["task_result_filters"] is None:
        yield failed(f"{file} lacks {missing[0]}, so nothing checks what leaves this site: {WRITE}")
    elif missing:
        yield failed(f"{file} lacks {missing[0]}, without which every reply is blocked: {WRITE}")
    else:
        arguments = {chain: filters[chain].get("args") or {} for chain in FILTERS}
        yield _unknown_argument(arguments, file) or _check_settings(arguments["task_result_filters"], file, jobs)


def _unknown_argument(arguments: Mapping[str, Any], file: Path) -> Finding | None:
    """Return which argument of a filter, by its chain, blocks every reply; None: none does."""
    for chain, given in arguments.items():
        path, _ = FILTERS[chain]
        if not isinstance(given, Mapping):
            return failed(f"{file}: args of {path} must be an object, so that every reply is blocked: {WRITE}")
        for name in given:
            if (chain, name) != ("task_result_filters", "privacy"):
                return failed(
                    f"{file}: {path} has no argument {name!r:.80}, so that every reply is blocked: remove it."
                )
    return None


def _filter(chain: Any, path: str, direction: str) -> Mapping[str, Any] | None:
    entries = [one for one in chain if isinstance(one, Mapping)] if isinstance(chain, list) else []
    return next(
        (one for one in entries if one.get("path") == path and one.get("direction", direction) == direction), None
    )


def _clipping_problem(job: SiteJob, settings: PrivacySettings, place: Path | str) -> Finding | None:
    """Return why a job cannot run with the clipping settings in `place`; None: it can."""
    if job.method.aligns and cast(PIASettings, job.method.pia).follows_agreement:
        return failed(
            f"method.pia.share='agreement' takes what this site trained off the mean, and {place} clips it, so "
            f"every reply after the first is blocked: use a number as method.pia.share."
        )
    if job.method.rule.stacks and settings.reference == RECEIVED:
        return failed(
            f"method.aggregation={job.method.aggregation!r} has sites start from fresh factors, and {place} clips the "
            f"difference to the last global adapter: use another aggregation, or reference: {ZERO}."
        )
    if job.method.site_settings and settings.reference == RECEIVED:
        return warned(
            f"method.site_settings may give this site other shapes than the global adapter's, and {place} clips the "
            f"difference to that, which would block its adapters: leave site_settings out, or set reference: {ZERO}."
        )
    if job.training.scaffold:
        return warned(
            f"training.scaffold compares what this site trained with the mean, and {place} clips it, so the "
            f"corrections are wrong: leave training.scaffold out."
        )
    return None


def _check_settings(arguments: Mapping[str, Any], file: Path, jobs: Iterable[SiteJob]) -> Finding:
    chosen = arguments.get("privacy", OFF)
    if chosen == OFF:
        return passed("what leaves this site is checked, neither clipped nor noised.")
    try:
        settings = build(PrivacySettings, chosen, section="privacy")
    except FedpeftError as error:
        return failed(f"{file} is wrong, so that every reply is blocked: {error}")
    for job in jobs:
        if job.method.secure_sum:
            return failed(
                f"{file} clips, which an adapter under the masks of method.secure_sum cannot be, so every adapter is "
                f"blocked: set privacy to {OFF!r} there, and sum_noise in the site's fedpeft.json."
            )
        if job.schedule.scored and settings.noise and not settings.score_clip:
            return failed(
                f"{file} has noise and no score_clip, so scores of layers are blocked: set score_clip and score_noise."
            )
        if finding := _clipping_problem(job, settings, file):
            return finding
    if not settings.noise:
        return passed(f"what leaves this site is checked and clipped at {settings.clip}, not noised.")
    if find_spec(ACCOUNTANT) is None:
        return failed(NO_ACCOUNTANT.format(file))
    return passed(f"what leaves this site is checked, clipped at {settings.clip} and noised ({settings.noise}).")
