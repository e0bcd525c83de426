# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's half of a round: from the sites' adapters to the global one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedpeft.alignment import integrate
from fedpeft.alignment.checks import check_tensors
from fedpeft.alignment.settings import PIASettings
from fedpeft.settings import build
from fedpeft.training.secure_round import secure_mean
from fedpeft.training.settings import MethodSettings

State = dict[str, torch.Tensor]


def aggregate(
    replies: Mapping[str, tuple[State, int]], method: MethodSettings, *, previous: State | None
) -> tuple[State, dict[str, Any]]:
    """The server's half of a round: PIA, or the plain weighted mean for `fedavg`.

    Sites are taken in the order of their names, so the result does not depend on who answered first.

    Args:
        replies: by site, its adapter under wire keys (with `secure_sum`, masked) and its number of training samples.
        method: says how.
        previous: the global adapter of the round before; layers that no site sent keep its values.
    """
    if method.secure_sum:
        merged = secure_mean(replies, method, previous=previous or {})
        check_tensors(merged, "the new global adapter")
        return merged, {}
    pia = {**method.pia, "server": False} if method.aggregation == "fedavg" else method.pia
    sites = sorted(replies)
    states, counts = zip(*(replies[site] for site in sites), strict=True)
    settings = build(PIASettings, pia, section="method.pia")
    merged, report = integrate(states, counts, settings, sites=sites, previous=previous)
    check_tensors(merged, "the new global adapter")
    return merged, report
