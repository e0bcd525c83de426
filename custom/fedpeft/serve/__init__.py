# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Show the runs of a workspace in the browser while they train: the command `fedpeft serve`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fedpeft.core.errors import FedpeftError

PORT = 8765


def add(commands: Any) -> None:
    """Add the command to the command line."""
    serve = commands.add_parser("serve", help="show the runs of a workspace in the browser while they train")
    serve.add_argument(
        "workspace", nargs="?", type=Path, default=Path("simulator_workspace"), help="workspace, or a folder of runs"
    )
    serve.add_argument("--port", type=int, default=PORT, help=f"default {PORT}; 0: any that is free")
    serve.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)"
    )
    serve.set_defaults(command=_serve)


def _serve(arguments: argparse.Namespace) -> None:
    if not arguments.workspace.is_dir():
        raise FedpeftError(f"{arguments.workspace} is not a folder: name a workspace, or a folder of runs.")
    if not 0 <= arguments.port <= 65535:
        raise FedpeftError(f"--port is {arguments.port}, it must be from 0 to 65535.")
    from fedpeft.serve.pages import WorkspacePages
    from fedpeft.serve.server import Server

    with Server(WorkspacePages(arguments.workspace), host=arguments.host, port=arguments.port) as server:
        if not server.local:
            print(
                f"fedpeft: warning: {arguments.host} can be reached from other machines, and anyone who can connect "
                f"reads all these runs without a password or encryption.",
                file=sys.stderr,
            )
        print(f"runs of  {arguments.workspace}\nopen     {server.url}\nCtrl-C ends this", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")
