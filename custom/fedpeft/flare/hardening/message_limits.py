# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The memory that messages take: limits of one message, one frame and one participant, and what streams leave behind.

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

FLARE reads each stream in one of 128 threads, which waits five minutes for the next chunk, also where the process is to
end, and keeps the chunks that come before the first one for ever; it counts messages by names that the sender chooses.
A participant therefore has so many streams that have not ended, and so many bytes in them that nobody has read; a name
in the counts is short, and one of a thousand. Who sends a stream follows from the origin of its messages
(`fedpeft.flare.hardening.requests`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers import aio_conn, aio_http_driver, socket_conn
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import CounterPool, HistPool
from nvflare.fuel.f3.streaming.blob_streamer import BlobTask
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.cacheable import ItemConsumer
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import BlobSizeError, StreamError
from nvflare.fuel.f3.streaming.stream_utils import CheckedExecutor, callback_thread_pool
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name
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

    Without a limit the current one stays, initially 64 MB; FLARE's own messages are smaller. Also bound what one
    participant's streams take together, and free the memory of those that have ended.
    """
    global _limit
    _limit = limit or _limit
    replace_function(BlobTask, "__init__", _refusing_large_streams)
    replace_function(ItemConsumer, "consume", _counting)
    replace_function(ViaDownloaderDecomposer, "_download_from_remote_cell", _fetching_within_the_limit)
    replace_function(cell, "_is_server_job_cell", _never)
    replace_function(TxTask, "stop", _without_buffers)
    replace_function(RxTask, "_schedule_remove_task", _removed_by_one_thread)
    replace_function(RxTask, "find_or_create_task", _one_of_few)
    replace_function(RxTask, "process_chunk", _of_bounded_memory)
    replace_function(CheckedExecutor, "shutdown", _without_waiting_for_streams)
    replace_function(HistPool, "record_value", _in_few_histograms)
    replace_function(CounterPool, "increment", _in_few_counters)


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
        if self.cleanup_timer is not None:
            return
        self.cleanup_timer = _NoTimer()
    with _lock:
        who = _participant(self.origin)
        late = _ended[who] >= MAX_ENDED and who != FQCN.ROOT_SERVER
        _ended[who] += not late
    if late:
        self._remove_task()
    else:
        _removals.call_after(self.completed_task_ttl if ttl is None else ttl, lambda: _remove(self, who))


def _remove(task: RxTask, who: str) -> None:
    with _lock:
        _ended[who] -= 1
        if not _ended[who]:
            del _ended[who]
    task._remove_task()


MAX_OPEN = 64  # streams of one participant that have not ended: half of FLARE's threads for streams
MAX_OPEN_OF_ONE = 32  # of these, streams of one of its processes, or of one site behind a relay
MAX_UNREAD = 256 * MB  # in all of them together
MIN_CHUNK = 1024  # bytes that a chunk takes at least
MAX_ENDED = 10_000  # streams of one participant that have ended and are known, should their last chunk come again
CONSOLES = "_admin_"  # all of them together: their names are random


@dataclass(eq=False)
class _Open:
    """A stream that has not ended; `early`: bytes of its chunks that came before others of lower number."""

    task: RxTask
    began: float
    early: int = 0

    @property
    def unread(self) -> int:
        return self.early + self.task.received_offset - self.task.offset + MIN_CHUNK * len(self.task.chunks)

    def has_ended(self) -> bool:
        task = self.task
        if not (task.stream_future or task.failed) and time.monotonic() - self.began > task.timeout:
            task._remove_task()  # FLARE waits for the next chunk of a stream, but not for the first one
            return True
        return task.completed or task.failed  # type: ignore[no-any-return]


_open: dict[str, list[_Open]] = {}  # by participant
_ended: Counter[str] = Counter()


def _participant(origin: object) -> str:
    first = FQCN.split(str(origin))[0]
    return CONSOLES if is_valid_admin_client_name(first) else first


def _one_of_few(find: Callable, message: Message, cell: Any) -> RxTask | None:
    origin, stream = message.get_header(MessageHeaderKey.ORIGIN), message.get_header(StreamHeaderKey.STREAM_ID)
    who = _participant(origin)
    if who == FQCN.ROOT_SERVER or (origin, stream) in RxTask.rx_task_map:
        return find(message, cell)  # type: ignore[no-any-return]
    with _lock:
        running = [one for one in _open.pop(who, ()) if not one.has_ended()]
        beside = sum(FQCN.split(one.task.origin)[:2] == FQCN.split(origin)[:2] for one in running)
        few = len(running) < MAX_OPEN and beside < MAX_OPEN_OF_ONE
        task = find(message, cell) if few else None
        if task is not None:
            running.append(_Open(task, time.monotonic()))
        if running:
            _open[who] = running
    if not few:
        _log.warning("a stream of %.80r is not read: %d of its streams have not ended", origin, len(running))
    return task


def _of_bounded_memory(process: Callable, self: RxTask, message: Message) -> bool:
    begins = process(self, message)
    with self.lock:
        early = sum(max(len(chunk or b""), MIN_CHUNK) for _, chunk in self.out_seq_chunks.values())
    with _lock:
        running = _open.get(_participant(self.origin), ())
        for one in running:
            if one.task is self:
                one.early = early
        unread = sum(one.unread for one in running if not one.has_ended())
    if unread > MAX_UNREAD:
        error = f"more than {MAX_UNREAD // MB} MB of this sender's streams are not read yet"
        _log.warning("a stream of %.80r ends: %s", self.origin, error)
        self.stop(StreamError(error))
        with self.lock:
            self.chunks.clear()
            self.out_seq_chunks.clear()
    return begins  # type: ignore[no-any-return]


def _without_waiting_for_streams(shutdown: Callable, self: CheckedExecutor, *arguments: Any, **named: Any) -> None:
    if self is callback_thread_pool:  # FLARE waits for its threads, and these wait five minutes for a stream's chunk
        for task in [*RxTask.rx_task_map.values()]:
            if not (task.completed or task.failed):
                task.stop(StreamError("this process ends"), notify=False)
    shutdown(self, *arguments, **named)


MAX_CATEGORIES, MAX_CATEGORY, OTHERS = 1000, 200, "others"


def _category(known: Any, name: object) -> str:
    short = str(name)[:MAX_CATEGORY]
    return short if short in known or len(known) < MAX_CATEGORIES else OTHERS


def _in_few_histograms(record: Callable, self: HistPool, category: str, value: float) -> None:
    record(self, _category(self.cat_bins, category), value)


def _in_few_counters(increment: Callable, self: CounterPool, category: str, counter_name: str, amount: int = 1) -> None:
    increment(self, _category(self.cat_counters, category), counter_name, amount)
