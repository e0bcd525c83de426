# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The largest memory of the server's process in a job, with and without a limit of what a site may send.

`attacks.py` and the simulator's tests put it into a job in place of fedpeft's aggregator; this folder must then be on
PYTHONPATH, and `server_memory.` on the workspace's allow-list.
"""

import resource
from pathlib import Path

from fedpeft.flare import controller
from fedpeft.flare.aggregator import PIAAggregator
from fedpeft.flare.hardening.message_limits import limit_messages
from fedpeft.protocol.fields import Limit

UNLIMITED = Limit(10**12, "a terabyte.")


class MeasuredAggregator(PIAAggregator):
    """Writes the largest memory so far, in bytes, whenever a round is integrated.

    Args:
        file: that it writes.
        limited: whether the server refuses what is larger than announced, as it always does outside this benchmark.
        settings: those of `PIAAggregator`.
    """

    def __init__(self, file: str, limited: bool = True, **settings) -> None:
        super().__init__(**settings)
        self._file = Path(file)
        if not limited:
            controller.limit_messages = lambda _: limit_messages(UNLIMITED)

    def aggregate_model(self):
        """Integrate as ever."""
        integrated = super().aggregate_model()
        self._file.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
        return integrated
