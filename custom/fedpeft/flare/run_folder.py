# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The folder of one job at one participant; it outlives the simulator's processes."""

from __future__ import annotations

import logging
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from fedpeft.core.errors import LocalError
from fedpeft.core.files import write_json
from fedpeft.core.run_names import PROBLEM

NAME = "fedpeft"


def run_folder(fl_ctx: FLContext) -> Path:
    """Return `<run directory>/fedpeft`, created if it is missing."""
    workspace = fl_ctx.get_engine().get_workspace()
    folder = Path(workspace.get_run_dir(fl_ctx.get_job_id())) / NAME
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def note_problem(folder: Path, site: str, problem: str) -> None:
    """Write the full message of a site's problem into its `problem.json`; a full disk must not keep back the reply."""
    try:
        write_json(folder / PROBLEM, {"site": site, "problem": problem})
    except LocalError as error:
        logging.getLogger(__name__).error("%s", error)
