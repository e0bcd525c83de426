# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A message as FLARE sends it: an FLModel, tensors in `params`, all other fields as one object in `meta["fedpeft"]`."""

from __future__ import annotations

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedpeft.messages.types import M, Order, Reply, fields_of, message_from

FIELDS = "fedpeft"


def to_model(message: Order | Reply, *, round: int | None = None, rounds: int | None = None) -> FLModel:
    """The message as FLARE sends it.

    Args:
        message: of server or site.
        round: current round, for FLARE.
        rounds: of the job, for FLARE.
    """
    state = message.state if message.carries_state else {}
    return FLModel(
        params_type=ParamsType.FULL,
        params=state,
        current_round=round,
        total_rounds=rounds,
        meta={FIELDS: fields_of(message)},
    )


def from_model(kind: type[M], model: FLModel, *, sender: str = "the server") -> M:
    """Read a message out of what FLARE received.

    Raises:
        FedpeftError: naming the sender, see `fedpeft.messages.types.message_from`.
    """
    return message_from(kind, model.meta.get(FIELDS), model.params, sender=sender)
