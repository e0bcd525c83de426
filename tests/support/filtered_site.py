# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One site's pair of filters as FLARE drives them, with an executor's reply in between."""

from types import SimpleNamespace

import torch
from nvflare.apis.filter import FilterContextKey, FilterSource
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

import fedpeft
from fedpeft.flare.filters import AdapterOnly, RememberOrder
from fedpeft.flare.messages import from_model, to_model
from fedpeft.protocol.types import METRICS, TASKS, Hello, Introduction, ScoreOrder, ScoreReply, TrainOrder, TrainReply

KEYS = ("layer.0.output.down.weight", "layer.0.output.down.bias", "layer.1.output.down.weight", "shared.rule")
SHAPES = ((2, 3), (2,), (2, 3), (4,))
JOB = "job-1"
LINEAGE = "small-1"


def adapter(fill=0.5, dtype=torch.float32, keys=KEYS):
    return {key: torch.full(shape, fill, dtype=dtype) for key, shape in zip(KEYS, SHAPES, strict=True) if key in keys}


def introduction(**changes):
    state = changes.pop("state", adapter())
    values = {
        "version": fedpeft.__version__,
        "schema": {key: list(tensor.shape) for key, tensor in state.items()},
        "classes": 3,
        "samples": {"train": 5, "validation": 1, "test": 2},
        "dataset": "phantom",
        "procedural": True,
        "backbone": "tiny-vilt",
        "tiny": True,
        "family": "vilt",
        "dtype": next((str(tensor.dtype).removeprefix("torch.") for tensor in state.values()), "float32"),
        "budget": 2,
        "state": state,
    }
    return Introduction(**{**values, **changes})


def train_order(**changes):
    values = {"lineage": LINEAGE, "round": 1, "base": 0, "version": 0, "layers": None, "scored": False}
    return TrainOrder(**{**values, "state": adapter(0.25), **changes})


def train_reply(**changes):
    values = {
        "round": 1,
        "samples": 5,
        "metrics": dict.fromkeys(METRICS, 0.5),
        "scores": [],
        "seconds": 1.0,
        "problem": "",
        "state": adapter(0.75),
    }
    return TrainReply(**{**values, **changes})


def score_order(**changes):
    return ScoreOrder(**{"lineage": LINEAGE, "round": 1, "base": 0, "version": 1, "state": adapter(0.25), **changes})


def score_reply(**changes):
    return ScoreReply(**{"round": 1, "scores": [0.25, 0.5], "seconds": 1.0, "problem": "", **changes})


class Site:
    """Two filters of a scope, made anew for every task, as in the simulator's process swaps.

    Args:
        folder: the site's workspace.
        job: the run directory in it.
        source: who configured the filters.
        settings: arguments of `AdapterOnly`.
    """

    def __init__(self, workspace, *, job=JOB, source=FilterSource.SITE, remember=(), **settings):
        self.workspace, self.job, self.folder = workspace, job, workspace / job
        self.source, self.remember, self.settings = source, dict(remember), settings
        self.folder.mkdir(parents=True, exist_ok=True)

    def answer(self, task, order, reply, *, spoil=lambda shareable: shareable, forget=False):
        """Run one task: what the executor received, and the shareable that leaves."""
        context = self._context(task)
        before, after = RememberOrder(**self.remember), AdapterOnly(**self.settings)
        for one in (before, after):
            one.set_prop(FilterContextKey.SOURCE, self.source)
        sent = FLModelUtils.to_shareable(to_model(order, round=getattr(order, "round", 0)))
        self.received = sent if forget else before.process(sent, context)
        back = FLModelUtils.to_shareable(to_model(reply, round=getattr(reply, "round", 0)))
        return after.process(spoil(back) or back, context)

    def message(self, task, order, reply, **how):
        """As `answer`, read the way the server reads it."""
        model = FLModelUtils.from_shareable(self.answer(task, order, reply, **how))
        return from_model(TASKS[task].reply, model)

    def hello(self, **changes):
        return self.message("hello", Hello(version="1"), introduction(**changes))

    def train(self, order=None, **changes):
        order = order or train_order()
        return self.message("train", order, train_reply(**{"round": order.round, **changes}))

    def score(self, order=None, **changes):
        order = order or score_order()
        return self.message("score", order, score_reply(**{"round": order.round, **changes}))

    @property
    def problem(self):
        """The reason in the site policy."""
        import json

        return json.loads((self.folder / "fedpeft" / "problem.json").read_text())["problem"]

    def _context(self, task):
        context = FLContext()
        workspace = SimpleNamespace(
            get_run_dir=lambda job: str(self.folder),
            get_root_dir=lambda: str(self.workspace),
            get_site_config_dir=lambda: str(self.workspace / "local"),
        )
        context.set_prop(ReservedKey.ENGINE, SimpleNamespace(get_workspace=lambda: workspace), private=True)
        context.set_prop(ReservedKey.IDENTITY_NAME, "slake")
        context.set_prop(ReservedKey.RUN_NUM, self.job)
        context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
        return context
