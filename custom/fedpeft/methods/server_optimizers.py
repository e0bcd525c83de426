# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Server optimizers, the values of `method.server_optimizer`: what each is called, and what it takes for its rate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    """How the change of the global adapter over a round becomes a step.

    Args:
        label: as tables print it; empty: the aggregated adapter is the global one as it is.
        home: the server's function, "package.module:object" (`fedpeft.server.server_optimizer`).
        learning_rate: where a job names none.
    """

    label: str = ""
    home: str = ""
    learning_rate: float = 1.0

    @property
    def steps(self) -> bool:
        return bool(self.home)


_HOME = "fedpeft.server.server_optimizer"
SERVER_OPTIMIZERS: dict[str, ServerOptimizer] = {
    "none": ServerOptimizer(),
    "momentum": ServerOptimizer(label="server momentum", home=f"{_HOME}:momentum"),
    "adagrad": ServerOptimizer(label="server Adagrad", home=f"{_HOME}:adagrad", learning_rate=0.01),
    "adam": ServerOptimizer(label="server Adam", home=f"{_HOME}:adam", learning_rate=0.01),
    "yogi": ServerOptimizer(label="server Yogi", home=f"{_HOME}:yogi", learning_rate=0.01),
}
