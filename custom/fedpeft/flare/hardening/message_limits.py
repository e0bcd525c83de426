# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The memory that messages take: limits of one message and of one frame, and what is left of streams that ended.

FLARE receives a small message whole; it names tensors, which are then fetched from the sender. FLARE 2.9 limits one
stream (`streaming_max_blob_size`, 4 GiB, read when a process connects), not the tensors of one message together, and
`max_message_size` applies to sent messages, not to received ones. So four of its functions are replaced here. The last
would end the server's job if a single site's reply cannot be read; here only that site loses the round.

FLARE reads a whole frame of up to 2 GB before it checks it. Large objects travel in chunks of 1 MB, and its sites
accept no frame above 4 MB over HTTP (aiohttp's limit).

The tensors of a message travel in hundreds of streams of 1 MB. A sent stream and its future refer to each other. So its
buffer and its chunk, of 1 MB each, stay until Python looks for cycles, which depends on the number of objects and not
on their size: of 8 orders of 50 MB, 350 MB were left. A received stream is known for another 65 seconds, because its
last chunk may come twice, and FLARE starts a thread for each that waits so long: 100 KB each, and thousands of threads
where many sites reply. So two functions more are replaced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from heapq import heappop, heappush
from itertools import count
from typing import Any

from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers import aio_conn, aio_http_driver, socket_conn
from nvflare.fuel.f3.streaming.blob_streamer import BlobTask
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.cacheable import ItemConsumer
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import BlobSizeError
from nvflare.fuel.utils.fobs import FOBSContextKey
from nvflare.fuel.utils.fobs.decomposers.via_downloader import ViaDownloaderDecomposer

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import is_full
from fedpeft.flare.hardening import replace_function
from fedpeft.protocol.fields import MB, MIN_TENSOR, Limit, Unread

_log = logging.getLogger(__name__)
FRAME = 64 * 2**20
_NAME = "MAX_FRAME_SIZE"


def limit_frames() -> None:
    """Close connections of this process that receive a larger frame."""
    for driver in (aio_http_driver, aio_conn, socket_conn):
        if not hasattr(driver, _NAME):
            raise FedpeftError(f"FLARE has no {driver.__name__}.{_NAME}: install the version in constraints.txt.")
        setattr(driver, _NAME, FRAME)


MAX_NOTED = 100  # senders whose refused messages are recorded, of those behind one connection of the server
MAX_NAME_LENGTH = 1000  # characters of a recorded name, which comes with the message
MAX_FETCHED = 4  # messages whose tensors go to the disk at once: FLARE has some tens of MB of each in memory
MAX_WAIT = 20.0  # seconds that one waits for those before it; its sender abandons it after a minute of silence
_COUNT = "fedpeft_count"
_turns = threading.BoundedSemaphore(MAX_FETCHED)
_current: ContextVar[_Count | None] = ContextVar("count", default=None)
_lock = threading.Lock()
_refused: dict[str, str] = {}  # by sender
_fetches: dict[str, list[Signal]] = {}  # by sender: what ends the fetching of a message's tensors, which is running
_limit = Limit(64 * MB, "only messages of a job may be larger.")


class _UnreadItems:
    """Placeholder of the tensors of a message, by name."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __len__(self) -> int:
        return 0

    def __contains__(self, name: object) -> bool:
        return True

    def get(self, name: str) -> Unread:
        return Unread(self._reason)


class _Count:
    """Counts the bytes received for a message, and notes why its tensors cannot be written where they go to a disk."""

    def __init__(self, limit: Limit) -> None:
        self.limit, self.size, self.unwritten = limit, 0, ""

    @property
    def over(self) -> bool:
        return self.size > self.limit.size

    def add(self, size: int) -> None:
        self.size += size
        if self.over:
            raise ValueError(f"the message holds {self.limit}")


def limit_messages(limit: Limit | None = None) -> None:
    """Refuse larger messages in this process, and let an unreadable message affect only its sender.

    Without a limit the current one stays, initially 64 MB; FLARE's own messages are smaller.
    """
    global _limit
    _limit = limit or _limit
    replace_function(BlobTask, "__init__", _refusing_large_streams)
    replace_function(ItemConsumer, "consume", _counting)
    replace_function(ViaDownloaderDecomposer, "_download_from_remote_cell", _fetching_within_the_limit)
    replace_function(cell, "_is_server_job_cell", _never)


def take_refusal(cell: str) -> str:
    """Return and remove why the last message of a site was refused unread; empty: none was.

    `cell` is the name with which the site has registered. It, or one below it, is the origin of its messages: another
    site can write its own name before this one's, but not this name (`fedpeft.flare.hardening.requests`).
    """
    path = FQCN.split(cell)
    with _lock:
        origin = next((name for name in _refused if FQCN.split(name)[: len(path)] == path), "")
        return _refused.pop(origin, "")


def _refusing_large_streams(
    init: Callable, self: BlobTask, future: Any, stream: Any, max_size: int = 0, preserve_chunks: bool = False
) -> None:
    limit = _limit
    try:
        smaller = min(max_size, limit.size) if max_size > 0 else limit.size
        init(self, future, stream, smaller, preserve_chunks)
    except BlobSizeError:
        headers = stream.headers or {}
        origin = headers.get(MessageHeaderKey.ORIGIN)
        with _lock:
            if headers.get(StreamHeaderKey.CHANNEL) == CellChannel.RETURN_ONLY:
                for fetch in _fetches.get(str(origin), ()):  # FLARE would request the tensor again, for 14 seconds
                    fetch.trigger(str(limit))
            elif isinstance(origin, str) and len(origin) <= MAX_NAME_LENGTH and _has_room(origin):
                _refused[origin] = str(limit)
        raise


def _has_room(origin: str) -> bool:
    """Return whether another refusal is noted: nobody takes the room of those behind other connections."""
    connection = FQCN.split(origin)[0]
    return sum(FQCN.split(name)[0] == connection for name in _refused) < MAX_NOTED


def _counting(consume: Callable, self: ItemConsumer, ref_id: str, state: dict, data: Any) -> dict:
    count = _current.get()
    if count:
        count.add(sum(max(len(item), MIN_TENSOR) for item in data))
    try:
        return consume(self, ref_id, state, data)
    except OSError as error:  # FLARE goes on with its text alone
        if count:
            count.unwritten = _unwritten(error)
        raise


def _unwritten(error: OSError) -> str:
    """Return the reason to refuse a message that the disk does not take."""
    remedy = "make room on its disk" if is_full(error) else "let this user write in the folder of its checkpoints"
    return f"tensors that the server cannot write to its disk ({error.strerror}): {remedy}."


def _fetching_within_the_limit(fetch: Callable, self: ViaDownloaderDecomposer, fobs_ctx: dict, ref: dict) -> Any:
    count = fobs_ctx.setdefault(_COUNT, _Count(_limit))  # one message may name several sets of tensors
    if count.over:
        return _UnreadItems(str(count.limit))
    before, aborted, sender = _current.set(count), fobs_ctx.get(FOBSContextKey.ABORT_SIGNAL), str(ref.get("fqcn"))
    fobs_ctx[FOBSContextKey.ABORT_SIGNAL] = refused = Signal(parent=aborted)
    with _lock:
        _fetches.setdefault(sender, []).append(refused)
    turn = _turns.acquire(timeout=MAX_WAIT) if _goes_to_disk(fobs_ctx) else False
    try:
        return fetch(self, fobs_ctx, ref)
    except Exception as error:
        if isinstance(error, OSError) and error.filename:  # not even a folder for them
            count.unwritten = _unwritten(error)
        if not (count.over or refused.value or count.unwritten):
            raise
        return _UnreadItems(count.unwritten or str(count.limit))
    finally:
        if turn:
            _turns.release()
        with _lock:
            _fetches[sender].remove(refused)
            if not _fetches[sender]:
                del _fetches[sender]
        fobs_ctx[FOBSContextKey.ABORT_SIGNAL] = aborted
        _current.reset(before)


def _goes_to_disk(fobs_ctx: dict) -> bool:
    cell_of_job = fobs_ctx.get(FOBSContextKey.CELL)
    return bool(cell_of_job and cell_of_job.get_fobs_context().get(FOBSContextKey.TENSOR_DISK_OFFLOAD))


def _never(is_server_job_cell: Callable, my_info: Any) -> bool:
    return False


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
