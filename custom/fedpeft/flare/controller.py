# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FLARE's controller of a job: handshake, then rounds of training, checking, integrating and recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import ReservedHeaderKey
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.fuel.utils.memory_utils import try_malloc_trim
from torch import Tensor

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import temporary_folder
from fedpeft.core.states import State, in_memory, on_disk
from fedpeft.core.text import limit_log_records
from fedpeft.flare import messages
from fedpeft.flare.aggregator import REPORT
from fedpeft.flare.folders import is_simulated, lineages_folder, run_folder, submitter_of, take_workspace
from fedpeft.flare.hardening import replace_function
from fedpeft.flare.hardening.connections import guard_connections
from fedpeft.flare.hardening.message_limits import limit_messages, take_refusal
from fedpeft.flare.job_store import report_progress
from fedpeft.flare.messages import Inbox, from_model, note_kind, register_early, register_tensors, to_model
from fedpeft.flare.relay import CellRelays
from fedpeft.flare.returning_sites import AwaySites
from fedpeft.flare.tracking import start_tracking
from fedpeft.job.federation import RunTracking
from fedpeft.job.settings import ServerJob
from fedpeft.protocol.fields import MB, Limit
from fedpeft.protocol.types import HELLO, SCORE, TASKS, TRAIN, Order, Reply, TrainReply
from fedpeft.server.handshake import SLACK
from fedpeft.server.job_run import JobRun, ServerPlace
from fedpeft.server.rounds import Read
from fedpeft.server.run_recorder import RunRecorder
from fedpeft.site import fork_server

POLL_SECONDS = 0.1
TRIMMED_EVERY = 16 * MB
REPLIES = "replies"  # the temporary folder of those that are on disk
SILENCE = {
    HELLO: "site {site} did not answer within {timeout} s: is it connected, and is fedpeft installed there? Where many "
    "sites take turns, raise federation.hello_timeout.",
    SCORE: "site {site} sent no scores in round {round}: look at its log, or raise federation.round_timeout "
    "({timeout} s).",
    TRAIN: "site {site} sent no usable reply in round {round}: look at its log, or raise federation.round_timeout "
    "({timeout} s).",
}
CUT_OFF = (
    "site {site} sent no usable reply in round {round} within {grace} s of the others: look at its log, or raise "
    "federation.grace."
)
R = TypeVar("R", bound=Reply)


class _EachOnce(list):
    """The client tasks that FLARE has handed out, each listed once.

    A restarted site that asks for its task again gets the same one. While other sites' tasks are open, FLARE would list
    it a second time and fail to drop it twice; then its monitor ends, and no task or timeout of the job ends any more.
    """

    def append(self, one: ClientTask) -> None:
        """Add a client task that is not listed yet."""
        if one not in self:
            super().append(one)


class FederationController(ModelController):
    """Runs a job: a handshake in round 0, then `training.rounds` rounds, then the completion manifest.

    Settings are checked when the run starts, not in this constructor: FLARE's simulator hangs on a component that
    fails to construct, and ends with exit code 0.

    Args:
        job: the job's name, for tables and pictures.
        federation: see `FederationSettings`.
        method: see `MethodSettings`.
        training: see `TrainingSettings`.
        schedule: see `ScheduleSettings`.
        aggregator_id: id of a `ModelAggregator` component.
        persistor_id: id of the persistor component.
    """

    def __init__(
        self,
        job: str = "",
        federation: dict[str, Any] | None = None,
        method: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        schedule: dict[str, Any] | None = None,
        aggregator_id: str = "aggregator",
        persistor_id: str = "persistor",
    ) -> None:
        super().__init__(persistor_id=persistor_id, ignore_result_error=True, task_check_period=0.1)
        register_tensors()
        self._job = job
        self._sections = {"federation": federation, "method": method, "training": training, "schedule": schedule}
        self._aggregator_id = aggregator_id
        self._away_sites = AwaySites()
        self._tasks: dict[str, Task] = {}  # by site, of the request that is running
        self._reply_bytes = 0  # of the largest announced adapter
        self._untrimmed = 0  # bytes stored since memory was last given back
        self._large = False  # whether the adapters of this task are large together

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Report the job's progress on request, and note which sites leave or return.

        FLARE would keep the tensors of an order that a site does not fetch for the round's timeout, up to a day.
        Without that header it keeps them for `flare.tensor_min_download_timeout` after the last fetch.
        """
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.AFTER_TASK_DATA_FILTER:
            fl_ctx.get_prop(FLContextKey.TASK_DATA).set_header(ReservedHeaderKey.MSG_ROOT_TTL, None)
        report_progress(event_type, fl_ctx)
        self._away_sites.handle_event(event_type, fl_ctx)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the job; in the simulator lock the workspace and start a fork server for the sites first.

        The fork server lives as long as this process, so sites can start until its end.
        """
        try:
            take_workspace(fl_ctx)
        except FedpeftError as error:
            self.panic(str(error))
            return
        if is_simulated(fl_ctx):
            register_early()
            guard_connections()
            self._fork_server = fork_server.start()
        super().control_flow(abort_signal, fl_ctx)

    def run(self) -> None:
        """Run the whole job; an error is recorded in the manifest and reported to FLARE as a panic."""
        limit_log_records()
        context = self.fl_ctx
        _keep_sites_from_ending_the_job(context)
        place = ServerPlace(
            run=run_folder(context),
            lineages=lineages_folder(context),
            job_id=context.get_job_id(),
            submitter=submitter_of(context),
            lock_run=not is_simulated(context),  # the simulator has a lock on the workspace
        )
        try:
            with ExitStack() as opened:
                self._replies = self._folder_of_replies(place, opened)
                JobRun(self._job, self._sections, place, self).run()
        except FedpeftError as error:
            self.panic(str(error))

    def _folder_of_replies(self, place: ServerPlace, opened: ExitStack) -> Path:
        """Open the folder on the server's disk for replies; if it cannot be written, the manifest has the reason."""
        try:
            folder = opened.enter_context(temporary_folder(place.lineages, REPLIES))
            opened.enter_context(messages.downloads_into(folder))
        except FedpeftError as error:
            RunRecorder(place.run, job=self._job).fail(str(error))
            raise
        return folder

    def prepare(self, job: ServerJob) -> None:
        """Take the settings of the job."""
        self._federation, self._rounds = job.federation, job.training.rounds

    def track(self, name: str, folder: Path) -> RunTracking | None:
        """Begin a run at the tracker that the job names."""
        return start_tracking(name, self._job, folder, self.fl_ctx)

    def limit_replies(self, limit: Limit) -> None:
        """Refuse larger messages in this process from now on."""
        limit_messages(limit)
        self._reply_bytes = limit.size - SLACK

    def stored(self, state: Mapping[str, Tensor]) -> State:
        """Return the tensors as the server keeps them: on its disk where replies go there, else in memory."""
        if not self._is_large(len(self._federation.sites)):
            return in_memory(state)
        self._untrimmed += sum(tensor.nbytes for tensor in state.values())
        if self._untrimmed > TRIMMED_EVERY:
            self._trim()
        return on_disk(state, self._replies)

    def _trim(self) -> None:
        """Give freed memory back to the system: the allocator would keep it for each of many threads."""
        self._untrimmed = 0
        try_malloc_trim()

    def _is_large(self, replies: int) -> bool:
        return self._reply_bytes * replies > messages.MAX_IN_MEMORY

    def relays(self, *, seconds: float) -> CellRelays:
        """Return the relays of the job's sites, each of which may take so long for an answer."""
        engine = self.fl_ctx.get_engine()
        return CellRelays(engine.get_cell(), self._cell_of, self._clients, self.abort_signal, seconds)

    def _clients(self) -> list[str]:
        """Return the names of the job's sites, also of those that are away, and of others that this process knows."""
        there = (client.name for client in self.fl_ctx.get_engine().get_clients())
        return [*self._federation.sites, *there]

    def _cell_of(self, site: str) -> str:
        """Return the name with which a site has registered, a path through relays."""
        client = self.fl_ctx.get_engine().get_client_from_name(site)  # None: it is away
        return (client and client.get_fqcn()) or site

    def start_from(self, state: State) -> None:
        """Give the first global adapter to the aggregator.

        Raises:
            FedpeftError: the job has none.
        """
        self._aggregator = self.get_component(self._aggregator_id)
        if self._aggregator is None:
            raise FedpeftError(f"the job has no component {self._aggregator_id!r}: regenerate it with `fedpeft jobs`.")
        if state:
            self._aggregator.start_from(state)

    def integrate(self, replies: Mapping[str, TrainReply]) -> tuple[State, dict[str, Any]]:
        """Let the aggregator make one adapter of the replies."""
        self._aggregator.reset_stats()
        self._aggregator.store = self.stored
        for site, reply in replies.items():
            model = FLModel(params=reply.state, meta={"client_name": site, "samples": reply.samples})
            self._aggregator.accept_model(model)
        merged = self._aggregator.aggregate_model()
        return merged.params, merged.meta[REPORT]

    def keep(self, state: State) -> None:
        """Let the persistor store the global adapter of a round, and the aggregator continue from it."""
        self._aggregator.start_from(state)
        self.save_model(FLModel(params=state))

    def _process_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Note the declared kind of a reply before FLARE drops it."""
        note_kind(client_task.result)
        super()._process_result(client_task, fl_ctx)

    def broadcast(self, task: Task, fl_ctx: FLContext, targets: Any = None, **options: Any) -> None:
        """Hand a site's task to FLARE, and keep it: it ends if the site's reply is refused unread."""
        self._tasks[targets[0]] = task
        task.client_tasks = _EachOnce()
        if self._large:
            task._broadcast_data = task.data  # else FLARE keeps a copy of the global adapter for each site
        super().broadcast(task, fl_ctx, targets, **options)

    def collect(
        self, task: str, orders: Mapping[str, Order], read: Read[R], *, round: int, needed: int
    ) -> tuple[dict[str, R], dict[str, str]]:
        """Send each site its own order; wait for all replies, or for enough of them and the grace period.

        Sites that are away are not waited for; where that leaves too few, they have the grace period to return.
        """
        self._large = self._is_large(len(orders))
        to_disk = task == TRAIN and self._large
        with messages.offloaded(self.fl_ctx, self._replies) if to_disk else nullcontext():
            return self._collect(task, orders, read, round=round, needed=needed)

    def _collect(
        self, task: str, orders: Mapping[str, Order], read: Read[R], *, round: int, needed: int
    ) -> tuple[dict[str, R], dict[str, str]]:
        federation, kind = self._federation, TASKS[task].reply
        timeout = federation.round_timeout if round else federation.hello_timeout
        inbox: Inbox[R] = Inbox(lambda model, site: read(from_model(kind, model, sender=f"site {site}"), site))
        for site, order in orders.items():
            take_refusal(self._cell_of(site))  # of an earlier task
            model = to_model(order, round=round, rounds=self._rounds if round else None)
            self.send_model(task_name=task, data=model, targets=[site], timeout=timeout, callback=inbox.receive)
        cut_off = self._wait(inbox, orders, needed)
        if self.abort_signal.triggered:
            waiting = ", ".join(inbox.silent(orders)) or "none"
            raise FedpeftError(
                f"the job was aborted while the sites worked on {task!r}; without a reply: {waiting}. The server's log "
                f"says who or what aborted it."
            )
        self._end_refused_tasks(inbox, orders)
        accepted, problems = inbox.accepted, inbox.refused  # a reply that comes after this is too late
        problems |= {
            site: self._away(site)
            or (CUT_OFF if cut_off and round else SILENCE[task]).format(
                site=site, timeout=timeout, round=round, grace=self._federation.grace
            )
            for site in orders
            if site not in accepted and site not in problems
        }
        self._tasks = {}
        return {site: accepted[site] for site in orders if site in accepted}, problems

    def _wait(self, inbox: Inbox[Any], sites: Collection[str], needed: int) -> bool:
        """Wait for the replies to open tasks; end the tasks of sites that need not be waited for.

        Return whether some were ended because the others had been there for the period of grace.
        """
        since, cut_off = None, False
        while self.get_num_standing_tasks() and not self.abort_signal.triggered:
            time.sleep(POLL_SECONDS)
            if self._large:
                self._trim()
            self._end_refused_tasks(inbox, sites)
            silent = inbox.silent(sites)
            coming, enough = [site for site in silent if not self._away(site)], len(inbox.accepted) >= needed
            if silent and not coming and enough:
                self.cancel_all_tasks()
            elif enough or (silent and not coming):
                since = since or time.monotonic()
                if time.monotonic() - since > self._federation.grace:
                    cut_off = cut_off or enough
                    self.cancel_all_tasks()
            else:
                since = None  # a site has returned
        return cut_off

    def _end_refused_tasks(self, inbox: Inbox[Any], sites: Iterable[str]) -> None:
        """End the task of a site whose reply was refused unread: until then FLARE there sends the reply again."""
        for site in inbox.silent(sites):
            if refusal := take_refusal(self._cell_of(site)):
                inbox.refuse(site, f"site {site} sent {refusal}")
                if site in self._tasks:
                    self.cancel_task(self._tasks[site])

    def _away(self, site: str) -> str:
        """Return why a site is not waited for; empty: it is."""
        if reason := self._away_sites.reason(site):
            return f"site {site} is away: FLARE's process of this job ended there {reason}; its own log says more."
        if self.get_client_disconnect_time(site):
            return f"site {site} is away: it is disconnected, or FLARE's process of this job has ended there."
        if self.fl_ctx.get_engine().get_client_from_name(site) is None:
            return f"site {site} is away: it was not there when FLARE started this job."
        return ""


def _keep_sites_from_ending_the_job(fl_ctx: FLContext) -> None:
    """Switch off the return codes and the rule for lost sites by which one site would end the job in FLARE."""
    replace_function(WFCommServer, "_job_policy_violated", _ignore_policy)
    if runner := fl_ctx and fl_ctx.get_prop(FLContextKey.RUNNER):
        runner.ABORT_RETURN_CODES = ()


def _ignore_policy(policy: Callable, communicator: WFCommServer) -> bool:
    return False
