# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The site's side: answer the handshake, train when told to, never let anything but the adapter out."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

import fedpeft
from fedpeft.data.errors import DataError
from fedpeft.errors import FedpeftError, LocalError
from fedpeft.files import write_json
from fedpeft.flare.controller import HELLO, SCORE, TRAIN
from fedpeft.flare.messages import METRICS, Hello, Introduction, ScoreOrder, ScoreReply, TrainOrder, TrainReply
from fedpeft.flare.run_folder import run_folder
from fedpeft.flare.state_folder import lineages_folder, prune, state_folder
from fedpeft.flare.tensors import register_tensors
from fedpeft.training import site_state
from fedpeft.training.received import complete

if TYPE_CHECKING:
    from fedpeft.training.learner import Learner

PROBLEM = "problem.json"


class SiteExecutor(Executor):
    """Trains one site's adapters and head on its own data.

    Settings are checked when a task arrives, not in this constructor: FLARE's simulator hangs on a component that fails
    to construct. A problem is told in full in the site's own log and `problem.json`; the server learns of it without
    any detail of the data.

    Args:
        backbone: see `fedpeft.backbones.BackboneSettings`.
        method: see `MethodSettings`.
        training: see `TrainingSettings`.
        data: see `fedpeft.data.DataSettings`; `sites` may hold settings of single sites.
        schedule: see `ScheduleSettings`.
    """

    def __init__(
        self,
        backbone: dict[str, Any] | None = None,
        method: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
        schedule: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        register_tensors()
        self._sections = {
            "backbone": backbone,
            "method": method,
            "training": training,
            "data": data,
            "schedule": schedule,
        }
        self._learner: Learner | None = None
        threading.Thread(target=_import_learner, daemon=True).start()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer one task; a problem comes back as a reply that says so: the server can go on without this site."""
        tasks = {HELLO: self._introduce, SCORE: self._score, TRAIN: self._train}
        if task_name not in tasks:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        model = FLModelUtils.from_shareable(shareable)
        return FLModelUtils.to_shareable(tasks[task_name](model, fl_ctx).to_model(round=model.current_round))

    def _introduce(self, model: Any, fl_ctx: FLContext) -> Introduction:
        try:
            hello = Hello.from_model(model)
            prune(lineages_folder(fl_ctx), hello.lineage)
            learner = self._ready(fl_ctx, hello.lineage)
            if learner.unanswerable:
                self.log_info(
                    fl_ctx,
                    f"{learner.unanswerable} of {len(learner.data.test)} test questions have an answer that training "
                    f"never saw; they count as wrong",
                )
            return _introduction(learner, hello)
        except Exception as error:
            return Introduction(version=fedpeft.__version__, problem=self._explain(error, fl_ctx))

    def _score(self, model: Any, fl_ctx: FLContext) -> ScoreReply:
        began = time.monotonic()
        try:
            order = ScoreOrder.from_model(model)
            learner = self._ready(fl_ctx, order.lineage)
            state = complete(learner.folder, order.state, base=order.base, version=order.version)
            scores, problem = learner.score_layers(order.round, state), ""
        except Exception as error:
            scores, problem = [], self._explain(error, fl_ctx)
        seconds = round(time.monotonic() - began, 3)
        return ScoreReply(round=model.current_round, scores=scores, seconds=seconds, problem=problem)

    def _train(self, model: Any, fl_ctx: FLContext) -> TrainReply:
        began, number = time.monotonic(), model.current_round
        try:
            order = TrainOrder.from_model(model)
            learner = self._ready(fl_ctx, order.lineage)
            state = complete(learner.folder, order.state, base=order.base, version=order.version)
            update = learner.train_round(order.round, state, order.layers)
            scores = learner.score_trained(order.round) if order.scored else []
            self.log_info(fl_ctx, f"round {order.round}: training loss {update.metrics['loss']:.3f}")
            return TrainReply(
                round=order.round,
                samples=update.samples,
                metrics={name: update.metrics.get(name) for name in METRICS},
                scores=scores,
                seconds=round(time.monotonic() - began, 3),
                problem="",
                state=update.state,
            )
        except Exception as error:
            return TrainReply(
                round=number,
                samples=0,
                metrics=dict.fromkeys(METRICS),
                scores=[],
                seconds=round(time.monotonic() - began, 3),
                problem=self._explain(error, fl_ctx),
                state={},
            )

    def _ready(self, fl_ctx: FLContext, lineage: str) -> Learner:
        folder = state_folder(fl_ctx, lineage)
        if self._learner is None or self._learner.folder != folder:
            from fedpeft.training.learner import Learner

            site = fl_ctx.get_identity_name()
            self._learner = Learner.from_sections(self._sections, site=site, folder=folder)
        return self._learner

    def _explain(self, error: Exception, fl_ctx: FLContext) -> str:
        """Tell the site in full what went wrong, and return what the server may know."""
        site = fl_ctx.get_identity_name()
        if isinstance(error, FedpeftError):
            full = str(error)
            told = _told(error)
            self.log_error(fl_ctx, f"site {site}: {full}")
        else:
            full = f"{type(error).__name__}: {error}"
            told = f"{type(error).__name__} in its training code; its own log has the traceback."
            self.log_exception(fl_ctx, f"site {site}: {full}")
        write_json(run_folder(fl_ctx) / PROBLEM, {"site": site, "problem": full})
        return told


def _introduction(learner: Learner, hello: Hello) -> Introduction:
    sent = learner.body.state() if learner.method.exchanges else {}
    return Introduction(
        version=fedpeft.__version__,
        schema={key: list(tensor.shape) for key, tensor in sent.items()},
        classes=len(learner.vocabulary),
        samples={split: len(examples) for split, examples in learner.data.splits().items()},
        dataset=learner.dataset,
        backbone=learner.backbone_name,
        family=learner.backbone.family,
        budget=learner.layer_budget(),
        finished=site_state.newest(learner.folder, most=hello.finished),
        state=sent if hello.initial else {},
    )


def _told(error: FedpeftError) -> str:
    """What the server may know of a problem."""
    if isinstance(error, DataError):
        return "its data cannot be used; its own log says why."
    if isinstance(error, LocalError):
        return "a file of its own cannot be used; its own log says why."
    return str(error)


def _import_learner() -> None:
    """Training's imports cost seconds: begin while FLARE still connects and mostly waits."""
    import fedpeft.training.learner  # noqa: F401
