# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Who connects to a process, how often and under which name, and what the streams of one participant take.

FLARE's processes of a site or server connect to their parent over the loopback interface, without TLS and without a
password: whoever connects there may start and abort jobs as the server does. On Linux the kernel's table of connections
says whose the other end is; elsewhere nothing does, and nothing is checked.

FLARE lets every handshake give a connection another name, keeps what it says with it, and forgets no name. Here a
connection keeps its first name, nothing else of the handshake is kept, a certificate has at most `MAX_CONNECTIONS`
connections, and names without a connection are forgotten. A console's name is random, and FLARE gives it to any
certificate; here only to a person's.

The tensors of a message travel in hundreds of streams of 1 MB. A sent stream and its future refer to each other, so its
buffer and its chunk, of 1 MB each, stay until Python looks for cycles, which depends on the number of objects and not
on their size: 8 orders of 50 MB left 350 MB. A received stream is known for another 65 seconds, because its last chunk
may come twice, and FLARE starts a thread for each that waits this long: 100 KB each, thousands where many sites reply.

FLARE reads streams in 128 threads, and takes their messages and fetches tensors of these in 64: whoever fills them
stops all others, and so do a hundred honest sites at once. A thread waits five minutes for the next chunk of a stream.
Chunks before the first one and those of failed streams stay, and messages are counted by names that the sender chooses.
Here there are up to 1,024 threads of each kind, and a participant has at most `MAX_OPEN` streams that have not ended,
with at most `MAX_UNREAD` bytes in them. The origin of a stream's messages, which `fedpeft.flare.hardening.requests`
checks, says who sends it.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer
from nvflare.fuel.f3.endpoint import EndpointState
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection
from nvflare.fuel.f3.stats_pool import CounterPool, HistPool
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamError
from nvflare.fuel.f3.streaming.stream_utils import (
    callback_thread_pool,
    download_request_thread_pool,
    stream_thread_pool,
)
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name

from fedpeft.flare.hardening import replace_function
from fedpeft.flare.hardening.requests import ADMIN_MARK
from fedpeft.protocol.fields import MB

logger = logging.getLogger(__name__)
_lock = threading.Lock()
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = "01"  # a connection that its process has closed is listed as root's
Address = tuple[str, int]


def guard_connections() -> None:
    """Refuse too many connections of one certificate, a second name, and on Linux other users of this machine."""
    replace_function(ConnManager, "update_endpoint", _refuse_second_name)
    replace_function(ConnManager, "handle_new_connection", _refuse_too_many_connections)
    if sys.platform == "linux":
        replace_function(TcpStreamServer, "verify_request", _refuse_other_users)


def owner(peer: Address, here: Address) -> int | None:
    """Return the user id of the process at the other end of a connection within this machine; None: there is none."""
    for table in TABLES:
        if not table.exists():  # a kernel without IPv6
            continue
        for line in table.read_text().splitlines()[1:]:
            _, local, remote, state, *_, user = line.split()[:8]
            if state == ESTABLISHED and _address(local) == peer and _address(remote) == here:
                return int(user)
    return None


def _address(entry: str) -> Address:
    """Read an address of the table: words of the machine's byte order, then the port."""
    host, _, port = entry.partition(":")
    words = [int(host[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(host), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return str(getattr(address, "ipv4_mapped", None) or address), int(port, 16)


def _refuse_other_users(verify: Callable, self: TcpStreamServer, request: Any, client_address: Any) -> bool:
    """Refuse a loopback connection to a listener without TLS unless it is of this process's own user."""
    if self.ssl_context or not ipaddress.ip_address(client_address[0]).is_loopback:
        return verify(self, request, client_address)
    user = owner(client_address[:2], request.getsockname()[:2])
    if user != os.geteuid():
        logger.warning("a connection of user %s of this machine is refused", "unknown" if user is None else user)
        return False
    return verify(self, request, client_address)


MAX_CONNECTIONS = 100  # of one certificate with one process
MAX_NAME = 1000  # characters of a connection's name
MAX_KNOWN = 1000  # names of connections, from which on those that have gone are forgotten


def _refuse_too_many_connections(take: Callable, self: ConnManager, connection: Connection) -> None:
    """Close a new connection of a certificate that has `MAX_CONNECTIONS` already."""
    certificate = _certificate(connection)
    present = [_certificate(one.conn) for one in [*self.sfm_conns.values()]]
    if certificate and present.count(certificate) >= MAX_CONNECTIONS:
        logger.warning("a connection of %.80r is closed: it has %d", certificate, MAX_CONNECTIONS)
        connection.close()
        return
    take(self, connection)


def _certificate(connection: Connection) -> str | None:
    """Return the common name of the certificate at the other end of a connection, where there is one."""
    name = (connection.get_conn_properties() or {}).get(DriverParams.PEER_CN.value)
    return None if name == "N/A" else name  # FLARE's word for none


def _refuse_second_name(update: Callable, self: ConnManager, connection: SfmConnection, said: dict) -> None:
    """Close a connection whose handshake changes its name, gives none, or claims a console's; keep only the name."""
    name, certificate = said.get(HandshakeKeys.ENDPOINT_NAME), _certificate(connection.conn)
    before = connection.sfm_endpoint.endpoint.name if connection.sfm_endpoint else name
    reason = ""
    if not isinstance(name, str) or len(name) > MAX_NAME:
        reason = "it gives no name, or too long a one"
    elif FQCN.normalize(name) != FQCN.normalize(before):
        reason = f"its name is {before:.80}"
    elif is_valid_admin_client_name(name) and certificate and ADMIN_MARK not in certificate:
        reason = "that is the name of a console, and its certificate is no person's"
    if reason:
        logger.warning("the handshake of %.80r as %.80r is refused: %s", certificate, name, reason)
        connection.conn.close()
        return
    if len(self.sfm_endpoints) >= MAX_KNOWN:
        _forget_gone_names(self)
    update(self, connection, {HandshakeKeys.ENDPOINT_NAME: name})


def _forget_gone_names(manager: ConnManager) -> None:
    for name, one in [*manager.sfm_endpoints.items()]:
        if one.endpoint.state == EndpointState.DISCONNECTED and not one.connections:
            manager.sfm_endpoints.pop(name, None)
            if one.connections:  # it has come back meanwhile
                manager.sfm_endpoints.setdefault(name, one)


def limit_streams() -> None:
    """Limit what one participant's streams take in this process, and free what ended ones leave."""
    replace_function(TxTask, "stop", _stop_and_free_buffers)
    replace_function(RxTask, "_schedule_remove_task", _schedule_removal_in_one_thread)
    replace_function(RxTask, "find_or_create_task", _refuse_too_many_streams)
    replace_function(RxTask, "process_chunk", _stop_sender_over_memory_limit)
    replace_function(RxTask, "stop", _stop_and_free_chunks)
    replace_function(HistPool, "record_value", _record_under_bounded_category)
    replace_function(CounterPool, "increment", _count_under_bounded_category)
    for pool in POOLS:  # they start threads as they need them
        pool._max_workers = MAX_THREADS


def _stop_and_free_buffers(stop: Callable, self: TxTask, error: Any = None, notify: bool = True) -> None:
    stop(self, error, notify)
    if self.stopped and error is None:  # after an error its thread may still be sending
        self.buffer = self.stream = None


class _Removals:
    """Calls functions after a delay, in one thread that ends with the last of them."""

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
                logger.warning("a stream that has ended could not be removed", exc_info=True)


_removals = _Removals()


class _NoTimer:
    """Replaces the thread that FLARE cancels when the stream is removed."""

    def cancel(self) -> None:
        """Do nothing: removing a stream twice changes nothing."""


def _schedule_removal_in_one_thread(schedule: Callable, self: RxTask, ttl: float | None = None) -> None:
    """Let one thread for all streams remove an ended one later; at once if its participant has `MAX_ENDED` of them."""
    with self.stop_lock:
        if self.cleanup_timer is not None:
            return
        self.cleanup_timer = _NoTimer()
    with _lock:
        who = participant(self.origin)
        late = _ended[who] >= MAX_ENDED and who != FQCN.ROOT_SERVER
        _ended[who] += not late
    if late:
        self._remove_task()
    else:
        seconds = self.completed_task_ttl if ttl is None else ttl
        _removals.call_after(min(seconds, KNOWN_FOR), lambda: _remove(self, who))


def _remove(task: RxTask, who: str) -> None:
    with _lock:
        _ended[who] -= 1
        if not _ended[who]:
            del _ended[who]
    task._remove_task()


MAX_THREADS = 1024  # that read streams, that take their messages, and that fetch tensors, of each kind
POOLS = (stream_thread_pool, callback_thread_pool, download_request_thread_pool)
MAX_OPEN = 256  # streams of one participant that have not ended
MAX_OPEN_OF_ONE = 32  # the same for one of its processes, or one site behind a relay
MAX_UNREAD = 256 * MB  # in all open streams of one participant
MIN_CHUNK = 1024  # bytes that a chunk takes at least
MAX_ENDED = 2000  # streams of one participant that have ended and are known, should their last chunk come again
KNOWN_FOR = 120.0  # seconds at most that an ended stream is known
CONSOLES = "_admin_"  # all consoles count as one participant: their names are random


@dataclass(eq=False)
class _Open:
    """A stream that has not ended; `early` counts the bytes of chunks that came before one with a lower number.

    It refers to the stream only weakly, so that received bytes are freed; `task` is None until FLARE has made it.
    """

    origin: str
    began: float
    made: weakref.ref | None = None
    early: int = 0

    @property
    def task(self) -> RxTask | None:
        return self.made() if self.made else None

    @property
    def unread(self) -> int:
        task = self.task
        return self.early + task.received_offset - task.offset + MIN_CHUNK * len(task.chunks) if task else 0

    def has_ended(self) -> bool:
        task = self.task
        return bool(self.made) and (task is None or task.completed or task.failed)

    def never_begins(self) -> bool:
        """Return whether it has waited for its first chunk longer than FLARE waits for any other."""
        task = self.task
        return bool(task and not task.stream_future and time.monotonic() - self.began > task.timeout)


_open: dict[str, list[_Open]] = {}  # by participant
_ended: Counter[str] = Counter()


def participant(origin: object) -> str:
    """Return the first name of a cell's path, a site or a relay; all consoles count as one participant."""
    first = FQCN.split(str(origin))[0]
    return CONSOLES if is_valid_admin_client_name(first) else first


def process_of(origin: object) -> str:
    """Return the first two names of a cell's path: a process of a participant, or a site behind a relay."""
    return FQCN.join(FQCN.split(str(origin))[:2])


def is_same_process(one: object, other: object) -> bool:
    """Return whether two cells are the same process of a participant, or belong to one site behind a relay."""
    return process_of(one) == process_of(other)


def _refuse_too_many_streams(find: Callable, message: Message, cell: Any) -> RxTask | None:
    """Refuse a new stream of a sender with too many open ones; first stop streams whose first chunk never came."""
    origin, stream = message.get_header(MessageHeaderKey.ORIGIN), message.get_header(StreamHeaderKey.STREAM_ID)
    who = participant(origin)
    known = (origin, stream) in RxTask.rx_task_map or message.get_header(StreamHeaderKey.ERROR_MSG)
    if who == FQCN.ROOT_SERVER or known:
        return find(message, cell)  # type: ignore[no-any-return]
    new = _Open(origin, time.monotonic())
    with _lock:
        late = [stream for streams in _open.values() for stream in streams if stream.never_begins()]
    for never_begun in late:
        if task := never_begun.task:
            task.stop(StreamError("no first chunk of this stream has come"))
    with _lock:
        running = [opened for opened in _open.pop(who, ()) if not opened.has_ended()]
        same = sum(is_same_process(opened.origin, origin) for opened in running)
        few = len(running) < MAX_OPEN and same < MAX_OPEN_OF_ONE
        if few:
            running.append(new)
        if running:
            _open[who] = running
    if not few:
        logger.warning("a stream of %.80r is not read: %d of its streams have not ended", origin, len(running))
        task = RxTask(stream, origin, cell)
        task.channel, task.topic = (message.get_header(key) for key in (StreamHeaderKey.CHANNEL, StreamHeaderKey.TOPIC))
        task.headers = message.headers
        task._send_error("too many of this sender's streams have not ended", StreamError.__name__)
        return None
    task = None
    try:
        task = find(message, cell)
    finally:
        with _lock:
            if task is None:
                _open[who].remove(new)
            else:
                new.made = weakref.ref(task)
    return task


def _stop_sender_over_memory_limit(process: Callable, self: RxTask, message: Message) -> bool:
    """Take a chunk; if a participant's open streams hold more than `MAX_UNREAD` unread bytes, stop the largest.

    It is one of the process, or of the site behind a relay, that holds most.
    """
    begins = process(self, message)
    with self.lock:
        early = sum(max(len(chunk or b""), MIN_CHUNK) for _, chunk in self.out_seq_chunks.values())
    with _lock:
        running = _open.get(participant(self.origin), ())
        for opened in running:
            if opened.task is self:
                opened.early = early
        alive = [opened for opened in running if not opened.has_ended()]
        unread: Counter[str] = Counter()
        for opened in alive:
            unread[process_of(opened.origin)] += opened.unread
        most = max(unread, key=unread.__getitem__, default="")
        theirs = [opened for opened in alive if process_of(opened.origin) == most]
        task = max(theirs, key=lambda opened: opened.unread).task if unread.total() > MAX_UNREAD else None
    if task:
        task.stop(StreamError(f"more than {MAX_UNREAD // MB} MB of this sender's streams are not read yet"))
    return begins  # type: ignore[no-any-return]


def _stop_and_free_chunks(stop: Callable, self: RxTask, error: Any = None, notify: bool = True) -> None:
    stop(self, error, notify)
    if self.failed:  # FLARE keeps it, should more of it come
        with self.lock:
            self.chunks.clear()
            self.out_seq_chunks.clear()


MAX_CATEGORIES, MAX_CATEGORY_LENGTH, OTHERS = 1000, 200, "others"


def _bounded_category(known: Any, name: object) -> str:
    """Return the category to count a message under: its own name while there are few, else `OTHERS`."""
    short = str(name)[:MAX_CATEGORY_LENGTH]
    return short if short in known or len(known) < MAX_CATEGORIES else OTHERS


def _record_under_bounded_category(record: Callable, self: HistPool, category: str, value: float) -> None:
    record(self, _bounded_category(self.cat_bins, category), value)


def _count_under_bounded_category(
    increment: Callable, self: CounterPool, category: str, counter_name: str, amount: int = 1
) -> None:
    """Count a message; the counter's name may be the return code that a site wrote, of any type."""
    counter = _bounded_category(self.counter_names, counter_name)
    increment(self, _bounded_category(self.cat_counters, category), counter, amount)
