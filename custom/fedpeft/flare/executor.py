# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FLARE's executor at a site: answers the handshake and the orders to score and train.

While the site computes, it asks the server whether the result is still needed: FLARE asks only when there is one.
"""

from __future__ import annotations

import contextlib
import threading
import time
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
from fedpeft.core.locks import StateLock
from fedpeft.core.registry import only_plugins
from fedpeft.flare.folders import lineages_folder, run_folder, submitter_of
from fedpeft.flare.hardening.message_limits import limit_messages
from fedpeft.flare.policy import SIMULATED, policy_of
from fedpeft.job.site_policy import SitePolicy, keep_to
from fedpeft.protocol.fields import MAX_MB, MB, NOT_AT_RELAY, Limit
from fedpeft.site.connection import WORKER, Aborted, Failure
from fedpeft.site.supervisor import WorkerSupervisor

if TYPE_CHECKING:
    from fedpeft.protocol.types import Order
    from fedpeft.site.site_tasks import SitePlace


SECONDS_BETWEEN = 5.0
SECONDS_TO_ANSWER = 5.0


class TaskCheck:
    """Called repeatedly; returns True once the task is aborted here or canceled by the server.

    Without it a site whose training hangs or is too slow would miss every later round too.
    """

    def __init__(self, fl_ctx: FLContext, abort_signal: Signal) -> None:
        self._fl_ctx, self._signal = fl_ctx, abort_signal
        self._last = time.monotonic()
        self._gone = False

    def __call__(self) -> bool:
        """Check the signal at every call and the server every few seconds; without an answer the task continues."""
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


LARGER = "raise max_message_mb in local/fedpeft.json if the server's messages are so large."


class SiteExecutor(Executor):
    """Trains a site's adapters and head on its own data, in a separate process: that one may die, this one must not.

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
        self._sections = {"backbone": backbone, "method": method, "training": training}
        self._sections |= {"data": data, "schedule": schedule}
        self._supervisor = WorkerSupervisor(self._sections, module=self.worker)
        self._lock = StateLock()
        self._order: Order | None = None  # of the task that is running
        threading.Thread(target=_import_tensors, daemon=True).start()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start building the learner while FLARE still connects; end its process with the job."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.START_RUN:
            with contextlib.suppress(FedpeftError):  # raised again, and answered, with the first task
                self._opened(fl_ctx)
            _import_tensors()
        elif event_type == EventType.BEFORE_TASK_DATA_FILTER:
            self._fetch(fl_ctx)
        elif event_type == EventType.AFTER_TASK_RESULT_FILTER:
            self._hand_over(fl_ctx)
        elif event_type == EventType.END_RUN:
            self._supervisor.close()
            self._lock.release()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer one task; a problem is sent as a reply, so that the server can continue without this site."""
        from nvflare.app_common.utils.fl_model_utils import FLModelUtils

        from fedpeft.flare.messages import from_model, model_of, to_model
        from fedpeft.protocol.types import HELLO, TASKS
        from fedpeft.site.site_tasks import SiteTasks, problem_reply

        # if another component called this one, the reply would bypass the site's filters
        if task_name not in TASKS or fl_ctx.get_prop(FLContextKey.TASK_NAME) != task_name:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        if abort_signal.triggered:
            return make_reply(ReturnCode.TASK_ABORTED)
        self._order = None
        model = model_of(shareable)
        place = _place(fl_ctx)
        where = f"site {place.site}"
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
            startup = Path(fl_ctx.get_engine().get_workspace().get_startup_kit_dir()) if policy else None
            tasks = SiteTasks(self._sections, place, policy, request=request, lock=self._lock, startup=startup)
            self._order = from_model(TASKS[task_name].order, model)
            message, line = tasks.answer(task_name, self._order)
        except Aborted:
            line = f"{where}: {task_name} is aborted, its result is no longer needed"
            self.log_info(fl_ctx, line, fire_event=False)
            return make_reply(ReturnCode.TASK_ABORTED)
        except Exception as error:
            log = partial(self._log, fl_ctx=fl_ctx)
            message = problem_reply(task_name, model.current_round, error, place, log)
        else:
            if task_name == HELLO and policy is None:
                self.log_info(fl_ctx, f"{where}: {SIMULATED}", fire_event=False)
            if line:
                self.log_info(fl_ctx, f"{where}: {line}", fire_event=False)
        return FLModelUtils.to_shareable(to_model(message, round=model.current_round))

    def _fetch(self, fl_ctx: FLContext) -> None:
        """Before the site's filters, add the global adapter to an order that names a relay: the relay has it."""
        from fedpeft.flare.messages import from_model, model_of
        from fedpeft.flare.relay import fetch
        from fedpeft.protocol.types import TRAIN, TrainOrder

        if fl_ctx.get_prop(FLContextKey.TASK_NAME) != TRAIN:
            return
        shareable = fl_ctx.get_prop(FLContextKey.TASK_DATA)
        try:
            order = from_model(TrainOrder, model_of(shareable))
            if order.relay and not order.state:
                cell, signal = fl_ctx.get_engine().get_cell(), fl_ctx.get_run_abort_signal()
                ended = TaskCheck(fl_ctx, signal)
                shareable["DXO"]["data"] = fetch(cell, order.relay, order.round, signal, ended=ended)
        except Exception as error:  # the order lacks the adapter, and is refused
            self._is_fault(error, fl_ctx)

    def _hand_over(self, fl_ctx: FLContext) -> None:
        """After the site's filters, send the adapter of a reply to the relay that the order names.

        Where that fails the server gets a problem instead of the reply, which counts for nothing without the adapter.
        """
        from fedpeft.flare.messages import FIELDS, from_model, model_of
        from fedpeft.flare.relay import hand_over
        from fedpeft.protocol.types import TrainOrder, TrainReply, Upload, empty_reply, fields_of
        from fedpeft.site.site_tasks import note_problem

        order, self._order = self._order, None
        shareable = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
        if not isinstance(order, TrainOrder) or not order.relay or shareable.get_return_code() != ReturnCode.OK:
            return
        try:
            reply = from_model(TrainReply, model_of(shareable), sender="this site")
            if not reply.problem:
                upload = Upload(round=reply.round, state=reply.state)
                cell, signal = fl_ctx.get_engine().get_cell(), fl_ctx.get_run_abort_signal()
                hand_over(cell, order.relay, upload, signal, ended=TaskCheck(fl_ctx, signal))
        except Exception as error:
            failed = empty_reply(TrainReply, round=order.round, problem=NOT_AT_RELAY)
            shareable["DXO"]["meta"][FIELDS] = fields_of(failed)
            if self._is_fault(error, fl_ctx):
                note_problem(run_folder(fl_ctx), fl_ctx.get_identity_name(), str(error))
        finally:
            shareable["DXO"]["data"] = {}  # the server must never get it

    def _is_fault(self, error: Exception, fl_ctx: FLContext) -> bool:
        """Log why a relay gave or took no adapter; return whether that is a fault, and no consequence of an abort."""
        signal, where = fl_ctx.get_run_abort_signal(), f"site {fl_ctx.get_identity_name()}"
        if signal and signal.triggered:
            self.log_info(fl_ctx, f"{where}: the job was aborted before its relay answered", fire_event=False)
            return False
        self.log_error(fl_ctx, f"{where}: {error}", fire_event=False)
        return True

    def _opened(self, fl_ctx: FLContext) -> SitePolicy | None:
        """Read the site policy, keep to its plugins and message limit, and start building the learner with it."""
        policy = _read_site_policy(fl_ctx)
        limit_messages(Limit(int((policy.max_message_mb if policy else MAX_MB) * MB), LARGER))
        self._supervisor.open(fl_ctx.get_identity_name(), run_folder(fl_ctx), policy=policy)
        return policy

    def _log(self, text: str, failure: Failure, fl_ctx: FLContext) -> None:
        site = fl_ctx.get_identity_name()
        line = f"site {site}: {text}" + f"\n{failure.traceback}" * bool(failure.traceback)
        self.log_error(fl_ctx, line, fire_event=False)


def _read_site_policy(fl_ctx: FLContext) -> SitePolicy | None:
    """Read the site policy; from now on this process imports only the plugins that it lists, and none without it."""
    try:
        policy = policy_of(fl_ctx)
    except Exception:
        only_plugins({})
        raise
    keep_to(policy)
    return policy


def _place(fl_ctx: FLContext) -> SitePlace:
    from fedpeft.site.site_tasks import SitePlace

    return SitePlace(
        site=fl_ctx.get_identity_name(),
        run=run_folder(fl_ctx),
        lineages=lineages_folder(fl_ctx),
        job_id=fl_ctx.get_job_id(),
        submitter=submitter_of(fl_ctx),
    )


def _import_tensors() -> None:
    """Import torch, which takes seconds, while FLARE still connects."""
    from fedpeft.flare.messages import register_tensors

    register_tensors()
