# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a Python process that fedpeft starts finds around it: where it imports from, and where its sockets lie.

A module in the current folder that is called like one of Python's own, such as `random.py`, must not be imported in its
place; and a socket's path has few letters, of which batch systems give a temporary folder too many.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fedpeft.core.errors import FedpeftError

SAFE_PATH, PATH, TEMPORARY = "PYTHONSAFEPATH", "PYTHONPATH", "TMPDIR"
LONGEST_SOCKET = 103 if sys.platform == "darwin" else 107  # bytes
SOCKET = "/pymp-xxxxxxxx/listener-xxxxxxxx"  # below the temporary folder, of multiprocessing
SHORT_PLACES = ("/tmp", "/var/tmp", "/dev/shm")


def python_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which Python, and each Python that it starts, imports nothing from the current folder.

    An empty entry of PYTHONPATH stands for that folder; relative ones become absolute.

    Args:
        environment: what to begin with; None: that of this process.
    """
    changed = {**(os.environ if environment is None else environment), SAFE_PATH: "1"}
    if PATH in changed:
        places = (place for place in changed[PATH].split(os.pathsep) if place)
        changed[PATH] = os.pathsep.join(map(os.path.abspath, places))
    return changed


def no_sockets() -> str:
    """Return why the temporary folder cannot hold a socket, with the remedy; empty: it can."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder + SOCKET)) <= LONGEST_SOCKET:
        return ""
    most = LONGEST_SOCKET - len(SOCKET)
    return f"sockets in {folder} would have too long a path: set {TEMPORARY} to a folder of at most {most} letters."


@contextmanager
def with_sockets() -> Iterator[dict[str, str]]:
    """Yield the environment variable for processes that need sockets: a short folder, removed with the block.

    It is empty where the temporary folder can hold them.

    Raises:
        FedpeftError: it cannot, and no other folder can be made.
    """
    problem = no_sockets()
    if not problem:
        yield {}
        return
    for place in SHORT_PLACES:
        try:
            made = tempfile.TemporaryDirectory(prefix="fedpeft-", dir=place)
        except OSError:  # it is not there, or full, or not this user's to write to
            continue
        with made as folder:
            yield {TEMPORARY: folder}
        return
    raise FedpeftError(problem)
