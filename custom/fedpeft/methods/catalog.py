# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What can be trained in a backbone: every method with its parameters and what it can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fedpeft.backbones.backbone import Backbone
from fedpeft.client import answering
from fedpeft.errors import FedpeftError
from fedpeft.keys import PRIVATE, belongs, layers_of
from fedpeft.methods.method import METHODS, TuningMethod
from fedpeft.methods.trainable import parameter_counts


@dataclass(frozen=True, kw_only=True)
class MethodEntry:
    """A method in a backbone.

    Args:
        name: as `method.name` writes it.
        method: its declaration.
        trained: number of parameters that it trains with its default settings, without the head; None: it does not
            fit the backbone.
        exchanged: number of those that a site sends in a round.
        misfit: why it does not fit.
    """

    name: str
    method: TuningMethod
    trained: int | None
    exchanged: int | None
    misfit: str = ""

    @property
    def abilities(self) -> list[str]:
        """What the federation can do with it."""
        method = self.method
        can = {
            "PIA": bool(method.neurons),
            "PIA by activations": method.activations,
            "frozen global": method.companion,
            "unequal widths": method.unequal_widths,
            "unequal backbones": method.unequal_backbones and method.exchanges,
            "SVD of products": method.products and not method.factors,
            "SVD or stack of products": method.products and bool(method.factors),
            "layer schedule": method.exchanges and method.layers and not method.schedule,
        }
        return [ability for ability, able in can.items() if able]


def entries(backbone: Backbone) -> Iterator[MethodEntry]:
    """Yield every method that can be used here, in the order of registration.

    Args:
        backbone: as `fedpeft.backbones.skeleton` returns it; it stays as it is.
    """
    only = getattr(backbone, "answering", None)
    for name, method in METHODS.usable():
        try:
            if only:
                method.check_answering(only, one_distribution=answering.get(only).one_distribution)
            counts = parameter_counts(backbone, method.tuning(), {})
        except FedpeftError as error:
            yield MethodEntry(name=name, method=method, trained=None, exchanged=None, misfit=str(error))
            continue
        yield MethodEntry(
            name=name, method=method, trained=sum(counts.values()), exchanged=sum(_in_a_round(method, counts).values())
        )


def _in_a_round(method: TuningMethod, counts: Mapping[str, int]) -> dict[str, int]:
    """Return what a site sends of it: all that is not private, or the layers that the method's own schedule assigns."""
    budget = method.schedule.get("budget")
    layers = None if budget is None else layers_of(counts)[:budget]
    return {key: count for key, count in counts.items() if not key.startswith(PRIVATE) and belongs(key, layers)}
