# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Run a job without FLARE's processes: a few training processes, in which many sites take turns.

FLARE's simulator starts a process for each site in every round. Here each process has one frozen backbone and one set
of adapters, and carries out one site's order after the other; a site keeps its state on its disk, as elsewhere. Server,
sites and workspace are those of the simulator, and so are the bytes of the results.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import replacing
from fedpeft.core.locks import SERVER, StateLock
from fedpeft.core.states import State
from fedpeft.core.text import one_line
from fedpeft.core.workspace import GLOBAL_ADAPTER, OF_SIMULATOR
from fedpeft.job.composing import CONTROLLER, EXECUTOR
from fedpeft.job.federation import NONE, SETTING, RunTracking
from fedpeft.job.settings import ServerJob
from fedpeft.protocol.fields import Limit
from fedpeft.protocol.types import Order, Reply, TrainReply
from fedpeft.server.aggregation import Aggregator
from fedpeft.server.job_run import JobRun, ServerPlace
from fedpeft.server.relay_sums import NoRelays
from fedpeft.server.rounds import Read
from fedpeft.site import fork_server
from fedpeft.site.connection import Aborted, Failure
from fedpeft.site.site_tasks import SitePlace, SiteTasks, problem_reply
from fedpeft.site.supervisor import LOG, WorkerSupervisor

FILTERS = ("task_data_filters", "task_result_filters")
JOB_ID = OF_SIMULATOR.parts[0]
MAX_SITES_SHOWN = 20  # whose lines are printed; with more sites, only the server's lines
_log = logging.getLogger(__name__)


def run_pool(
    name: str,
    server: Mapping[str, Any],
    site_sections: Mapping[str, Any],
    *,
    sites: Sequence[str],
    workspace: Path,
    state: Path,
    processes: int,
) -> None:
    """Run a job to its end.

    Args:
        name: the job's name.
        server: the sections that its server receives.
        site_sections: those that every site receives.
        sites: names.
        workspace: as of the simulator; it holds no other run.
        state: folder for the state that server and sites keep from run to run.
        processes: sites that compute at the same time.

    Raises:
        FedpeftError: the job failed; the manifest has the reason.
    """
    run = workspace / "server" / OF_SIMULATOR
    run.mkdir(parents=True, exist_ok=True)
    place = ServerPlace(run=run, lineages=state / SERVER, job_id=JOB_ID)
    with _log_to(workspace / "server" / "log.txt"), _workers(site_sections, processes) as workers:
        host = PoolHost(site_sections, workers, workspace=workspace, state=state, run=run, shown=len(sites))
        try:
            JobRun(name, server, place, host).run()
        except FedpeftError:
            raise
        except Exception:  # the manifest has the reason
            _log.exception("the server failed", extra={"shown": False})


@contextmanager
def _workers(sections: Mapping[str, Any], processes: int) -> Iterator[list[WorkerSupervisor]]:
    """Yield training processes that share the memory of one import; they end with this block, or with this process."""
    server = fork_server.start()
    workers = [WorkerSupervisor(sections) for _ in range(processes)]
    try:
        for worker in workers:
            worker.open_for_several()
        yield workers
    finally:
        for worker in workers:
            worker.close()
        fork_server.stop(server)


@contextmanager
def _log_to(file: Path) -> Iterator[None]:
    """Write the package's log to a file, and this module's lines to the terminal with only the time before them."""
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s - %(levelname)s - %(message)s"))
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    shown.addFilter(lambda record: getattr(record, "shown", True))
    others = logging.StreamHandler()  # warnings of other modules, which Python shows where there is no handler
    others.setLevel(logging.WARNING)
    others.addFilter(lambda record: record.name != _log.name)
    package = logging.getLogger("fedpeft")
    level, propagate = _log.level, package.propagate
    package.addHandler(handler)
    package.addHandler(others)
    _log.addHandler(shown)
    _log.setLevel(logging.INFO)
    package.propagate = False
    try:
        yield
    finally:
        _log.setLevel(level)
        package.propagate = propagate
        package.removeHandler(handler)
        package.removeHandler(others)
        _log.removeHandler(shown)
        handler.close()
        shown.close()


class PoolHost:
    """Takes the orders of a job's server to sites that take turns in a few processes.

    Args:
        sections: that every site receives.
        workers: the processes.
        workspace: has a folder of the run for each site.
        state: has a folder of what it keeps for each site.
        run: the server's folder of the run.
        shown: number of sites.
    """

    def __init__(
        self,
        sections: Mapping[str, Any],
        workers: Sequence[WorkerSupervisor],
        *,
        workspace: Path,
        state: Path,
        run: Path,
        shown: int,
    ) -> None:
        self._sections, self._workers = sections, workers
        self._workspace, self._state, self._run = workspace, state, run
        self._shown = shown <= MAX_SITES_SHOWN
        self._last: dict[str, int] = {}  # by site, the process that has its data
        self._lock = threading.Lock()
        self._state_lock = StateLock()

    def prepare(self, job: ServerJob) -> None:
        """Take the settings of the job."""
        self._federation = job.federation
        self._aggregator = Aggregator(job.method)

    def track(self, name: str, folder: Path) -> RunTracking | None:
        """Refuse a tracker: its receivers are FLARE's.

        Raises:
            FedpeftError: the job names one.
        """
        _check_tracker(name)
        return None

    def limit_replies(self, limit: Limit) -> None:
        """Do nothing: replies come from this program's own processes."""

    def relays(self, *, seconds: float) -> NoRelays:
        """Return no relays: there are none on one machine."""
        return NoRelays()

    def stored(self, state: Mapping[str, Tensor]) -> State:
        """Return the tensors as they are: all replies are in memory here."""
        return self._aggregator.stored(state)

    def start_from(self, state: State) -> None:
        """Set the global adapter before the first round."""
        self._aggregator.start_from(state)

    def integrate(self, replies: Mapping[str, TrainReply]) -> tuple[State, dict[str, Any]]:
        """Aggregate the replies of a round."""
        return self._aggregator.integrate(replies)

    def keep(self, state: State) -> None:
        """Store the global adapter of a round."""
        self._aggregator.keep(state)
        with replacing(self._run / GLOBAL_ADAPTER) as draft:
            save_file({key: tensor.contiguous() for key, tensor in state.items()}, draft)

    def info(self, message: str) -> None:
        """Print a line and write it to the log."""
        _log.info("%s", one_line(message))

    def warning(self, message: str) -> None:
        """Print a warning and write it to the log."""
        _log.warning("%s", one_line(message))

    def collect(
        self, task: str, orders: Mapping[str, Order], read: Read, *, round: int, needed: int
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Let the sites do what they are ordered, as many at a time as there are processes."""
        federation = self._federation
        timeout = federation.round_timeout if round else federation.hello_timeout
        waiting, deadline = list(orders), time.monotonic() + timeout
        accepted: dict[str, Any] = {}
        refused: dict[str, str] = {}
        stopped = threading.Event()

        def work(number: int) -> None:
            while not stopped.is_set() and (site := self._next(number, waiting)) is not None:
                try:
                    reply = self._carry_out(number, site, task, orders[site], round, deadline, stopped)
                    accepted[site] = read(reply, site)
                except FedpeftError as error:
                    refused[site] = str(error)
                except Aborted:
                    refused[site] = (
                        f"site {site} did not answer within {timeout} s: look at its log, or raise "
                        f"federation.{'round_timeout' if round else 'hello_timeout'}."
                    )

        with ThreadPoolExecutor(len(self._workers)) as threads:
            try:
                running = [threads.submit(work, number) for number in range(len(self._workers))]
                for thread in running:
                    thread.result()
            except BaseException:  # also Ctrl-C, while other sites still compute
                stopped.set()
                raise
        return {site: accepted[site] for site in orders if site in accepted}, refused

    def _next(self, number: int, waiting: list[str]) -> str | None:
        """Take the next site for a process: one whose data it has, else one that no process has, else any other."""
        with self._lock:
            if not waiting:
                return None
            site = next(
                (site for wanted in (number, None) for site in waiting if self._last.get(site) == wanted), waiting[-1]
            )
            waiting.remove(site)
            self._last[site] = number
            return site

    def _carry_out(
        self, number: int, site: str, task: str, order: Order, round: int, deadline: float, stopped: threading.Event
    ) -> Reply:
        run = self._workspace / site / OF_SIMULATOR
        run.mkdir(parents=True, exist_ok=True)
        place = SitePlace(site=site, run=run, lineages=self._state / site, job_id=JOB_ID)
        worker = self._workers[number]

        def request(header: Mapping[str, Any], state: State | None = None) -> Any:
            return worker.request(
                {**header, "site": site, "log": str(run / LOG)},
                state,
                aborted=lambda: stopped.is_set() or time.monotonic() > deadline,
                report=lambda failure: self._report(site, f"{failure.detail}; trying again in a new process", failure),
                progress=lambda line: self._log_line(site, f"round {round}: {line}"),
            )

        try:
            tasks = SiteTasks(self._sections, place, None, request=request, lock=self._state_lock)
            reply, line = tasks.answer(task, order)
        except Aborted:
            raise
        except Exception as error:  # as at a site: it costs only that site the round
            return problem_reply(task, round, error, place, partial(self._report, site))
        if line:
            self._log_line(site, line)
        return reply

    def _log_line(self, site: str, line: str) -> None:
        _log.info("site %s: %s", site, one_line(line), extra={"shown": self._shown})

    def _report(self, site: str, text: str, failure: Failure) -> None:
        _log.error("site %s: %s", site, one_line(text))
        if failure.traceback:
            _log.error("%s", failure.traceback, extra={"shown": False})


def _check_tracker(name: str) -> None:
    if name != NONE:
        raise FedpeftError(
            f"{SETTING} is {name!r}, whose receiver runs in FLARE's server: leave it out, or run the job with --engine "
            f"flare."
        )


def sections_of(job: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return a job's name, the sections of its server, and those of its sites.

    Args:
        job: a FLARE job folder that was admitted.

    Raises:
        FedpeftError: it has components other than fedpeft's own, filters or a tracker, which need FLARE.
    """
    config = job / "app" / "config"
    server = json.loads((config / "config_fed_server.json").read_text())
    client = json.loads((config / "config_fed_client.json").read_text())
    (workflow,), (executor,) = server["workflows"], [one["executor"] for one in client["executors"]]
    found = {workflow["path"], executor["path"], *(f"filters {one}" for one in FILTERS if client.get(one))}
    if others := sorted(found - {CONTROLLER, EXECUTOR}):
        raise FedpeftError(
            f"{job.name} has {', '.join(others)}, which need FLARE: run it with --engine flare, or without them."
        )
    arguments = dict(workflow["args"])
    _check_tracker(arguments.get("federation", {}).get("tracking", NONE))
    return str(arguments.pop("job", job.name)), arguments, dict(executor["args"])
