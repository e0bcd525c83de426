# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Optimal transport between the neurons of two adapters, which says which neurons match."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedpeft.alignment.settings import CHOICES
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import one_of
from fedpeft.core.states import plain

EXACT_ITERATIONS = 10_000_000
SINKHORN_ITERATIONS = 1_000
SINKHORN_PRECISION = 1e-6
SINKHORN_TOLERANCE = 1e-2  # generous, because aligned weights are divided by the masses that the plan really has
CANCELLED = 1e-5  # of the distance from the mean: closer neurons are compared coordinate by coordinate
MIN_COST = 1e-6  # of the largest one: if most costs are smaller, POT's tolerance exceeds them
MAX_PARTS = 2048  # of equal mass, which an assignment matches in seconds
TINY = 1e-200  # squared lengths below lose digits
UNDERFLOW = 1e-30  # above the error of float32 squares that underflow
TOGETHER = 2**17  # numbers of several clients' supports in one matrix product: 1 MiB, which stays in the cache


@dataclass(frozen=True, kw_only=True)
class Matching:
    """Which neurons of a client match which of a reference: an order, or a plan that splits neurons.

    Moving tensors by an order is exact to the bit, which multiplying them by 48 * (1/48) is not.
    """

    order: Tensor | None = None  # the client neuron at each reference neuron (m); None where a neuron is split
    split: Tensor | None = None  # the plan (n, m), float64, sum 1; None where there is an order

    @property
    def plan(self) -> Tensor:
        """The plan (n, m), float64, sum 1."""
        if self.order is None:
            return self.split
        n = len(self.order)
        plan = torch.zeros(n, n, dtype=torch.float64, device=self.order.device)
        plan[self.order, torch.arange(n, device=plan.device)] = 1 / n
        return plan

    def distance(self, cost: Tensor) -> float:
        """Return <C, P>, the mean distance between matching neurons, of their distances (n, m)."""
        return float((self.split * cost).sum() if self.order is None else cost.gather(0, self.order[None]).mean())


@plain
def transport_plan(
    client: Tensor,
    reference: Tensor,
    *,
    client_mass: Tensor | None = None,
    reference_mass: Tensor | None = None,
    solver: str = "exact",
    regularization: float = 0.05,
) -> Tensor:
    """Return the plan that maps a client's neurons to the reference's at the least cost.

        C[i,j] = || x_i - y_j ||_2        P = argmin <P, C>   subject to   P 1 = alpha,  P^T 1 = beta

    Args:
        client: supports x, one row for each neuron, (n, f).
        reference: supports y, (m, f).
        client_mass: alpha (n), positive; default: uniform. Only proportions matter.
        reference_mass: beta (m), likewise.
        solver: `exact`: an assignment for equal widths and uniform masses (for scalar supports a sort), the network
            simplex (POT's `emd`) otherwise; `sinkhorn`: entropic, blurs every neuron; `identity`: neuron i to i.
        regularization: Sinkhorn's entropy as a share of the mean cost.

    Returns:
        P (n, m), float64, sum 1.

    Raises:
        FedpeftError: shapes that do not fit, values that are not finite, masses that are not positive, a
            regularization that is not finite and above 0.

    Source: Saha et al., FedPIA, "Server-level PIA"; Singh and Jaggi 2020, Model Fusion via Optimal Transport.

    Example:
        >>> import torch
        >>> transport_plan(torch.eye(2), torch.eye(2).flip(0))
        tensor([[0.0000, 0.5000],
                [0.5000, 0.0000]], dtype=torch.float64)
    """
    one_of("solver", solver, CHOICES["solver"])
    client, reference = torch.as_tensor(client).detach(), torch.as_tensor(reference).detach()
    shapes = tuple(client.shape), tuple(reference.shape)
    if not len(shapes[0]) == len(shapes[1]) == 2 or shapes[0][1] != shapes[1][1] or 0 in shapes[0] + shapes[1]:
        raise FedpeftError(
            f"the supports have shapes {shapes[0]} and {shapes[1]}, they must be (n, f) and (m, f): one row for each "
            f"neuron, with the same features."
        )
    if client_mass is None and reference_mass is None:
        matching = compare(client, reference, solver=solver, regularization=regularization).matching
    else:
        cost = cost_matrix(client, reference)
        matching = match(cost, client_mass, reference_mass, solver=solver, regularization=regularization)
    return matching.plan


def cost_matrix(client: Tensor, reference: Tensor) -> Tensor:
    """Return distances C[i,j] = || x_i - y_j ||_2 between supports (n, f) and (m, f): (n, m), float64.

    One matrix product, ||x||^2 - 2 x y + ||y||^2, in float64 and around the reference's mean. It cancels where x and y
    are much closer to each other than to that mean, as all are where one neuron is far from the others: such rows are
    computed coordinate by coordinate.

    Example:
        >>> cost_matrix(torch.eye(2), torch.zeros(1, 2)).tolist()
        [[1.0], [1.0]]
    """
    y = reference.double()
    center = y.mean(dim=0)
    x_shifted, y_shifted = client - center, y - center  # float64, as the mean is
    y_squared = y_shifted.square().sum(dim=1)
    x_squared = torch.linalg.vector_norm(x_shifted, dim=1, keepdim=True).square_()
    longest = max(float(x_squared.max()), float(y_squared.max()))
    if not TINY <= longest < math.inf and (scale := _scale(client.double(), y)) not in (0, 1):
        return cost_matrix(client.double() / scale, y / scale) * scale
    squared = torch.addmm(y_squared, x_shifted, y_shifted.T, alpha=-2).add_(x_squared)
    cancelled = (squared < CANCELLED**2 * (x_squared + y_squared)).any(dim=1)
    distances = squared.clamp_(min=0).sqrt_()
    if cancelled.any():
        distances[cancelled] = torch.cdist(client[cancelled].double(), y, compute_mode="donot_use_mm_for_euclid_dist")
    return distances


def _scale(*tensors: Tensor) -> float:
    """Return the power of two by which the largest number of the tensors becomes one from 1 to 2; 0 for zeros alone."""
    largest = max(float(tensor.abs().max()) for tensor in tensors)
    return 2.0 ** math.floor(math.log2(largest)) if 0 < largest < math.inf else 0.0


def cost_matrices(clients: Sequence[Tensor], reference: Tensor) -> Iterator[Tensor]:
    """Yield `cost_matrix` of each client (n_k, f) and one reference (m, f); several share a matrix product."""
    per_group = max(1, TOGETHER // max((client.numel() for client in clients), default=1))
    for first in range(0, len(clients), per_group):
        group = clients[first : first + per_group]
        yield from cost_matrix(torch.cat(list(group)), reference).split([len(client) for client in group])


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Which neurons of two sides match, and how far they are apart."""

    matching: Matching
    before: float | None  # mean distance of neurons of equal index; None for unequal widths
    after: float  # <C, P>, mean distance of matching neurons
    held: bool = False  # whether no neuron moves because `margin` asks for a larger gain

    def hold(self, margin: float) -> Comparison:
        """Return the comparison in which no neuron moves, if moving lowers the distance by no more than this share."""
        if not margin or self.before is None or self.after < (1 - margin) * self.before:
            return self
        plan = self.matching.plan
        stays = torch.arange(len(plan), device=plan.device)
        if self.matching.order is not None and torch.equal(self.matching.order, stays):
            return self
        return Comparison(matching=Matching(order=stays), before=self.before, after=self.before, held=True)


@plain
def compare(client: Tensor, reference: Tensor, *, solver: str = "exact", regularization: float = 0.05) -> Comparison:
    """Compare neurons of uniform masses; arguments and errors as in `transport_plan`."""
    return next(compare_each([client], reference, solver=solver, regularization=regularization))


def compare_each(
    clients: Sequence[Tensor], reference: Tensor, *, solver: str = "exact", regularization: float = 0.05
) -> Iterator[Comparison]:
    """Yield `compare` of each client (n_k, f) and one reference (m, f).

    Where each neuron of a client has a nearest one of its own, no distances of all pairs are needed. From the first
    client on where that is not so, several clients share a matrix product.
    """
    proven = 0
    if solver == "exact":
        nearest = _Nearest(reference)
        for client in clients:
            order = nearest.order(client)
            if order is None:
                break
            proven += 1
            yield nearest.comparison(client, order)
    rest = clients[proven:]
    for client, cost in zip(rest, cost_matrices(rest, reference), strict=True):
        line = _only_coordinate(client, reference) if solver == "exact" and client.shape == reference.shape else None
        if line is None:
            matching = match(cost, solver=solver, regularization=regularization)
        else:
            _check_finite(cost)
            matching = _sorted(client[:, line], reference[:, line])
        before = float(cost.diagonal().mean()) if len(client) == len(reference) else None
        yield Comparison(matching=matching, before=before, after=matching.distance(cost))


class _Nearest:
    """Orders by nearest neurons, which are the cheapest plan where no two neurons have the same nearest one.

    No plan costs less than the least distance of each row. The distances come from one product in float32, whose error
    is at most (f + 4) u (||y||^2 + 2 ||x|| ||y||) with u = 2^-24. A nearest neuron is proven if all others are farther
    than by the errors of both distances.
    """

    def __init__(self, reference: Tensor) -> None:
        self.reference = reference.double()
        self.y = reference.float()
        self.y_squared = self.y.square().sum(dim=1)
        self.longest = float(torch.linalg.vector_norm(self.y, dim=1, dtype=torch.float64).max())
        self.error = 4 * (reference.shape[1] + 4) * 2.0**-24

    def order(self, client: Tensor) -> Tensor | None:
        """Return the client neuron at each reference neuron (m); None where nearest neurons do not prove it."""
        if client.shape != self.reference.shape or not _keeps_digits():
            return None
        x = client.float()
        nearness = torch.addmm(self.y_squared, x, self.y.T, alpha=-2).cpu().numpy()  # squared distance, less ||x||^2
        lengths = torch.linalg.vector_norm(x, dim=1).cpu().numpy()
        image = nearness.argmin(axis=1)
        margin = self.error * self.longest * (self.longest + 2 * lengths) + UNDERFLOW
        near = nearness <= (nearness[np.arange(len(image)), image] + margin)[:, None]
        if np.count_nonzero(near) != len(image) or not near.any(axis=0).all() or not np.isfinite(margin).all():
            return None
        return _inverse(image).to(client.device)

    def comparison(self, client: Tensor, order: Tensor) -> Comparison:
        """Return the comparison by this order, with distances in float64."""
        x, y = client.double(), self.reference
        before = after = float(torch.linalg.vector_norm(x - y, dim=1).mean())
        if not torch.equal(order, torch.arange(len(order), device=order.device)):
            after = float(torch.linalg.vector_norm(x.index_select(0, order) - y, dim=1).mean())
        return Comparison(matching=Matching(order=order), before=before, after=after)


def _keeps_digits() -> bool:
    """Return whether products in float32 have its precision, and not that of TF32 or bfloat16."""
    try:
        highest = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch's newer switches were used
        return False
    return highest and not any(f"{library}_DEFAULT_FPMATH_MODE" in os.environ for library in ("DNNL", "ONEDNN"))


def _only_coordinate(client: Tensor, reference: Tensor) -> int | None:
    """Return the coordinate in which alone the neurons of both sides differ; None if there are more, or none."""
    if client.shape[1] == 1:
        return 0
    if torch.count_nonzero(client[0] != reference[0]) > 1:  # as nearly always
        return None
    differing = ((client != client[0]).any(dim=0) | (reference != client[0]).any(dim=0)).nonzero()
    return int(differing) if len(differing) == 1 else None


def match(
    cost: Tensor,
    client_mass: Tensor | None = None,
    reference_mass: Tensor | None = None,
    *,
    solver: str = "exact",
    regularization: float = 0.05,
) -> Matching:
    """Return which neurons match at the least cost (n, m); arguments and errors as in `transport_plan`."""
    _check_finite(cost)
    if solver == "sinkhorn" and not 0 < regularization < math.inf:  # below 0, the plan of the highest cost
        raise FedpeftError(f"regularization is {regularization!r}, it must be a finite number above 0.")
    n, m = cost.shape
    permutes = n == m and client_mass is None and reference_mass is None
    if solver == "identity":
        if not permutes:
            raise FedpeftError(
                f"solver='identity' cannot map {n} neurons to {m}, nor other than uniform masses: use 'exact'."
            )
        return Matching(order=torch.arange(n, device=cost.device))
    if solver == "exact" and permutes:
        return Matching(order=_inverse(linear_sum_assignment(cost.cpu().numpy())[1]).to(cost.device))
    scaled = cost.cpu() / (_scale(cost) or 1.0)  # POT's tolerances are absolute
    if solver == "exact" and client_mass is None and reference_mass is None and _splits_evenly(scaled):
        plan = _assigned_in_parts(scaled)
    else:
        alpha, beta = _masses(client_mass, n, "client_mass"), _masses(reference_mass, m, "reference_mass")
        plan = _emd(alpha, beta, scaled) if solver == "exact" else _sinkhorn(alpha, beta, scaled, regularization)
    order = permutation_of(plan)
    return Matching(split=plan.to(cost.device)) if order is None else Matching(order=order.to(cost.device))


def permutation_of(plan: Tensor) -> Tensor | None:
    """Return the client neuron (m) at each reference neuron if the plan is a permutation; None if a neuron is split."""
    n, m = plan.shape
    if n != m or torch.count_nonzero(plan) != n:
        return None
    order = plan.argmax(dim=0)
    return order if torch.equal(order.sort().values, torch.arange(n, device=plan.device)) else None


def _check_finite(cost: Tensor) -> None:
    if not math.isfinite(cost.sum()) and not torch.isfinite(cost).all():
        raise FedpeftError("the supports hold NaN or infinity, so no neuron can be matched: give finite values.")


def _inverse(image: np.ndarray) -> Tensor:
    """Return the order (n) in which client neuron i stands at image[i]."""
    order = np.empty_like(image)
    order[image] = np.arange(len(image))
    return torch.from_numpy(order)


def _sorted(client: Tensor, reference: Tensor) -> Matching:
    """Return the matching of scalar supports, which maps the k-th smallest to the k-th smallest."""
    order = torch.empty(len(client), dtype=torch.int64, device=client.device)
    order[reference.argsort(stable=True)] = client.argsort(stable=True)
    return Matching(order=order)


def _masses(mass: Tensor | None, size: int, name: str) -> Tensor:
    if mass is None:
        return torch.full((size,), 1 / size, dtype=torch.float64)
    mass = torch.as_tensor(mass).detach().double().cpu()
    if mass.shape != (size,) or not bool((torch.isfinite(mass) & (mass > 0)).all()):
        raise FedpeftError(f"{name} is {mass.tolist()}, it must hold {size} positive numbers, one for each neuron.")
    mass = mass / (_scale(mass) or 1.0)  # their sum stays finite
    return mass / mass.sum()


def _splits_evenly(cost: Tensor) -> bool:
    """Return whether costs (n, m) are too unequal for POT's tolerance, and parts of equal mass few enough to assign."""
    return bool(cost.max() * MIN_COST > cost.median()) and math.lcm(*cost.shape) <= MAX_PARTS


def _assigned_in_parts(cost: Tensor) -> Tensor:
    """Return the plan of uniform masses (n, m), by an assignment of equal parts of all neurons."""
    n, m = cost.shape
    parts = math.lcm(n, m)
    rows, columns = linear_sum_assignment(cost.numpy().repeat(parts // n, axis=0).repeat(parts // m, axis=1))
    plan = torch.zeros(n, m, dtype=torch.float64)
    index = torch.from_numpy(rows // (parts // n)), torch.from_numpy(columns // (parts // m))
    return plan.index_put_(index, torch.tensor(1 / parts, dtype=torch.float64), accumulate=True)


def _emd(alpha: Tensor, beta: Tensor, cost: Tensor) -> Tensor:
    plan, log = _pot().emd(alpha.numpy(), beta.numpy(), cost.numpy(), numItermax=EXACT_ITERATIONS, log=True)
    if log["warning"]:
        raise FedpeftError(
            f"POT found no optimal plan for {tuple(cost.shape)} neurons ({log['warning']}): use solver='sinkhorn'."
        )
    return torch.from_numpy(plan)


def _sinkhorn(alpha: Tensor, beta: Tensor, cost: Tensor, regularization: float) -> Tensor:
    with np.errstate(all="ignore"):  # too little entropy underflows; the masses are checked below
        plan = _pot().sinkhorn(
            alpha.numpy(),
            beta.numpy(),
            cost.numpy(),
            reg=regularization * (float(cost.mean()) or 1.0),
            method="sinkhorn_stabilized",
            numItermax=SINKHORN_ITERATIONS,
            stopThr=SINKHORN_PRECISION,
            warn=False,
        )
    plan = torch.from_numpy(plan)
    error = float((plan.sum(dim=1) - alpha).abs().sum() + (plan.sum(dim=0) - beta).abs().sum())
    if not error <= SINKHORN_TOLERANCE:
        raise FedpeftError(
            f"Sinkhorn's masses are off by {error:.1e} after {SINKHORN_ITERATIONS} iterations with "
            f"regularization={regularization}: raise it or use solver='exact'."
        )
    return plan / plan.sum()


def _pot() -> ModuleType:
    """Import POT without JAX, TensorFlow and CuPy, which it would load if they are installed."""
    switches = [f"POT_BACKEND_DISABLE_{name}" for name in ("JAX", "TENSORFLOW", "CUPY")]
    ours = [name for name in switches if name not in os.environ]
    os.environ.update(dict.fromkeys(ours, "1"))
    try:
        import ot
    finally:
        for name in ours:
            del os.environ[name]
    return ot
