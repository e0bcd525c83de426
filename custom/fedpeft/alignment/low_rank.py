# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Average what two factors multiply to, LoRA's or those of prompts: factor the average again, or stack the factors.

A site's update of a matrix is the product B A. The mean of the factors is in general another matrix than the mean of
the products; this file computes the latter, and returns the nearest product of the same rank.

With the LoRA factors of all sites side by side, the product is the mean of the sites' products, without error:

    A = [A_1; ...; A_K],    B = [w_1 B_1, ..., w_K B_K],    B A = sum_k w_k B_k A_k,    w_k = n_k / n

A site adds the product to its frozen weights and starts the next round with fresh factors (`alignment.factors`). The
global adapter holds the factors of all rounds, the new ones at the end, so that only those have to be sent. Where more
of them stand side by side than twice the rank of any matrix, they are factored again to that rank, also without error:
from then on the adapter grows anew.

Source: Wang et al. 2024, FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedpeft.alignment.averaging import fedavg_weights, weighted_mean
from fedpeft.alignment.factors import FACTORS, MAX_RANKS, Pair, factor_places, lora_pairs, product_pairs
from fedpeft.alignment.integration import NOT_ROBUST, RoundInput, integrate_round
from fedpeft.alignment.permutation import Figures, report_of
from fedpeft.alignment.settings import PIASettings, RobustSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import group_by_place
from fedpeft.core.states import State, Store, common_dtype, computable, in_memory, select_keys

Shares = Callable[[Sequence[int]], list[float]]  # of some of the states: what each weighs among them, together 1
ROUNDING = 1e-6  # of the largest singular value: what float32 factors leave uncertain


def integrate_products(
    states: Sequence[State],
    counts: Sequence[float],
    settings: PIASettings | None = None,
    *,
    sites: Sequence[str] | None = None,
    previous: State | None = None,
    robust: RobustSettings | None = None,
    store: Store = in_memory,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Average the products of a round and factor them again by truncated singular value decomposition.

        dW = sum_k n_k B_k A_k / sum_k n_k = U S V^T,     B = U_r sqrt(S_r),  A = sqrt(S_r) V_r^T

    This is the best approximation of dW of rank r in the Frobenius norm (Eckart and Young). Tensors that are no factors
    are averaged as FedAvg does, and a place that no site sent keeps its values in `previous`. Sites may differ in rank:
    r is the largest of theirs, but no larger than that of any product (m, n), unless all of theirs are. Prompts that
    share one factor are averaged one layer after the other and factored together; those of a layer that no site sent
    enter as they were.

    Args:
        states: one adapter state for each site, with LoRA's `layer.<l>.<slot>.A` (r, n) and `.B` (m, r), or with the
            factors of prompts, `layer.<l>.prompt.basis` or `shared.basis` (r, n) and `.coefficients` (m, r).
        counts: training samples n_k of each site, above 0.
        settings: `weighting` is used.
        sites: names for errors; default `states[0]`, ...
        previous: the global adapter so far.
        robust: its average must be the mean.
        store: as in `integrate`.

    Returns:
        The global adapter and a report in which no neuron moved, as `integrate` does.

    Raises:
        FedpeftError: another average than the mean; else see `integrate`.

    Source: the federated parameter-efficient tuning of vision transformers, LoRA with server-side refactoring.

    Example:
        >>> import torch
        >>> site_a = {"layer.0.query.A": torch.eye(2)[:1], "layer.0.query.B": torch.eye(2)[:, :1]}
        >>> merged, _ = integrate_products([site_a, site_a], [100, 300])
        >>> merged["layer.0.query.B"] @ merged["layer.0.query.A"]
        tensor([[1., 0.],
                [0., 0.]])
    """
    settings, robust = settings or PIASettings(), robust or NOT_ROBUST
    round = RoundInput(
        states=states, counts=counts, settings=settings, sites=sites, previous=previous, robust=robust, store=store
    )
    return _combined(round, product_pairs, _refactored)


def stack_products(
    states: Sequence[State],
    counts: Sequence[float],
    settings: PIASettings | None = None,
    *,
    sites: Sequence[str] | None = None,
    previous: State | None = None,
    robust: RobustSettings | None = None,
    store: Store = in_memory,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the factors of the rounds before and, behind them, those of this round; other tensors are averaged.

    Arguments and errors are those of `integrate_products`; sites may have any ranks. In the report no neuron moved.
    """
    settings, robust = settings or PIASettings(), robust or NOT_ROBUST
    round = RoundInput(
        states=states, counts=counts, settings=settings, sites=sites, previous=previous, robust=robust, store=store
    )
    return _combined(round, lora_pairs, _stacked)


def merge_products(
    states: Sequence[State],
    weights: Sequence[float],
    *,
    rank: int | None = None,
    sites: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """Return factors of the weighted mean of products, without error: of the rank that this mean has at each place.

    A LoRA adapter computes its product alone, and `(B G^-1) (G A)` is the same product for every invertible G, not only
    for orders. So the products are averaged, which are unique, and no rank directions are matched. Ranks may differ.

    Args:
        states: with LoRA's `layer.<l>.<slot>.A` (r, n) and `.B` (m, r), all by one scale.
        weights: of the states; only their proportions matter.
        rank: cut each mean to its best approximation of this rank; None: keep it all.
        sites: names for errors; default `states[0]`, ...

    Example:
        >>> import torch
        >>> one = {"layer.0.query.A": torch.eye(2)[:1], "layer.0.query.B": torch.eye(2)[:, :1]}
        >>> other = {"layer.0.query.A": torch.eye(2)[1:], "layer.0.query.B": torch.eye(2)[:, 1:]}
        >>> merged = merge_products([one, other], [1, 3])
        >>> (merged["layer.0.query.B"] @ merged["layer.0.query.A"]).round(decimals=4)
        tensor([[0.2500, 0.0000],
                [0.0000, 0.7500]])
    """
    merged, _ = _combined(
        RoundInput(states=states, counts=weights, sites=sites),
        lora_pairs,
        lambda terms, shares, pair, _: _whole_mean(terms, shares(range(len(terms))), pair, rank),
    )
    return merged


def _whole_mean(states: Sequence[State], weights: Sequence[float], pair: Pair, rank: int | None) -> dict[str, Tensor]:
    (up_key,) = pair.ups
    dtype = common_dtype(state[key] for state in states for key in (pair.down, up_key))
    down, up = mean_product([s[pair.down] for s in states], [s[up_key] for s in states], weights)
    down, up = truncated(down, up, min(rank or down.shape[0], down.shape[0]))
    singular = up.norm(dim=0).square()  # both factors have the square root of them
    kept = max(1, int((singular > ROUNDING * singular.max()).sum()))
    return {pair.down: down[:kept].to(dtype).contiguous(), up_key: up[:, :kept].to(dtype).contiguous()}


def _combined(
    round: RoundInput,
    pairs_of: Callable[[Iterable[str]], Sequence[Pair]],
    factors_of: Callable[[Sequence[State], Shares, Pair, State], dict[str, Tensor]],
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Combine the factors of every pair in one way, and average all other tensors as FedAvg does.

    `factors_of` makes a pair's new factors of the states that have it, what each weighs among any of them, and the
    global adapter so far.
    """
    if not round.robust.weighs:
        raise FedpeftError(
            f"products are averaged by their mean, not by average={round.robust.average!r}: leave it out."
        )
    model = round.check()
    pairs = pairs_of(model)
    merged = _others(round, model, {key for pair in pairs for key in (pair.down, *pair.ups)})
    figures: dict[str, dict[str, Figures]] = {}
    for pair in pairs:
        members = round.members(pair.down)
        if not members:
            merged |= round.store(round.kept((pair.down, *pair.ups)))
            continue
        shares = partial(_shares, round, members)
        new = factors_of([round.states[k] for k in members], shares, pair, round.previous or {})
        merged |= round.store(new)
        if pair.place:
            weights = zip(members, shares(range(len(members))), strict=True)
            figures[pair.place] = {round.names[k]: Figures(weight=weight) for k, weight in weights}
    return {key: merged[key] for key in model}, report_of(figures)


def _shares(round: RoundInput, members: Sequence[int], some: Sequence[int]) -> list[float]:
    """Return what some of the members of a round weigh among each other; none exceeds `max_share` of these."""
    return fedavg_weights(round.counts_of([members[k] for k in some]), round.settings)


def _others(round: RoundInput, model: State, factors: set[str]) -> dict[str, Tensor]:
    """Return the FedAvg of all tensors but the factors."""
    if not (others := model.keys() - factors):
        return {}

    def rest(state: State | None) -> State | None:
        return select_keys(state, others) if state else None

    plain = replace(round.settings, server=False, aligned_at="server")
    merged, _ = integrate_round(
        replace(
            round, states=[rest(state) or {} for state in round.states], previous=rest(round.previous), settings=plain
        )
    )
    return merged


def mean_product(downs: Sequence[Tensor], ups: Sequence[Tensor], weights: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return factors of `sum_k w_k B_k A_k`, A_k (r_k, n) and B_k (m, r_k), in float64: nothing is rounded away.

    Their rank is the sum of the ranks.
    """
    wide = torch.cat([weight * up.double() for up, weight in zip(ups, weights, strict=True)], dim=1)
    return torch.cat([down.double() for down in downs]), wide


def truncated(down: Tensor, up: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the best approximation of `up @ down`, (m, R) and (R, n), of a rank up to R, as factors of equal norm.

    The product (m, n) itself is never formed: two QR decompositions reduce it to a matrix of the factors' rank.
    """
    up_basis, up_rest = torch.linalg.qr(up)
    down_basis, down_rest = torch.linalg.qr(down.T)
    left, singular, right = torch.linalg.svd(up_rest @ down_rest.T, full_matrices=False)
    root = singular[:rank].sqrt()
    new_up, new_down = up_basis @ left[:, :rank], right[:rank] @ down_basis.T
    largest = new_up.gather(0, new_up.abs().argmax(dim=0, keepdim=True))  # a pair of vectors has no sign of its own
    signs = torch.where(largest < 0, -1.0, 1.0).to(new_up)
    return new_down * signs.T * root[:, None], new_up * signs * root


def fitted(state: State, like: State) -> State:
    """Return an adapter whose factors have the ranks of another: cut to its best approximation, or with more rows.

    Further rows of A are those of `like`, a site's local adapter, with zeros in B.
    """
    fitting = dict(state)
    for names in group_by_place(state).values():
        if not set(FACTORS) <= names.keys() or state[names["A"]].shape == like[names["A"]].shape:
            continue
        down, up, own = state[names["A"]], state[names["B"]], like[names["A"]]
        rank, wanted = down.shape[0], own.shape[0]
        if rank > wanted:
            new_down, new_up = truncated(down.double(), up.double(), wanted)
        else:
            new_down = torch.cat([down, own[rank:].to(down)])
            new_up = torch.cat([up, up.new_zeros(up.shape[0], wanted - rank)], dim=1)
        fitting |= {names["A"]: new_down.to(down.dtype), names["B"]: new_up.contiguous().to(up.dtype)}
    return fitting


def lower_ranks(state: State, like: State) -> list[tuple[int, int]]:
    """Return the ranks of an adapter and of another, wherever `fitted` cuts."""
    firsts = [names[FACTORS[0]] for names in group_by_place(like).values() if set(FACTORS) <= names.keys()]
    ranks = [(len(state[name]), len(like[name])) for name in firsts if name in state]
    return [(rank, wanted) for rank, wanted in ranks if rank > wanted]


def _refactored(states: Sequence[State], shares: Shares, pair: Pair, previous: State) -> dict[str, Tensor]:
    """Return the factors of a pair, of the largest rank of the sites and of the global adapter so far.

    Where these differ, a rank beyond that of any product (m, n) adds nothing, and is not passed on to all sites.
    Where the mean of the products has a lower rank than the factors (no site has trained yet, B is zero), a neuron
    without a product would never train again: A then keeps the mean of the sites' and B stays zero.
    """
    downs, before = [state[pair.down] for state in states], previous.get(pair.down)
    ranks = [down.shape[0] for down in (*downs, *([] if before is None else [before]))]
    terms, weights = _shared_out(states, shares, pair), shares(range(len(states)))
    if unsent := [key for key in pair.ups if not any(key in state for state in states)]:
        terms.append({key: previous[key] for key in (pair.down, *unsent)})
        weights.append(1.0)
    ups, rows = _one_below_the_other(terms, pair)
    rank = min(max(ranks), max(min(sum(rows), downs[0].shape[1]), min(ranks)))
    down, up = truncated(*mean_product([term[pair.down] for term in terms], ups, weights), rank)
    missing = rank - down.shape[0]
    down, up = functional.pad(down, (0, 0, 0, missing)), functional.pad(up, (0, missing))
    dead = up.norm(dim=0) <= torch.finfo(torch.float32).eps * max(float(up.norm()), torch.finfo(torch.float32).tiny)
    down[dead] = _mean_rows(downs, shares, rank, before).double()[dead]
    up[:, dead] = 0
    parts = zip(pair.ups, _rounded(up, ups[0].dtype).split(rows), strict=True)
    return {pair.down: _rounded(down, downs[0].dtype), **{key: part.clone() for key, part in parts}}


def _shared_out(states: Sequence[State], shares: Shares, pair: Pair) -> list[State]:
    """Return a pair's factors of each state, B scaled by its weight among the senders of the place over that among all.

    They are multiplied by the weight among all afterwards, which leaves that among the senders.
    """
    weights = shares(range(len(states)))
    terms = [{key: state[key] for key in (pair.down, *pair.ups) if key in state} for state in states]
    for key in pair.ups:
        having = [k for k, term in enumerate(terms) if key in term]
        if 0 < len(having) < len(terms):
            for k, share in zip(having, shares(having), strict=True):
                terms[k][key] = terms[k][key] * (share / weights[k])
    return terms


def _one_below_the_other(terms: Sequence[State], pair: Pair) -> tuple[list[Tensor], list[int]]:
    """Return each term's factors B of all places as one, zeros where it lacks a place, and the rows of each place."""
    examples = [next(term[key] for term in terms if key in term) for key in pair.ups]
    ups = [
        torch.cat(
            [
                term[key] if key in term else example.new_zeros(len(example), len(term[pair.down]))
                for key, example in zip(pair.ups, examples, strict=True)
            ]
        )
        for term in terms
    ]
    return ups, [len(example) for example in examples]


def _mean_rows(downs: Sequence[Tensor], shares: Shares, rank: int, before: Tensor | None) -> Tensor:
    """Return the mean of each of the first rows of A over the sites that have it; else the row so far."""
    parts, start = [], 0
    for end in sorted({down.shape[0] for down in downs}):
        having = [k for k, down in enumerate(downs) if down.shape[0] >= end]
        rows = weighted_mean((downs[k][start:end] for k in having), shares(having))
        parts.append(rows.to(downs[0].dtype))
        start = end
    return torch.cat([*parts, before[start:].to(parts[0])] if start < rank else parts)[:rank]


def product_length(state: State) -> tuple[float, int]:
    """Return the sum of squares of all products of a state, and how many numbers they have; none is formed.

    Large factors may cancel in a product. So its norm comes from two QR decompositions, which sums of squares would
    lose, and what sites may be off when they compute the product in the factors' own precision is added.
    """
    total, count = 0.0, 0
    for names in factor_places(state).values():
        down, up = state[names["A"]].double(), state[names["B"]].double()
        norm = (torch.linalg.qr(up)[1] @ torch.linalg.qr(down.T)[1].T).norm()
        rounding = torch.finfo(state[names["A"]].dtype).eps * (up.norm(dim=0) * down.norm(dim=1)).sum()
        total += float(norm + rounding) ** 2
        count += up.shape[0] * down.shape[1]
    return total, count


def _stacked(states: Sequence[State], shares: Shares, pair: Pair, previous: State) -> dict[str, Tensor]:
    (up_key,) = pair.ups
    downs = [state[pair.down] for state in states]
    dtype, weights = downs[0].dtype, shares(range(len(states)))
    ups = [(computable(state[up_key]) * weight).to(dtype) for state, weight in zip(states, weights, strict=True)]
    if pair.down in previous:
        downs, ups = [previous[pair.down], *downs], [previous[up_key], *ups]
    down, up = torch.cat(downs), torch.cat(ups, dim=1)
    largest = min(up.shape[0], down.shape[1])
    if down.shape[0] > MAX_RANKS * largest:
        down, up = (_rounded(factor, dtype).contiguous() for factor in truncated(down.double(), up.double(), largest))
    return {pair.down: down, up_key: up}


def _rounded(factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a factor in another precision; what lies beyond its range, as a product of float16 may, is its limit."""
    limit = torch.finfo(dtype).max
    return factor.clamp(-limit, limit).to(dtype)
