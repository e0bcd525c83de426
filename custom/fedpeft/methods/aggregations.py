# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How the sites' tensors become the global ones: the values of `method.aggregation`, and what each needs and can do."""

from __future__ import annotations

from dataclasses import dataclass

from fedpeft.methods.method import TuningMethod


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """An aggregation.

    Args:
        label: as tables print it.
        home: the server's function, "package.module:object", with the arguments of `fedpeft.alignment.integrate`;
            empty: nothing is exchanged.
        aligns: whether it is FedPIA, to which all of `method.pia` applies.
        adds_up: whether the server needs no more than the weighted sum of what the sites send.
        averages: whether another average than the mean can take its place (`method.robust`).
        unequal_ranks: whether sites may differ in the rank of LoRA's factors.
        stacks: whether the factors of all sites stand side by side in the result, which grows from round to round, and
            which a site adds to its frozen weights.
        needs: what a method must declare for it, a field of `TuningMethod`; empty: nothing.
        reason: what it does with that, for the refusal.
    """

    label: str
    home: str = ""
    aligns: bool = False
    adds_up: bool = False
    averages: bool = True
    unequal_ranks: bool = False
    stacks: bool = False
    needs: str = ""
    reason: str = ""

    @property
    def exchanges(self) -> bool:
        """Whether sites send anything."""
        return bool(self.home)

    def fits(self, method: TuningMethod) -> bool:
        """Whether a method declares what this aggregation needs."""
        return not self.needs or bool(getattr(method, self.needs))


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
        home="fedpeft.alignment.stacking:stack_products",
        averages=False,
        unequal_ranks=True,
        stacks=True,
        needs="factors",
        reason="puts factors side by side",
    ),
    "none": Aggregation(label="local"),
}
