# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How many bytes a connection may bring at once: FLARE reads a frame of up to 2 GB whole before it knows what it is.

What is large travels in chunks of 1 MB, and FLARE's sites take no frame above 4 MB over HTTP (aiohttp's own limit).
"""

from __future__ import annotations

from nvflare.fuel.f3.drivers import aio_conn, aio_http_driver, socket_conn

from fedpeft.errors import FedpeftError

FRAME = 64 * 2**20
_NAME = "MAX_FRAME_SIZE"


def limit_frames() -> None:
    """From now on a connection of this process that brings a larger frame is closed.

    Raises:
        FedpeftError: FLARE has its limit somewhere else.
    """
    for driver in (aio_http_driver, aio_conn, socket_conn):
        if not hasattr(driver, _NAME):
            raise FedpeftError(f"FLARE has no {driver.__name__}.{_NAME}: install the version in constraints.txt.")
        setattr(driver, _NAME, FRAME)
