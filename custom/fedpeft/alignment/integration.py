# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Server-level PIA: align every site's adapter to a reference, then average matching neurons.

What the sites' adapters of a round are aligned to: their average, the largest site's adapter, or each other.

The barycenter of single adapters: `integrate` without sites, layers or rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fedpeft.alignment.averaging import average, fedavg_weights, nearest, pia_weights, robust_mean, weighted_mean
from fedpeft.alignment.checks import check_round, check_tensors
from fedpeft.alignment.common_order import align_jointly
from fedpeft.alignment.neurons import KINDS, Bottleneck, Neurons, Tensors, neurons_of
from fedpeft.alignment.permutation import Aligned, Figures, align_adapter, report_of
from fedpeft.alignment.settings import FEDAVG, LARGEST, PIASettings, RobustSettings
from fedpeft.alignment.transport import cost_matrices
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import by_place
from fedpeft.core.settings import suggestion
from fedpeft.core.states import State, common_dtype, computable

TIE_BREAK = 1e-6


def align_round(
    clients: Mapping[str, Tensors],
    peers: Mapping[str, float],
    center: Tensors | None,
    neurons: Neurons,
    settings: PIASettings,
    robust: RobustSettings,
    shared: Tensors,
) -> dict[str, Aligned]:
    """Return every site's adapter of one place in one order.

    Args:
        clients: owner -> its tensors.
        peers: owner -> count, for those that are as wide as the result.
        center: the average of the peers, unless their fixed point takes its place; without any, the global adapter.
        neurons: where the neurons lie.
        settings: `reference`, `margin` and those of `align_adapter` are used.
        robust: whether counts can be trusted.
        shared: the new global value of what the kind shares over the model.
    """
    together: dict[str, Aligned] = {}
    guide = center
    if peers and settings.finds_fixed_point:
        shares = fedavg_weights(list(peers.values()), settings)
        together = align_jointly({owner: clients[owner] for owner in peers}, shares, neurons, settings)
        if len(together) < len(clients):
            ordered = [row.tensors for row in together.values()]
            guide = {**{name: weighted_mean((t[name] for t in ordered), shares) for name in ordered[0]}, **shared}
    elif peers:
        tables = [clients[owner] for owner in peers]
        leading = (
            clients[max(peers, key=peers.get)]
            if robust.weighs
            else nearest(tables, center, [n for n in center if n not in shared])
        )
        guide = _guide(center, leading, settings)
    rest = {owner: tensors for owner, tensors in clients.items() if owner not in together}
    alone: dict[str, Aligned] = {}
    if rest:
        goal, supports = neurons.hidden_support(guide), [neurons.hidden_support(tensors) for tensors in rest.values()]
        for owner, support, cost in zip(rest, supports, cost_matrices(supports, goal), strict=True):
            known = (support, goal, cost)
            alone[owner] = align_adapter(rest[owner], guide, neurons, settings, margin=settings.margin, compared=known)
    return {owner: together.get(owner) or alone[owner] for owner in clients}


def _guide(center: Tensors, leading: Tensors, settings: PIASettings) -> dict[str, Tensor]:
    """Return the adapter that the sites are aligned to: the average, or the largest site's adapter.

    The average of two copies in different orders is equally far from both, an exact tie in which each would keep its
    own order. A small step toward one site breaks the tie: the largest site, or with a robust average, where no site's
    count is trusted, the site nearest to the average. In float64, so that the step is not lost to rounding.
    """
    if settings.reference == LARGEST:
        return dict(leading)
    return {name: tensor.double().lerp(leading[name].double(), TIE_BREAK) for name, tensor in center.items()}


MIN_SHARE = 0.01  # least sum of the paper's weights, which do not sum to 1


def integrate(
    states: Sequence[State],
    counts: Sequence[float],
    settings: PIASettings | None = None,
    *,
    sites: Sequence[str] | None = None,
    previous: State | None = None,
    robust: RobustSettings | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Integrate the adapters of a round: reference, alignment, average, one place after the other.

        W_G = sum_k n_k W_k / sum_k n_k                                 FedAvg, the reference
        W = sum_k w_k W~_k / sum_k w_k,  w_k = n_k exp(-gamma D_k)      normalize=True
        W = (1/K) sum_k W~_k exp(-gamma D_k)                            normalize=False, the paper's equation

    with W~_k aligned to W_G and D_k = || W~_k - W_G ||_F over the tensors of one adapter; with reference="fixed_point"
    the sites are aligned to each other, and W_G is the mean of the W~_k. Tensors without neurons (LayerNorm, biases,
    Compacter's shared rule) are averaged as FedAvg does. With gamma=0 and plans that move nothing
    the result is FedAvg's to the bit.

    A site may send some layers only: each is averaged over the sites that have it, and keeps its value in `previous`
    where none has. Sites may differ in width (number of neurons): the result is as wide as `previous`, without it as
    the widest site; W_G is then the FedAvg of the sites of this width, or `previous` where there is none.

    A robust average replaces both means, in W_G and in W: a site that sends noise would otherwise already be in the
    reference that the others are aligned to.

    Args:
        states: one adapter state for each site.
        counts: training samples n_k of each site, above 0.
        settings: all but `client`, `support`, `integration` and `upload` are used.
        sites: names for errors and report; default `states[0]`, `states[1]`, ...
        previous: the global adapter so far, which determines the keys and the width of each adapter.
        robust: its `average` and `attackers` are used; default: the mean.

    Returns:
        The global adapter, in the sites' dtype and sharing no memory with them, and a report that JSON can
        hold (see `report.py`).

    Raises:
        FedpeftError: NaN, infinity, a key that is wrong, unknown or missing, another shape; names
            site and key. With normalize=False, also weights whose sum is below 0.01.

    Source: Saha et al., FedPIA, "Server-level PIA".
    """
    names = [f"states[{k}]" for k in range(len(states))] if sites is None else list(sites)
    owners = names if sites is None else [f"site {site}" for site in names]
    merged, figures = integrate_owned(states, counts, settings or PIASettings(), owners, previous, robust)
    name_of = dict(zip(owners, names, strict=True))
    return merged, report_of({place: {name_of[o]: f for o, f in row.items()} for place, row in figures.items()})


@torch.no_grad()
def integrate_owned(
    states: Sequence[State],
    counts: Sequence[float],
    settings: PIASettings,
    owners: Sequence[str],
    previous: State | None = None,
    robust: RobustSettings | None = None,
) -> tuple[dict[str, Tensor], dict[str, dict[str, Figures]]]:
    """Integrate as `integrate` does, and return the figures by place and owner.

    Args:
        states, counts, settings, previous, robust: as in `integrate`.
        owners: names of the states in errors, e.g. `site slake`.
    """
    robust = robust or RobustSettings()
    if settings.reference != FEDAVG and settings.aligns_on_server and not robust.weighs:
        raise FedpeftError(
            f"reference={settings.reference!r} can follow one site, whatever it sends: use reference='fedavg' with "
            f"average={robust.average!r}."
        )
    model = check_round(states, counts, owners, previous)
    grouped = [(place, names, neurons_of(names)) for place, names in by_place(model).items()]
    result: dict[str, Tensor] = {}
    figures: dict[str, dict[str, Figures]] = {}
    # Tensors without neurons come first: an adapter may need the mean of one, as Compacter needs that of the rule.
    for place, names, neurons in sorted(grouped, key=lambda entry: entry[2] is not None):
        members = [k for k, state in enumerate(states) if next(iter(names.values())) in state]
        weights = [counts[k] for k in members]
        if not members:
            result |= {key: previous[key].detach().clone() for key in names.values()}
            continue
        if neurons is None:
            shares = fedavg_weights(weights, settings)
            tables = [{name: states[k][key] for name, key in names.items()} for k in members]
            merged = average(tables, names, shares, robust)
        else:
            merged, figures[place] = _integrate_adapter(
                place,
                {owners[k]: neurons.gather(states[k], names) for k in members},
                weights,
                settings,
                robust,
                neurons,
                previous=neurons.gather(previous, names) if previous else None,
                shared={key: computable(result[key]) for key in neurons.shared},
            )
        dtypes = {name: common_dtype(states[k][key] for k in members) for name, key in names.items()}
        result |= {key: merged[name].to(dtypes[name]) for name, key in names.items()}
    return {key: result[key] for key in model}, figures


def _integrate_adapter(
    place: str,
    clients: Mapping[str, Tensors],
    counts: Sequence[float],
    settings: PIASettings,
    robust: RobustSettings,
    neurons: Neurons,
    *,
    previous: Tensors | None,
    shared: Tensors,
) -> tuple[dict[str, Tensor], dict[str, Figures]]:
    """Integrate one place; return tensor name -> tensor, and owner -> figures.

    Args:
        place: for errors.
        clients: owner -> its tensors at this place and those that its kind shares over the model.
        counts: training samples of each of these.
        settings, robust: as in `integrate`.
        neurons: where the neurons lie.
        previous: the global adapter at this place so far, or None.
        shared: the new global value of what the kind shares over the model.
    """
    names = [name for name in next(iter(clients.values())) if name not in shared]
    widths = {owner: neurons.width(tensors) for owner, tensors in clients.items()}
    width = neurons.width(previous) if previous else max(widths.values())
    peers = {owner: n for (owner, w), n in zip(widths.items(), counts, strict=True) if w == width}
    if not settings.aligns_on_server:
        for owner, own in widths.items():
            if own != width:
                raise FedpeftError(
                    f"{owner} has {own} neurons in {place}, the global adapter {width}: plain FedAvg needs one "
                    f"width everywhere, use server=True."
                )
    center = previous
    if peers and not settings.finds_fixed_point:
        shares = fedavg_weights(list(peers.values()), settings)
        center = {**average([clients[owner] for owner in peers], names, shares, robust), **shared}
    if not settings.aligns_on_server:
        weights = shares if robust.weighs else [None] * len(shares)
        figures = {owner: Figures(weight=weight) for owner, weight in zip(peers, weights, strict=True)}
        return {name: center[name] for name in names}, figures

    aligned = align_round(clients, peers, center, neurons, settings, robust, shared)
    shares = fedavg_weights(counts, settings)
    if settings.reference != FEDAVG:
        center = {name: weighted_mean((a.tensors[name] for a in aligned.values()), shares) for name in names}
    network = neurons.network(names)
    distances = [_distance(a.tensors, center, network) for a in aligned.values()]
    if not robust.weighs:
        merged = robust_mean([a.tensors for a in aligned.values()], names, robust)
        return merged, _figures(aligned, distances, [None] * len(aligned))
    weights = pia_weights(counts, distances, settings)
    if not settings.normalize and sum(weights) < MIN_SHARE:
        raise FedpeftError(
            f"normalize=False with gamma={settings.gamma:g} leaves a share of {sum(weights):.1e} of the adapter in "
            f"{place}: use a smaller gamma, or normalize=True."
        )
    merged = {
        name: weighted_mean((a.tensors[name] for a in aligned.values()), weights if name in network else shares)
        for name in names
    }
    return merged, _figures(aligned, distances, weights)


def _figures(
    aligned: Mapping[str, Aligned], distances: Sequence[float], weights: Sequence[float | None]
) -> dict[str, Figures]:
    return {
        owner: Figures(before=a.before, after=a.after, moved=a.moved, held=a.held, distance=distance, weight=weight)
        for (owner, a), distance, weight in zip(aligned.items(), distances, weights, strict=True)
    }


def _distance(tensors: Tensors, reference: Tensors, names: Iterable[str]) -> float:
    """Return D_k = || W~_k - W_G ||_F over the named tensors, in float64: float32 cannot square what is above 1e19."""
    gaps = [tensors[name] - reference[name] for name in names]
    distance = math.hypot(*(float(torch.linalg.vector_norm(gap, dtype=torch.float64)) for gap in gaps))
    if math.isfinite(distance):
        return distance
    largest = max(float(gap.abs().max()) for gap in gaps)  # nor can float64 square what is above 1e154
    return largest * math.hypot(*(float(torch.linalg.vector_norm(gap / largest)) for gap in gaps))


BOTTLENECK_NAMES = ("down.weight", "down.bias", "up.weight", "up.bias")
PLACE = "layer.0.adapter"  # `integrate` needs keys with a place; errors do not show this one


def barycenter(
    adapters: Sequence[Bottleneck | Tensors | tuple[Tensor | None, ...]],
    weights: Sequence[float] | None = None,
    **settings: Any,
) -> Bottleneck | dict[str, Tensor]:
    """Return the Wasserstein barycenter of single adapters, of any width.

    Args:
        adapters: each a `Bottleneck`, a tuple (down (r, d), down_bias (r), up (d, r), up_bias (d)) with None for a bias
            that does not exist, or a dictionary of one adapter's tensors (`A` and `B` for LoRA; `down.left`, ... and
            `shared.rule` for Compacter).
        weights: relative weights n_k; default: equal.
        **settings: of `PIASettings`, e.g. gamma=0.1.

    Returns:
        The barycenter, in the form of the first adapter, as wide as the widest.

    Raises:
        FedpeftError: an adapter in another form, adapters that do not fit together, an unknown setting; names the
            adapter as `adapters[k]`.

    Example:
        >>> merged = barycenter([site_a, site_b, site_c], gamma=0.1)
    """
    known = [field.name for field in fields(PIASettings)]
    for name in settings:
        if name not in known:
            raise FedpeftError(f"barycenter has no setting {name!r}: {suggestion(name, known)}.")
    owners = [f"adapters[{k}]" for k in range(len(adapters))]
    if not owners:
        raise FedpeftError("barycenter got no adapters: pass at least one Bottleneck(down, down_bias, up, up_bias).")
    tables = [_table(adapter, owner) for adapter, owner in zip(adapters, owners, strict=True)]
    states = [{_key(name): tensor for name, tensor in table.items()} for table in tables]
    try:
        merged, _ = integrate_owned(states, _weights(weights, owners), PIASettings(**settings), owners)
    except FedpeftError as error:
        raise FedpeftError(str(error).replace(f" in {PLACE},", ",").replace(f"{PLACE}.", "")) from error
    if isinstance(adapters[0], Mapping):
        return {name: merged[_key(name)] for name in tables[0]}
    return Bottleneck(*(merged.get(_key(name)) for name in BOTTLENECK_NAMES))


def _table(adapter: Any, owner: str) -> dict[str, Tensor]:
    """Return tensor name -> tensor of one adapter."""
    if isinstance(adapter, Mapping):
        table = {name: tensor for name, tensor in adapter.items() if tensor is not None}
        if neurons_of(table) is None:
            forms = "; ".join(", ".join(sorted(neurons.needs)) for neurons in KINDS.values())
            raise FedpeftError(f"{owner} has the tensors {', '.join(table) or 'none'}: an adapter has {forms}.")
    elif isinstance(adapter, tuple | list) and len(adapter) == len(BOTTLENECK_NAMES):
        table = {name: t for name, t in zip(BOTTLENECK_NAMES, adapter, strict=True) if t is not None}
        if not {"down.weight", "up.weight"} <= set(table):
            raise FedpeftError(f"{owner} has None for down or up: only a bias may be None.")
    else:
        form = f"a {type(adapter).__name__}" + (f" of {len(adapter)}" if isinstance(adapter, tuple | list) else "")
        raise FedpeftError(
            f"{owner} is {form}: pass Bottleneck(down, down_bias, up, up_bias), with None for a bias that does not "
            f"exist, or a dictionary of tensors."
        )
    check_tensors(table, owner, check_keys=False)
    return table


def _weights(weights: Sequence[float] | None, owners: Sequence[str]) -> list[float]:
    if weights is None:
        return [1.0] * len(owners)
    if len(weights) != len(owners):
        raise FedpeftError(f"weights has {len(weights)} numbers for {len(owners)} adapters: give one for each.")
    for weight, owner in zip(weights, owners, strict=True):
        if not (math.isfinite(weight) and weight > 0):
            raise FedpeftError(f"{owner} has the weight {weight!r}: it must be a finite number above 0.")
    return list(weights)


def _key(name: str) -> str:
    return name if name.startswith("shared.") else f"{PLACE}.{name}"
