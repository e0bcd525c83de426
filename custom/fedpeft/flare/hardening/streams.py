# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What FLARE keeps of a stream that has ended: the tensors of a message travel in hundreds of streams of 1 MB.

A sent stream and its future refer to each other. So its buffer and its chunk, of 1 MB each, stay until Python looks for
cycles, which depends on the number of objects and not on their size: of 8 orders of 50 MB, 350 MB were left. A received
stream is known for another 65 seconds, because its last chunk may come twice, and FLARE starts a thread for each that
waits so long: 100 KB each, and thousands of threads where many sites reply. So two functions are replaced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import TxTask

from fedpeft.flare.hardening import replace_function

_log = logging.getLogger(__name__)


def free_ended_streams() -> None:
    """Free the memory of streams that have ended in this process, and let one thread wait for all that may resume."""
    replace_function(TxTask, "stop", _without_buffers)
    replace_function(RxTask, "_schedule_remove_task", _removed_by_one_thread)


def _without_buffers(stop: Callable, self: TxTask, error: Any = None, notify: bool = True) -> None:
    stop(self, error, notify)
    if self.stopped and error is None:  # after an error its thread may still be sending
        self.buffer = self.stream = None


class _Removals:
    """Calls functions at their time, in one thread that ends with the last of them."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._running = False

    def call_after(self, seconds: float, function: Callable[[], None]) -> None:
        with self._changed:
            heappush(self._due, (time.monotonic() + seconds, next(self._numbers), function))
            self._changed.notify()
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="ended_streams", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._running = False
                    return
                left = self._due[0][0] - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                _, _, function = heappop(self._due)
            try:
                function()
            except Exception:  # of one stream: the others must not stay for it
                _log.warning("a stream that has ended could not be removed", exc_info=True)


_removals = _Removals()


class _NoTimer:
    """Stands where FLARE has the thread, which it cancels when the stream is removed."""

    def cancel(self) -> None:
        """Do nothing: removing a stream twice changes nothing."""


def _removed_by_one_thread(schedule: Callable, self: RxTask, ttl: float | None = None) -> None:
    with self.stop_lock:
        if self.cleanup_timer is None:
            self.cleanup_timer = _NoTimer()
            _removals.call_after(self.completed_task_ttl if ttl is None else ttl, self._remove_task)
