# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Limit the size of a frame: FLARE reads a whole frame of up to 2 GB before it checks it.

Large objects travel in chunks of 1 MB, and FLARE's sites accept no frame above 4 MB over HTTP (aiohttp's limit).
"""

from __future__ import annotations

from nvflare.fuel.f3.drivers import aio_conn, aio_http_driver, socket_conn

from fedpeft.core.errors import FedpeftError

FRAME = 64 * 2**20
_NAME = "MAX_FRAME_SIZE"


def limit_frames() -> None:
    """Close connections of this process that receive a larger frame.

    Raises:
        FedpeftError: this version of FLARE does not have the constants.
    """
    for driver in (aio_http_driver, aio_conn, socket_conn):
        if not hasattr(driver, _NAME):
            raise FedpeftError(f"FLARE has no {driver.__name__}.{_NAME}: install the version in constraints.txt.")
        setattr(driver, _NAME, FRAME)
