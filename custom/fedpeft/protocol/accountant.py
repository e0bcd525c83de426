# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The (epsilon, delta) guarantee of everything that a site has released."""

from __future__ import annotations

from collections.abc import Sequence

from fedpeft.core.errors import FedpeftError

ORDERS = tuple(1 + 10 ** (k / 40) for k in range(-200, 161))


def epsilon(noise: Sequence[float], delta: float) -> float:
    """Epsilon of a sequence of Gaussian releases, each chosen adaptively after the ones before.

    A release with noise z (standard deviation over sensitivity) has the Renyi divergence a / (2 z^2) at every order a;
    divergences of releases add; the best order gives epsilon (Mironov 2017; Balle et al. 2020, theorem 21), an upper
    bound. Every release is of the whole site: nothing is subsampled, so nothing is amplified.

    Args:
        noise: z of every release, in any order.
        delta: the delta at which epsilon is given.

    Raises:
        FedpeftError: opacus, which computes epsilon, is not installed; or a release has no noise.
    """
    if not all(z > 0 for z in noise):
        raise FedpeftError(f"a release with noise {min(noise)!r} has no epsilon: noise must be above 0.")
    try:
        from opacus.accountants import RDPAccountant
    except ImportError as error:
        raise FedpeftError(
            f"the privacy accountant cannot be loaded ({error}): pip install 'flare-fedpeft[privacy]' at this site."
        ) from error
    accountant = RDPAccountant()
    for z in sorted(noise):
        accountant.step(noise_multiplier=z, sample_rate=1.0)
    return accountant.get_epsilon(delta, alphas=list(ORDERS)) if noise else 0.0
