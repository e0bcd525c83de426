# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Accept only tensors of the adapter that the site announced in its handshake.

The announcement is stored in the job's run folder. Without it there was no handshake, and every order is refused.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedpeft.site.global_cache import AdapterSchema, check_received
from fedpeft.site.order_limits import refused
from fedpeft.core.errors import LocalError
from fedpeft.core.files import write_json
from fedpeft.protocol.types import Introduction, ScoreOrder, TrainOrder

FILE = "accepted.json"


def accept(introduction: Introduction, folder: Path) -> None:
    """Record that this site takes part in the job, and with which adapter.

    Args:
        introduction: about to be sent.
        folder: the job's run folder.
    """
    write_json(folder / FILE, {"shapes": introduction.schema, "dtype": introduction.dtype})


def check_accepted(order: ScoreOrder | TrainOrder, folder: Path, *, any_width: bool, stacked: bool = False) -> None:
    """Refuse an order before the handshake, or with tensors of other keys, shapes or dtype than announced.

    Args:
        order: of the server.
        folder: the job's run folder.
        any_width: whether sites of the job have adapters of other widths than this one.
        stacked: whether the factors of all sites stand side by side.

    Raises:
        FedpeftError: the order is refused; the message says why.
    """
    file = folder / FILE
    if not file.exists():
        raise refused(f"for round {order.round} without a handshake")
    try:
        announced = AdapterSchema(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise LocalError(f"{file} cannot be read ({error}): submit the job again.") from error
    check_received(order.state, announced, whole=not order.base, any_width=any_width, stacked=stacked)
