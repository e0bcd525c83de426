# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Server PIA as a FLARE component: collect replies, align, integrate."""

from __future__ import annotations

from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

from fedpeft.core.settings import build
from fedpeft.core.states import Store, in_memory
from fedpeft.methods.settings import MethodSettings
from fedpeft.server.aggregation import State, aggregate

REPORT = "report"


class PIAAggregator(ModelAggregator):
    """Aggregates the adapters of a round with `fedpeft.server.aggregation.aggregate`.

    Args:
        method: see `MethodSettings`.

    Attributes:
        store: where the server keeps tensors of the new adapter.
    """

    store: Store = staticmethod(in_memory)

    def __init__(self, method: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._method = method
        self._received: dict[str, tuple[State, int]] = {}
        self._previous: State | None = None

    def start_from(self, state: State) -> None:
        """Set the global adapter that a round starts from; layers that no site trains keep its values."""
        self._previous = state

    def accept_model(self, model: FLModel) -> None:
        """Add a checked reply; `meta` has the site's name and number of training samples."""
        self._received[model.meta["client_name"]] = (model.params, model.meta["samples"])

    def aggregate_model(self) -> FLModel:
        """Return the aggregated adapter, with the alignment report by site in `meta["report"]`."""
        method = build(MethodSettings, self._method, section="method")
        merged, report = aggregate(self._received, method, previous=self._previous, store=self.store)
        self.reset_stats()
        return FLModel(params_type=ParamsType.FULL, params=merged, meta={REPORT: report})

    def reset_stats(self) -> None:
        """Remove the replies of the round; keep the global adapter for layers that no site trains next."""
        self._received = {}
