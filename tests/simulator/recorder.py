# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A component that only tests put into a job: it records every frame that a process sends."""

import os
import resource
from pathlib import Path

from nvflare.apis.event_type import EventType
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


class PeakMemory(FLComponent):
    """Writes the largest memory that the server's process has used, in MB, when its job ends."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = Path(file)

    def handle_event(self, event_type, fl_ctx):
        if event_type == EventType.END_RUN:
            self._file.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3))
