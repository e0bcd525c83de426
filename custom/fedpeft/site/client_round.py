# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's half of PIA in a round: align the received adapter, merge it with the site's own, integrate after training.

A site can choose the plans and its share of the global adapter by losses on its own samples, or by how much its
training agrees with that of the others. Sites that learn one task move the adapter together; if their answers
contradict each other, the others undo what one site learned. A site sees this without any message about them: it
subtracts its own part from the change of the global adapter over a round, and the rest is the others'. This is exact
while all sites start from the global adapter. If they keep different shares of their own, the rest also contains what
they kept (docs/fedpia.md says how much that changes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from fedpeft.alignment.client_pia import (
    align_global,
    align_upload,
    finish_round,
    orders_between,
    start_merged,
    with_order,
)
from fedpeft.alignment.settings import FEDAVG, FIXED_OUTPUTS, MIN_BY_AGREEMENT, PLACES, SHARES, PIASettings
from fedpeft.answering.answering import Batch
from fedpeft.core.keys import group_by_place, only_connector, without_connector
from fedpeft.core.states import State
from fedpeft.methods.trainable import Trainable
from fedpeft.site.scaffold import own_in_order
from fedpeft.site.site_state import SiteState

Loss = Callable[[State], float]


def accepted_global(
    own: State, received: State, aligned: State, *, share: float, loss: Loss, each_place: bool
) -> State:
    """Return the global adapter with only those neurons moved that lower the loss of the merged adapter.

    `aligned` is the received adapter with its neurons in the order of the own ones; `share` is its share in the merged
    adapter. The loss on the probe samples decides for one place after the other, or once for all.
    """
    if not each_place:
        moved, kept = (loss(start_merged(own, state, share)) for state in (aligned, received))
        return aligned if moved < kept else received
    chosen, lowest = dict(received), loss(start_merged(own, received, share))
    places = group_by_place(received)
    for place in moved_places(received, aligned):
        candidate = chosen | {key: aligned[key] for key in places[place].values()}
        if (value := loss(start_merged(own, candidate, share))) < lowest:
            chosen, lowest = candidate, value
    return chosen


def moved_places(received: State, aligned: State) -> list[str]:
    """Return the places of the global adapter whose neurons are in another order in `aligned`."""
    return [
        place
        for place, names in group_by_place(received).items()
        if any(not torch.equal(received[key], aligned[key]) for key in names.values())
    ]


def chosen_share(accepted: Callable[[float], State], loss: Callable[[float, State], float]) -> tuple[float, State]:
    """Return the share of `SHARES` with the lowest loss (the larger of equals), and the adapter accepted with it.

    `loss` is that of the model that training would start from, on the validation questions.
    """
    candidates = [(share, accepted(share)) for share in reversed(SHARES)]
    return min(candidates, key=lambda candidate: loss(*candidate))


# chosen on seeds 100 to 102 of the embedded federation, whose sites agree or contradict each other (docs/fedpia.md)
MEMORY = 0.5  # weight of earlier rounds in the mean over rounds
ENOUGH = 0.06  # a site with this agreement or more takes only the global adapter
SLOPE = 5.0  # loss of share per agreement below that

STEP = "step"  # the optimizer's count of steps, which has no entry per neuron


def next_agreement(
    own: SiteState | None,
    received: State,
    settings: PIASettings | None = None,
    *,
    round: int,
    part: float,
    joined: bool = False,
) -> float | None:
    """Return the mean agreement over the rounds so far, the last one counting most; None: nothing to compare yet.

    `part` is the weight of the site in the mean that made the received adapter; for `settings` see `reordered_to`.
    `joined`: a site joined in the round before, and the global adapter's change is mostly that of its other values.
    """
    if own is None:
        return None
    comparable = not joined and own.round == round - 1 and own.received.keys() == received.keys() == own.started.keys()
    if not comparable or not received:
        return own.agreement
    sent = _change(own) if settings is not None and not settings.server else None  # nobody aligned what it sent
    own = reordered_to(own, received, settings)
    now = agreement(_change(own), before=own.received, after=received, part=part, sent=sent)
    return now if own.agreement is None else MEMORY * own.agreement + (1 - MEMORY) * now


def agreement(mine: State, *, before: State, after: State, part: float, sent: State | None = None) -> float:
    """Return the cosine between the changes of a site's training and of the others', over all tensors; from -1 to 1.

    Args:
        mine: the change by the site's training.
        before, after: the global adapter before and after the round.
        part: weight of the site in the mean that made `after`.
        sent: the change as it is in that mean: in another order of neurons than `mine` if the site took a plan and
            nobody aligned what it sent; None: as in `mine`.
    """
    own, taken_off = _flat(mine), _flat(mine if sent is None else sent)
    change = _flat({key: after[key] for key in mine}) - _flat({key: before[key] for key in mine})
    return float(torch.nn.functional.cosine_similarity(own, change - part * taken_off, dim=0))


def _change(own: SiteState) -> dict[str, torch.Tensor]:
    """Return what the site's training changed in its adapter in the last round."""
    return {key: trained.float() - own.started[key].float() for key, trained in without_connector(own.adapter).items()}


def reordered_to(own: SiteState, received: State, settings: PIASettings | None = None) -> SiteState:
    """Return a site's state with its own and last received neurons in the order of the adapter that is received now.

    The round before may have left them in two other orders: the site's own, if it took a plan, and that of the former
    global adapter, if the server's mean now follows another site (`settings.reference`). The optimizer's moments move
    with their neurons, and so do the site's control variates and FedALA's shares; both methods exclude a mean that
    follows another site.
    """
    follows = settings is not None and settings.aligns_on_server and own.received.keys() == received.keys()
    since = orders_between(received, own.received) if follows else {}
    for orders in (own.orders, since):
        own = _reordered(own, orders) if orders else own
    return replace(own, received=with_order(own.received, since), orders={})


def compares_received(settings: PIASettings | None, orders: Mapping[str, torch.Tensor]) -> bool:
    """Return whether the next round compares its global adapter with that of this one, which leaves these `orders`."""
    if settings is None:
        return False
    reorders = settings.aligns_on_server and (bool(orders) or settings.reference != FEDAVG)
    return reorders or settings.follows_agreement


def _reordered(own: SiteState, orders: Mapping[str, torch.Tensor]) -> SiteState:
    moments: dict[str, State] = {}
    for key, tensor in own.optimizer.items():
        parameter, _, entry = key.rpartition("/")
        moments.setdefault(entry, {})[parameter] = tensor
    optimizer = {
        f"{parameter}/{entry}": tensor
        for entry, tensors in moments.items()
        for parameter, tensor in (tensors if entry == STEP else with_order(tensors, orders)).items()
    }
    adapter, started = (with_order(state, orders) for state in (own.adapter, own.started))
    control, personal = own.control | own_in_order(own.control, orders), with_order(own.personal, orders)
    return replace(own, adapter=adapter, started=started, optimizer=optimizer, control=control, personal=personal)


def share_of(agreement: float | None) -> float:
    """Return the share of the global adapter that a site with this agreement merges with its own; None: all of it."""
    if agreement is None:
        return 1.0
    return max(MIN_BY_AGREEMENT, 1.0 - SLOPE * max(0.0, ENOUGH - agreement))


def share_in_round(settings: PIASettings | None, agreement: float | None, *, round: int, rounds: int) -> float | None:
    """Return the share of the global adapter in a round; None: the validation split decides, or nothing is aligned."""
    if settings is None:
        return None
    return share_of(agreement) if settings.follows_agreement else settings.share_in(round, rounds)


def _flat(state: State) -> torch.Tensor:
    return torch.cat([tensor.float().flatten() for tensor in state.values()])


Finish = Callable[[State], tuple[State, State]]


class Mixed(NamedTuple):
    """The two parts of `W = (1 - share) own + share frozen`, of which only `own` trains."""

    own: State
    frozen: State
    share: float


@contextmanager
def own_trained(
    parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, mix: Mixed | None
) -> Iterator[None]:
    """Let every step in this block train only the own part of `W`, whose gradient is `(1 - share) dloss/dW`.

    The model computes with `W` in the parameters; the optimizer sees and moves the own part instead. Without them all
    of `W` trains.
    """
    if mix is None:
        yield
        return
    kept = 1 - mix.share
    parts = [
        (parameters[key], own.to(parameters[key], copy=True), mix.share * mix.frozen[key].to(parameters[key]))
        for key, own in mix.own.items()
        if key in mix.frozen and key in parameters and parameters[key].requires_grad
    ]

    @torch.no_grad()
    def show_own(*_: Any) -> None:
        for parameter, own, _frozen in parts:
            if parameter.grad is not None:
                parameter.grad.mul_(kept)
            parameter.copy_(own)

    @torch.no_grad()
    def show_whole(*_: Any) -> None:
        for parameter, own, frozen in parts:
            own.copy_(parameter)
            parameter.copy_(kept * own + frozen)

    hooks = optimizer.register_step_pre_hook(show_own), optimizer.register_step_post_hook(show_whole)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class Integration(NamedTuple):
    """What a round starts with.

    Args:
        finish: from the trained adapter to what is sent and what is kept.
        near: the global adapter with its neurons in the order of the trained ones, for FedProx.
        figures: for the site's own record: `global_share`, the share of the global adapter; `plans`, the places whose
            neurons alignment would move; `plans_taken`, those whose neurons were moved. Empty where nothing of the
            site's own is integrated.
        orders: of the neurons that are trained, against the received adapter (`SiteState.orders`).
        mix: the part of the trained adapter that stays as it is; None: all of it trains.
        align: from what is to be sent to the same with its neurons in the order of the received adapter; None: it is
            sent as it is.
        known: whether an order says how `align` moves an adapter.
    """

    finish: Finish
    near: State
    figures: Mapping[str, float]
    orders: Mapping[str, torch.Tensor]
    mix: Mixed | None = None
    align: Callable[[State], State] | None = None
    known: bool = True

    def end(self, trained: State) -> tuple[State, State, Mapping[str, torch.Tensor]]:
        """Return what is sent, what is kept, and the order of the kept neurons against those sent."""
        upload, kept = self.finish(trained)
        if self.align is None:
            return upload, kept, self.orders
        sent = self.align(upload)
        moved = orders_between(without_connector(sent), without_connector(upload)) if self.known else {}
        return sent, kept, moved

    def reordered(self, own: SiteState | None, settings: PIASettings | None) -> SiteState | None:
        """Return the site's state with its neurons in the order of those that are trained."""
        return own if own is None or self.figures else reordered_to(own, self.near, settings)


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Samples that a site looks at before it integrates; they are drawn when needed.

    Args:
        probe: m random training samples, to compare activations and to accept a plan by the loss.
        validation: the validation split.
        loss: mean cross-entropy of an adapter on batches.
    """

    probe: Callable[[], Sequence[Batch]]
    validation: Callable[[], Sequence[Batch]]
    loss: Callable[[Sequence[Batch], State], float]


def start(
    trainable: Trainable,
    *,
    own: State | None,
    first: State,
    received: State,
    settings: PIASettings | None,
    share: float | None,
    samples: Samples,
) -> Integration:
    """Load the tensors that a round starts from.

    With `aligned_at="site"` only the upload is permuted into the order of the received adapter. Without client PIA
    (settings None), with a share of 1, or while the site has no adapter of its own, the received adapter is loaded as
    it is. One of another width is first brought to that of the site's own neurons, or of its `first` ones. If no share
    is given, the validation split decides. A connector is always loaded as it was received: it is no adapter, and all
    sites have the same.
    """
    trainable.set_companion(None)
    figures: dict[str, float] = {}
    orders: Mapping[str, torch.Tensor] = {}
    mix = None
    if own is None or settings is None or not settings.client or share == 1:
        received = as_wide(received, own or first, settings)
        trainable.start(received, own)
        finish: Finish = _sent_and_kept
        integrated = received
    else:
        connector, adapter, own = only_connector(received), without_connector(received), without_connector(own)
        # the probe must use the site's own adapter, not what an earlier round left in the model
        trainable.load({**own, **connector})
        share, integrated, plans = _integrated(trainable, own, adapter, settings, share, samples)
        finish = _combine(trainable, own, integrated, settings, share)
        taken = len(moved_places(adapter, integrated))
        orders = orders_between(adapter, integrated) if settings.output_axis == FIXED_OUTPUTS else {}
        figures = {"global_share": share, "plans": plans, "plans_taken": taken}
        mix = Mixed(own, integrated, share) if settings.form.half_frozen and share != 1 else None
        integrated = {**integrated, **connector}
    started = Integration(finish, integrated, figures, orders, mix)
    if settings is None or not settings.aligns_before_upload:
        return started
    align = partial(align_upload, received=received, settings=settings)
    return started._replace(align=align, known=settings.output_axis == FIXED_OUTPUTS)


def as_wide(received: State, own: State, settings: PIASettings | None) -> State:
    """Return an adapter with as many neurons as the site's own at each place; as it is where it has as many."""
    if all(key not in own or tensor.shape == own[key].shape for key, tensor in received.items()):
        return received
    by_weights = replace(settings or PIASettings(), support="weights")
    adapter, _ = align_global(without_connector(received), without_connector(own), None, by_weights)
    return adapter | only_connector(received)


def _combine(trainable: Trainable, own: State, integrated: State, settings: PIASettings, share: float) -> Finish:
    """Load both adapters, merged or one beside the other; return the function that finishes the round."""
    if share == 1 or not settings.form.second_branch:
        trainable.load(start_merged(own, integrated, share))
        return _sent_and_kept
    trainable.load(own)
    trainable.set_companion(integrated, share)
    return lambda trained: finish_round(trained, integrated, settings, share)


def _sent_and_kept(trained: State) -> tuple[State, State]:
    return trained, trained


def _integrated(
    trainable: Trainable,
    own: State,
    received: State,
    settings: PIASettings,
    share: float | None,
    samples: Samples,
) -> tuple[float, State, int]:
    """Return the share of the global adapter, that adapter with its accepted moves, and the number of possible ones."""
    needed = settings.compares_activations or settings.accept
    probe = samples.probe() if needed else []
    inputs = [batch.inputs for batch in probe]
    activations = trainable.activations([received, own], inputs) if settings.compares_activations else None
    aligned, _ = align_global(received, own, activations, settings)
    plans = len(moved_places(received, aligned))

    def accepted(share: float) -> State:
        if not settings.accept:
            return aligned
        each_place = settings.accept == PLACES
        loss = partial(samples.loss, probe)
        return accepted_global(own, received, aligned, share=share, loss=loss, each_place=each_place)

    if share is not None:
        return share, accepted(share), plans
    validation = samples.validation()

    def starting_loss(share: float, taken: State) -> float:
        _combine(trainable, own, taken, settings, share)
        value = samples.loss(validation, trainable.state())
        trainable.set_companion(None)
        return value

    return *chosen_share(accepted, starting_loss), plans
