# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FLARE's executor at a site: answers the handshake and the orders to score and train.

Check whether a task's result is still needed: FLARE itself asks the server only when there is a result.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedpeft.core.errors import FedpeftError
from fedpeft.core.lineages import prune
from fedpeft.core.locks import StateLock
from fedpeft.core.registry import only_plugins
from fedpeft.flare.folders import lineages_folder, note_problem, run_folder, state_folder, submitter_of
from fedpeft.flare.message_limits import limit_messages
from fedpeft.flare.policy import SIMULATED, policy_of
from fedpeft.job.site_policy import SitePolicy, keep_to
from fedpeft.protocol.fields import LARGEST_MB, MB, Limit
from fedpeft.site.connection import WORKER, Aborted
from fedpeft.site.frames import Failure
from fedpeft.site.kept_state import claim, make_room
from fedpeft.site.supervisor import RequestFailed, WorkerSupervisor

if TYPE_CHECKING:
    from fedpeft.job.site_job import SiteJob
    from fedpeft.protocol.types import Order
    from fedpeft.site.sum_member import SumMember


SECONDS_BETWEEN = 5.0
SECONDS_TO_ANSWER = 5.0


class TaskCheck:
    """A callable that returns True once the task is aborted here or canceled by the server; called repeatedly.

    Without it a site whose training hangs or is too slow would miss every later round too.
    """

    def __init__(self, fl_ctx: FLContext, abort_signal: Signal) -> None:
        self._fl_ctx, self._signal = fl_ctx, abort_signal
        self._last = time.monotonic()
        self._gone = False

    def __call__(self) -> bool:
        """Check the signal at every call and the server every few seconds; if it does not answer, the task goes on."""
        if time.monotonic() - self._last >= SECONDS_BETWEEN:
            self._gone = self._gone or self._server_gave_up()
            self._last = time.monotonic()
        return self._gone or self._signal.triggered

    def _server_gave_up(self) -> bool:
        runner, task = self._fl_ctx.get_prop(FLContextKey.RUNNER), self._fl_ctx.get_prop(FLContextKey.TASK_ID)
        if runner is None or not task:
            return False
        query = Shareable()
        query.set_header(ReservedKey.TASK_ID, task)
        answers = self._fl_ctx.get_engine().send_aux_request(
            targets=[runner.parent_target],
            topic=ReservedTopic.TASK_CHECK,
            request=query,
            timeout=SECONDS_TO_ANSWER,
            fl_ctx=self._fl_ctx,
            optional=True,
        )
        answer = (answers or {}).get(runner.parent_target)
        return isinstance(answer, Shareable) and answer.get_return_code() == ReturnCode.TASK_UNKNOWN


LARGER = "raise most_message_mb in local/fedpeft.json if the server's messages are so large."


class SiteExecutor(Executor):
    """Trains a site's adapters and head on its own data in a separate process, which may die; this one must not.

    Settings are checked when a task arrives, not in this constructor: FLARE's simulator hangs on a component that fails
    to construct. The full message of a problem is in the site's own log and `problem.json`; the server gets a code and
    the name of a setting. Log lines fire no event: a job could list a FLARE component that forwards such events.

    Args:
        backbone: see `fedpeft.backbones.BackboneSettings`.
        method: see `MethodSettings`.
        training: see `TrainingSettings`.
        data: see `fedpeft.data.DataSettings`; `sites` may have settings of single sites.
        schedule: see `ScheduleSettings`.
    """

    worker = WORKER

    def __init__(
        self,
        backbone: dict[str, Any] | None = None,
        method: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
        schedule: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._sections = {
            "backbone": backbone,
            "method": method,
            "training": training,
            "data": data,
            "schedule": schedule,
        }
        self._supervisor = WorkerSupervisor(self._sections, module=self.worker)
        self._lock = StateLock()
        threading.Thread(target=_import_tensors, daemon=True).start()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start building the learner while FLARE still connects; end its process with the job."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.START_RUN:
            with contextlib.suppress(FedpeftError):  # raised again, and answered, with the first task
                self._opened(fl_ctx)
            _import_tensors()
        elif event_type == EventType.END_RUN:
            self._supervisor.close()
            self._lock.release()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer one task; a problem is sent as a reply, so that the server can continue without this site."""
        from nvflare.app_common.utils.fl_model_utils import FLModelUtils

        from fedpeft.flare.messages import from_model, model_of, to_model
        from fedpeft.job.site_job import SiteJob
        from fedpeft.protocol.reply_policy import allowed
        from fedpeft.protocol.site_check import admitted
        from fedpeft.protocol.types import HELLO, TASKS, empty_reply
        from fedpeft.site.site_tasks import WORK, SiteContext

        # if another component called this one, the reply would bypass the site's filters
        if task_name not in TASKS or fl_ctx.get_prop(FLContextKey.TASK_NAME) != task_name:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        task, model, folder = TASKS[task_name], model_of(shareable), run_folder(fl_ctx)
        where = f"site {fl_ctx.get_identity_name()}"
        request = partial(
            self._supervisor.request,
            aborted=TaskCheck(fl_ctx, abort_signal),
            report=lambda failure: self._log(f"{failure.detail}; trying again in a new process", failure, fl_ctx),
            progress=lambda line: self.log_info(
                fl_ctx, f"{where}: round {model.current_round}: {line}", fire_event=False
            ),
        )
        try:
            policy = self._opened(fl_ctx)
            job = SiteJob.from_sections(self._sections, site=fl_ctx.get_identity_name(), policy=policy)
            if policy:
                admitted(policy, job)  # the training process checks too; here before anything is stored for the job
            site = SiteContext(
                request=request,
                folder_of=partial(_state_of, fl_ctx, job, policy, self._lock),
                member_of=partial(_member_of, fl_ctx, job, policy, self._sections),
                policy=policy,
                run=folder,
            )
            message, line = WORK[task_name](from_model(task.order, model), site)
            message = allowed(message, policy)
        except Aborted:
            self.log_info(
                fl_ctx,
                f"{where}: {task_name} is aborted, its result is no longer needed",
                fire_event=False,
            )
            return make_reply(ReturnCode.TASK_ABORTED)
        except Exception as error:
            failed = error if isinstance(error, RequestFailed) else RequestFailed(Failure.of(error))
            self._log(failed.failure.detail, failed.failure, fl_ctx)
            note_problem(folder, fl_ctx.get_identity_name(), failed.failure.detail)
            message = empty_reply(
                task.reply,
                round=model.current_round,
                problem=failed.failure.code,
                setting=failed.failure.setting,
                seconds=failed.seconds,
                attempts=failed.attempts,
            )
        else:
            if task_name == HELLO and policy is None:
                self.log_info(fl_ctx, f"{where}: {SIMULATED}", fire_event=False)
            if line:
                self.log_info(fl_ctx, f"{where}: {line}", fire_event=False)
        return FLModelUtils.to_shareable(to_model(message, round=model.current_round))

    def _opened(self, fl_ctx: FLContext) -> SitePolicy | None:
        """Read the site's policy, keep to its plugins, and start building the learner with it."""
        policy = _own_file(fl_ctx)
        limit_messages(Limit(int((policy.most_message_mb if policy else LARGEST_MB) * MB), LARGER))
        self._supervisor.open(fl_ctx.get_identity_name(), run_folder(fl_ctx), policy=policy)
        return policy

    def _log(self, text: str, failure: Failure, fl_ctx: FLContext) -> None:
        site = fl_ctx.get_identity_name()
        line = f"site {site}: {text}" + f"\n{failure.traceback}" * bool(failure.traceback)
        self.log_error(fl_ctx, line, fire_event=False)


def _own_file(fl_ctx: FLContext) -> SitePolicy | None:
    """The site's policy; from now on this process imports no plugin that it does not list, and none without it."""
    try:
        policy = policy_of(fl_ctx)
    except Exception:
        only_plugins({})
        raise
    keep_to(policy)
    return policy


def _state_of(fl_ctx: FLContext, job: SiteJob, policy: SitePolicy | None, lock: StateLock, order: Order) -> Path:
    """Check an order, claim the state of its lineage for the job, and return the state folder."""
    from fedpeft.protocol.types import Hello
    from fedpeft.site.orders import check_accepted, check_order, note_order

    check_order(order, job)
    folder, lineages, run = state_folder(fl_ctx, order.lineage), lineages_folder(fl_ctx), run_folder(fl_ctx)
    needed = 0
    if not isinstance(order, Hello):
        check_accepted(order, run, any_width=bool(job.method.site_settings), stacked=job.method.rule.stacks)
        needed = sum(tensor.nbytes for tensor in order.state.values())
    note_order(order, run)
    if policy is None:
        prune(lineages, order.lineage)
    else:
        make_room(lineages, order.lineage, days=policy.kept_days, gib=policy.kept_gib, needed=needed)
    claim(folder, _lasting(job), fl_ctx.get_job_id(), submitter=submitter_of(fl_ctx))
    if policy is not None:  # the simulator has several processes, one after another, and its own lock
        lock.take(folder, fl_ctx.get_job_id())
    return folder


def _member_of(fl_ctx: FLContext, job: SiteJob, policy: SitePolicy | None, sections: dict[str, Any]) -> SumMember:
    """The site's part in the job's secure sums."""
    from fedpeft.site.sum_member import SumMember

    startup = Path(fl_ctx.get_engine().get_workspace().get_startup_kit_dir()) if policy else None
    return SumMember.of(
        fl_ctx.get_identity_name(),
        job.method,
        policy,
        sections,
        job=fl_ctx.get_job_id(),
        startup=startup,
    )


def _lasting(job: SiteJob) -> dict[str, Any]:
    """The settings that jobs with the same state must share; not the data folder, which may have moved."""
    from fedpeft.job.site_job import SECTIONS

    sections = {name: asdict(getattr(job, name)) for name in SECTIONS}
    return {**sections, "data": {name: value for name, value in sections["data"].items() if name != "root"}}


def _import_tensors() -> None:
    """Import torch, which takes seconds, while FLARE still connects."""
    from fedpeft.flare.messages import register_tensors

    register_tensors()
