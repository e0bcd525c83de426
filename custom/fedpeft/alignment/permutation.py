# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Align weights by a transport plan: move each neuron of an adapter to the index of its match in the reference.

    down~ = diag(1/beta) P^T down      b_down~ = diag(1/beta) P^T b_down      b_up~ = b_up
    up~ = up diag(1/alpha) P           mass="preserved"
    up~ = up P diag(1/beta)            mass="paper"

With equal widths and uniform masses P is a permutation, both lines for `up` are equal, and the adapter's function is
unchanged. With unequal widths they differ by the ratio of the widths. Take a client with 2 neurons and a reference with
4: each neuron is split in two, and both parts have its whole incoming row. As printed, both also have its whole
outgoing column, so the adapter's effect doubles; with 4 neurons and 2, it is halved. `preserved` divides the column
among the parts, which add up to the neuron again, and adds up the columns of neurons that are merged. The function is
unchanged whenever the merged neurons are duplicates; `preserved` is therefore the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedpeft.alignment.neurons import Neurons, Tensors
from fedpeft.alignment.settings import PIASettings
from fedpeft.alignment.transport import Comparison, Matching, compare


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """An aligned adapter and, as in `Figures`, how far its neurons moved."""

    tensors: dict[str, Tensor]
    changed: tuple[str, ...]  # names of those tensors that alignment may change; the others are the client's own
    before: float | None
    after: float
    moved: float | None
    held: bool = False

    def figures(self, distance: float, weight: float | None) -> Figures:
        """Return the figures of an adapter that was averaged with this weight, so far from the reference."""
        return Figures(
            before=self.before, after=self.after, moved=self.moved, held=self.held, distance=distance, weight=weight
        )


@torch.no_grad()
def align_adapter(
    client: Tensors,
    reference: Tensors,
    neurons: Neurons,
    settings: PIASettings,
    *,
    activations: tuple[Tensor, Tensor] | None = None,
    margin: float = 0.0,
    hidden: Comparison | None = None,
) -> Aligned:
    """Put the neurons of one adapter in the order of another's.

    The result is as wide as the reference, in the client's dtype.

    Args:
        client, reference: with the tensors that their kind shares over the model; may differ in width.
        activations: of the hidden neurons on the same m samples, client's (m, r) and reference's (m, r'), to compare
            neurons by; default: incoming weights.
        margin: for equal widths, neurons move only where this lowers their mean distance by more than this share.
        hidden: the comparison of the hidden neurons of both, where it is known already.

    Source: Saha et al., FedPIA, equation for W~; `mass` is ours.
    """
    aligned = dict(client)
    changed = [*neurons.incoming, *neurons.outgoing]
    compare_sides = partial(compare, solver=settings.solver, regularization=settings.regularization)
    if hidden is None:
        hidden = compare_sides(*_supports(client, reference, neurons, settings, activations, outputs=False))
    hidden = hidden.hold(margin)
    matching = hidden.matching
    moved = None if hidden.before is None else _moved(matching)
    if matching.order is not None:
        aligned = reordered(client, neurons, matching.order) if moved else aligned
    else:
        plan = matching.plan
        reading = plan / plan.sum(dim=0)
        writing = reading if settings.mass == "paper" else plan / plan.sum(dim=1, keepdim=True)
        _carry(aligned, neurons.incoming, neurons, mixing=reading)
        _carry(aligned, neurons.outgoing, neurons, mixing=writing)
    if settings.output_axis == "matched":
        now = aligned if activations is None else client
        mine, theirs = _supports(now, reference, neurons, settings, activations, outputs=True)
        outputs = compare_sides(mine, theirs).hold(margin).matching
        _carry(aligned, neurons.outputs, neurons, outputs.order, outputs.plan / outputs.plan.sum(dim=0))
        changed += neurons.outputs
    return Aligned(
        tensors={name: tensor for name, tensor in aligned.items() if name not in neurons.shared},
        changed=tuple(name for name in client if name in changed),
        before=hidden.before,
        after=hidden.after,
        moved=moved,
        held=hidden.held,
    )


def reordered(tensors: Tensors, neurons: Neurons, order: Tensor) -> dict[str, Tensor]:
    """Return an adapter whose hidden neuron j is the given one's neuron order[j]."""
    moved = dict(tensors)
    for axes in (neurons.incoming, neurons.outgoing):
        _carry(moved, axes, neurons, order)
    return moved


def _supports(
    client: Tensors,
    reference: Tensors,
    neurons: Neurons,
    settings: PIASettings,
    activations: tuple[Tensor, Tensor] | None,
    *,
    outputs: bool,
) -> tuple[Tensor, Tensor]:
    """Return what the hidden (or the output) neurons of two adapters are compared by, (n, f) and (m, f)."""
    if activations is None:
        support = neurons.output_support if outputs else neurons.hidden_support
        return support(client), support(reference)
    support_of = neurons.output_activations if outputs else neurons.hidden_activations
    rows = support_of(client, activations[0]), support_of(reference, activations[1])
    if settings.support == "mean":
        # One scalar for each neuron; a row of Compacter holds one neuron of each block, with a scalar for each.
        return tuple(row.unflatten(1, (-1, len(activations[0]))).mean(dim=2) for row in rows)
    return rows


def _carry(
    tensors: dict[str, Tensor],
    axes: Mapping[str, int],
    neurons: Neurons,
    order: Tensor | None = None,
    mixing: Tensor | None = None,
) -> None:
    """Reorder or mix along each neuron axis: new neuron j = old neuron order[j], or sum_i mixing[i,j] * neuron i."""
    for name, axis in axes.items():
        if name not in tensors:
            continue
        tensor = tensors[name]
        blocked = name in neurons.blocked
        if blocked:
            tensor = tensor.unflatten(axis, (neurons.blocks(tensors), -1))
            axis += 1
        if order is not None:
            tensor = tensor.index_select(axis, order)
        else:
            mixed = tensor.movedim(axis, -1).to(mixing.dtype) @ mixing
            tensor = mixed.movedim(-1, axis).to(tensor.dtype).contiguous()  # safetensors stores no other
        tensors[name] = tensor.flatten(axis - 1, axis) if blocked else tensor


def _moved(matching: Matching) -> float:
    """Return the fraction of the mass that leaves its index."""
    order = matching.order
    if order is None:
        return 1.0 - float(matching.plan.diagonal().sum())
    return int(torch.count_nonzero(order != torch.arange(len(order), device=order.device))) / len(order)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of one site's adapter at one place, or their mean over places."""

    before: float | None = None  # <C, I/n>, mean distance between neurons of equal index; None for unequal widths
    after: float | None = None  # <C, P>, the transport distance: the same between matching neurons
    moved: float | None = None  # fraction of the neurons (of the mass) that left their index; None for unequal widths
    held: bool | None = None  # whether they would have moved, but not by enough for `margin`; None: nothing was aligned
    distance: float | None = None  # D_k, Frobenius distance of the aligned adapter from the reference
    weight: float | None = None  # its weight in the sum over the sites; the paper's weights do not sum to 1


def report_of(places: Mapping[str, Mapping[str, Figures]]) -> dict[str, Any]:
    """Return the report of a round, from `layer.<l>.<slot>` -> name of the site -> figures.

    `transport`: site -> transport distance, mean over its places; `decisions`: site -> number of its places where
    neurons `moved`, where all `stayed`, and of these where they were `held` by the margin; `sites`: site -> means
    of all its figures; `places`: the figures themselves. None stands for a figure that does not exist.
    """
    by_site: dict[str, list[Figures]] = {}
    for sites in places.values():
        for site, figures in sites.items():
            by_site.setdefault(site, []).append(figures)
    means = {site: _mean(rows) for site, rows in by_site.items()}
    return {
        "transport": {site: mean.after for site, mean in means.items()},
        "decisions": {site: _decisions(rows) for site, rows in by_site.items()},
        "sites": {site: {**vars(mean)} for site, mean in means.items()},
        "places": {place: {site: {**vars(row)} for site, row in sites.items()} for place, sites in places.items()},
    }


def _mean(rows: list[Figures]) -> Figures:
    means = {}
    for field in fields(Figures):
        known = [value for value in (getattr(row, field.name) for row in rows) if value is not None]
        means[field.name] = sum(known) / len(known) if known else None
    return Figures(**means)


def _decisions(rows: list[Figures]) -> dict[str, int]:
    """Count what became of the places whose neurons could have stayed: those of equal width."""
    return {
        "moved": sum(row.moved is not None and row.moved > 0 for row in rows),
        "stayed": sum(row.moved == 0 for row in rows),
        "held": sum(row.held is True for row in rows),
    }
