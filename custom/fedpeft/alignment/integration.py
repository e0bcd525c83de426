# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Server-level PIA: align every site's adapter to a reference, then average what now corresponds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedpeft.alignment.averaging import fedavg_weights, pia_weights, weighted_mean
from fedpeft.alignment.checks import check_round
from fedpeft.alignment.neurons import Bottleneck, Neurons, Tensors, neurons_of
from fedpeft.alignment.permutation import align_adapter
from fedpeft.alignment.report import Figures, report_of
from fedpeft.alignment.settings import PIASettings
from fedpeft.alignment.wire import State, common_dtype, computable, places
from fedpeft.errors import FedpeftError

BOTTLENECK_NAMES = ("down.weight", "down.bias", "up.weight", "up.bias")
TIE_BREAK = 1e-6


@torch.no_grad()
def integrate(
    states: Sequence[State],
    counts: Sequence[float],
    settings: PIASettings | None = None,
    *,
    sites: Sequence[str] | None = None,
    previous: State | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """One round of the server: reference, alignment, integration, one adapter (place) after the other.

        W_G = sum_k n_k W_k / sum_k n_k                                 FedAvg, the reference
        W = sum_k w_k W~_k / sum_k w_k,  w_k = n_k exp(-gamma D_k)      normalize=True
        W = (1/K) sum_k W~_k exp(-gamma D_k)                            normalize=False, the paper's equation

    with W~_k aligned to W_G and D_k = || W~_k - W_G ||_F over the tensors of one adapter. Tensors without neurons
    (LayerNorm, biases, Compacter's shared rule) are averaged as FedAvg does. With gamma=0 and plans that move nothing
    the result is FedAvg's to the bit.

    A site may send some layers only: each is averaged over the sites that have it, and keeps its value in `previous`
    where none has. Sites may differ in width (number of neurons): the result is as wide as `previous`, without it as
    the widest site; W_G is then the FedAvg of the sites of this width, or `previous` where there is none.

    Args:
        states: one adapter in wire form for each site.
        counts: training samples n_k of each site, above 0.
        settings: all but `client`, `support`, `integration` and `upload` are used.
        sites: names for errors and report; `site-1`, `site-2`, ... when not given.
        previous: the global adapter so far; says which keys there are and how wide each adapter is.

    Returns:
        The global adapter in wire form, in the sites' dtype and sharing no memory with them, and a report that JSON can
        hold (see `report.py`).

    Raises:
        FedpeftError: NaN, infinity, an unknown or missing key, another shape; naming site and key.

    Source: Saha et al., FedPIA, "Server-level PIA".
    """
    settings = settings or PIASettings()
    sites = [f"site-{k + 1}" for k in range(len(states))] if sites is None else list(sites)
    model = check_round(states, counts, sites, previous)
    grouped = [(place, names, neurons_of(names)) for place, names in places(model).items()]
    result: dict[str, Tensor] = {}
    report: dict[str, dict[str, Figures]] = {}
    # Tensors without neurons come first: an adapter may need the mean of one, as Compacter needs that of the rule.
    for place, names, neurons in sorted(grouped, key=lambda entry: entry[2] is not None):
        members = [k for k, state in enumerate(states) if next(iter(names.values())) in state]
        weights = [counts[k] for k in members]
        if not members:
            result |= {key: previous[key].detach().clone() for key in names.values()}
            continue
        if neurons is None:
            shares = fedavg_weights(weights, settings)
            merged = {name: weighted_mean((states[k][key] for k in members), shares) for name, key in names.items()}
        else:
            merged, report[place] = _integrate_adapter(
                place,
                {sites[k]: neurons.gather(states[k], names) for k in members},
                weights,
                settings,
                neurons,
                previous=neurons.gather(previous, names) if previous else None,
                shared={key: computable(result[key]) for key in neurons.shared},
            )
        dtypes = {name: common_dtype(states[k][key] for k in members) for name, key in names.items()}
        result |= {key: merged[name].to(dtypes[name]) for name, key in names.items()}
    return {key: result[key] for key in model}, report_of(report)


def barycenter(
    adapters: Sequence[Bottleneck | Tensors | tuple[Tensor | None, ...]],
    weights: Sequence[float] | None = None,
    **settings: Any,
) -> Bottleneck | dict[str, Tensor]:
    """The Wasserstein barycenter of single adapters, of any width: `integrate` without sites, layers and rounds.

    Args:
        adapters: each a `Bottleneck`, a tuple (down (r, d), down_bias (r), up (d, r), up_bias (d)), or a dictionary of
            one adapter's tensors (`A` and `B` for LoRA; `down.left`, ... and `shared.rule` for Compacter).
        weights: relative weights n_k; equal when not given.
        **settings: of `PIASettings`, e.g. gamma=0.1.

    Returns:
        The barycenter, in the form of the first adapter, as wide as the widest.

    Example:
        >>> merged = barycenter([site_a, site_b, site_c], gamma=0.1)
    """
    tables = [a if isinstance(a, Mapping) else dict(zip(BOTTLENECK_NAMES, a, strict=True)) for a in adapters]
    states = [{_wire_key(name): t for name, t in table.items() if t is not None} for table in tables]
    merged, _ = integrate(states, [1.0] * len(states) if weights is None else weights, PIASettings(**settings))
    if isinstance(adapters[0], Mapping):
        return {name: merged[_wire_key(name)] for name in tables[0]}
    return Bottleneck(*(merged.get(_wire_key(name)) for name in BOTTLENECK_NAMES))


def _integrate_adapter(
    place: str,
    clients: Mapping[str, Tensors],
    counts: Sequence[float],
    settings: PIASettings,
    neurons: Neurons,
    *,
    previous: Tensors | None,
    shared: Tensors,
) -> tuple[dict[str, Tensor], dict[str, Figures]]:
    """`integrate` for one place: tensor name -> tensor, and site -> figures.

    Args:
        place: for errors.
        clients: site -> its tensors here and those that its kind shares over the model.
        counts: training samples of each of these sites.
        settings: as in `integrate`.
        neurons: where the neurons lie.
        previous: the global adapter here so far, or None.
        shared: the new global value of what the kind shares over the model.
    """
    names = [name for name in next(iter(clients.values())) if name not in shared]
    widths = {site: neurons.width(tensors) for site, tensors in clients.items()}
    width = neurons.width(previous) if previous else max(widths.values())
    peers = {site: n for (site, w), n in zip(widths.items(), counts, strict=True) if w == width}
    if not settings.aligns_on_server:
        for site, own in widths.items():
            if own != width:
                raise FedpeftError(
                    f"site {site} has {own} neurons in {place}, the global adapter {width}: plain FedAvg needs one "
                    f"width everywhere, use server=True."
                )
    average = previous
    if peers:
        shares = fedavg_weights(list(peers.values()), settings)
        average = {name: weighted_mean((clients[site][name] for site in peers), shares) for name in names} | shared
    if not settings.aligns_on_server:
        figures = {site: Figures(weight=share) for site, share in zip(peers, shares, strict=True)}
        return {name: average[name] for name in names}, figures

    guide = _guide(average, clients[max(peers, key=peers.get)], settings) if peers else previous
    aligned = {site: align_adapter(tensors, guide, neurons, settings) for site, tensors in clients.items()}
    shares = fedavg_weights(counts, settings)
    if settings.reference == "largest":
        average = {name: weighted_mean((a.tensors[name] for a in aligned.values()), shares) for name in names}
    network = neurons.network(names)
    distances = [_distance(a.tensors, average, network) for a in aligned.values()]
    weights = pia_weights(counts, distances, settings)
    merged = {
        name: weighted_mean((a.tensors[name] for a in aligned.values()), weights if name in network else shares)
        for name in names
    }
    figures = {
        site: Figures(before=a.before, after=a.after, moved=a.moved, distance=distance, weight=weight)
        for (site, a), distance, weight in zip(aligned.items(), distances, weights, strict=True)
    }
    return merged, figures


def _guide(average: Tensors, largest: Tensors, settings: PIASettings) -> dict[str, Tensor]:
    """What neurons are compared with: the average, or the largest site's adapter.

    The average of two copies in different orders is equally far from both, so that each may keep its own order: exact
    ties, which a hair's breadth towards the largest site breaks for all sites alike. In float64, where it is visible.
    """
    if settings.reference == "largest":
        return dict(largest)
    return {name: tensor.double().lerp(largest[name].double(), TIE_BREAK) for name, tensor in average.items()}


def _distance(tensors: Tensors, reference: Tensors, names: Iterable[str]) -> float:
    """D_k = || W~_k - W_G ||_F over the named tensors."""
    gaps = (tensors[name] - reference[name] for name in names)
    return math.hypot(*(float(torch.linalg.vector_norm(gap, dtype=torch.float64)) for gap in gaps))


def _wire_key(name: str) -> str:
    return name if name.startswith("shared.") else f"layer.0.adapter.{name}"
