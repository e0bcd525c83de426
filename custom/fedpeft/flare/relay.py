# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Relays between server and sites: FLARE's process with the guards of fedpeft, and partial sums over FLARE's cells.

A relay's start-up kit starts this module where FLARE's own would start `nvflare.private.fed.app.relay.relay`. FLARE's
relay loads no component, so there is no other place for guards.

FLARE's relay forwards messages and runs no part of a job. A message between two sites goes through the server even if
both are behind one relay (`nvflare.fuel.sec.authn`), so a sum at a site would save the server nothing. All messages of
a relay's sites pass through it, and a message addressed to it ends there. So the relay's own process adds up.

A relay takes orders of a job from that job's process at the server, and adapters from the processes of the job at sites
behind it; `fedpeft.flare.hardening.requests` makes sure that origins are not forged.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.mpm import MainProcessMonitor

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import temporary_folder
from fedpeft.core.states import State
from fedpeft.core.text import limit_log_records
from fedpeft.flare.hardening import replace_function
from fedpeft.flare.hardening.connections import guard_connections
from fedpeft.flare.hardening.message_limits import limit_frames, limit_messages
from fedpeft.flare.hardening.requests import guard_origins, guard_relay_requests
from fedpeft.flare.messages import MAX_IN_MEMORY, offload, read_from_disk, register_tensors
from fedpeft.protocol.fields import MAX_MB, MB, Limit
from fedpeft.protocol.types import M as AnyMessage
from fedpeft.protocol.types import Measured, PartialSum, SumOrder, SumQuery, Upload, fields_of, message_from
from fedpeft.server.relay_sums import GroupSum

FLARES = "nvflare.private.fed.app.relay.relay"
CHANNEL = "fedpeft_sums"
OPEN, FETCH, TAKE, MEASURE, ADD_UP = "open", "fetch", "take", "measure", "add_up"
REACH = "reach"
MAX_JOBS = 8  # that may run at a time where there are relays
MAX_SUMS = 4 * MAX_JOBS  # that a relay keeps, also of jobs that were aborted; for another one the longest unused goes
SECONDS = 600.0  # for one message and its answer
MAX_SILENT = 2  # times that a relay may be there and not answer until it has added up a round
POLL = 20.0  # seconds without an answer after which a relay must show that it is there
FIELDS, STATE, PROBLEM = "fields", "state", "problem"
LARGER = "a relay reads no larger message."
_log = logging.getLogger("fedpeft.flare.relay")  # in a relay this module is __main__
M = TypeVar("M", Measured, PartialSum)


def packed(message: Any) -> Shareable:
    """Return a message as FLARE's cells carry it."""
    content = Shareable()
    content[FIELDS] = fields_of(message)
    content[STATE] = dict(getattr(message, STATE, {}))
    return content


def unpacked(kind: type[AnyMessage], content: Any, *, sender: str) -> AnyMessage:
    """Read a message that another cell sent."""
    if not isinstance(content, Mapping):
        raise FedpeftError(f"{sender} sent no {kind.__name__} message.")
    if problem := content.get(PROBLEM):
        raise FedpeftError(f"{sender} answered: {str(problem)[:300]}")
    return message_from(kind, content.get(FIELDS), read_from_disk(content.get(STATE)), sender=sender)


def relay_of(cell: str) -> str:
    """Return the relay of a site's process of a job, from the name of the process's cell; empty: none."""
    return FQCN.join(FQCN.split(cell)[:-2])


class SilentError(FedpeftError):
    """A relay that can be reached does not answer."""


def _request(
    cell: Cell,
    relay: str,
    topic: str,
    message: Any,
    abort_signal: Signal | None,
    *,
    seconds: float = SECONDS,
    ended: Callable[[], bool] = lambda: False,
) -> Any:
    deadline, code = time.monotonic() + seconds, _reachability(cell, relay)
    gone = False

    def is_coming() -> bool:
        nonlocal gone
        gone = gone or ended()
        return time.monotonic() < deadline and not gone and _reachability(cell, relay) == ReturnCode.OK

    reached = code == ReturnCode.OK
    if reached:
        answer = cell.send_request(
            channel=CHANNEL,
            topic=topic,
            target=relay,
            request=new_cell_message({}, packed(message)),
            timeout=min(POLL, seconds),
            abort_signal=abort_signal,
            progress_wait_cb=is_coming,
        )
        code = answer.get_header(MessageHeaderKey.RETURN_CODE)
    if code != ReturnCode.OK:
        if gone:
            raise FedpeftError(
                f"the round ended before relay {relay} had answered: raise federation.grace, or round_timeout if the "
                f"round ended with it."
            )
        kind = SilentError if reached and time.monotonic() >= deadline else FedpeftError
        raise kind(
            f"relay {relay} does not answer ({code}): start it with fedpeft installed, or leave "
            f"federation.sums_at_relays out."
        )
    return answer.payload


def _reachability(cell: Cell, relay: str) -> str:
    """Return FLARE's return code of an empty request, which fails at once where no connection leads to the relay.

    FLARE sends a message with tensors in pieces, and does not notice if a cell on the way cannot pass one on.
    """
    request = new_cell_message({}, None)
    answer = cell.core_cell.send_request(channel=CHANNEL, topic=REACH, target=relay, request=request, timeout=POLL)
    return str(answer.get_header(MessageHeaderKey.RETURN_CODE))


class CellRelays:
    """The relays of a job, as its process at the server reaches them.

    Args:
        cell: of that process.
        path: from a site's name to the name of its cell, below that of its relay.
        clients: returns the names of sites, those of the job and others, in a round or not; none of them is a relay.
        abort_signal: of the job.
        seconds: how long a relay may take for an answer, at most `SECONDS`.
    """

    def __init__(
        self,
        cell: Cell,
        path: Callable[[str], str],
        clients: Callable[[], Iterable[str]],
        abort_signal: Signal | None = None,
        seconds: float = SECONDS,
    ) -> None:
        self._cell, self._path, self._clients, self._abort_signal = cell, path, clients, abort_signal
        self._seconds = min(seconds, SECONDS)
        self._silent: dict[str, int] = {}  # by relay, how often it was there and silent since its last sum

    def relays_of(self, sites: Collection[str]) -> dict[str, str]:
        """Return, by site, its relay; empty: it is connected to the server, or names a site as its relay."""
        named, paths = {*sites, *self._clients()}, {site: FQCN.split(self._path(site)) for site in sites}
        behind = {site: path[-1] == site and not named & set(path[:-1]) for site, path in paths.items()}
        return {site: FQCN.join(path[:-1]) if behind[site] else "" for site, path in paths.items()}

    def ask(self, relay: str, order: SumOrder | SumQuery, kind: type[M]) -> M:
        """Send an order to a relay and return its answer.

        One that was there and silent twice since its last sum is not asked again.
        """
        if self._silent.get(relay, 0) >= MAX_SILENT:
            raise FedpeftError(
                f"relay {relay} was connected and gave no answer {MAX_SILENT} times, so it is left out: restart it, "
                f"then continue with federation.resume_from."
            )
        topic = OPEN if isinstance(order, SumOrder) else MEASURE if kind is Measured else ADD_UP
        try:
            answer = _request(self._cell, relay, topic, order, self._abort_signal, seconds=self._seconds)
        except SilentError:
            self._silent[relay] = self._silent.get(relay, 0) + 1
            raise
        if topic == ADD_UP:  # the last request of a round
            self._silent.pop(relay, None)
        return unpacked(kind, answer, sender=f"relay {relay}")


def fetch(
    cell: Cell, relay: str, round: int, abort_signal: Signal | None = None, *, ended: Callable[[], bool] = lambda: False
) -> State:
    """Return the global adapter of a round, which the site's relay has; wait while the task has not ended.

    Raises:
        FedpeftError: the site is not behind this relay, or the relay has no adapter.
    """
    _check_own(cell, relay)
    answer = _request(cell, relay, FETCH, SumQuery(round=round), abort_signal, seconds=math.inf, ended=ended)
    upload = unpacked(Upload, answer, sender=f"relay {relay}")
    if upload.round != round:
        raise FedpeftError(f"relay {relay} has the global adapter of round {upload.round}, not of round {round}.")
    return upload.state


def _check_own(cell: Cell, relay: str) -> None:
    if not relay or relay != relay_of(cell.get_fqcn()):
        raise FedpeftError(f"the server names {relay!r:.80} as this site's relay, which it is not.")


def hand_over(
    cell: Cell,
    relay: str,
    upload: Upload,
    abort_signal: Signal | None = None,
    *,
    ended: Callable[[], bool] = lambda: False,
) -> None:
    """Send a site's adapter to its relay; wait while the task has not ended.

    Raises:
        FedpeftError: the site is not behind this relay, or the relay does not take the adapter.
    """
    _check_own(cell, relay)
    answer = _request(cell, relay, TAKE, upload, abort_signal, seconds=math.inf, ended=ended)
    unpacked(Measured, answer, sender=f"relay {relay}")


class SumDesk:
    """Answers, at a relay, the requests of jobs' processes at the server and at sites for sums.

    Args:
        cell: of the relay, started.
        folder: on the relay's disk, for adapters that are large together.
    """

    def __init__(self, cell: Cell, folder: Path) -> None:
        self._cell, self._folder, self._name = cell, folder, cell.get_fqcn()
        self._sums: dict[str, GroupSum] = {}  # by job, the last used one at the end
        self._lock = threading.Lock()
        limit_messages(Limit(MAX_MB * MB, LARGER))
        answers = {OPEN: self._open, FETCH: self._fetch, TAKE: self._take, MEASURE: self._measure, ADD_UP: self._add_up}
        for topic, answer in answers.items():
            cell.register_request_cb(channel=CHANNEL, topic=topic, cb=_callback_for(answer))
        cell.register_request_cb(channel=CHANNEL, topic=REACH, cb=lambda request: make_reply(ReturnCode.OK))

    def _open(self, origin: list[str], content: Any) -> Measured:
        job = self._job_of_server(origin)
        order = unpacked(SumOrder, content, sender="the server")
        opened = GroupSum(order)
        size = sum(tensor.nbytes for tensor in order.state.values()) * (2 if order.masked else 1)
        if size * len(order.weights) > MAX_IN_MEMORY:
            offload([self._cell], self._folder)
        with self._lock:
            self._sums.pop(job, None)
            while len(self._sums) >= MAX_SUMS:
                del self._sums[next(iter(self._sums))]
            self._sums[job] = opened
        return Measured(round=order.round)

    def _fetch(self, origin: list[str], content: Any) -> Upload:
        site, job = self._site_and_job(origin)
        unpacked(SumQuery, content, sender=f"site {site}")
        return self._sum(job).start(site)

    def _site_and_job(self, origin: list[str]) -> tuple[str, str]:
        *path, site, job = origin if len(origin) > 1 else ["", ""]
        if FQCN.join(path) != self._name:
            raise FedpeftError("only a site behind this relay takes part in its sums.")
        return site, job

    def _take(self, origin: list[str], content: Any) -> Measured:
        site, job = self._site_and_job(origin)
        upload = unpacked(Upload, content, sender=f"site {site}")
        self._sum(job).take(site, upload)
        return Measured(round=upload.round)

    def _measure(self, origin: list[str], content: Any) -> Measured:
        return self._asked(origin, content)[1].measured()

    def _add_up(self, origin: list[str], content: Any) -> PartialSum:
        query, group = self._asked(origin, content)
        job, answer = origin[1], group.total(query.sites)
        with self._lock:
            if self._sums.get(job) is group:  # the server may have given up on this round and begun the next
                del self._sums[job]
        _log.info("job %s, round %s: the adapters of %s sites are added up", job, answer.round, len(answer.sites))
        return answer

    def _asked(self, origin: list[str], content: Any) -> tuple[SumQuery, GroupSum]:
        """Return a query of the server and the sum that it is about; one of another round changes nothing."""
        group = self._sum(self._job_of_server(origin))
        query = unpacked(SumQuery, content, sender="the server")
        if query.round != group.round:
            raise FedpeftError(f"the server asks for the sum of round {query.round} in round {group.round}.")
        return query, group

    def _job_of_server(self, origin: list[str]) -> str:
        if len(origin) != 2 or origin[0] != FQCN.ROOT_SERVER:
            raise FedpeftError("only a job's process at the server may order a sum.")
        return origin[1]

    def _sum(self, job: str) -> GroupSum:
        with self._lock:
            if job not in self._sums:
                raise FedpeftError(
                    "no sum of this job is ordered at this relay: it was restarted, or the round is over. The next "
                    "round orders another."
                )
            self._sums[job] = self._sums.pop(job)
            return self._sums[job]


def _callback_for(answer: Callable[[list[str], Any], Any]) -> Callable[[Message], Message]:
    def callback(request: Message) -> Message:
        try:
            origin = FQCN.split(str(request.get_header(MessageHeaderKey.ORIGIN)))
            content = packed(answer(origin, request.payload))
        except FedpeftError as error:
            _log.warning("%s", error)
            content = Shareable()
            content[PROBLEM] = str(error)
        return make_reply(ReturnCode.OK, body=content)

    return callback


def main() -> int:
    """Install the guards and run FLARE's relay until the server stops it."""
    from nvflare.private.fed.app.relay import relay as flares_relay  # a server does not need it

    os.umask(0o077)
    limit_log_records()
    guard_connections()
    guard_origins()
    guard_relay_requests()
    limit_frames()
    register_tensors()
    arguments = flares_relay.parse_arguments()
    with temporary_folder(Path(arguments.workspace), "adapters") as folder:
        replace_function(flares_relay, "set_add_auth_headers_filters", partial(_authenticate_then_add_up, folder))
        return MainProcessMonitor.run(main_func=flares_relay.main, run_dir=arguments.workspace, args=arguments)  # type: ignore[no-any-return]


def _authenticate_then_add_up(folder: Path, authenticate: Callable, cell: Cell, *arguments: Any, **named: Any) -> None:
    """Answer requests for partial sums once the relay is known to the server."""
    authenticate(cell, *arguments, **named)
    SumDesk(cell, folder)


if __name__ == "__main__":
    sys.exit(main())
