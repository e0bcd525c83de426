# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Where an export may be written: nowhere that the server serves or FLARE deletes, and over nothing else."""

from __future__ import annotations

from pathlib import Path

from fedpeft.core.errors import FedpeftError
from fedpeft.inference.exported import is_exported
from fedpeft.inference.own_place import check_own_place


def check_place(out: Path, *, force: bool) -> None:
    """Refuse a folder that an export must not be written to.

    Args:
        out: need not exist.
        force: whether an earlier export may be replaced.

    Raises:
        FedpeftError: says why and what to name instead.
    """
    out = out.resolve()
    check_own_place(out, holds="an export holds the site's head and answers")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not is_exported(out):
        raise FedpeftError(f"{out} is there and is no export, so that nothing in it is replaced: name a new folder.")
    if not force:
        raise FedpeftError(f"{out} is an earlier export: name a new folder, or replace it with --force.")
