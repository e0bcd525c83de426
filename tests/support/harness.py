# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A server whose sites are functions, without FLARE's network."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import torch
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

import fedpeft
from fedpeft.core.states import digest
from fedpeft.flare.aggregator import PIAAggregator
from fedpeft.flare.controller import FederationController
from fedpeft.flare.messages import from_model, to_model
from fedpeft.methods.first_values import normal
from fedpeft.protocol.types import (
    HELLO,
    METRICS,
    SCORE,
    Hello,
    Introduction,
    Reply,
    ScoreOrder,
    ScoreReply,
    TrainOrder,
    TrainReply,
)
from fedpeft.server import first_adapter

SITES = ["slake", "vqa-rad", "chest"]
SCHEMA = {"layer.0.output.down.weight": [2, 3], "layer.0.output.up.weight": [3, 2]}
METHOD = {"aggregation": "fedavg"}


def introduction(site, **changes):
    values = {
        "schema": SCHEMA,
        "classes": 2,
        "samples": {"train": 5, "validation": 1, "test": 2},
        "dataset": "phantom",
        "procedural": True,
        "backbone": "tiny-vilt",
        "tiny": True,
        "family": "vilt",
    }
    return Introduction(**{"version": fedpeft.__version__, **values, **changes})


def reply(site, order, **changes):
    value = float(SITES.index(site) + order.round)
    state = {key: torch.full(shape, value) for key, shape in SCHEMA.items()}
    values = {"metrics": dict.fromkeys(METRICS, 0.5), "scores": [], "seconds": 1.0, "problem": "", "state": state}
    return TrainReply(**{"round": order.round, "samples": 5, **values, **changes})


def scores(site, order, **changes):
    values = {"scores": [0.5, 0.3, 0.2], "seconds": 0.1, "problem": ""}
    return ScoreReply(round=order.round, **{**values, **changes})


class Harness(FederationController):
    """A controller whose sites answer at once: `introduce(site)` and `train(site, order)`, None for silence."""

    context_props: ClassVar = {}

    def __init__(
        self,
        introduce=introduction,
        train=reply,
        score=scores,
        *,
        quorum=0,
        rounds=2,
        method=METHOD,
        schedule=None,
        resume_from="",
        sites=SITES,
        tracking="none",
        patience=0,
    ):
        super().__init__(
            job="test",
            federation={"sites": sites, "quorum": quorum, "resume_from": resume_from, "tracking": tracking},
            method=method,
            training={"rounds": rounds, "patience": patience},
            schedule=schedule or {},
        )
        self.introduce, self.train, self.score = introduce, train, score
        self.aggregator = PIAAggregator(method)
        self.saved, self.panics, self.fl_ctx, self.abort_signal = [], [], FLContext(), Signal()
        engine = SimpleNamespace(get_client_from_name=lambda site: Client(site, "token"))
        self.fl_ctx.set_prop(ReservedKey.ENGINE, engine)
        for name, value in self.context_props.items():
            self.fl_ctx.set_prop(name, value)

    def prepare(self, job):
        super().prepare(job)
        self.job = job

    def send_model(self, task_name, data, targets, timeout, callback):
        """The way of a reply through FLARE's controller, without its network."""
        (site,) = targets
        answer = self._answer(task_name, site, data)
        if answer is None:
            return
        if isinstance(answer, Reply):
            answer = to_model(answer)
        task = ClientTask(Client(site, "token"), self._prepare_task(data, task_name, timeout, callback))
        task.result = answer if isinstance(answer, Shareable) else FLModelUtils.to_shareable(answer)
        with contextlib.suppress(Exception):  # FLARE ends the task of this site then, see WFCommServer
            self._process_result(task, self.fl_ctx)

    def get_num_standing_tasks(self):
        return 0

    def event(self, event_type):
        pass

    def _answer(self, task, site, order):
        if task == HELLO:
            self.hello = from_model(Hello, order)
            answer = self.introduce(site)
            requested_later = first_adapter.is_needed(self.job.method, self.job.schedule) and not self.hello.initial
            return replace(answer, state={}) if requested_later and isinstance(answer, Introduction) else answer
        if task == SCORE:
            return self.score(site, from_model(ScoreOrder, order))
        return self.train(site, from_model(TrainOrder, order))

    def get_component(self, component_id):
        return self.aggregator

    def save_model(self, model):
        self.saved.append(model.params)

    def panic(self, reason):
        self.panics.append(reason)

    def info(self, message):
        pass

    warning = error = info


def but(site, other, *, rounds=(1, 2)):
    """All sites reply as they should, but for one in some rounds."""
    return lambda name, order: other(name, order) if name == site and order.round in rounds else reply(name, order)


LAYERS = {f"layer.{layer}.output.{name}.weight": [2, 2] for layer in range(3) for name in ("down", "up")}
SCHEDULE = {"solver": "exact", "budget": 1}
START = {key: normal(tuple(shape), 0.02, 0, key) for key, shape in LAYERS.items()}  # as houlsby begins


def scheduled(site, **changes):
    """A site of three layers that may train one, and that says where it starts from if asked."""
    state = {key: torch.zeros(shape) for key, shape in LAYERS.items()} if site == "slake" else {}
    return introduction(site, schema=LAYERS, budget=1, state=state, **changes)


def starting(site, state=START, announced=START):
    """A site of three layers that starts from a state, and announces the digest of one; None: no digest."""
    named = "" if announced is None else digest(announced)
    return introduction(site, schema=LAYERS, budget=1, state=state, start_digest=named)


def assigned(site, order, **changes):
    state = {key: torch.ones(shape) for key, shape in LAYERS.items() if int(key.split(".")[1]) in order.layers}
    return reply(site, order, **{"state": state, **changes})
