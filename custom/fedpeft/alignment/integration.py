# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Server-level PIA: align every site's adapter to a reference, then average matching neurons.

The reference is the sites' average, the largest site's adapter, or the sites themselves (`common_order`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from fedpeft.alignment.averaging import (
    average,
    cap_share,
    distance_of,
    fedavg_weights,
    near_ones,
    nearest,
    pia_weights,
    robust_mean,
    weighted_mean,
)
from fedpeft.alignment.common_order import align_jointly
from fedpeft.alignment.neurons import KINDS, Bottleneck, Neurons, Tensors, check_round, check_tensors, neurons_of
from fedpeft.alignment.permutation import Aligned, Figures, align_adapter, report_of
from fedpeft.alignment.settings import FEDAVG, LARGEST, PIASettings, RobustSettings
from fedpeft.alignment.transport import compare_each
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import group_by_place
from fedpeft.core.settings import suggestion
from fedpeft.core.states import State, Store, common_dtype, computable, in_memory, plain

TIE_BREAK = 1e-6
NOT_ROBUST = RobustSettings(max_share=1.0)
MIN_SHARE = 0.01  # least sum of the paper's weights, which do not sum to 1


def integrate(
    states: Iterable[State],
    counts: Iterable[float],
    settings: PIASettings | None = None,
    *,
    sites: Iterable[str] | None = None,
    previous: State | None = None,
    robust: RobustSettings | None = None,
    store: Store = in_memory,
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
        settings: all but `client`, `support`, `integration`, `share`, `accept` and `upload` are used.
        sites: names for errors and report; default `states[0]`, `states[1]`, ...
        previous: the global adapter so far, which determines the keys and the width of each adapter.
        robust: its `average`, `attackers` and `max_share` are used, in each place for the sites that sent it; default:
            the mean, without a limit.
        store: gets the new tensors of one place after the other, and returns them as they are kept from then on.

    Returns:
        The global adapter, in the sites' dtype and sharing no memory with them, and a report that JSON can
        hold (see `report_of`).

    Raises:
        FedpeftError: NaN, infinity, a key that is wrong, unknown or missing, another shape; names
            site and key. With normalize=False, also weights whose sum is below 0.01.

    Source: Saha et al., FedPIA, "Server-level PIA".

    See Also: `barycenter` for single adapters, `align_global` for a site's part.

    Example:
        >>> import torch
        >>> site_a = {"layer.0.query.A": torch.eye(2), "layer.0.query.B": torch.eye(2)}
        >>> site_b = {key: factor.flip(0 if key.endswith("A") else 1) for key, factor in site_a.items()}
        >>> merged, report = integrate([site_a, site_b], [300, 100], sites=["a", "b"])
        >>> merged["layer.0.query.A"], report["decisions"]["b"]["moved"]
        (tensor([[1., 0.],
                [0., 1.]]), 1)
    """
    settings, robust = settings or PIASettings(), robust or NOT_ROBUST
    merged, figures = integrate_round(
        RoundInput(
            states=list(states),
            counts=list(counts),
            settings=settings,
            sites=None if sites is None else list(sites),
            previous=previous,
            robust=robust,
            store=store,
        )
    )
    return merged, report_of(figures)


@dataclass(frozen=True, kw_only=True)
class RoundInput:
    """What the sites of a round sent, and how it becomes one adapter: see `integrate`."""

    states: Sequence[State]
    counts: Sequence[float]
    settings: PIASettings = field(default_factory=PIASettings)
    sites: Sequence[str] | None = None
    previous: State | None = None
    robust: RobustSettings = NOT_ROBUST
    store: Store = in_memory
    unnamed: str = "states"  # of which a state without a site's name is one

    def __post_init__(self) -> None:
        """Make plain numbers of the counts, so that a report of weights is one that JSON can hold."""
        plain = [count if isinstance(count, int | float) else float(count) for count in self.counts]
        object.__setattr__(self, "counts", plain)

    @cached_property
    def names(self) -> list[str]:
        """The names of the states in the report."""
        if self.sites is None:
            return [f"{self.unnamed}[{k}]" for k in range(len(self.states))]
        return list(self.sites)

    @cached_property
    def owners(self) -> list[str]:
        """Their names in errors."""
        return self.names if self.sites is None else [f"site {site}" for site in self.sites]

    def check(self) -> dict[str, Tensor]:
        """Refuse adapters that do not fit together; return what `check_round` does."""
        return check_round(self.states, self.counts, self.owners, self.previous)

    def members(self, key: str) -> list[int]:
        """Return the numbers of the states that have a key."""
        return [k for k, state in enumerate(self.states) if key in state]

    def counts_of(self, members: Sequence[int]) -> list[float]:
        """Return the samples of the states that a place averages, of which none exceeds `max_share`."""
        return cap_share([self.counts[k] for k in members], self.robust.max_share)

    def kept(self, keys: Iterable[str]) -> dict[str, Tensor]:
        """Return tensors that no site sent, as they were."""
        return {key: self.previous[key].detach().clone() for key in keys}


@plain
def integrate_round(round: RoundInput) -> tuple[dict[str, Tensor], dict[str, dict[str, Figures]]]:
    """Integrate as `integrate` does, and return the figures by place and name."""
    settings, robust = round.settings, round.robust
    if settings.reference != FEDAVG and settings.aligns_on_server and not robust.weighs:
        raise FedpeftError(
            f"reference={settings.reference!r} can follow one site, whatever it sends: use reference='fedavg' with "
            f"average={robust.average!r}."
        )
    model = round.check()
    grouped = [(place, names, neurons_of(names)) for place, names in group_by_place(model).items()]
    result: dict[str, Tensor] = {}
    figures: dict[str, dict[str, Figures]] = {}
    # Tensors without neurons come first: an adapter may need the mean of one, as Compacter needs that of the rule.
    for name, names, neurons in sorted(grouped, key=lambda entry: entry[2] is not None):
        members = round.members(next(iter(names.values())))
        if not members:
            result |= round.store(round.kept(names.values()))
            continue
        if neurons is None:
            shares = fedavg_weights(round.counts_of(members), settings)
            tables = [{name: round.states[k][key] for name, key in names.items()} for k in members]
            merged = average(tables, names, shares, robust)
        else:
            aligns = settings.aligns_on_server
            place = Place(
                name=name,
                neurons=neurons,
                clients={round.owners[k]: neurons.gather(round.states[k], names, convert=aligns) for k in members},
                counts=dict(zip((round.owners[k] for k in members), round.counts_of(members), strict=True)),
                previous=neurons.gather(round.previous, names) if round.previous else None,
                shared={key: computable(result[key]) for key in neurons.shared},
            )
            combine = _aligned_average if aligns else _plain_average
            merged, rows = combine(place, settings, robust)
            figures[name] = {round.names[k]: rows[round.owners[k]] for k in members}
        dtypes = {name: common_dtype(round.states[k][key] for k in members) for name, key in names.items()}
        result |= round.store({key: merged[name].to(dtypes[name]) for name, key in names.items()})
    return {key: result[key] for key in model}, figures


@dataclass(frozen=True, kw_only=True)
class Place:
    """The adapters of one place: by owner its samples, and its tensors with those that its kind shares over the model.

    `shared` has the new global values of the latter, `previous` the global adapter at this place so far, or None.
    """

    name: str
    neurons: Neurons
    clients: Mapping[str, Tensors]
    counts: Mapping[str, float]
    previous: Tensors | None
    shared: Tensors

    @cached_property
    def names(self) -> list[str]:
        """The names of the place's own tensors."""
        return [name for name in next(iter(self.clients.values())) if name not in self.shared]

    @cached_property
    def widths(self) -> dict[str, int]:
        """Owner -> number of neurons."""
        return {owner: self.neurons.width(tensors) for owner, tensors in self.clients.items()}

    @cached_property
    def width(self) -> int:
        """Number of neurons of the result."""
        return self.neurons.width(self.previous) if self.previous else max(self.widths.values())

    @cached_property
    def peers(self) -> dict[str, float]:
        """The counts of those that are as wide as the result."""
        return {owner: self.counts[owner] for owner, width in self.widths.items() if width == self.width}

    def of(self, some: Sequence[int], robust: RobustSettings) -> Place:
        """Return the same place with some of its clients, by number."""
        owners = [owner for k, owner in enumerate(self.clients) if k in some]
        counts = cap_share([self.counts[owner] for owner in owners], robust.max_share)
        clients = {owner: self.clients[owner] for owner in owners}
        return replace(self, clients=clients, counts=dict(zip(owners, counts, strict=True)))

    def peer_shares(self, settings: PIASettings, robust: RobustSettings) -> list[float]:
        """Return what the peers weigh among each other; none exceeds `max_share` of them."""
        return fedavg_weights(cap_share(list(self.peers.values()), robust.max_share), settings)

    def fedavg(self, shares: Sequence[float], robust: RobustSettings) -> dict[str, Tensor]:
        """Return the average of the peers as they stand, with the shared tensors."""
        return {**average([self.clients[owner] for owner in self.peers], self.names, shares, robust), **self.shared}


Integrated = tuple[dict[str, Tensor], dict[str, Figures]]


def _plain_average(place: Place, settings: PIASettings, robust: RobustSettings) -> Integrated:
    """Return tensor name -> mean tensor of a place, and owner -> figures, without alignment."""
    for owner, width in place.widths.items():
        if width != place.width:
            raise FedpeftError(
                f"{owner} has {width} neurons in {place.name}, the global adapter {place.width}: plain FedAvg needs "
                f"one width everywhere, use server=True."
            )
    shares = fedavg_weights(list(place.counts.values()), settings)
    merged = place.fedavg(shares, robust)
    weights = shares if robust.weighs else [None] * len(shares)
    figures = {owner: Figures(weight=weight) for owner, weight in zip(place.clients, weights, strict=True)}
    return {name: merged[name] for name in place.names}, figures


def _aligned_average(
    place: Place, settings: PIASettings, robust: RobustSettings, *, may_leave_out: bool = True
) -> Integrated:
    """Return the same with alignment; sites that are too far away for the paper's weights may have no weight."""
    center, names = place.previous, place.names
    if place.peers and not settings.finds_fixed_point:
        center = place.fedavg(place.peer_shares(settings, robust), robust)
    aligned = _in_one_order(place, center, settings, robust)
    tables, counts = [one.tensors for one in aligned.values()], list(place.counts.values())
    shares = fedavg_weights(counts, settings)
    if settings.reference != FEDAVG:
        center = {name: weighted_mean((table[name] for table in tables), shares) for name in names}
    network = place.neurons.network(names)
    distances = [distance_of(table, center, network) for table in tables]
    if not robust.weighs:
        return robust_mean(tables, names, robust), _figures(aligned, distances, [None] * len(aligned))
    weights = pia_weights(counts, distances, settings)
    if not settings.normalize and sum(weights) < MIN_SHARE:
        near = near_ones(tables, counts, distances, network, settings, MIN_SHARE)
        if not may_leave_out or len(near) == len(tables):
            raise FedpeftError(
                f"normalize=False with gamma={settings.gamma:g} leaves a share of {sum(weights):.1e} of the adapter in "
                f"{place.name}: use a smaller gamma, or normalize=True."
            )
        merged, figures = _aligned_average(place.of(near, robust), settings, robust, may_leave_out=False)
        left_out = zip(aligned.items(), distances, strict=True)
        return merged, {owner: figures.get(owner) or one.figures(gap, 0.0) for (owner, one), gap in left_out}
    merged = {
        name: weighted_mean((table[name] for table in tables), weights if name in network else shares) for name in names
    }
    return merged, _figures(aligned, distances, weights)


def _in_one_order(
    place: Place, center: Tensors | None, settings: PIASettings, robust: RobustSettings
) -> dict[str, Aligned]:
    """Return every site's adapter of a place in one order.

    `center` is the average of the peers, unless their fixed point takes its place; without any, the global adapter.
    """
    together: dict[str, Aligned] = {}
    guide = center
    if place.peers and settings.finds_fixed_point:
        shares = place.peer_shares(settings, robust)
        together = align_jointly(
            {owner: place.clients[owner] for owner in place.peers}, shares, place.neurons, settings
        )
        if len(together) < len(place.clients):
            tables = [one.tensors for one in together.values()]
            guide = {**{name: weighted_mean((t[name] for t in tables), shares) for name in tables[0]}, **place.shared}
    elif place.peers:
        guide = _guide(place, center, settings, robust)
    rest = {owner: tensors for owner, tensors in place.clients.items() if owner not in together}
    alone: dict[str, Aligned] = {}
    if rest:
        supports = [place.neurons.hidden_support(tensors) for tensors in rest.values()]
        goal = place.neurons.hidden_support(guide)
        compared = compare_each(supports, goal, solver=settings.solver, regularization=settings.regularization)
        for (owner, tensors), hidden in zip(rest.items(), compared, strict=True):
            alone[owner] = align_adapter(tensors, guide, place.neurons, settings, margin=settings.margin, hidden=hidden)
    return {owner: together.get(owner) or alone[owner] for owner in place.clients}


def _guide(place: Place, center: Tensors, settings: PIASettings, robust: RobustSettings) -> dict[str, Tensor]:
    """Return the adapter that the sites are aligned to: the average, or the largest site's adapter.

    The average of two copies in different orders is equally far from both, an exact tie in which each would keep its
    own order. A small step toward one site breaks the tie: the largest site, or with a robust average, where no site's
    count is trusted, the site nearest to the average. In float64, so that the step is not lost to rounding.
    """
    if robust.weighs:
        leading = place.clients[max(place.peers, key=place.peers.get)]
    else:
        own = [name for name in center if name not in place.shared]
        leading = nearest([place.clients[owner] for owner in place.peers], center, own)
    if settings.reference == LARGEST:
        return dict(leading)
    return {name: tensor.double().lerp(leading[name].double(), TIE_BREAK) for name, tensor in center.items()}


def _figures(
    aligned: Mapping[str, Aligned], distances: Sequence[float], weights: Sequence[float | None]
) -> dict[str, Figures]:
    rows = zip(aligned.items(), distances, weights, strict=True)
    return {owner: one.figures(distance, weight) for (owner, one), distance, weight in rows}


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

    Source: Saha et al., FedPIA, "Server-level PIA", for a single place.

    See Also: `integrate`, which this is for one place.

    Example:
        >>> import torch
        >>> site_a = Bottleneck(torch.eye(2), None, torch.eye(2), None)
        >>> site_b = Bottleneck(torch.eye(2).flip(0), None, torch.eye(2).flip(1), None)
        >>> barycenter([site_a, site_b], gamma=0.1).down
        tensor([[1., 0.],
                [0., 1.]])
    """
    known = [one.name for one in fields(PIASettings)]
    for name in settings:
        if name not in known:
            raise FedpeftError(f"barycenter has no setting {name!r}: {suggestion(name, known)}.")
    owners = [f"adapters[{k}]" for k in range(len(adapters))]
    if not owners:
        raise FedpeftError("barycenter got no adapters: pass at least one Bottleneck(down, down_bias, up, up_bias).")
    tables = [_table(adapter, owner) for adapter, owner in zip(adapters, owners, strict=True)]
    states = [{_key(name): tensor for name, tensor in table.items()} for table in tables]
    counts, chosen = _weights(weights, owners), PIASettings(**settings)
    try:
        merged, _ = integrate_round(RoundInput(states=states, counts=counts, settings=chosen, unnamed="adapters"))
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
