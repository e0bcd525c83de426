# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which job a state folder belongs to, and how much state a site keeps; a server cannot use or remove another job's.

<lineages>/<lineage>/job.json                       whose job made it, its settings, the jobs that used it
<lineages>/<lineage>/round-00003/                   `site_state`
<lineages>/<lineage>/set-aside/<when>-round-00003/  later rounds, set aside when a job resumed from an earlier one
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpeft.core.errors import LocalError
from fedpeft.core.files import SET_ASIDE, drop, write_json
from fedpeft.core.locks import is_in_use

OWNER = "job.json"
OTHER, FULL = "state-of-another-job", "state-full"
DAY, GIB = 24 * 3600, 2**30


def claim(folder: Path, settings: Mapping[str, Any], job: str, *, submitter: str) -> None:
    """Let a job use a state folder that is new or was made with the same settings for the same submitter.

    Args:
        folder: of the lineage that the server names.
        settings: of the job, JSON-serializable; a resumed job must have the same.
        job: FLARE's job id.
        submitter: who submitted it, empty in the simulator.

    Raises:
        LocalError: it belongs to another job.
    """
    file, settings = folder / OWNER, json.loads(json.dumps(settings))
    if not file.exists():
        if any(folder.glob("round-*")):
            raise _other(folder, f"its {OWNER} is missing")
        write_json(file, {"settings": settings, "submitter": submitter, "jobs": [job]})
        return
    try:
        owner = json.loads(file.read_text())
        made_with, made_for, jobs = owner["settings"], owner.get("submitter", ""), list(owner["jobs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _other(folder, f"{file} cannot be read: {error}") from error
    if made_for != submitter:
        raise _other(folder, f"it was made for {made_for or 'nobody'!r:.80}, this job is of {submitter!r:.80}")
    if made_with != settings:
        differing = sorted(name for name in {*made_with, *settings} if made_with.get(name) != settings.get(name))
        raise _other(folder, f"it was made with another {', '.join(differing)}")
    if job not in jobs:
        write_json(file, {"settings": settings, "submitter": submitter, "jobs": [*jobs, job]})


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
