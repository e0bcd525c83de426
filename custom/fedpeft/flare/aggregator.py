# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's half of FedPIA as a FLARE component: collect replies, align, integrate."""

from __future__ import annotations

from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

from fedpeft.settings import build
from fedpeft.training.settings import MethodSettings

REPORT = "report"


class PIAAggregator(ModelAggregator):
    """Integrates the adapters of one round; `aggregation: fedavg` leaves out the alignment.

    Replies are integrated in the order of their sites' names, so the result does not depend on who was faster.
    """

    def __init__(self, method: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._method = method
        self._received: dict[str, tuple[dict, int]] = {}
        self._previous: dict | None = None

    def accept_model(self, model: FLModel) -> None:
        """Keep one validated reply; `meta` names the site and its number of training samples."""
        self._received[model.meta["client_name"]] = (model.params, model.meta["samples"])

    def aggregate_model(self) -> FLModel:
        """The new global adapter; its `meta["report"]` says what the alignment did, per site."""
        from fedpeft.alignment import PIASettings, integrate

        method = build(MethodSettings, self._method, section="method")
        pia = build(PIASettings, {**method.pia, **({} if method.aggregation == "pia" else {"server": False})}, section="method.pia")
        sites = sorted(self._received)
        states, counts = zip(*(self._received[site] for site in sites), strict=True)
        merged, report = integrate(states, counts, pia, sites=sites, previous=self._previous)
        self._previous = merged
        return FLModel(params_type=ParamsType.FULL, params=merged, meta={REPORT: report})

    def reset_stats(self) -> None:
        """Forget the replies of the round; the global adapter stays, for layers that nobody trains next time."""
        self._received = {}
