# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check that FLARE may load fedpeft's classes at this participant, and only those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpeft.core.workspace import COMPONENTS, KEY, RESOURCES
from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed, warned
from fedpeft.doctor.kit import ADMIN, SITE, read_object

MODE = "class_list_enforcement_mode"
STREAMING, STREAMERS = "allow_log_streaming", ("SiteLogStreamer", "JobLogStreamer")
EVERYTHING, ANY_OF_OURS = "*", "fedpeft.anything"


def check(context: Context) -> Iterator[Finding]:
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
    components = resources.get("components", [])
    streams = any(str(c.get("path", "")).endswith(STREAMERS) for c in components if isinstance(c, Mapping))
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
