# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A running server of a workspace's pages."""

import contextlib
import threading

from fedpeft.serve.pages import WorkspacePages
from fedpeft.serve.server import Server


@contextlib.contextmanager
def serving(folder, *, host="127.0.0.1", **limits):
    """The pages of `folder`, served on a free port of this machine for the time of the block.

    Args:
        folder: a workspace.
        host: where the server listens.
        limits: of the server.
    """
    with Server(WorkspacePages(folder), host=host, port=0, **limits) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
