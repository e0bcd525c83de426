# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Find the runs below a folder; what a site keeps is no run, and nothing outside the folder is opened."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedpeft.core.errors import FedpeftError
from fedpeft.core.locks import runs_folder
from fedpeft.core.run_names import HISTORY, MANIFEST
from fedpeft.report.status.progress import PLACES, SIMULATED


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run on disk.

    Args:
        key: of letters and digits only; the same as long as the folder has its name.
        name: of the folder that the user knows.
        folder: with history.json and manifest.json.
        stamp: changes when one of them does.
        written: seconds since 1970 when the last of them was written.
    """

    key: str
    name: str
    folder: Path
    stamp: tuple[tuple[int, int], ...]
    written: float


def find_runs(workspace: Path) -> dict[str, Run]:
    """Return the runs of a workspace with its earlier ones, or of a folder of runs, by key; the newest first.

    Raises:
        FedpeftError: the folder cannot be listed.
    """
    found = []
    try:
        for root, name, folder in _candidates(workspace):
            if run := _run(root.resolve(), name, folder):
                found.append(run)
    except OSError as error:
        raise FedpeftError(f"{workspace} cannot be listed ({error.strerror}): check its permissions.") from error
    return {run.key: run for run in sorted(found, key=lambda run: -run.written)}


def _candidates(workspace: Path) -> Iterator[tuple[Path, str, Path]]:
    """Yield the folder that a run must lie in, the run's name, and where its files would be."""
    name = workspace.resolve().name
    if _is_simulated(workspace):
        yield workspace, name, workspace / SIMULATED
    else:
        for folder in (workspace, *_folders(workspace)):
            # in a simulator's workspace the other folders are the sites'
            places = (SIMULATED,) if _is_simulated(folder) else PLACES
            shown = name if folder == workspace else folder.name
            yield from ((workspace, shown, folder / place) for place in places)
    earlier = runs_folder(workspace.resolve())
    if earlier.is_dir():
        yield from ((earlier, folder.name, folder / SIMULATED) for folder in _folders(earlier))


def _is_simulated(folder: Path) -> bool:
    return (folder / SIMULATED).is_dir() or (folder / "local" / "resources.json").is_file()


def _folders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _run(root: Path, name: str, folder: Path) -> Run | None:
    stamp, written = [], 0.0
    for file in (folder / HISTORY, folder / MANIFEST):
        try:
            about = file.lstat()
        except OSError:
            continue
        # a link, which a site's process in the simulator could have made, may lead anywhere
        if not stat.S_ISREG(about.st_mode) or not file.resolve().is_relative_to(root):
            return None
        stamp.append((about.st_mtime_ns, about.st_size))
        written = max(written, about.st_mtime)
    if not stamp:
        return None
    key = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape")).hexdigest()[:16]
    return Run(key=key, name=name, folder=folder, stamp=tuple(stamp), written=written)
