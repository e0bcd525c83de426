# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How the sites' tensors become the global ones: the values of `method.aggregation`, and what each needs and can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import one_of
from fedpeft.methods.method import TuningMethod


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    """How the change of the global adapter over a round becomes a step."""

    label: str = ""  # as tables print it; empty: the aggregated adapter is the global one as it is
    home: str = ""  # the server's function, "package.module:object" (`fedpeft.server.optimizers`)
    learning_rate: float = 1.0  # where a job names none

    @property
    def steps(self) -> bool:
        return bool(self.home)


_HOME = "fedpeft.server.optimizers"
SERVER_OPTIMIZERS: dict[str, ServerOptimizer] = {
    "none": ServerOptimizer(),
    "momentum": ServerOptimizer(label="server momentum", home=f"{_HOME}:momentum"),
    "adagrad": ServerOptimizer(label="server Adagrad", home=f"{_HOME}:adagrad", learning_rate=0.01),
    "adam": ServerOptimizer(label="server Adam", home=f"{_HOME}:adam", learning_rate=0.01),
    "yogi": ServerOptimizer(label="server Yogi", home=f"{_HOME}:yogi", learning_rate=0.01),
}


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """An aggregation."""

    label: str  # as tables print it
    # the server's function, "package.module:object", with the arguments of `fedpeft.alignment.integrate`; empty:
    # nothing is exchanged
    home: str = ""
    aligns: bool = False  # it is FedPIA, to which all of `method.pia` applies
    adds_up: bool = False  # the server needs no more than the weighted sum of what the sites send
    averages: bool = True  # another average than the mean can take its place (`method.robust`)
    unequal_ranks: bool = False  # sites may differ in the rank of LoRA's factors
    # the factors of all sites stand side by side in the result, which grows from round to round, and which a site adds
    # to its frozen weights
    stacks: bool = False
    needs: str = ""  # what a method must declare for it, a field of `TuningMethod`; empty: nothing
    reason: str = ""  # what it does with that, for the refusal

    @property
    def exchanges(self) -> bool:
        return bool(self.home)

    def fits(self, method: TuningMethod) -> bool:
        """Whether a method declares what this aggregation needs."""
        return not self.needs or bool(getattr(method, self.needs))

    def admits(self, method: TuningMethod, *, head: bool) -> bool:
        """Whether a method can be aggregated so, with or without its head."""
        if not self.exchanges:
            return not head
        return self.fits(method) if method.exchanges else head and not self.needs


AGGREGATIONS: dict[str, Aggregation] = {
    "pia": Aggregation(
        label="FedPIA",
        home="fedpeft.alignment.integration:integrate",
        aligns=True,
        needs="neurons",
        reason="aligns neurons",
    ),
    "fedavg": Aggregation(label="FedAvg", home="fedpeft.alignment.integration:integrate", adds_up=True),
    "svd": Aggregation(
        label="SVD",
        home="fedpeft.alignment.low_rank:integrate_products",
        averages=False,
        unequal_ranks=True,
        needs="products",
        reason="averages products of two factors",
    ),
    "stack": Aggregation(
        label="FLoRA",
        home="fedpeft.alignment.low_rank:stack_products",
        averages=False,
        unequal_ranks=True,
        stacks=True,
        needs="stackable",
        reason="puts the factors of all products side by side",
    ),
    "none": Aggregation(label="local"),
}
DEFAULTS = ("pia", "fedavg", "none")  # in order of preference, where a job names none


def chosen(wanted: str | Sequence[str], method: TuningMethod, *, name: str, head: bool) -> str:
    """Return the aggregation of a job: the one that it names, or the first of a list that the method admits.

    Whether the method admits a single one is left to `fedpeft.methods.settings`, which says what it lacks.
    """
    for one in (wanted,) if isinstance(wanted, str) else wanted:
        one_of("aggregation", one, AGGREGATIONS)
    if isinstance(wanted, str):
        return wanted
    able = admitted(method, head=head)
    if taken := next((one for one in wanted if one in able), ""):
        return taken
    federated = "with" if head else "without"
    raise FedpeftError(
        f"aggregation is {list(wanted)!r:.200}, and name={name!r} {federated} a federated head admits none of these: "
        f"use {' or '.join(map(repr, able))}.",
        setting="aggregation",
    )


def admitted(method: TuningMethod, *, head: bool) -> list[str]:
    """Return the names of the aggregations that a method admits; see `Aggregation.admits`."""
    return [name for name, rule in AGGREGATIONS.items() if rule.admits(method, head=head)]


def default_aggregation(method: TuningMethod) -> str:
    """Return how a method is aggregated where a job names no aggregation and the head stays at the site."""
    return next(name for name in DEFAULTS if AGGREGATIONS[name].admits(method, head=False))
