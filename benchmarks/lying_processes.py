# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""In the process of a job at a hostile site or server: a handshake or an order that says something else.

A file has them: `hello`, the lie of the handshake, `rounds`, those of the orders by round, `target`, the site that a
hostile server asks, and `other`, the name of another job's state there.
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
        reply = execute(self, task_name, *args)
        if task_name == "hello" and _lies()["hello"] in HELLOS:
            HELLOS[_lies()["hello"]](reply)
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
