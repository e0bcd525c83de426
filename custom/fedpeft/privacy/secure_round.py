# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A round whose adapters are summed under masks: which jobs can have one, and its weighted mean."""

from __future__ import annotations

from collections.abc import Mapping

from fedpeft.errors import FedpeftError
from fedpeft.federation import FederationSettings
from fedpeft.methods.settings import MethodSettings
from fedpeft.privacy.fixed_point import encode, to_wire
from fedpeft.privacy.secure_sum import mean
from fedpeft.privacy.site_policy import LEAST_MEMBERS
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.states import State


def check_secure_sum(method: MethodSettings, schedule: ScheduleSettings, federation: FederationSettings) -> None:
    """Refuse a job that asks for a secure sum and for something that one cannot give.

    Raises:
        FedpeftError: naming the setting.
    """
    if not method.secure_sum:
        return
    if schedule.active:
        raise FedpeftError(
            "method.secure_sum adds up what all sites send, and a layer that one site trains alone would be in plain "
            "view: use schedule.solver='all'."
        )
    if schedule.clients_per_round:
        raise FedpeftError(
            "method.secure_sum needs the same sites in every round, since differences between the sums of two groups "
            "show single sites: set schedule.clients_per_round to 0."
        )
    if federation.needed < len(federation.sites):
        raise FedpeftError("method.secure_sum has no sum without every site: set federation.quorum to 0.")
    if len(federation.sites) < LEAST_MEMBERS:
        raise FedpeftError(
            f"method.secure_sum needs at least {LEAST_MEMBERS} sites, because of two each learns the other's adapter; "
            f"federation.sites has {len(federation.sites)}."
        )


def weight_of(samples: int, method: MethodSettings) -> int:
    """The whole number that a site's adapter is multiplied by: its training samples, or 1 for a plain mean."""
    return 1 if method.pia.weighting == "uniform" else samples


def without_masks(state: State, samples: int, method: MethodSettings, *, sites: int) -> State:
    """What a site sends, but for its masks: for federations within one process, with the same result to the bit."""
    return {key: to_wire(numbers) for key, numbers in encode(state, weight_of(samples, method), sites).items()}


def secure_mean(replies: Mapping[str, tuple[State, int]], method: MethodSettings, *, previous: State) -> State:
    """The new global adapter from masked uploads and sample counts by site, in the dtypes of the one before."""
    uploads, counts = zip(*(replies[site] for site in sorted(replies)), strict=True)
    dtypes = {key: tensor.dtype for key, tensor in previous.items()}
    return mean(uploads, [weight_of(count, method) for count in counts], dtypes)
