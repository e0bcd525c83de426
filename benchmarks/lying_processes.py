# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""In the process of a job at a hostile site or server: a handshake, an update or an order that says something else.

A file has them: `hello`, the lie of the handshake, `train`, that of every update, `rounds`, those of the orders by
round, `target`, the site that a hostile server asks, and `other`, the name of another job's state there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIES = "FEDPEFT_LIES"  # environment variable with the name of the file
# sitecustomize.py of a participant: only the processes of its jobs lie
CUSTOM = """
import sys
if any(one.endswith((".worker_process", ".runner_process")) for one in sys.orig_argv):
    import lying_processes
    lying_processes.lie()
"""
Lie = Callable[[Any], None]


def _nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def _fields(**values: Any) -> Lie:
    return lambda sent: sent["DXO"]["meta"]["fedpeft"].update(values)


def _tensors(change: Callable[[Any], dict[str, Any]]) -> Lie:
    def changed(sent: Any) -> None:
        sent["DXO"]["data"] = change(dict(sent["DXO"]["data"]))

    return changed


def _first(change: Callable[[Any], Any]) -> Lie:
    """The first tensor changed."""
    return _tensors(lambda state: {**state, min(state): change(state[min(state)])})


HELLOS: dict[str, Lie] = {
    "10**12 training samples": _fields(samples={"train": 10**12, "validation": 1, "test": 1}),
    "a shape of 2**40 rows": _fields(schema={"layer.0.output.down.weight": [2**40, 3]}),
    "a tensor's name with ANSI codes": _fields(schema={"\x1b[31mred\n": [2, 3]}),
    "a problem of 40 MB": _fields(problem="x" * 40 * 10**6),
    "lists 100 deep": _fields(slots=_nested(100)),
    "a field that no message has": _fields(patients=["name"]),
    "no field at all": lambda sent: sent["DXO"]["meta"].pop("fedpeft"),
    "an empty reply": lambda sent: sent.clear(),
}


def _start(value: float, *, announced: bool) -> Lie:
    """The same number in all values of the adapter that it starts from, which its digest may say or not."""

    def changed(sent: Any) -> None:
        import torch

        from fedpeft.core.states import digest

        fields, state = sent["DXO"]["meta"]["fedpeft"], sent["DXO"]["data"]
        sent["DXO"]["data"] = {key: torch.full_like(tensor, value) for key, tensor in state.items()}
        if announced:
            fields["start_digest"] = digest(
                {k: torch.full(tuple(shape), value) for k, shape in fields["schema"].items()}
            )

    return changed


def _schema(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Lie:
    def changed(sent: Any) -> None:
        fields = sent["DXO"]["meta"]["fedpeft"]
        fields["schema"] = change(dict(fields["schema"]))

    return changed


def _twice_as_wide(schema: dict[str, Any]) -> dict[str, Any]:
    neurons = next(shape[0] for key, shape in schema.items() if key.endswith("down.weight"))
    return {key: [2 * size if size == neurons else size for size in shape] for key, shape in schema.items()}


def _less_deep(schema: dict[str, Any]) -> dict[str, Any]:
    deepest = max(int(key.split(".")[1]) for key in schema)
    return {key: shape for key, shape in schema.items() if int(key.split(".")[1]) < deepest}


STARTS: dict[str, Lie] = {
    "all values 0.3": _start(0.3, announced=False),
    "all values 0.02": _start(0.02, announced=False),
    "all values 0.3, and their digest": _start(0.3, announced=True),
    "all values 0.02, and their digest": _start(0.02, announced=True),
    "the digest of another adapter": _fields(start_digest="0" * 64),
}
FORMS: dict[str, Lie] = {
    "twice as many neurons": _schema(_twice_as_wide),
    "a layer less, as of another backbone": _schema(_less_deep),
}
AT_SITES = HELLOS | STARTS | FORMS


def _near(start: dict[str, Any], sent: dict[str, Any], part: float) -> dict[str, Any]:
    return {key: start[key] + part * (tensor - start[key]) for key, tensor in sent.items()}


# from the adapter that the server sent and that of the reply
UPDATES: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]] = {
    "its update times 1e-6": lambda start, sent: _near(start, sent, 1e-6),
    "the adapter that the server sent": lambda start, sent: start,
}
GREETINGS: dict[str, Lie] = {
    "the state of another job": lambda sent: _fields(lineage=_lies()["other"])(sent),
    "a path as the name of the state": _fields(lineage="../../local"),
    "to go on after round 10**6": _fields(finished=10**6),
}
ORDERS: dict[str, Lie] = {
    "the state of another job": GREETINGS["the state of another job"],
    "a path as the name of the state": GREETINGS["a path as the name of the state"],
    "round 0": _fields(round=0),
    "round 10**12": _fields(round=10**12),
    "a text for the round": _fields(round="1"),
    "layer scores with the reply": _fields(scored=True),
    "to train one layer": _fields(layers=[0]),
    "an adapter that builds on one the site never had": _fields(base=7, version=8),
    "a tensor of the server's choice": _tensors(lambda state: {**state, "x": state[min(state)]}),
    "a tensor a thousand times as long": _first(lambda tensor: tensor.repeat(1000, *[1] * (tensor.dim() - 1))),
    "a tensor of 1.2 GB": _first(lambda tensor: tensor.new_zeros(3 * 10**8)),
    "tensors of float64": _tensors(lambda state: {key: tensor.double() for key, tensor in state.items()}),
    "NaN in every value": _tensors(lambda state: {key: tensor * float("nan") for key, tensor in state.items()}),
    "no field at all": lambda sent: sent["DXO"]["meta"].pop("fedpeft"),
}


def lie() -> None:
    """Replace what sends the handshake or the orders."""
    from fedpeft.flare.controller import FederationController
    from fedpeft.flare.executor import SiteExecutor

    execute, broadcast = SiteExecutor.execute, FederationController.broadcast

    def executed(self: Any, task_name: str, *args: Any) -> Any:
        reply, lies = execute(self, task_name, *args), _lies()
        if task_name == "hello" and lies["hello"] in AT_SITES:
            AT_SITES[lies["hello"]](reply)
        if task_name == "train" and lies.get("train") and args[0]["DXO"]["data"]:
            reply["DXO"]["data"] = UPDATES[lies["train"]](args[0]["DXO"]["data"], reply["DXO"]["data"])
        return reply

    def sent(self: Any, task: Any, fl_ctx: Any, targets: Any = None, **options: Any) -> None:
        lies, number = _lies(), task.data.get_header("current_round")
        if targets == [lies.get("target")]:
            name = lies["hello"] if task.name == "hello" else lies["rounds"].get(str(number))
            table = GREETINGS if task.name == "hello" else ORDERS
            if name in table:
                table[name](task.data)
        broadcast(self, task, fl_ctx, targets, **options)

    SiteExecutor.execute, FederationController.broadcast = executed, sent


def _lies() -> dict[str, Any]:
    return json.loads(Path(os.environ[LIES]).read_text())
