# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Whether the training of a site and that of the others agree, and how much of the global adapter the site then takes.

Sites that learn one task move it together; where their answers contradict each other, what one site learned the others
undo. A site sees this without any message about them: of the change of the global adapter over a round it takes off its
own part, and what is left is the others'. It is exactly that while all sites start from the global adapter; where they
keep different shares of their own, what they kept is left as well (docs/fedpia.md says how much that changes).
"""

from __future__ import annotations

import torch

from fedpeft.alignment.settings import LEAST_BY_AGREEMENT
from fedpeft.site.site_state import SiteState
from fedpeft.core.states import State

# chosen on seeds 100 to 102 of the embedded federation, whose sites agree or contradict each other (docs/fedpia.md)
MEMORY = 0.5  # weight of the rounds before in the mean over rounds
ENOUGH = 0.06  # agreement from which on a site takes nothing but the global adapter
SLOPE = 5.0  # of the share, per agreement that is lacking


def next_agreement(own: SiteState | None, received: State, *, round: int, part: float) -> float | None:
    """The mean agreement over the rounds so far, the last one counting most; None: there is nothing to compare yet.

    Args:
        own: the site's state after its last round.
        received: the global adapter, by key.
        round: that begins.
        part: of the site in the mean that the received adapter is.
    """
    if own is None:
        return None
    comparable = own.round == round - 1 and own.received.keys() == received.keys() == own.started.keys()
    if not comparable or not received:
        return own.agreement
    now = agreement(own.adapter, own.started, before=own.received, after=received, part=part)
    return now if own.agreement is None else MEMORY * own.agreement + (1 - MEMORY) * now


def agreement(trained: State, started: State, *, before: State, after: State, part: float) -> float:
    """Cosine between what a site's training changed and what the others' did, over all tensors; from -1 to 1.

    Args:
        trained: the site's adapter after training.
        started: that it trained from.
        before: the global adapter before the round.
        after: the global adapter after it.
        part: of the site in the mean.
    """
    mine = _flat(trained) - _flat({key: started[key] for key in trained})
    change = _flat({key: after[key] for key in trained}) - _flat({key: before[key] for key in trained})
    return float(torch.nn.functional.cosine_similarity(mine, change - part * mine, dim=0))


def share_of(agreement: float | None) -> float:
    """The share of the global adapter that a site with this agreement merges with its own one; None: all of it."""
    if agreement is None:
        return 1.0
    return max(LEAST_BY_AGREEMENT, 1.0 - SLOPE * max(0.0, ENOUGH - agreement))


def _flat(state: State) -> torch.Tensor:
    return torch.cat([tensor.float().flatten() for tensor in state.values()])
