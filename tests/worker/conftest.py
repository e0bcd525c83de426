# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One fork server for all tests of training processes."""

import os

import pytest


@pytest.fixture(scope="session")
def fork_server_name():
    """The server's name, as it stands in the environment of the processes that use it."""
    from fedpeft.worker import fork_server

    server = fork_server.start()
    yield os.environ.pop(fork_server.ADDRESS)
    server.stdin.close()
    assert server.wait(60) == 0
