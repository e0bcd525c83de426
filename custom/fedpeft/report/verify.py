# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check with a run's manifest that it completed and that its files are those that the server wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import digest, read_json
from fedpeft.core.workspace import MANIFEST
from fedpeft.report.history import as_count, as_mapping, as_sentence, by_name, checked, must, need


def verify(run: Path) -> dict[str, Any]:
    """Check a run and return its manifest.

    Raises:
        FedpeftError: there is no manifest, the job failed (with the reason), or a file differs from what was written.
    """
    if not (run / MANIFEST).is_file():
        raise FedpeftError(f"{run} holds no {MANIFEST}: the job did not finish, the server's log says why.")
    manifest = read_manifest(run / MANIFEST)
    if manifest["status"] != "completed":
        raise FedpeftError(f"{manifest['reason']}\nFinished rounds: {manifest['rounds']}.")
    for name, written in manifest["files"].items():
        if not _is_same(run, name, written):
            raise FedpeftError(f"{run / name} is missing or not what the server wrote: download the result again.")
    return manifest


def _is_same(run: Path, name: str, written: str) -> bool:
    """Return whether a file of a run, not one outside it, has the digest that the manifest says."""
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts or "\0" in name:
        return False
    try:
        return digest(run / inside) == written
    except OSError:
        return False


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    status: str = must(as_sentence)
    rounds: int = must(as_count)
    reason: str = must(as_sentence, default="no reason given")
    lineage: str = must(as_sentence, default="")
    files: Mapping[str, str] = must(by_name(as_sentence, "file"))
    sites: Mapping[str, Any] = must(by_name(lambda about, where, what: about), default_factory=dict)
    ended_early: Mapping[str, int] = must(by_name(as_count, "value"), default_factory=dict)


def read_manifest(file: Path) -> dict[str, Any]:
    """Read a manifest.

    Raises:
        FedpeftError: it is none.
    """
    try:
        manifest = as_mapping(read_json(file), "it", "the whole file")
        known = checked(_Manifest, manifest, "it")
        if known.ended_early:
            need(known.ended_early, "best_round", "it")
        return {**manifest, **vars(known)}
    except (OSError, ValueError) as error:
        raise FedpeftError(f"{file} is not a manifest ({error!s:.200}): download the result again.") from error
