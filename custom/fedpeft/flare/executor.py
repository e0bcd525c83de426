# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The site's side: answer the handshake, train when told to, never let anything but the adapter out."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedpeft.files import write_json
from fedpeft.flare.run_folder import run_folder
from fedpeft.flare.state_folder import lineages_folder, prune, state_folder
from fedpeft.flare.task_check import TaskCheck
from fedpeft.training.problem import Problem
from fedpeft.training.worker_process import WORKER, Aborted
from fedpeft.training.worker_trainer import Failed, Trainer

PROBLEM = "problem.json"


class SiteExecutor(Executor):
    """Trains one site's adapters and head on its own data, in a process of its own: that may die, this one must not.

    Settings are checked when a task arrives, not in this constructor: FLARE's simulator hangs on a component that fails
    to construct. A problem is told in full in the site's own log and `problem.json`; the server learns a code and the
    name of a setting. Log lines fire no event: a job could list a component of FLARE's that sends such events on.

    Args:
        backbone: see `fedpeft.backbones.BackboneSettings`.
        method: see `MethodSettings`.
        training: see `TrainingSettings`.
        data: see `fedpeft.data.DataSettings`; `sites` may hold settings of single sites.
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
        sections = {"backbone": backbone, "method": method, "training": training, "data": data, "schedule": schedule}
        self._trainer = Trainer(sections, module=self.worker)
        self._method = method
        threading.Thread(target=_import_tensors, daemon=True).start()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Build the learner while FLARE still connects; end its process with the job."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.START_RUN:
            self._trainer.open(fl_ctx.get_identity_name(), run_folder(fl_ctx))
            _import_tensors()
        elif event_type == EventType.END_RUN:
            self._trainer.close()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer one task; a problem comes back as a reply that says so: the server can go on without this site."""
        from fedpeft.flare.site_tasks import TASKS, read, write
        from fedpeft.flare.sum_member import SumMember

        # another component that calls this one would send the reply past the site's filters
        if task_name not in TASKS or fl_ctx.get_prop(FLContextKey.TASK_NAME) != task_name:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        task, model, folder = TASKS[task_name], read(shareable), run_folder(fl_ctx)
        self._trainer.open(fl_ctx.get_identity_name(), folder)
        ask = partial(
            self._trainer.ask,
            aborted=TaskCheck(fl_ctx, abort_signal),
            report=lambda problem: self._log(f"{problem.full}; trying again in a new process", problem, fl_ctx),
        )
        try:
            member_of = partial(SumMember.of, fl_ctx, self._method, ())
            message, line = task.work(model, ask, partial(_state_of, fl_ctx), member_of)
        except Aborted:
            self.log_info(fl_ctx, f"{task_name}: nobody waits for the result any more", fire_event=False)
            return make_reply(ReturnCode.TASK_ABORTED)
        except Exception as error:
            failed = error if isinstance(error, Failed) else Failed(Problem.of(error))
            self._log(failed.problem.full, failed.problem, fl_ctx)
            write_json(folder / PROBLEM, {"site": fl_ctx.get_identity_name(), "problem": failed.problem.full})
            message = task.excuse(model.current_round, failed)
        else:
            if line:
                self.log_info(fl_ctx, line, fire_event=False)
        return write(message, model.current_round)

    def _log(self, text: str, problem: Problem, fl_ctx: FLContext) -> None:
        site = fl_ctx.get_identity_name()
        told = f"site {site}: {text}" + f"\n{problem.traceback}" * bool(problem.traceback)
        self.log_error(fl_ctx, told, fire_event=False)


def _state_of(fl_ctx: FLContext, lineage: str) -> Path:
    """Where the site's state of a lineage lies; those of old ones are dropped."""
    folder = state_folder(fl_ctx, lineage)
    prune(lineages_folder(fl_ctx), lineage)
    return folder


def _import_tensors() -> None:
    """Torch costs seconds: begin while FLARE still connects and mostly waits."""
    from fedpeft.flare.tensors import register_tensors

    register_tensors()
