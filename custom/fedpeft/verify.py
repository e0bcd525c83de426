# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check with a run's manifest that it completed and that its files are those that the server wrote."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedpeft.errors import FedpeftError
from fedpeft.run_names import MANIFEST


def verify(run: Path) -> dict[str, Any]:
    """Check a run and return its manifest.

    Raises:
        FedpeftError: there is no manifest, the job failed (with the reason), or a file differs from what was written.
    """
    if not (run / MANIFEST).is_file():
        raise FedpeftError(f"{run} holds no {MANIFEST}: the job did not finish, the server's log says why.")
    manifest = read_manifest(run / MANIFEST)
    if manifest["status"] != "completed":
        raise FedpeftError(f"{manifest.get('reason', 'no reason given')}\nFinished rounds: {manifest['rounds']}.")
    for name, digest in manifest["files"].items():
        file = run / name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            raise FedpeftError(f"{file} is missing or not what the server wrote: download the result again.")
    return manifest


def read_manifest(file: Path) -> dict[str, Any]:
    """Read a manifest.

    Raises:
        FedpeftError: it is none.
    """
    try:
        manifest = json.loads(file.read_text())
        if isinstance(manifest["status"], str) and isinstance(manifest["files"], dict) and "rounds" in manifest:
            return manifest
        raise TypeError("fields of another type")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FedpeftError(f"{file} is not a manifest ({error!r:.80}): download the result again.") from error
