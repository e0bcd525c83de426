# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How far a run is: read from its folder, or asked of the consortium's server, and shown in the terminal."""

from fedpeft.status.follow import follow
from fedpeft.status.progress import Progress, read_progress
from fedpeft.status.runs import run_folder, wait_for_run
from fedpeft.status.show import show

__all__ = ["Progress", "follow", "read_progress", "run_folder", "show", "wait_for_run"]
