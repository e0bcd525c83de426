# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FLARE's controller of a job: handshake, then rounds of training, checking, integrating and recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController

import fedpeft
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import layers_of
from fedpeft.core.locks import StateLock
from fedpeft.core.states import of_keys
from fedpeft.flare.aggregator import REPORT
from fedpeft.flare.folders import (
    is_simulated,
    lineages_folder,
    prune,
    run_folder,
    state_folder,
    submitter_of,
    take_workspace,
)
from fedpeft.flare.function_guard import replace_function
from fedpeft.flare.inbox import Inbox
from fedpeft.flare.job_store import report_progress
from fedpeft.flare.message_limits import limit_messages, take_refusal
from fedpeft.flare.messages import from_model, note_kind, register_early, register_tensors, to_model
from fedpeft.flare.request_guards import guard_local_connections
from fedpeft.flare.returning_sites import AwaySites
from fedpeft.flare.tracking import start_tracking
from fedpeft.job.federation import LATEST
from fedpeft.job.settings import ServerJob
from fedpeft.protocol.reply_contract import check_introduction, check_score_reply, check_train_reply
from fedpeft.protocol.types import (
    HELLO,
    SCORE,
    TRAIN,
    Hello,
    Introduction,
    ScoreOrder,
    ScoreReply,
    TrainOrder,
    TrainReply,
)
from fedpeft.server import checkpoint, first_adapter, handshake
from fedpeft.server.aggregation import State, check_global, parts_of
from fedpeft.server.broadcast import DeltaBroadcast, StackedBroadcast
from fedpeft.server.checkpoint import Checkpoint
from fedpeft.server.export import export_adapter, export_head, import_peft
from fedpeft.server.first_adapter import Sender
from fedpeft.server.planner import Assignment, RoundPlanner
from fedpeft.server.run_recorder import RunRecorder
from fedpeft.server.update_check import UpdateCheck
from fedpeft.site import fork_server

ADAPTER, HEAD = "adapter", "head.safetensors"
POLL_SECONDS = 0.1
SILENCE = {
    HELLO: "site {site} did not answer within {timeout} s: is it connected, and is fedpeft installed there? Where many "
    "sites take turns, raise federation.hello_timeout.",
    SCORE: "site {site} sent no scores in round {round}: look at its log.",
    TRAIN: "site {site} sent no usable reply in round {round}: look at its log, or raise federation.round_timeout "
    "({timeout} s).",
}
R = TypeVar("R")


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
        self._lock = StateLock()
        self._away_sites = AwaySites()
        self._tasks: dict[str, Task] = {}  # by site, of the request that is running

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Report the job's progress on request, and note which sites are away or return."""
        super().handle_event(event_type, fl_ctx)
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
            guard_local_connections()
            self._fork_server = fork_server.start()
        super().control_flow(abort_signal, fl_ctx)

    def run(self) -> None:
        """Run the whole job; an error is recorded in the manifest and reported to FLARE as a panic."""
        recorder = RunRecorder(run_folder(self.fl_ctx), job=self._job)
        try:
            if not is_simulated(self.fl_ctx):  # where the lock of the workspace says whether the run lives
                self._lock.take(recorder.folder, self.fl_ctx.get_job_id())
            _no_site_ends_the_job(self.fl_ctx)
            job = ServerJob.from_sections(self._sections)
            self._federation, self._method = job.federation, job.method
            self._training, self._schedule = job.training, job.schedule
            tracker = self._federation.tracking
            recorder.tracking = start_tracking(tracker, self._job, recorder.folder, self.fl_ctx)
            importing = import_peft()
            before = self._checkpoint()
            self._lineage = before.lineage if before else checkpoint.new_lineage(self._job, self._submitter)
            prune(lineages_folder(self.fl_ctx), self._lineage)
            self._importing = importing
            if self._method.site_settings:
                importing.join()  # the method's code says which widths the sites may announce; see below
            introductions = self._handshake(recorder, before)
            state = self._rounds(recorder, introductions, before)
            export_head(recorder.folder / HEAD, state)
            if state and self._method.exported:
                first = next(iter(introductions.values()))
                importing.join()  # two threads that import the same modules may meet half-way
                export_adapter(recorder.folder / ADAPTER, state, self._method, family=first.family, slots=first.slots)
            lines = recorder.complete()
        except FedpeftError as error:
            recorder.fail(str(error))
            self.panic(str(error))
            return
        except Exception as error:
            recorder.fail(f"{type(error).__name__} on the server: {error}; its log has the traceback.")
            raise
        finally:
            self._lock.release()
        for line in lines:
            self.info(line)

    def _process_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Note the declared kind of a reply before FLARE drops it."""
        note_kind(client_task.result)
        super()._process_result(client_task, fl_ctx)

    def _checkpoint(self) -> Checkpoint | None:
        """The checkpoint to resume from, if the job names one; from then on no other job can use its lineage."""
        load = partial(
            checkpoint.to_resume,
            lineages_folder(self.fl_ctx),
            job=self._job,
            submitter=self._submitter,
            settings=self._lasting,
            rounds=self._training.rounds,
        )
        name = self._federation.resume_from
        before = load(name)
        if before is None:
            return None
        self._lock_lineage(before.lineage)
        return load(before.lineage if name == LATEST else name)  # the job that held it may have gone on

    def _lock_lineage(self, lineage: str) -> Path:
        folder = state_folder(self.fl_ctx, lineage)
        self._lock.take(folder, self.fl_ctx.get_job_id())
        return folder

    @property
    def _submitter(self) -> str:
        return submitter_of(self.fl_ctx)

    @property
    def _lasting(self) -> dict[str, Any]:
        return checkpoint.lasting(self._method, self._training, self._schedule)

    def _handshake(self, recorder: RunRecorder, before: Checkpoint | None) -> dict[str, Introduction]:
        """Request every site's introduction; return those that can take part, or raise an error with the reasons."""
        sites, needed = self._federation.sites, self._federation.needed
        finished = before.round if before else 0
        fresh = first_adapter.is_needed(self._method, self._schedule) and not before
        limit_messages(handshake.INTRODUCTION)
        able, problems = self._introduce(sites, finished)
        introductions, others = handshake.agree(able, version=fedpeft.__version__, method=self._method)
        problems |= others
        _enough("the handshake", introductions, needed, problems)
        most_mb, masked = self._federation.largest_reply_mb, self._method.secure_sum
        sending = introductions.values() if self._method.exchanges else ()
        limit_messages(handshake.limit_of_replies(sending, most_mb=most_mb, masked=masked))
        while fresh:
            sender = self._sender(introductions, problems)
            again, others = self._introduce([sender.site], finished, sender, introductions[sender.site])
            introductions = {site: again.get(site, i) for site, i in introductions.items() if site not in others}
            problems |= others
            _enough("the handshake", introductions, needed, problems)
            fresh = sender.site not in introductions
            if not fresh:
                recorder.start(sender)
                for difference in sender.differing.values():
                    self.warning(difference)
        for site, problem in problems.items():
            self.warning(f"site {site} does not take part: {problem}")
        done = before.history["rounds"] if before else []
        behind = {
            site: introduction.finished
            for site, introduction in introductions.items()
            if any(entry["round"] > introduction.finished for entry in done if site in entry["sites"])
        }
        for site, own in behind.items():
            self.warning(
                f"site {site} resumes after round {finished} with its own state of round {own}: its part differs from "
                f"that of an uninterrupted job"
            )
        recorder.lineage(self._lineage, before, behind)
        recorder.begin(self._method, self._training, introductions, problems, self._schedule)
        return introductions

    def _sender(self, introductions: dict[str, Introduction], problems: dict[str, str]) -> Sender:
        """The site whose first adapter all sites get, now that its size is announced."""
        announced = {site: (i.schema, i.start_digest) for site, i in introductions.items()}
        sender = first_adapter.sender(announced, self._method, joins=self._schedule.joins, problems=problems)
        if not sender.digest:
            self._importing.join()  # the method's code says what it can begin with
        return sender

    def _introduce(
        self,
        sites: Sequence[str],
        finished: int,
        sender: Sender | None = None,
        announced: Introduction | None = None,
    ) -> tuple[dict[str, Introduction], dict[str, str]]:
        """Introductions by site, and the reasons why others have none.

        Args:
            sites: that introduce themselves.
            finished: rounds that are finished already.
            sender: the one of them that sends its first adapter; None: nobody does.
            announced: the introduction that it sent without; nothing else of it changes but its key for secure sums.
        """
        initial, answering = sender is not None, self._training.answering
        hello = Hello(version=fedpeft.__version__, initial=initial, lineage=self._lineage, finished=finished)
        models = {site: to_model(hello, round=0) for site in sites}
        most = self._federation.max_samples

        def read(model: FLModel, site: str) -> Introduction:
            introduction = from_model(Introduction, model, sender=f"site {site}")
            check_introduction(introduction, site=site, initial=initial, most_samples=most)
            if sender is None or announced is None:
                return introduction
            first_adapter.check(introduction.state, sender, announced, self._method, answering=answering)
            return replace(announced, state=introduction.state, sum_key=introduction.sum_key)

        return self._request(HELLO, models, read, round=0, timeout=self._federation.hello_timeout, needed=len(models))

    def _rounds(
        self, recorder: RunRecorder, introductions: dict[str, Introduction], before: Checkpoint | None
    ) -> State:
        """Run the remaining rounds; return the final global adapter, empty if nothing is exchanged."""
        aggregator = self.get_component(self._aggregator_id)
        if aggregator is None:
            raise FedpeftError(f"the job has no component {self._aggregator_id!r}: regenerate it with `fedpeft jobs`.")
        rounds = self._training.rounds
        first = next((i for i in introductions.values() if i.state), None)
        broadcast = StackedBroadcast if self._method.rule.stacks else DeltaBroadcast
        current = broadcast(before.state if before else first.state if first else {})
        if current.state:
            aggregator.start_from(current.state)
        planner = RoundPlanner(
            self._schedule,
            budgets={site: introduction.budget for site, introduction in introductions.items()},
            layers=layers_of(next(iter(introductions.values())).schema),
            seed=self._training.seed,
            scores=before.scores if before else None,
        )
        sum_keys = {site: i.sum_key for site, i in introductions.items()} if self._method.secure_sum else {}
        last = before.history["rounds"][-1]["sites"] if before else {}  # a site of it may be away now
        averaged = {site: entry["samples"] for site, entry in last.items()}
        past = {"own": before.own, "median": before.median, "excess": before.excess} if before else {}
        check = UpdateCheck(self._method, self._training, self._schedule, **past)
        for number in range(before.round + 1 if before else 1, rounds + 1):
            began = time.monotonic()
            sites, rejected = planner.participants(number), {}
            needed = max(1, min(self._federation.needed, len(sites)))
            if self._schedule.scored:
                due = {site: introductions[site] for site in planner.due(number, sites)}
                rejected = self._score(number, due, current, planner, needed=max(0, needed - len(sites) + len(due)))
                sites = [site for site in sites if site not in rejected]
                _enough(f"scoring in round {number}", sites, needed, rejected)
            assignment = planner.assignment(number, sites)
            parts = parts_of(averaged, self._method)
            orders = {
                site: self._order(
                    number,
                    site,
                    current,
                    assignment,
                    sum_keys,
                    keys=introductions[site].schema,
                    begins=planner.begins(number, site),
                    part=parts.get(site, 0.0),
                )
                for site in sites
            }
            timeout = self._federation.round_timeout
            models = {site: to_model(order, round=number, rounds=rounds) for site, order in orders.items()}
            read = partial(self._read_training, orders, introductions)
            accepted, refused = self._request(TRAIN, models, read, round=number, timeout=timeout, needed=needed)
            sent = {site: reply.state for site, reply in accepted.items()}
            announced = {site: introductions[site].samples["train"] for site in sent}
            refused |= check.outlying(sent, current.state, announced, number)
            accepted = {site: reply for site, reply in accepted.items() if site not in refused}
            rejected |= refused
            averaged = {site: reply.samples for site, reply in accepted.items()}
            current.confirm({site: site in accepted for site in orders})
            _enough(f"round {number}", accepted, needed, rejected)
            planner.scores |= {site: reply.scores for site, reply in accepted.items() if reply.scores}
            sum_keys = {site: reply.sum_key for site, reply in accepted.items()} if sum_keys else {}
            report: dict[str, Any] = {}
            exchanges = self._method.exchanges
            if exchanges:
                state, report = self._integrate(aggregator, accepted)
                check.accept({site: sent[site] for site in accepted})
                self.save_model(FLModel(params=state))
                current.update(state)
            keep = partial(self._keep, recorder, number, current.state if exchanges else {}, planner, check)
            seconds = time.monotonic() - began
            recorder.add_round(number, accepted, rejected, report, assignment, seconds=seconds, keep=keep)
            for site, reason in rejected.items():
                self.warning(f"round {number}: {reason} (site {site} is left out of this round)")
            self.info(recorder.progress(number, rounds))
            if best := recorder.ends_early(self._training.patience):
                self.info(f"ended early: no round since round {best} was better on the validation splits")
                break
        return current.state if self._method.exchanges else {}

    def _order(
        self,
        number: int,
        site: str,
        current: DeltaBroadcast,
        assignment: Assignment | None,
        sum_keys: dict[str, dict[str, list[str]]],
        *,
        keys: Collection[str],
        begins: bool,
        part: float,
    ) -> TrainOrder:
        changes = assignment or self._method.rule.stacks
        state = {} if begins else current.payload(site) if changes else current.state
        return TrainOrder(
            lineage=self._lineage,
            round=number,
            base=current.base(site) if changes else 0,
            version=current.version if changes else 0,
            layers=assignment.layers[site] if assignment else None,
            scored=self._schedule.scored and self._schedule.scoring == "with_reply",
            part=part,
            sum_keys=sum_keys,
            state=of_keys(state, keys),
        )

    def _score(
        self,
        number: int,
        due: dict[str, Introduction],
        current: DeltaBroadcast,
        planner: RoundPlanner,
        *,
        needed: int,
    ) -> dict[str, str]:
        """Request new layer scores; return, by site, the reason why there are none."""
        orders = {}
        for site in due:
            order = ScoreOrder(
                lineage=self._lineage,
                round=number,
                base=current.base(site),
                version=current.version,
                state=current.payload(site),
            )
            orders[site] = to_model(order, round=number, rounds=self._training.rounds)

        def read(model: FLModel, site: str) -> ScoreReply:
            reply = from_model(ScoreReply, model, sender=f"site {site}")
            check_score_reply(reply, site=site, round=number, schema=due[site].schema)
            return reply

        timeout = self._federation.round_timeout
        replies, problems = self._request(SCORE, orders, read, round=number, timeout=timeout, needed=needed)
        planner.scores |= {site: reply.scores for site, reply in replies.items()}
        current.confirm({site: site in replies for site in due})
        return problems

    def _read_training(
        self, orders: dict[str, TrainOrder], introductions: dict[str, Introduction], model: FLModel, site: str
    ) -> TrainReply:
        reply = from_model(TrainReply, model, sender=f"site {site}")
        introduction = introductions[site]
        check_train_reply(
            reply,
            site=site,
            order=orders[site],
            schema=introduction.schema if self._method.exchanges else {},
            dtype=introduction.dtype,
            samples=introduction.samples["train"],
        )
        return reply

    def broadcast(self, task: Task, fl_ctx: FLContext, targets: Any = None, **options: Any) -> None:
        """Hand a site's task to FLARE, and keep it: it ends if the site's reply is refused unread."""
        self._tasks[targets[0]] = task
        super().broadcast(task, fl_ctx, targets, **options)

    def _request(
        self,
        task: str,
        orders: dict[str, FLModel],
        read: Callable[[FLModel, str], R],
        *,
        round: int,
        timeout: int,
        needed: int,
    ) -> tuple[dict[str, R], dict[str, str]]:
        """Send each site its own order; wait for all replies, or for enough of them and the grace period.

        No site that is away is waited for; where that leaves too few, it has the grace period to return.

        Args:
            task: name of the task.
            orders: by site.
            read: see `Inbox`.
            round: for errors.
            timeout: seconds for the sites to reply.
            needed: number of accepted replies that is enough.

        Returns:
            Checked replies by site, and by site the reason why there is none.
        """
        inbox = Inbox(read)
        for site, model in orders.items():
            take_refusal(site)  # of an earlier task
            self.send_model(task_name=task, data=model, targets=[site], timeout=timeout, callback=inbox.receive)
        since = None
        while self.get_num_standing_tasks() and not self.abort_signal.triggered:
            time.sleep(POLL_SECONDS)
            self._end_refused_tasks(inbox, orders)
            silent = inbox.silent(orders)
            coming, enough = [site for site in silent if not self._away(site)], len(inbox.accepted) >= needed
            if silent and not coming and enough:
                self.cancel_all_tasks()
            elif enough or (silent and not coming):
                since = since or time.monotonic()
                if time.monotonic() - since > self._federation.grace:
                    self.cancel_all_tasks()
            else:
                since = None  # a site has returned
        accepted, silent = inbox.accepted, inbox.silent(orders)
        if self.abort_signal.triggered:
            waiting = ", ".join(silent) or "none"
            raise FedpeftError(
                f"the job was aborted while the sites worked on {task!r}; without a reply: {waiting}. The server's log "
                f"says who or what aborted it."
            )
        self._end_refused_tasks(inbox, orders)
        problems = inbox.refused | {
            site: self._away(site) or SILENCE[task].format(site=site, timeout=timeout, round=round)
            for site in inbox.silent(orders)
        }
        self._tasks = {}
        return {site: accepted[site] for site in orders if site in accepted}, problems

    def _end_refused_tasks(self, inbox: Inbox[Any], sites: Iterable[str]) -> None:
        """End the task of a site whose reply was refused unread: until then FLARE there sends the reply again."""
        for site in inbox.silent(sites):
            if refusal := take_refusal(site):
                inbox.refuse(site, f"site {site} sent {refusal}")
                if site in self._tasks:
                    self.cancel_task(self._tasks[site])

    def _away(self, site: str) -> str:
        """Why no reply of a site is waited for; empty: it is."""
        if reason := self._away_sites.reason(site):
            return f"site {site} is away: FLARE's process of this job ended there {reason}; its own log says more."
        if self.get_client_disconnect_time(site):
            return f"site {site} is away: it is disconnected, or FLARE's process of this job has ended there."
        return ""

    def _keep(
        self, recorder: RunRecorder, number: int, state: State, planner: RoundPlanner, check: UpdateCheck
    ) -> None:
        """Write the checkpoint of a finished round."""
        finished = Checkpoint(
            job=self._job,
            submitter=self._submitter,
            lineage=self._lineage,
            round=number,
            state=state,
            scores=planner.scores,
            settings=self._lasting,
            history=recorder.history,
            own=check.own,
            median=check.median,
            excess=check.excess,
        )
        checkpoint.save(self._lock_lineage(self._lineage), finished, keep=self._federation.checkpoints)

    def _integrate(self, aggregator: Any, accepted: dict[str, TrainReply]) -> tuple[State, dict[str, Any]]:
        aggregator.reset_stats()
        for site, reply in accepted.items():
            aggregator.accept_model(FLModel(params=reply.state, meta={"client_name": site, "samples": reply.samples}))
        merged = aggregator.aggregate_model()
        check_global(merged.params)
        return merged.params, merged.meta[REPORT]


def _enough(when: str, valid: Sequence[str] | dict[str, Any], needed: int, problems: dict[str, str]) -> None:
    """Raise an error if fewer sites than the quorum are left."""
    if len(valid) < needed:
        reasons = " ".join(problems[site].rstrip(".") + "." for site in sorted(problems))
        raise FedpeftError(f"{when} ended with too few valid replies ({len(valid)}, the quorum is {needed}): {reasons}")


def _no_site_ends_the_job(fl_ctx: FLContext) -> None:
    """Clear the three return codes of a single site, and the rule for lost sites, for which FLARE would end the job."""
    replace_function(WFCommServer, "_job_policy_violated", _quorum_decides)
    if runner := fl_ctx and fl_ctx.get_prop(FLContextKey.RUNNER):
        runner.ABORT_RETURN_CODES = ()


def _quorum_decides(policy: Callable) -> Callable:
    return lambda communicator: False
