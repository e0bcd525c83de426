# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What may leave a site: messages whose every field is known, asked for, and of the form it was announced in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from nvflare.apis.dxo import DataKind
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

import fedpeft
from fedpeft.errors import FedpeftError
from fedpeft.flare.announced import Announced, Order
from fedpeft.flare.messages import (
    FIELDS,
    METRICS,
    Hello,
    Introduction,
    ScoreOrder,
    ScoreReply,
    TrainOrder,
    TrainReply,
)
from fedpeft.flare.reply_contract import check_introduction, check_reply, check_score_reply, check_tensors
from fedpeft.keys import belongs, layers_of
from fedpeft.privacy.problem_codes import is_known
from fedpeft.worker.supervisor import ATTEMPTS

HEADERS = {ReservedHeaderKey.CONTENT_TYPE, AppConstants.START_ROUND, AppConstants.CURRENT_ROUND}
Reply = Introduction | ScoreReply | TrainReply
KNOWN = {
    Introduction: {
        "version",
        "schema",
        "classes",
        "samples",
        "dataset",
        "backbone",
        "family",
        "dtype",
        "budget",
        "finished",
        "problem",
        "setting",
        "sum_key",
        "state",
    },
    ScoreReply: {"round", "scores", "seconds", "problem", "setting"},
    TrainReply: {
        "round",
        "samples",
        "metrics",
        "scores",
        "seconds",
        "problem",
        "setting",
        "attempts",
        "sum_key",
        "state",
    },
}


def read(shareable: Shareable, kind: type[Reply]) -> Reply:
    """The message in a reply that FLARE is about to send, if there is nothing else in it.

    Args:
        shareable: as the executor returned it, before FLARE adds its own transport headers.
        kind: the message that answers the task.

    Raises:
        FedpeftError: naming what does not belong there.
    """
    _only("part", shareable, {ReservedHeaderKey.HEADERS, "DXO"})
    _only("header", shareable.get(ReservedHeaderKey.HEADERS) or {}, HEADERS)
    content = shareable.get("DXO")
    _only("part of the content", content if isinstance(content, Mapping) else {}, {"kind", "data", "meta"})
    if not isinstance(content, Mapping) or content.get("kind") != DataKind.WEIGHTS:
        found = content.get("kind") if isinstance(content, Mapping) else type(content).__name__
        raise FedpeftError(f"content of kind {found!r:.60}, only {DataKind.WEIGHTS!r} may leave.")
    _only("meta field", content.get("meta") or {}, {FIELDS})
    _only("field", (content.get("meta") or {}).get(FIELDS) or {}, KNOWN[kind] - {"state"})
    if unknown := {f.name for f in dataclasses.fields(kind)} - KNOWN[kind]:
        raise FedpeftError(f"the field {min(unknown)} of {kind.__name__}, which this filter has no rule for.")
    model = FLModelUtils.from_shareable(shareable)
    return kind.from_model(model, sender="the executor")


def permitted(reply: Reply, order: Order, announced: Announced | None, *, site: str, trained: bool) -> FLModel:
    """The message to send, built anew from a reply's checked values.

    Args:
        reply: what the executor wants to send.
        order: what the server asked for.
        announced: what the site said of itself; None in round 0.
        site: its name, for errors.
        trained: whether the site was told to train in this job before.

    Raises:
        FedpeftError: naming what is not allowed.
    """
    if reply.problem or reply.setting:
        return _problem(reply, order)
    if isinstance(reply, Introduction):
        return _introduction(reply, order, announced, site, trained)
    if announced is None:
        raise FedpeftError("a reply of a site that has not introduced itself.")
    if isinstance(reply, ScoreReply):
        return _scores(reply, order, announced, site)
    return _training(reply, order, announced, site)


def refusal(kind: type[Reply], round: int, problem: str, setting: str = "") -> FLModel:
    """The reply that tells the server of a problem and of nothing else."""
    why: dict[str, Any] = {"problem": problem, "setting": setting}
    if kind is Introduction:
        return Introduction(version=fedpeft.__version__, **why).to_model(round=round)
    if kind is ScoreReply:
        return ScoreReply(round=round, scores=[], seconds=0.0, **why).to_model(round=round)
    empty = dict.fromkeys(METRICS)
    reply = TrainReply(round=round, samples=0, metrics=empty, scores=[], seconds=0.0, state={}, **why)
    return reply.to_model(round=round)


def _problem(reply: Reply, order: Order) -> FLModel:
    if not is_known(reply.problem, reply.setting):
        raise FedpeftError(
            f"the problem {reply.problem!r:.60} with setting {reply.setting!r:.60}, which are no declared ones."
        )
    number = 0 if isinstance(order, Hello) else order.round
    told = refusal(type(reply), number, reply.problem, reply.setting)
    if isinstance(reply, TrainReply):
        told.meta[FIELDS]["attempts"] = _attempts(reply)
    expected = {**told.meta[FIELDS], "seconds": getattr(reply, "seconds", None)}
    for name, value in reply.to_model().meta[FIELDS].items():
        if value != expected[name]:
            raise FedpeftError(f"{name} of a reply that tells of a problem: it must be empty.")
    _only("tensor", getattr(reply, "state", {}), ())
    return told


def _introduction(reply: Introduction, order: Hello, announced: Announced | None, site: str, trained: bool) -> FLModel:
    if reply.version != fedpeft.__version__:
        raise FedpeftError(f"version {reply.version!r:.40}, installed is {fedpeft.__version__}.")
    check_introduction(reply, site=site)
    if trained and reply.state:
        raise FedpeftError("the adapter in an introduction: since this site has trained, it speaks of its data.")
    if not trained:
        check_tensors(reply.state, site=site, schema=reply.schema, dtype=reply.dtype)
    own = (reply.schema, reply.dtype, reply.samples["train"])
    if announced and own != (announced.shapes, announced.dtype, announced.samples):
        raise FedpeftError("a second introduction with another schema, dtype or number of training samples.")
    if not 0 <= reply.finished <= order.finished:
        raise FedpeftError(f"finished is {reply.finished}, the server named round {order.finished}.")
    sent = _copies(reply.state) if order.initial else {}
    return dataclasses.replace(reply, state=sent).to_model(round=0)


def _scores(reply: ScoreReply, order: ScoreOrder, announced: Announced, site: str) -> FLModel:
    check_score_reply(reply, site=site, round=order.round, layers=len(layers_of(announced.shapes)))
    scores = [float(score) for score in reply.scores]
    seconds = float(reply.seconds)
    return ScoreReply(round=reply.round, scores=scores, seconds=seconds, problem="").to_model(round=reply.round)


def _training(reply: TrainReply, order: TrainOrder, announced: Announced, site: str) -> FLModel:
    assigned = {key: shape for key, shape in announced.shapes.items() if belongs(key, order.layers)}
    check_reply(
        reply,
        site=site,
        round=order.round,
        schema=assigned,
        dtype=announced.dtype,
        samples=announced.samples,
        scores=len(layers_of(announced.shapes)) if order.scored else 0,
        masked=bool(order.sum_keys),
    )
    sent = TrainReply(
        round=reply.round,
        samples=reply.samples,
        metrics={name: None if value is None else float(value) for name, value in reply.metrics.items()},
        scores=[float(score) for score in reply.scores],
        seconds=float(reply.seconds),
        problem="",
        attempts=reply.attempts,
        sum_key=reply.sum_key,
        state=_copies(reply.state),
    )
    return sent.to_model(round=reply.round)


def _only(what: str, found: Iterable[str], allowed: Iterable[str]) -> None:
    for name in sorted(map(str, set(found) - set(allowed))):
        raise FedpeftError(f"{what} {name!r:.120}, which nobody asked for.")


def _copies(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of their own, without the rest of the memory that a view belongs to and without attributes."""
    return {key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in state.items()}


def _attempts(reply: TrainReply) -> int:
    if reply.attempts not in range(1, ATTEMPTS + 1):
        raise FedpeftError(f"attempts is {reply.attempts!r:.40}, it must be from 1 to {ATTEMPTS}.")
    return reply.attempts
