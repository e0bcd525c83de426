# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Whether a run completed and its files are those that the server wrote, by the manifest that it wrote last."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedpeft.errors import FedpeftError

MANIFEST = "manifest.json"
IN_DOWNLOAD = Path("workspace") / "fedpeft"


def run_folder(folder: Path) -> Path:
    """The folder with the manifest: the given one, or the one in what `nvflare job download` brings."""
    found = [run for run in (folder, folder / IN_DOWNLOAD, *folder.glob(f"*/{IN_DOWNLOAD}")) if _has_manifest(run)]
    if not found:
        raise FedpeftError(f"{folder} holds no {MANIFEST}: the job did not come to its end, its log says why.")
    if len(found) > 1:
        raise FedpeftError(f"{folder} holds {len(found)} runs: name one of them, e.g. {found[0]}.")
    return found[0]


def verify(run: Path) -> dict[str, Any]:
    """The manifest of a run that completed.

    Raises:
        FedpeftError: the reason why the job failed, or the file that is missing or another than the server wrote.
    """
    manifest = json.loads((run / MANIFEST).read_text())
    if manifest["status"] != "completed":
        raise FedpeftError(f"{manifest.get('reason', 'no reason given')}\nFinished rounds: {manifest['rounds']}.")
    for name, digest in manifest["files"].items():
        file = run / name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            raise FedpeftError(f"{file} is missing or not what the server wrote: download the result again.")
    return manifest


def _has_manifest(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()
