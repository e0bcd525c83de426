# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Handle each task at a site: from the server's order to a request to the learner, and back to a reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fedpeft
from fedpeft.core.metrics import BELOW_CONSTANT, NO_BETTER
from fedpeft.job.site_policy import SitePolicy
from fedpeft.protocol.released_metrics import first_of_round, first_scores_of_round, released_metrics
from fedpeft.protocol.types import (
    HELLO,
    METRICS,
    SCORE,
    TRAIN,
    Hello,
    Introduction,
    Order,
    Reply,
    ScoreOrder,
    ScoreReply,
    TrainOrder,
    TrainReply,
)
from fedpeft.site import training_process
from fedpeft.site.orders import accept, apply_delta
from fedpeft.site.sum_member import SumMember
from fedpeft.site.supervisor import Answer

Request = Callable[..., Answer]
FolderOf = Callable[[Order], Path]
MemberOf = Callable[[], SumMember]


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


def _introduce(hello: Hello, site: SiteContext) -> tuple[Introduction, str]:
    member = site.member_of()
    folder = site.folder_of(hello)
    request = {"do": training_process.INTRODUCE, "initial": hello.initial, "finished": hello.finished}
    answer = site.request({**request, "folder": str(folder)})
    values = dict(answer.values)
    unanswerable, questions, facts = (values.pop(name) for name in ("unanswerable", "tested", "facts"))
    line = f"{unanswerable} of {questions} test answers are not in the training data; these questions count as wrong"
    facts = {"own": values["finished"], "data": facts}
    key = member.offer(folder, job=hello.lineage, round=hello.finished + 1, facts=facts)
    introduction = Introduction(version=fedpeft.__version__, **values, sum_key=key, state=answer.state)
    accept(introduction, site.run)
    return introduction, line * bool(unanswerable)


def _score(order: ScoreOrder, site: SiteContext) -> tuple[ScoreReply, str]:
    stacked, folder = site.member_of().method.rule.stacks, site.folder_of(order)
    state = apply_delta(folder, order.state, base=order.base, version=order.version, stacked=stacked)
    answer = site.request({"do": training_process.SCORE, "folder": str(folder), "round": order.round}, state)
    scores = answer.values["scores"]
    if site.policy:
        scores = first_scores_of_round(scores, SCORE, order.round, site.run)
    reply = ScoreReply(round=order.round, scores=scores, seconds=answer.seconds, problem="")
    return reply, f"round {order.round}: scored {len(reply.scores)} layers"


def _train(order: TrainOrder, site: SiteContext) -> tuple[TrainReply, str]:
    member = site.member_of()
    stacked, folder = member.method.rule.stacks, site.folder_of(order)
    state = apply_delta(folder, order.state, base=order.base, version=order.version, stacked=stacked)
    request = {"do": training_process.TRAIN, "round": order.round, "layers": order.layers, "scored": order.scored}
    salt = member.salt(folder, order, received=state)
    answer = site.request({**request, "part": order.part, "salt": salt, "folder": str(folder)}, state)
    facts = {"own": order.round, "data": answer.values["facts"]}
    measured, samples = answer.values["metrics"], answer.values["samples"]
    metrics: dict[str, float | None] = {name: measured.get(name) for name in METRICS}
    scores = answer.values["scores"]
    if site.policy:
        scores = first_scores_of_round(scores, TRAIN, order.round, site.run)
        metrics = released_metrics(
            metrics,
            answer.values["questions"],
            least=site.policy.least_test_samples,
            enough_validation=answer.values["validation"] >= site.policy.least_validation_samples,
        )
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
        sum_key=member.offer(folder, job=order.lineage, round=order.round + 1, facts=facts),
        state=sent,
    )
    stuck = f"; {NO_BETTER}" * (measured.get(BELOW_CONSTANT) == 1)
    return reply, f"round {order.round}: training loss {measured['loss']:.3f}{stuck}"


# functions of the server's message and the site; each returns the reply and a line for the site's log
WORK: dict[str, Callable[..., tuple[Reply, str]]] = {HELLO: _introduce, SCORE: _score, TRAIN: _train}
