# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Limits of the memory that messages take: of one message, of one frame, and of fetches for one participant.

FLARE receives a small message whole; it names tensors, which are then fetched from the sender. FLARE 2.9 limits one
stream (`streaming_max_blob_size`, 4 GiB, read when a process connects), not the tensors of one message together, and
`max_message_size` applies to sent messages, not to received ones. So its functions are replaced here. It would end the
server's job if a single site's reply cannot be read; here only that site loses the round.

FLARE reads a whole frame of up to 2 GB before it checks it. Large objects travel in chunks of 1 MB, and its sites
accept no frame above 4 MB over HTTP (aiohttp's limit).

A thread fetches the tensors of a message before anybody looks at it, from whatever cell the message names: here only
from its sender, for at most `MAX_FETCHES` of its messages at once. A process that ends does not wait for them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers import aio_conn, aio_http_driver, socket_conn
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.blob_streamer import BlobTask
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.cacheable import ItemConsumer
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import BlobSizeError, StreamError
from nvflare.fuel.f3.streaming.stream_utils import CheckedExecutor, callback_thread_pool
from nvflare.fuel.utils.fobs import FOBSContextKey
from nvflare.fuel.utils.fobs.decomposers.via_downloader import ViaDownloaderDecomposer

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import is_full
from fedpeft.flare.hardening import replace_function
from fedpeft.flare.hardening.connections import is_same_process, limit_streams, participant
from fedpeft.protocol.fields import MB, MIN_TENSOR, Limit, Unread

_log = logging.getLogger(__name__)
FRAME = 64 * 2**20
_MAX_FRAME = "MAX_FRAME_SIZE"


def limit_frames() -> None:
    """Close connections of this process that receive a larger frame."""
    for driver in (aio_http_driver, aio_conn, socket_conn):
        if not hasattr(driver, _MAX_FRAME):
            raise FedpeftError(f"FLARE has no {driver.__name__}.{_MAX_FRAME}: install the version in constraints.txt.")
        setattr(driver, _MAX_FRAME, FRAME)


MAX_NOTED = 100  # senders behind one connection of the server whose refused messages are recorded
MAX_NAME_LENGTH = 1000  # characters of a recorded name, which comes with the message
MAX_DISK_FETCHES = 4  # messages whose tensors go to the disk at once: FLARE has some tens of MB of each in memory
MAX_WAIT = 20.0  # seconds that a message waits for its turn; its sender abandons it after a minute of silence
MAX_FETCHES = 256  # messages of one participant whose tensors are fetched at once
MAX_FETCHES_OF_ONE = 4  # the same for one of its processes, or one site behind a relay
_COUNT = "fedpeft_count"
_turns = threading.BoundedSemaphore(MAX_DISK_FETCHES)
_current: ContextVar[_Count | None] = ContextVar("count", default=None)
_sender: ContextVar[str | None] = ContextVar("sender", default=None)  # of the message that this thread decodes
_lock = threading.Lock()
_refused: dict[str, str] = {}  # by sender
_fetches: dict[str, list[Signal]] = {}  # by sender: signals that end the running fetches of its messages' tensors
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
    """Counts the bytes received for a message, and notes why its tensors cannot be written to a disk."""

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

    Without a limit the current one stays, initially 64 MB; FLARE's own messages are smaller. Also limit what one
    participant's streams take together, and free the memory of ended ones.
    """
    global _limit
    _limit = limit or _limit
    replace_function(BlobTask, "__init__", _refuse_large_stream)
    replace_function(ItemConsumer, "consume", _count_received_bytes)
    replace_function(ViaDownloaderDecomposer, "_download_from_remote_cell", _fetch_within_limit)
    replace_function(cell, "_is_server_job_cell", _is_never_servers_job)
    replace_function(cell, "decode_payload", _decode_noting_sender)
    replace_function(CheckedExecutor, "shutdown", _stop_streams_then_shut_down)
    limit_streams()


def take_refusal(cell: str) -> str:
    """Return and remove the reason why the last message of a site was refused unread; empty: none was.

    `cell` is the name with which the site has registered: that name, or one below it, is the origin of its messages,
    and no other site can use it (`fedpeft.flare.hardening.requests`).
    """
    path = FQCN.split(cell)
    with _lock:
        origin = next((name for name in _refused if FQCN.split(name)[: len(path)] == path), "")
        return _refused.pop(origin, "")


def _refuse_large_stream(
    init: Callable, self: BlobTask, future: Any, stream: Any, max_size: int = 0, preserve_chunks: bool = False
) -> None:
    """Limit a stream; if it is larger, end the fetch that it belongs to, or note why a message is refused."""
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
    """Return whether another refusal may be noted; each connection has room of its own."""
    connection = FQCN.split(origin)[0]
    return sum(FQCN.split(name)[0] == connection for name in _refused) < MAX_NOTED


def _count_received_bytes(consume: Callable, self: ItemConsumer, ref_id: str, state: dict, data: Any) -> dict:
    count = _current.get()
    if count:
        count.add(sum(max(len(item), MIN_TENSOR) for item in data))
    try:
        return consume(self, ref_id, state, data)
    except OSError as error:  # FLARE continues with only its text
        if count:
            count.unwritten = _unwritten(error)
        raise


def _unwritten(error: OSError) -> str:
    """Return the reason to refuse a message that cannot be written to the disk."""
    remedy = "make room on its disk" if is_full(error) else "let this user write in the folder of its checkpoints"
    return f"tensors that the server cannot write to its disk ({error.strerror}): {remedy}."


def _decode_noting_sender(decode: Callable, message: Message, *arguments: Any, **named: Any) -> None:
    before = _sender.set(message.get_header(MessageHeaderKey.ORIGIN))
    try:
        decode(message, *arguments, **named)
    finally:
        _sender.reset(before)


def _refused_fetch(source: str) -> str:
    """Return why tensors of a message are not fetched from this cell; empty: they are. Call it with the lock held."""
    sender = _sender.get()
    if sender is None or participant(sender) == FQCN.ROOT_SERVER:
        return ""
    own, named = FQCN.split(sender), FQCN.split(source)
    if own[: len(named)] != named[: len(own)]:  # behind a relay, its sites are participants of their own
        return "tensors of another participant."
    running = [name for name, signals in _fetches.items() for _ in signals if participant(name) == participant(source)]
    if len(running) >= MAX_FETCHES or sum(is_same_process(name, source) for name in running) >= MAX_FETCHES_OF_ONE:
        return f"tensors while those of {len(running)} messages of its sender are fetched: send one after the other."
    return ""


def _fetch_within_limit(fetch: Callable, self: ViaDownloaderDecomposer, fobs_ctx: dict, ref: dict) -> Any:
    """Fetch the tensors of a message within its limit; else return a placeholder that says why they were not read."""
    count = fobs_ctx.setdefault(_COUNT, _Count(_limit))  # one message may name several sets of tensors
    if count.over:
        return _UnreadItems(str(count.limit))
    sender = str(ref.get("fqcn"))
    with _lock:
        if reason := _refused_fetch(sender):
            return _UnreadItems(reason)
        refused = Signal(parent=fobs_ctx.get(FOBSContextKey.ABORT_SIGNAL))
        _fetches.setdefault(sender, []).append(refused)
    before, aborted = _current.set(count), fobs_ctx.get(FOBSContextKey.ABORT_SIGNAL)
    fobs_ctx[FOBSContextKey.ABORT_SIGNAL] = refused
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


def _is_never_servers_job(is_server_job_cell: Callable, my_info: Any) -> bool:
    """Answer FLARE, which would end the server's job process on a reply that it cannot decode or that is too large."""
    return False


def _stop_streams_then_shut_down(shutdown: Callable, self: CheckedExecutor, *arguments: Any, **named: Any) -> None:
    if self is callback_thread_pool:  # FLARE waits for its threads
        for task in [*RxTask.rx_task_map.values()]:
            if not (task.completed or task.failed):
                task.stop(StreamError("this process ends"), notify=False)
        with _lock:
            signals = [signal for running in _fetches.values() for signal in running]
        for signal in signals:
            signal.trigger("this process ends")
    shutdown(self, *arguments, **named)
