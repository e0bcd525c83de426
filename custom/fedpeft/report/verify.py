# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check with a run's manifest that it completed and that its files are those that the server wrote."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import digest, read_json
from fedpeft.core.workspace import MANIFEST
from fedpeft.report.history_reader import as_count, as_mapping, as_name, as_sentence, need


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


def read_manifest(file: Path) -> dict[str, Any]:
    """Read a manifest.

    Raises:
        FedpeftError: it is none.
    """
    try:
        manifest = as_mapping(read_json(file), "it", "the whole file")
        files = as_mapping(need(manifest, "files", "it"), "it", "'files'")
        early = as_mapping(manifest.get("ended_early", {}), "it", "'ended_early'")
        if early:
            need(early, "best_round", "it")
        sites = as_mapping(manifest.get("sites", {}), "it", "'sites'")
        return {
            **manifest,
            "status": as_sentence(need(manifest, "status", "it"), "it", "'status'"),
            "rounds": as_count(need(manifest, "rounds", "it"), "it", "'rounds'"),
            "reason": as_sentence(manifest.get("reason", "no reason given"), "it", "'reason'"),
            "lineage": as_sentence(manifest.get("lineage", ""), "it", "'lineage'"),
            "files": {name: as_sentence(written, "it", "a digest") for name, written in files.items()},
            "sites": {as_name(name, "it", "a site"): about for name, about in sites.items()},
            "ended_early": {name: as_count(value, "it", repr(name)) for name, value in early.items()},
        }
    except (OSError, ValueError) as error:
        raise FedpeftError(f"{file} is not a manifest ({error!s:.200}): download the result again.") from error
