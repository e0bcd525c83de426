# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Show a run's progress, read from its folder or requested from the consortium's server."""

from fedpeft.report.status.progress import Progress, read_progress, run_folder, unfinished, wait_for_run
from fedpeft.report.status.show import follow, show

__all__ = ["Progress", "follow", "read_progress", "run_folder", "show", "unfinished", "wait_for_run"]
