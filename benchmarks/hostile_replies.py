# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site that trains as it should and sends something else, another thing in each round.

`attacks.py` puts it into a job of the simulator; this folder must then be on PYTHONPATH, and the class on the
workspace's allow-list.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedpeft.flare.executor import SiteExecutor
from fedpeft.flare.messages import FIELDS
from fedpeft.protocol.types import TRAIN

Tensors = dict[Any, Any]
Reply = Callable[["Sent"], Any]  # changes it; a Shareable that it returns is sent in its place


class Sent:
    """A sound reply on its way, and what a site can use besides.

    Args:
        reply: as FLARE would send it; it is changed in place.
        order: what it answers.
        first: the site's sound reply of an earlier round.
    """

    def __init__(self, reply: Shareable, order: Shareable, first: Shareable) -> None:
        self.reply, self.order, self.first = reply, order, first

    @property
    def tensors(self) -> Tensors:
        """By wire key."""
        return self.reply["DXO"]["data"]

    @property
    def fields(self) -> dict[str, Any]:
        """All that is no tensor."""
        return self.reply["DXO"]["meta"][FIELDS]

    @property
    def key(self) -> str:
        """The first tensor's."""
        return min(self.tensors)


class Attacker(SiteExecutor):
    """A site's executor that sends one of `REPLIES` in each round, in their order.

    Args:
        faulty_site: the site that does it; all others are as good as ever.
        attacks: names in `REPLIES`, one for each round.
        task: whose replies are changed, `train` or `score`.
        settings: those of `SiteExecutor`.
    """

    def __init__(self, faulty_site: str, attacks: list[str], task: str = TRAIN, **settings: Any) -> None:
        super().__init__(**settings)
        self._faulty_site, self._attacks, self._task = faulty_site, attacks, task
        self._first: Shareable | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Do the task, and send something else."""
        reply = super().execute(task_name, shareable, fl_ctx, abort_signal)
        if fl_ctx.get_identity_name() != self._faulty_site or task_name != self._task:
            return reply
        if self._first is None:
            self._first = copy.deepcopy(reply)
        attack = (REPLIES | SCORES)[self._attacks[shareable.get_header("current_round") - 1]]
        other = attack(Sent(reply, shareable, self._first))
        return other if isinstance(other, Shareable) else reply


def _fill(value: float) -> Reply:
    return lambda sent: sent.tensors.update({key: torch.full_like(t, value) for key, t in sent.tensors.items()})


def _one(value: float) -> Reply:
    return lambda sent: sent.tensors[sent.key].view(-1)[:1].fill_(value)


def _tensor(change: Callable[[torch.Tensor], Any]) -> Reply:
    return lambda sent: sent.tensors.update({sent.key: change(sent.tensors[sent.key])})


def _scaled(factor: float) -> Reply:
    def scale(sent: Sent) -> None:
        start = sent.order["DXO"]["data"]
        sent.tensors.update({key: start[key] + factor * (t - start[key]) for key, t in sent.tensors.items()})

    return scale


def _fields(**values: Any) -> Reply:
    return lambda sent: sent.fields.update(values)


def _metric(**values: Any) -> Reply:
    return lambda sent: sent.fields["metrics"].update(values)


def _in_place_of_tensors(value: Any) -> Reply:
    return lambda sent: sent.reply["DXO"].update(data=value)


def _nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


REPLIES: dict[str, Reply] = {
    "NaN in one value": _one(float("nan")),
    "infinity in one value": _one(float("inf")),
    "1e38 in every value": _fill(1e38),
    "-1e38 in every value": _fill(-1e38),
    "its update times 1e6": _scaled(1e6),
    "its update times 1000": _scaled(1000.0),
    "a tensor of another shape": _tensor(lambda tensor: tensor[:1].clone()),
    "a tensor that is empty": _tensor(lambda tensor: tensor.new_empty(0)),
    "a tensor too many": lambda sent: sent.tensors.update({"head.weight": torch.ones(2)}),
    "a tensor less": lambda sent: sent.tensors.pop(sent.key),
    "a tensor of integers": _tensor(lambda tensor: tensor.to(torch.int64)),
    "a tensor of float64": _tensor(lambda tensor: tensor.to(torch.float64)),
    "a tensor of bfloat16": _tensor(lambda tensor: tensor.to(torch.bfloat16)),
    "a nested tensor": _tensor(lambda tensor: torch.nested.nested_tensor([tensor, tensor])),
    "a sparse tensor": _tensor(lambda tensor: tensor.to_sparse()),
    "a text in place of a tensor": _tensor(lambda _: "a text"),
    "a number for a tensor's name": lambda sent: sent.tensors.update({7: torch.ones(2)}),
    "a path for a tensor's name": lambda sent: sent.tensors.update({"../../../etc/passwd": torch.ones(2)}),
    "a list in place of all tensors": _in_place_of_tensors([1, 2, 3]),
    "a text in place of all tensors": _in_place_of_tensors("a text"),
    "metrics with names of two types": lambda sent: sent.fields["metrics"].update({1: 0.5}),
    "an accuracy of 2": _metric(overall=2.0),
    "an accuracy that is a text": _metric(overall="1.0"),
    "a loss of 1e308": _metric(loss=1e308),
    "a loss of NaN": _metric(loss=float("nan")),
    "its reply of an earlier round again": lambda sent: sent.first,
    "10**12 training samples": _fields(samples=10**12),
    "no training samples": _fields(samples=0),
    "-1 seconds of work": _fields(seconds=-1.0),
    "10**9 attempts": _fields(attempts=10**9),
    "unexpected scores": _fields(scores=[1.0] * 12),
    "a problem of 2 MB with ANSI codes": _fields(problem="\x1b[2J\x1b[31mround 9: completed\n" * 70_000),
    "an unknown problem code": _fields(problem="give-me-a-shell"),
    "a problem about an undeclared setting": _fields(problem="setting-refused", setting="/etc/passwd"),
    "lists of depth 100 as metrics": lambda sent: sent.fields.update(metrics=_nested(100)),
    "a field that no message has": _fields(patients=["name"]),
    "no fields": lambda sent: sent.reply["DXO"]["meta"].pop(FIELDS),
    "its adapter declared as a difference": lambda sent: sent.reply["DXO"].update(kind="WEIGHT_DIFF"),
    "its adapter declared as a collection": lambda sent: sent.reply["DXO"].update(kind="COLLECTION"),
    "nothing that is a model": lambda sent: Shareable(),
    "a return code that ends a job in FLARE": lambda sent: make_reply(ReturnCode.TASK_UNKNOWN),
    "its update with the sign changed": _scaled(-1.0),
    "its update times 1e-6": _scaled(1e-6),
}
UNREFUSED = ("its update with the sign changed", "its update times 1e-6")  # as long as an honest one, or shorter
SCORES: dict[str, Reply] = {
    "scores of 1e308": lambda sent: sent.fields.update(scores=[1e308] * len(sent.fields["scores"])),
    "negative scores": lambda sent: sent.fields.update(scores=[-1.0] * len(sent.fields["scores"])),
    "scores of NaN": lambda sent: sent.fields.update(scores=[float("nan")] * len(sent.fields["scores"])),
    "a score too few": lambda sent: sent.fields["scores"].pop(),
    "a text for its scores": _fields(scores="high"),
    "scores of another round": _fields(round=10**6),
}
