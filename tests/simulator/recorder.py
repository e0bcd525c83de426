# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A component that only tests put into a job: it records every frame that a process sends."""

import os
from pathlib import Path

from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection


class Recorder(FLComponent):
    """Appends the headers and payload of every frame that this process sends to a file of its own."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        file = open(Path(folder) / f"{os.getpid()}.frames", "ab")  # noqa: SIM115
        send = SfmConnection.send_frame

        def recorded(connection, prefix, headers, payload):
            file.write(connection.headers_to_bytes(headers) or b"")
            file.write(bytes(payload) if payload else b"")
            file.flush()
            return send(connection, prefix, headers, payload)

        SfmConnection.send_frame = recorded
