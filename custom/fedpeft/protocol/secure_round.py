# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Rounds with a secure sum: check that a job can use them, and compute the weighted mean."""

from __future__ import annotations

from collections.abc import Mapping

from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import State
from fedpeft.job.federation import FederationSettings
from fedpeft.job.site_policy import LEAST_MEMBERS
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.fixed_point import encode, to_wire
from fedpeft.protocol.secure_sum import mean
from fedpeft.scheduling.settings import ScheduleSettings


def check_secure_sum(method: MethodSettings, schedule: ScheduleSettings, federation: FederationSettings) -> None:
    """Refuse a job whose other settings are incompatible with a secure sum.

    Raises:
        FedpeftError: naming the setting.
    """
    if not method.secure_sum:
        return
    if schedule.active:
        raise FedpeftError(
            "method.secure_sum adds up what all sites send, and a layer that one site trains alone would be "
            "visible: use schedule.solver='all'."
        )
    if schedule.clients_per_round or schedule.joins:
        raise FedpeftError(
            "method.secure_sum needs the same sites in every round, since differences between the sums of two groups "
            "show single sites: set schedule.clients_per_round to 0 and leave schedule.joins out."
        )
    if federation.needed < len(federation.sites):
        raise FedpeftError("method.secure_sum needs every site in every round: set federation.quorum to 0.")
    if len(federation.sites) < LEAST_MEMBERS:
        raise FedpeftError(
            f"method.secure_sum needs at least {LEAST_MEMBERS} sites, because each of two learns the other's adapter; "
            f"federation.sites has {len(federation.sites)}."
        )


def weight_of(samples: int, method: MethodSettings) -> int:
    """The integer weight of a site: its training samples, or 1 for a plain mean."""
    return 1 if method.pia.weighting == "uniform" else samples


def without_masks(state: State, samples: int, method: MethodSettings, *, sites: int) -> State:
    """Encode an adapter as a site would, without masks: for a federation in one process, with the same result."""
    return {key: to_wire(numbers) for key, numbers in encode(state, weight_of(samples, method), sites).items()}


def secure_mean(replies: Mapping[str, tuple[State, int]], method: MethodSettings, *, previous: State) -> State:
    """The new global adapter from masked uploads and sample counts by site, in the dtypes of `previous`."""
    uploads, counts = zip(*(replies[site] for site in sorted(replies)), strict=True)
    dtypes = {key: tensor.dtype for key, tensor in previous.items()}
    return mean(uploads, [weight_of(count, method) for count in counts], dtypes)
