# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which job a state folder belongs to, and how much state a site keeps; a server cannot use or remove another job's.

<lineages>/<lineage>/job.json                       the settings of the job that made it, the jobs that used it
<lineages>/<lineage>/round-00003/                   `site_state`
<lineages>/<lineage>/set-aside/<when>-round-00003/  later rounds, set aside when a job resumed from an earlier one
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpeft.client.state_lock import is_in_use
from fedpeft.errors import LocalError
from fedpeft.files import drop, write_json

OWNER, SET_ASIDE = "job.json", "set-aside"
OTHER, FULL = "state-of-another-job", "state-full"
DAY, GIB = 24 * 3600, 2**30


def claim(folder: Path, settings: Mapping[str, Any], job: str) -> None:
    """Let a job use a state folder that is new or was made with the same settings.

    Args:
        folder: of the lineage that the server names.
        settings: of the job, JSON-serializable; a resumed job must have the same.
        job: FLARE's job id.

    Raises:
        LocalError: it belongs to another job.
    """
    file, settings = folder / OWNER, json.loads(json.dumps(settings))
    if not file.exists():
        if any(folder.glob("round-*")):
            raise _other(folder, f"its {OWNER} is missing")
        write_json(file, {"settings": settings, "jobs": [job]})
        return
    try:
        owner = json.loads(file.read_text())
        made_with, jobs = owner["settings"], list(owner["jobs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _other(folder, f"{file} cannot be read: {error}") from error
    if made_with != settings:
        differing = sorted(name for name in {*made_with, *settings} if made_with.get(name) != settings.get(name))
        raise _other(folder, f"it was made with another {', '.join(differing)}")
    if job not in jobs:
        write_json(file, {"settings": settings, "jobs": [*jobs, job]})


def set_aside(path: Path) -> None:
    """Move a round's state to a folder that no job reads; nothing is removed."""
    aside = path.parent / SET_ASIDE
    aside.mkdir(exist_ok=True)
    os.utime(path)
    path.rename(aside / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{time.monotonic_ns()}-{path.name}")


def make_room(lineages: Path, current: str, *, days: float, gib: float, needed: int = 0) -> None:
    """Remove the oldest state that is not in use and older than `days`, until the total fits into `gib`.

    State that was set aside is removed first. A server that invents jobs can fill the space and remove no newer state.

    Args:
        lineages: the folder of all lineages.
        current: the lineage that a job is about to use.
        days: `kept_days` of the site's own file.
        gib: `kept_gib` of the site's own file.
        needed: bytes about to be written.

    Raises:
        LocalError: the remaining state does not fit.
    """
    total = _size(lineages) + needed
    before = time.time() - days * DAY
    for path in _removable(lineages, current):
        if total <= gib * GIB:
            return
        if _last_use(path) < before:
            total -= _size(path)
            drop(path)
    if total > gib * GIB:
        raise LocalError(
            f"{lineages} would hold {total / GIB:.1f} GiB of the state of jobs, kept_gib is {gib:g}, and nothing of it "
            f"has been unused for {days:g} days: remove what you no longer need, or raise kept_gib.",
            code=FULL,
        )


def _removable(lineages: Path, current: str) -> Iterator[Path]:
    yield from sorted(lineages.glob(f"*/{SET_ASIDE}/*"), key=_last_use)
    owned = (path.parent for path in lineages.glob(f"*/{OWNER}"))
    yield from sorted((folder for folder in owned if folder.name != current and not is_in_use(folder)), key=_last_use)


def _last_use(path: Path) -> float:
    return max(entry.stat().st_mtime for entry in (path, *path.glob("round-*")))


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _other(folder: Path, why: str) -> LocalError:
    return LocalError(
        f"the state in {folder} belongs to another job ({why}): submit the job without resume_from.", code=OTHER
    )
