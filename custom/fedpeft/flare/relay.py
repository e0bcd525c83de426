# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A relay between server and sites: FLARE's, with the guards of fedpeft before it takes a message.

A relay's start-up kit starts this module where FLARE's own would start `nvflare.private.fed.app.relay.relay`. FLARE's
relay loads no component, so there is no other place for guards.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.relay import relay

from fedpeft.core.files import temporary_folder
from fedpeft.flare.hardening import replace_function
from fedpeft.flare.hardening.message_limits import limit_frames
from fedpeft.flare.hardening.requests import guard_local_connections, guard_origins, guard_relay_requests
from fedpeft.flare.messages import register_tensors
from fedpeft.flare.relay_sums import SumDesk

FLARES = "nvflare.private.fed.app.relay.relay"


def main() -> int:
    """Install the guards and run FLARE's relay until the server stops it."""
    os.umask(0o077)
    guard_local_connections()
    guard_origins()
    guard_relay_requests()
    limit_frames()
    register_tensors()
    arguments = relay.parse_arguments()
    with temporary_folder(Path(arguments.workspace), "adapters") as folder:
        replace_function(relay, "set_add_auth_headers_filters", partial(_then_adding_up, folder))
        return MainProcessMonitor.run(main_func=relay.main, run_dir=arguments.workspace, args=arguments)  # type: ignore[no-any-return]


def _then_adding_up(folder: Path, authenticate: Callable, cell: Cell, *arguments: Any, **named: Any) -> None:
    """Answer requests for partial sums once the relay is known to the server."""
    authenticate(cell, *arguments, **named)
    SumDesk(cell, folder)


if __name__ == "__main__":
    sys.exit(main())
