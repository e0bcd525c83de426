# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check the server's orders to a site against the job's settings and against its earlier orders.

The site has checked these settings; a server whose orders exceed them does not run the lead's job.
"""

from __future__ import annotations

import json
from pathlib import Path
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.files import write_json
from fedpeft.protocol.types import Hello, Order, SCORE, ScoreOrder, TRAIN, TrainOrder
from fedpeft.job.site_job import SiteJob
import json
from pathlib import Path
from fedpeft.site.global_cache import AdapterSchema, check_received
from fedpeft.core.errors import LocalError
from fedpeft.core.files import write_json
from fedpeft.protocol.types import Introduction, ScoreOrder, TrainOrder


REFUSED = "order-refused"
ORDERS = "orders.json"
REPEATS = 10  # of one round: a site whose processes were killed gets its task again


def check_order(order: Order, job: SiteJob) -> None:
    """Refuse an order that the job's settings do not provide for.

    Raises:
        FedpeftError: names what they do not provide for.
    """
    rounds, schedule = job.training.rounds, job.schedule
    if isinstance(order, Hello):
        if not 0 <= order.finished < rounds:
            raise refused(f"to go on after round {order.finished} of {rounds}")
        return
    if not 1 <= order.round <= rounds:
        raise refused(f"for round {order.round} of {rounds}")
    if order.base < 0 or order.version < 0:
        raise refused(f"for version {order.version} built on {order.base}")
    if isinstance(order, ScoreOrder):
        if not schedule.scored:
            raise refused("for layer scores, and none are scored")
        return
    if not 0 <= order.part <= 1:
        raise refused(f"to take {order.part!r:.40} as the site's part in the mean")
    if order.scored and not (schedule.scored and schedule.scoring == "with_reply"):
        raise refused("for layer scores with the reply")
    if schedule.active != (order.layers is not None):
        raise refused("to train some layers, and none are scheduled" if order.layers else "to train all layers")
    if order.layers is None:
        return
    numbers = all(type(layer) is int and layer >= 0 for layer in order.layers)
    if not numbers or len(set(order.layers)) != len(order.layers):
        raise refused(f"to train layers {order.layers!r:.80}")
    budget = schedule.budget_of(job.site, seed=job.training.seed)
    if budget is not None and len(order.layers) > budget:
        raise refused(f"to train {len(order.layers)} layers, the budget is {budget}")


def note_order(order: Order, folder: Path) -> None:
    """Record an order, and refuse one of another lineage or an earlier round.

    Args:
        order: of the server.
        folder: the job's run folder.

    Raises:
        FedpeftError: the order has another lineage, an earlier round, or repeats a round too often.
    """
    seen = _read(folder / ORDERS) or {"lineage": order.lineage}
    if seen["lineage"] != order.lineage:
        raise refused(f"for the state of {order.lineage!r:.120}, this job's is {seen['lineage']!r}")
    if isinstance(order, Hello):
        if TRAIN in seen or SCORE in seen:
            raise refused("to begin anew, and this job has begun")
    else:
        task = TRAIN if isinstance(order, TrainOrder) else SCORE
        last, times = seen.get(task, (0, 0))
        times = times + 1 if order.round == last else 1
        if order.round < last or times > REPEATS:
            raise refused(f"for round {order.round} after round {last}" + f", for the {times}th time" * (times > 1))
        seen[task] = [order.round, times]
    write_json(folder / ORDERS, seen)


def _read(file: Path) -> dict:
    try:
        return json.loads(file.read_text()) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise LocalError(f"{file} cannot be read ({error}): submit the job again.") from error


def refused(what: str) -> FedpeftError:
    """The error for an order that the job's settings do not provide for."""
    return FedpeftError(
        f"the server asks {what}, which is not what this job does: ask whoever runs the server.", code=REFUSED
    )


ACCEPTED = "accepted.json"


def accept(introduction: Introduction, folder: Path) -> None:
    """Record that this site takes part in the job, and with which adapter.

    Args:
        introduction: about to be sent.
        folder: the job's run folder.
    """
    write_json(folder / ACCEPTED, {"shapes": introduction.schema, "dtype": introduction.dtype})


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
    file = folder / ACCEPTED
    if not file.exists():
        raise refused(f"for round {order.round} without a handshake")
    try:
        announced = AdapterSchema(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise LocalError(f"{file} cannot be read ({error}): submit the job again.") from error
    check_received(order.state, announced, whole=not order.base, any_width=any_width, stacked=stacked)
