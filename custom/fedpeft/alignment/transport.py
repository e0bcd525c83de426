# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Optimal transport between the neurons of two adapters, which says which neurons match."""

from __future__ import annotations

import os
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedpeft.alignment.settings import CHOICES
from fedpeft.errors import FedpeftError
from fedpeft.settings import one_of

EXACT_ITERATIONS = 10_000_000
SINKHORN_ITERATIONS = 1_000
SINKHORN_PRECISION = 1e-6
SINKHORN_TOLERANCE = 1e-2  # generous, because aligned weights are divided by the masses that the plan really has


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
        FedpeftError: shapes that do not fit, values that are not finite, masses that are not positive.

    Source: Saha et al., FedPIA, "Server-level PIA"; Singh and Jaggi 2020, Model Fusion via Optimal Transport.

    Example:
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
    plan, _ = match(client, reference, client_mass, reference_mass, solver=solver, regularization=regularization)
    return plan


class Centered(NamedTuple):
    """Supports that several others are compared with; `centered` makes it.

    Args:
        support: y (m, f), as given.
        center: their mean (f).
        rows: y less their mean (m, f), float64.
        lengths: of these rows, squared (m).
    """

    support: Tensor
    center: Tensor
    rows: Tensor
    lengths: Tensor


def centered(support: Tensor) -> Centered:
    """Return supports with what `cost_matrix` needs of them, so that it is computed once for several sites."""
    y = support.double()
    center = y.mean(dim=0)
    rows = y - center
    return Centered(support, center, rows, rows.square().sum(dim=1))


def match(
    client: Tensor,
    reference: Tensor | Centered,
    client_mass: Tensor | None = None,
    reference_mass: Tensor | None = None,
    *,
    solver: str = "exact",
    regularization: float = 0.05,
) -> tuple[Tensor, Tensor]:
    """Return the plan (n, m) and the cost (n, m) that it minimizes; arguments as in `transport_plan`."""
    reference = reference if isinstance(reference, Centered) else centered(reference)
    cost = cost_matrix(client, reference)
    if not torch.isfinite(cost).all():
        raise FedpeftError("the supports hold NaN or infinity, so no neuron can be matched: give finite values.")
    uniform = client_mass is None and reference_mass is None
    if uniform and solver == "exact" and client.shape == reference.support.shape and client.shape[1] == 1:
        return _sorted_plan(client[:, 0], reference.support[:, 0]), cost
    return solve(cost, client_mass, reference_mass, solver=solver, regularization=regularization), cost


def cost_matrix(client: Tensor, reference: Tensor | Centered) -> Tensor:
    """Return distances C[i,j] = || x_i - y_j ||_2 between supports (n, f) and (m, f): (n, m), float64.

    One matrix product, ||x||^2 - 2 x y + ||y||^2. It cancels where x and y are close and both are far from 0; float64,
    and a shift of both that puts the reference's mean at 0, keep the error near 1e-8 of the distance from that mean.
    """
    reference = reference if isinstance(reference, Centered) else centered(reference)
    x = client.double() - reference.center
    squared = torch.addmm(reference.lengths, x, reference.rows.T, alpha=-2).add_(x.square().sum(dim=1, keepdim=True))
    return squared.clamp_(min=0).sqrt_()


def solve(
    cost: Tensor,
    client_mass: Tensor | None = None,
    reference_mass: Tensor | None = None,
    *,
    solver: str = "exact",
    regularization: float = 0.05,
) -> Tensor:
    """Return the plan (n, m) for a cost (n, m), float64; arguments as in `transport_plan`."""
    n, m = cost.shape
    permutes = n == m and client_mass is None and reference_mass is None
    if solver == "identity":
        if not permutes:
            raise FedpeftError(
                f"solver='identity' cannot map {n} neurons to {m}, nor other than uniform masses: use 'exact'."
            )
        return unmoved(cost)
    if solver == "exact" and permutes:
        return _plan_of(torch.from_numpy(linear_sum_assignment(cost.cpu().numpy())[1]).to(cost.device))
    alpha, beta = _masses(client_mass, n, "client_mass"), _masses(reference_mass, m, "reference_mass")
    plan = _emd(alpha, beta, cost) if solver == "exact" else _sinkhorn(alpha, beta, cost, regularization)
    return plan.to(cost.device)


def unmoved(cost: Tensor) -> Tensor:
    """Return the plan that maps neuron i to i, for a cost (or a plan) of n by n neurons, float64."""
    return torch.eye(len(cost), dtype=torch.float64, device=cost.device) / len(cost)


def permutation_of(plan: Tensor) -> Tensor | None:
    """Return the client neuron (m) at each reference neuron if the plan is a permutation; None if a neuron is split.

    Moving tensors by such an index is exact to the bit, which multiplying them by 48 * (1/48) is not.
    """
    n, m = plan.shape
    if n != m or torch.count_nonzero(plan) != n:
        return None
    order = plan.argmax(dim=0)
    return order if torch.equal(order.sort().values, torch.arange(n, device=plan.device)) else None


def _plan_of(image: Tensor) -> Tensor:
    """Return the plan (n, n) that maps client neuron i to reference neuron image[i]."""
    n = len(image)
    plan = torch.zeros(n, n, dtype=torch.float64, device=image.device)
    plan[torch.arange(n, device=image.device), image] = 1 / n
    return plan


def _sorted_plan(client: Tensor, reference: Tensor) -> Tensor:
    """Return the plan for scalar supports, which maps the k-th smallest to the k-th smallest."""
    image = torch.empty(len(client), dtype=torch.int64, device=client.device)
    image[client.argsort(stable=True)] = reference.argsort(stable=True)
    return _plan_of(image)


def _masses(mass: Tensor | None, size: int, name: str) -> Tensor:
    if mass is None:
        return torch.full((size,), 1 / size, dtype=torch.float64)
    mass = torch.as_tensor(mass).double().cpu()
    if mass.shape != (size,) or not bool((torch.isfinite(mass) & (mass > 0)).all()):
        raise FedpeftError(f"{name} is {mass.tolist()}, it must hold {size} positive numbers, one for each neuron.")
    return mass / mass.sum()


def _emd(alpha: Tensor, beta: Tensor, cost: Tensor) -> Tensor:
    plan, log = _pot().emd(alpha.numpy(), beta.numpy(), cost.cpu().numpy(), numItermax=EXACT_ITERATIONS, log=True)
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
            cost.cpu().numpy(),
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
