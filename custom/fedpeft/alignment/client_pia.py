# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Client-level PIA: align the received global adapter to the site's own adapter, and integrate the two.

    first round, or client=False   the received adapter replaces the site's own: nothing to align
    integration="two_branches"     align_global; train the own adapter with the aligned one frozen beside it, the output
                                   being the mean of both branches; finish_round
    integration="weight_space"     align_global; start_merged; train the result, which is sent and kept
    integration="frozen_half"      the same, but only the own part of the result trains
    aligned_at="site"              align_upload: only what is sent takes the order of the received adapter

Source: Saha et al., FedPIA, "Client-level PIA" and Figure 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedpeft.alignment.averaging import weighted_mean
from fedpeft.alignment.neurons import GLOBAL, Neurons, Tensors, check_alike, check_tensors, neurons_of
from fedpeft.alignment.permutation import Figures, align_adapter, reordered, report_of
from fedpeft.alignment.settings import PIASettings
from fedpeft.alignment.transport import compare
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import group_by_place
from fedpeft.core.states import State, copied, plain

HALF = 0.5  # the paper's share of each
Activations = Mapping[str, Tensor]
Supports = Callable[[str, tuple[Tensors, Tensors], Neurons], tuple[Tensor, Tensor]]


class RoundEnd(NamedTuple):
    """The adapter that a site sends, and the one that it keeps for the next round."""

    upload: dict[str, Tensor]
    own: dict[str, Tensor]


@plain
def align_global(
    global_state: State,
    own_state: State,
    activations: Sequence[Activations] | None = None,
    settings: PIASettings | None = None,
    *,
    site: str = "here",
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the received global adapter with its neurons in the order of the site's own adapter.

    Its function is unchanged unless widths differ, neurons are blurred (`sinkhorn`) or outputs are `matched`.

    Args:
        global_state: the received adapter.
        own_state: the adapter that the site kept. May have another width, which the result then has; may lack
            layers, which then remain as received.
        activations: of the global and of the site's own adapter on the same inputs: `layer.<l>.<slot>` -> (m, r), the
            token-averaged activations of the hidden neurons for m samples, as `adapters.hidden_activations` returns
            them. Needed unless `support="weights"`.
        settings: `support`, `solver`, `regularization`, `output_axis` and `mass` are used.
        site: name for errors and report.

    Returns:
        The aligned adapter, sharing no memory with the arguments, and a report.

    Raises:
        FedpeftError: adapters or activations that do not fit together, or NaN; names the key.

    Source: Saha et al., FedPIA, "Client-level PIA".

    See Also: `start_merged` and `finish_round`, which integrate the two; `integrate` for the server's part.

    Example:
        >>> import torch
        >>> own = {"layer.0.query.A": torch.eye(2), "layer.0.query.B": torch.eye(2)}
        >>> received = {"layer.0.query.A": torch.eye(2).flip(0), "layer.0.query.B": torch.eye(2).flip(1)}
        >>> aligned, report = align_global(received, own, settings=PIASettings(support="weights"))
        >>> torch.equal(aligned["layer.0.query.A"], own["layer.0.query.A"]), report["transport"]["here"]
        (True, 0.0)
    """
    settings = settings or PIASettings()
    owner = f"site {site}"
    check_tensors(global_state, GLOBAL)
    check_tensors(own_state, owner)
    check_alike(own_state, owner, global_state, GLOBAL)
    supports = partial(_activations, activations, (GLOBAL, owner)) if settings.compares_activations else None
    aligned, figures = _align(global_state, own_state, group_by_place(own_state), settings, supports)
    return aligned, report_of({place: {site: figure} for place, figure in figures.items()})


@plain
def align_upload(
    trained: State, received: State, settings: PIASettings | None = None, *, site: str = "here"
) -> dict[str, Tensor]:
    """Return the trained adapter in the neuron order of the received global one, so that the server only averages.

    Neurons are compared by their incoming weights, as on the server: the result depends on the two adapters alone, and
    not on the order in which the site keeps its neurons.

    Args:
        trained: the adapter to be sent; may lack whole places.
        received: the global adapter that the round started from, of the same width.
        settings: `solver`, `regularization`, `output_axis` and `margin` are used.
        site: name for errors.

    Raises:
        FedpeftError: adapters that do not fit together, another width, or NaN; names the key.

    Example:
        >>> import torch
        >>> received = {"layer.0.query.A": torch.eye(2), "layer.0.query.B": torch.eye(2)}
        >>> trained = {"layer.0.query.A": torch.eye(2).flip(0), "layer.0.query.B": torch.eye(2).flip(1)}
        >>> align_upload(trained, received)["layer.0.query.A"]
        tensor([[1., 0.],
                [0., 1.]])
    """
    settings = settings or PIASettings()
    owner = f"site {site}"
    check_tensors(trained, owner)
    check_tensors(received, GLOBAL)
    check_alike(trained, owner, received, GLOBAL)
    for place, names in group_by_place(trained).items():
        neurons = neurons_of(names)
        if neurons is None:
            continue
        width, expected = (neurons.width(neurons.gather(state, names)) for state in (trained, received))
        if width != expected:
            raise FedpeftError(
                f"{owner} has {width} neurons in {place}, the global adapter {expected}: aligned_at='site' needs one "
                f"width everywhere, use aligned_at='server'."
            )
    return _align(trained, received, group_by_place(trained), settings, margin=settings.margin)[0]


def orders_between(received: State, aligned: State) -> dict[str, Tensor]:
    """By place (r,): neuron j of the received adapter is neuron order[j] of the aligned one.

    They are matched by their incoming weights, one to one; copies that moved are found exactly. Only places whose
    neurons stand in another order are there, and of one width.
    """
    orders = {}
    for place, names in group_by_place(received).items():
        neurons = neurons_of(names)
        if neurons is None or all(torch.equal(received[key], aligned[key]) for key in names.values()):
            continue
        moved, fixed = (neurons.hidden_support(neurons.gather(state, names)) for state in (aligned, received))
        if moved.shape != fixed.shape:
            continue
        order = compare(moved, fixed).matching.order
        if not torch.equal(order.cpu(), torch.arange(len(order))):
            orders[place] = order.cpu()
    return orders


def with_order(state: State, orders: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by key with the neurons of these places moved: neuron j is the given one's neuron order[j]."""
    result = dict(state)
    places = group_by_place(state)
    for place in orders.keys() & places.keys():
        names = places[place]
        if neurons := neurons_of(names):
            moved = reordered({name: state[key] for name, key in names.items()}, neurons, orders[place])
            result |= {key: moved[name] for name, key in names.items()}
    return result


@torch.no_grad()
def start_merged(own: State, aligned: State, share: float = HALF) -> dict[str, Tensor]:
    """Return `(1 - share) own + share aligned`, number by number; tensors of only one of them are unchanged.

    Args:
        own: the site's adapter.
        aligned: the global adapter, aligned to it.
        share: of the global adapter, from 0 to 1; a half is the paper.

    Raises:
        FedpeftError: a share outside that, or a tensor that has another shape in the two.

    Example:
        >>> import torch
        >>> start_merged({"head.bias": torch.zeros(2)}, {"head.bias": torch.ones(2)}, share=0.25)
        {'head.bias': tensor([0.2500, 0.2500])}
    """
    _check_share(share)
    merged = copied({**aligned, **own})
    for key in own.keys() & aligned.keys():
        if own[key].shape != aligned[key].shape:
            raise FedpeftError(
                f"{key} has shape {tuple(own[key].shape)} in the site's adapter and {tuple(aligned[key].shape)} in the "
                f"global one: align first with align_global(global_state, own_state)."
            )
        merged[key] = weighted_mean((own[key], aligned[key]), (1 - share, share)).to(own[key].dtype)
    return merged


def finish_round(trained: State, frozen: State, settings: PIASettings | None = None, share: float = HALF) -> RoundEnd:
    """Return what to send and to keep after training with the aligned global adapter frozen beside the site's own.

    With `upload="integrated"` the weighted mean of both weight sets is uploaded and kept (the paper, read as two
    branches: half and half), with `upload="local"` the trained adapter alone.

    Args:
        trained: the site's own adapter after training.
        frozen: the aligned global adapter.
        settings: `upload` is used.
        share: of the frozen adapter, in the output during training and in the mean.

    Returns:
        Two adapters that share no memory: what is done to the one that is sent (noise) leaves the kept one as it is.

    Raises:
        FedpeftError: as `start_merged`.

    Example:
        >>> import torch
        >>> finish_round({"head.bias": torch.zeros(2)}, {"head.bias": torch.ones(2)}).upload
        {'head.bias': tensor([0.5000, 0.5000])}
    """
    _check_share(share)
    settings = settings or PIASettings()
    result = start_merged(trained, frozen, share) if settings.upload == "integrated" else copied(trained)
    return RoundEnd(upload=result, own=copied(result))


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise FedpeftError(f"share is {share!r}, the global adapter's part must be a number from 0 to 1.")


def _align(
    moving: State,
    fixed: State,
    where: Mapping[str, Mapping[str, str]],
    settings: PIASettings,
    supports: Supports | None = None,
    margin: float = 0.0,
) -> tuple[dict[str, Tensor], dict[str, Figures]]:
    """Return one adapter with its neurons in the order of another's at some places, and the figures by place.

    `supports` makes the neurons' supports of a place and both adapters; None: their weights.
    """
    aligned, figures = copied(moving), {}
    for place, names in where.items():
        neurons = neurons_of(names)
        if neurons is None:
            continue
        pair = neurons.gather(moving, names), neurons.gather(fixed, names)
        pair_supports = supports(place, pair, neurons) if supports else None
        moved = align_adapter(*pair, neurons, settings, activations=pair_supports, margin=margin)
        for name in moved.changed:
            if moved.tensors[name] is not pair[0][name]:
                aligned[names[name]] = moved.tensors[name].to(moving[names[name]].dtype)
        figures[place] = Figures(before=moved.before, after=moved.after, moved=moved.moved)
    return aligned, figures


def _activations(
    activations: Sequence[Activations] | None,
    owners: tuple[str, str],
    place: str,
    adapters: tuple[Tensors, Tensors],
    neurons: Neurons,
) -> tuple[Tensor, Tensor]:
    """Check both adapters' activations at one place and return them, (m, r) and (m, r')."""
    checked = []
    for supports, tensors, owner in zip(activations or ({}, {}), adapters, owners, strict=True):
        if place not in supports:
            raise FedpeftError(
                f"{owner} has no activations for {place}: run a batch through both adapters, or use support='weights'."
            )
        width = neurons.width(tensors) * neurons.blocks(tensors)
        shape = tuple(supports[place].shape)
        if len(shape) != 2 or shape[1] != width or shape[0] == 0:
            raise FedpeftError(f"{owner} has activations of shape {shape} in {place}: they must be (m, {width}).")
        if not torch.isfinite(supports[place]).all():
            raise FedpeftError(f"{owner} has NaN or infinity in its activations in {place}: its training diverged.")
        checked.append(supports[place].detach().to(next(iter(tensors.values())).device))
    if len(checked[0]) != len(checked[1]):
        raise FedpeftError(
            f"{owners[0]} has activations of {len(checked[0])} samples in {place}, {owners[1]} of {len(checked[1])}: "
            f"run the same batch through both."
        )
    return checked[0], checked[1]
