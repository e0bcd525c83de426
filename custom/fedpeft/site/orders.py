# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check what the server sends to a site, orders and tensors, and keep a copy of the global adapter on its disk.

Orders are checked against earlier orders and the job's settings, which the site has checked: a server whose orders
exceed them does not run the lead's job. The site accepts only tensors of the adapter that it announced in its
handshake; where layers are scheduled, the server sends only those that changed. The announcement is stored in the job's
run folder; without it there was no handshake, and every order is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedpeft.alignment.factors import MAX_RANKS, extended
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.files import number_of, replacing, rounds_in, set_aside_after, write_json
from fedpeft.core.states import first_misfit
from fedpeft.job.settings import SiteJob
from fedpeft.methods.setting_limits import MAX_WIDTH
from fedpeft.protocol.types import SCORE, TRAIN, Hello, Introduction, Order, ScoreOrder, TrainOrder

FILE = "received.safetensors"
OUTDATED, REFUSED = "adapter-outdated", "order-refused"


@dataclass(frozen=True, kw_only=True)
class AdapterSchema:
    """Shapes and dtype of the adapter that a site has announced.

    Args:
        shapes: of its tensors, by wire key.
        dtype: of all tensors, by torch's name.
    """

    shapes: Mapping[str, Sequence[int]]
    dtype: str


def check_received(
    state: Mapping[str, torch.Tensor],
    announced: AdapterSchema,
    *,
    whole: bool,
    any_width: bool = False,
    stacked: bool = False,
) -> None:
    """Refuse a global adapter that does not fit the site's announced adapter, before any of it is written.

    If `whole`, it must have all keys, unless it is empty. If sites may have `any_width`, no dimension may exceed the
    site's largest one and that of any job; if factors of all sites are `stacked`, `MAX_RANKS` times that.
    """
    shapes = announced.shapes
    longest = max((side for shape in shapes.values() for side in shape), default=0) if any_width or stacked else None
    if longest is not None and any_width:
        longest = max(longest, MAX_WIDTH)  # of another site's neurons
    if longest is not None and stacked:
        longest *= MAX_RANKS
    misfit = first_misfit(state, shapes, dtype=announced.dtype, whole=whole and bool(state), max_side=longest)
    if misfit is None:
        return
    if misfit.unknown:
        raise _unfit(f"has a tensor {min(map(str, misfit.unknown))!r:.120}, which this site's adapter does not have")
    if misfit.missing:
        raise _unfit(f"lacks {min(misfit.missing)}")
    key = misfit.key
    if misfit.what == "form":
        raise _unfit(f"has no dense tensor as {key}")
    if misfit.what == "dtype":
        raise _unfit(f"has {key} as {state[key].dtype}, this site announced {announced.dtype}")
    raise _unfit(f"has {key} with shape {list(state[key].shape)!r:.60}, this site announced {list(shapes[key])}")


def _unfit(what: str) -> FedpeftError:
    return FedpeftError(
        f"the global adapter from the server {what}: install the same fedpeft version everywhere, and ask "
        f"the server's administrator.",
        code=REFUSED,
    )


def apply_delta(
    folder: Path, state: dict[str, torch.Tensor], *, base: int, version: int, stacked: bool = False
) -> dict[str, torch.Tensor]:
    """Apply changed tensors to the cached global adapter, write the result as `version` and return it.

    They are those that changed since the version `base`, which must be on disk; 0: they are whole. Version 0 need not
    be kept. `stacked` factors are appended to those on disk instead of replacing them. If `version` is already on disk,
    because the site's processes were killed after writing it, it is returned as it is.
    """
    whole = state
    if base:
        stored, before = _load(folder / FILE)
        if stored == version != base:
            return before
        if stored != base:
            raise FedpeftError(
                f"the global adapter on this site's disk is version {stored}, the server builds on {base}: it will be "
                f"sent whole in the next round.",
                code=OUTDATED,
            )
        whole = completed(before, state, stacked=stacked)
    if version != base:
        with replacing(folder / FILE) as draft:
            save_file(
                {k: tensor.contiguous() for k, tensor in whole.items()}, draft, metadata={"version": str(version)}
            )
    return whole


def completed(
    before: dict[str, torch.Tensor], state: dict[str, torch.Tensor], *, stacked: bool
) -> dict[str, torch.Tensor]:
    """Return the whole global adapter: the earlier tensors with the changed or appended ones."""
    return extended(before, state) if stacked else {**before, **state}


def _load(file: Path) -> tuple[int, dict[str, torch.Tensor]]:
    try:
        with safe_open(file, framework="pt") as stored:
            version = int((stored.metadata() or {}).get("version", 0))
            return version, {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise LocalError(
            f"the global adapter on this site's disk cannot be read ({error}): it will be sent whole next time.",
            code=OUTDATED,
        ) from error


ORDERS = "orders.json"
MADE = "made.json"  # in a lineage's folder: by round, the job that made its state
REPEATS = 10  # of one round, at most: a site whose processes were killed gets its task again


def check_order(order: Order, job: SiteJob) -> None:
    """Refuse an order that the job's settings do not provide for."""
    rounds, schedule = job.training.rounds, job.schedule
    if isinstance(order, Hello):
        if not 0 <= order.finished <= rounds:  # after the last one the results may be missing
            raise refused(f"to continue after round {order.finished} of {rounds}")
        if any(not 0 < last <= order.finished for last in order.sessions.values()):
            raise refused(f"to continue after round {order.finished}, and with later ones that count")
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
    if order.relay and not order.state:
        raise FedpeftError(
            f"this site has no global adapter of round {order.round} from its relay {order.relay!r:.80}: its log says "
            f"why.",
            code=OUTDATED,
        )
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
    """Record an order in the job's folder; refuse one of another lineage, an earlier round, or a round too often."""
    seen = _read(folder / ORDERS) or {"lineage": order.lineage}
    if seen["lineage"] != order.lineage:
        raise refused(f"for the state of {order.lineage!r:.120}, this job's is {seen['lineage']!r}")
    if isinstance(order, Hello):
        if TRAIN in seen or SCORE in seen:
            raise refused("to begin anew, and this job has begun")
        seen |= {"finished": order.finished, "session": order.session, "sessions": order.sessions}
    else:
        task = TRAIN if isinstance(order, TrainOrder) else SCORE
        last, times = seen.get(task, (0, 0))
        times = times + 1 if order.round == last else 1
        if order.round < last or times > REPEATS:
            raise refused(f"for round {order.round} after round {last}" + f", for the {times}th time" * (times > 1))
        seen[task] = [order.round, times]
    write_json(folder / ORDERS, seen)


def newest_round(state: Path, finished: int, sessions: Mapping[str, int]) -> int:
    """Return the round, up to `finished`, with whose state in a lineage's folder the job continues; 0: there is none.

    The folder may have a later state of a job that is not among `sessions`: a later job resumed from an earlier round
    and gave this site no order.
    """
    made = _read(state / MADE)
    for number in sorted(map(number_of, rounds_in(state)), reverse=True):
        made_by = made.get(str(number), "")  # empty: of a version that did not note it
        counts = next((name for name, last in sessions.items() if number <= last), made_by)
        if number <= finished and made_by in ("", counts):
            return number
    return 0


def begin_round(state: Path, folder: Path, round: int) -> None:
    """Note which job makes the state of a round; with its first order, set aside the states that it does not continue.

    That is not done in the handshake: a job that is refused there, because of other sites, continues from no round.
    """
    seen = _read(folder / ORDERS)
    if "finished" in seen:
        set_aside_after(state, newest_round(state, seen.pop("finished"), seen.get("sessions", {})))
        write_json(folder / ORDERS, seen)
    kept = {str(number_of(path)) for path in rounds_in(state)}
    made = {number: name for number, name in _read(state / MADE).items() if number in kept}
    write_json(state / MADE, {**made, str(round): seen.get("session", "")})


def note_own_round(round: int, folder: Path) -> None:
    """Record in the job's folder the round of this site's newest state; a full disk must not cost a finished round."""
    with suppress(LocalError):
        write_json(folder / ORDERS, {**_read(folder / ORDERS), "own": round})


def lost_state(state: Path, folder: Path, round: int) -> str:
    """Return a sentence for the log if a round begins with an older state than this site left; empty: it does not."""
    noted = _read(folder / ORDERS).get("own", 0)
    before = max((number_of(path) for path in rounds_in(state) if number_of(path) < round), default=0)
    if not before < noted < round:  # a round that is repeated begins with the state before it
        return ""
    return (
        f"the state of round {noted} is no longer in {state}, so that this round went on from "
        f"{f'that of round {before}' if before else 'none'}: change nothing there while a job runs, and repeat the "
        f"rounds since with federation.resume_from"
    )


def _read(file: Path) -> dict:
    try:
        return json.loads(file.read_text()) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise LocalError(f"{file} cannot be read ({error}): submit the job again.") from error


def refused(what: str) -> FedpeftError:
    """Return the error for an order that the job's settings do not provide for."""
    return FedpeftError(
        f"the server asks {what}, which is not what this job does: ask the server's administrator.", code=REFUSED
    )


ACCEPTED = "accepted.json"


def accept(introduction: Introduction, folder: Path) -> None:
    """Record, before the introduction, that this site takes part in the job, and with which adapter."""
    budget = max(introduction.budget, _read(folder / ACCEPTED).get("budget", 0))  # measured anew in a second one
    write_json(folder / ACCEPTED, {"shapes": introduction.schema, "dtype": introduction.dtype, "budget": budget})


def check_accepted(order: ScoreOrder | TrainOrder, folder: Path, *, any_width: bool, stacked: bool = False) -> None:
    """Refuse an order before the handshake, or with more layers or tensors of another form than announced."""
    file = folder / ACCEPTED
    if not file.exists():
        raise refused(f"for round {order.round} without a handshake")
    try:
        said = json.loads(file.read_text())
        budget = said.pop("budget", None)
        announced = AdapterSchema(**said)
    except (OSError, ValueError, TypeError) as error:
        raise LocalError(f"{file} cannot be read ({error}): submit the job again.") from error
    layers = order.layers if isinstance(order, TrainOrder) else None
    if budget is not None and layers is not None and len(layers) > budget:
        raise refused(f"to train {len(layers)} layers, the budget is {budget}")
    check_received(order.state, announced, whole=not order.base, any_width=any_width, stacked=stacked)
