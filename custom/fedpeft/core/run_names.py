# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Names of the files in a run's folder, and of the environment variables that say where data and state are."""

from pathlib import Path

MANIFEST = "manifest.json"  # the server writes it last
HISTORY = "history.json"
GLOBAL_ADAPTER = "global.safetensors"
PROBLEM = "problem.json"  # of a site
OF_SIMULATOR = Path("simulate_job") / "fedpeft"  # the run's folder at the server or a site of a simulator's workspace
DATA_VARIABLE, STATE_VARIABLE = "FEDPEFT_DATA", "FEDPEFT_STATE"
