# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Handle each task at a site: from the server's order to a request to the learner, and back to a reply."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

import fedpeft
from fedpeft.client.global_cache import apply_delta
from fedpeft.errors import FedpeftError
from fedpeft.flare.accepted import accept
from fedpeft.flare.messages import (
    HELLO,
    METRICS,
    SCORE,
    TRAIN,
    Hello,
    Introduction,
    ScoreOrder,
    ScoreReply,
    TrainOrder,
    TrainReply,
)
from fedpeft.flare.sum_member import SumMember
from fedpeft.privacy.released_metrics import first_of_round, first_scores_of_round, released_metrics
from fedpeft.privacy.site_policy import SitePolicy
from fedpeft.worker import training_process
from fedpeft.worker.supervisor import Answer, RequestFailed

Request = Callable[..., Answer]
Order = Hello | ScoreOrder | TrainOrder
FolderOf = Callable[[Order], Path]
MemberOf = Callable[[], SumMember]
HEAD, BLOCKED = "head.", "reply-blocked"
Reply = Introduction | ScoreReply | TrainReply


@dataclass(frozen=True, kw_only=True)
class SiteContext:
    """What a task needs from its site.

    Args:
        request: sends a request to the learner and returns its answer.
        folder_of: checks an order and returns its state folder.
        member_of: returns the site's part in secure sums.
        policy: the site's own file; None in the simulator.
        run: the job's run folder.
    """

    request: Request
    folder_of: FolderOf
    member_of: MemberOf
    policy: SitePolicy | None
    run: Path


@dataclass(frozen=True, kw_only=True)
class SiteTask:
    """One kind of task.

    Args:
        work: function of the server's message and the site; returns the reply and a line for the site's log.
        excuse: function of the round and the failed request; returns a reply that reports the problem.
    """

    work: Callable[[FLModel, SiteContext], tuple[Reply, str]]
    excuse: Callable[[int, RequestFailed], Reply]


def read(shareable: Shareable) -> FLModel:
    """Read the server's message."""
    return FLModelUtils.from_shareable(shareable)


def write(reply: Reply, round: int) -> Shareable:
    """Convert a reply to FLARE's message."""
    return FLModelUtils.to_shareable(reply.to_model(round=round))


def allowed(reply: Reply, policy: SitePolicy | None) -> Reply:
    """Remove what the site's own file withholds from a reply.

    Raises:
        FedpeftError: it has a classifier's head, which may not leave.
    """
    if policy is None:
        return reply
    if isinstance(reply, TrainReply) and (policy.sum_with or not policy.metrics):
        reply = dataclasses.replace(reply, metrics=dict.fromkeys(METRICS))
    if not policy.head and any(key.startswith(HEAD) for key in getattr(reply, "state", {})):
        raise FedpeftError("the reply has a classifier's head, and head is off in this site's file.", code=BLOCKED)
    return reply


def _introduce(model: FLModel, site: SiteContext) -> tuple[Introduction, str]:
    hello, member = Hello.from_model(model), site.member_of()
    folder = site.folder_of(hello)
    request = {"do": training_process.INTRODUCE, "initial": hello.initial, "finished": hello.finished}
    answer = site.request({**request, "folder": str(folder)})
    values = dict(answer.values)
    unanswerable, questions = values.pop("unanswerable"), values["samples"]["test"]
    line = f"{unanswerable} of {questions} test answers are not in the training data; these questions count as wrong"
    key = member.offer(folder, job=hello.lineage, round=hello.finished + 1)
    introduction = Introduction(version=fedpeft.__version__, **values, sum_key=key, state=answer.state)
    accept(introduction, site.run)
    return introduction, line * bool(unanswerable)


def _no_introduction(_: int, failed: RequestFailed) -> Introduction:
    return Introduction(version=fedpeft.__version__, **_problem(failed))


def _score(model: FLModel, site: SiteContext) -> tuple[ScoreReply, str]:
    order = ScoreOrder.from_model(model)
    folder = site.folder_of(order)
    state = apply_delta(folder, order.state, base=order.base, version=order.version)
    answer = site.request({"do": training_process.SCORE, "folder": str(folder), "round": order.round}, state)
    scores = answer.values["scores"]
    if site.policy:
        scores = first_scores_of_round(scores, SCORE, order.round, site.run)
    reply = ScoreReply(round=order.round, scores=scores, seconds=answer.seconds, problem="")
    return reply, f"round {order.round}: scored {len(reply.scores)} layers"


def _no_scores(round: int, failed: RequestFailed) -> ScoreReply:
    return ScoreReply(round=round, scores=[], seconds=failed.seconds, **_problem(failed))


def _train(model: FLModel, site: SiteContext) -> tuple[TrainReply, str]:
    order, member = TrainOrder.from_model(model), site.member_of()
    folder = site.folder_of(order)
    state = apply_delta(folder, order.state, base=order.base, version=order.version)
    request = {"do": training_process.TRAIN, "round": order.round, "layers": order.layers, "scored": order.scored}
    answer = site.request({**request, "folder": str(folder)}, state)
    measured, samples = answer.values["metrics"], answer.values["samples"]
    metrics: dict[str, float | None] = {name: measured.get(name) for name in METRICS}
    scores = answer.values["scores"]
    if site.policy:
        scores = first_scores_of_round(scores, TRAIN, order.round, site.run)
        metrics = released_metrics(metrics, answer.values["questions"], least=site.policy.least_test_samples)
        metrics = first_of_round(metrics, order.round, site.run)
    sent = member.upload(answer.state, folder, order, samples=samples, received=state)
    reply = TrainReply(
        round=order.round,
        samples=samples,
        metrics=metrics,
        scores=scores,
        seconds=answer.seconds,
        problem="",
        attempts=answer.attempts,
        sum_key=member.offer(folder, job=order.lineage, round=order.round + 1),
        state=sent,
    )
    return reply, f"round {order.round}: training loss {measured['loss']:.3f}"


def _no_training(round: int, failed: RequestFailed) -> TrainReply:
    return TrainReply(
        round=round,
        samples=0,
        metrics=dict.fromkeys(METRICS),
        scores=[],
        seconds=failed.seconds,
        **_problem(failed),
        attempts=failed.attempts,
        state={},
    )


def _problem(failed: RequestFailed) -> dict[str, Any]:
    return {"problem": failed.failure.code, "setting": failed.failure.setting}


TASKS = {
    HELLO: SiteTask(work=_introduce, excuse=_no_introduction),
    SCORE: SiteTask(work=_score, excuse=_no_scores),
    TRAIN: SiteTask(work=_train, excuse=_no_training),
}
