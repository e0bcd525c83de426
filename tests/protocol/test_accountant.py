# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The accountant against ways of its own of computing the same thing."""

import builtins
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedpeft.core.errors import FedpeftError
from fedpeft.protocol import epsilon

DELTA = 1e-5


def exact(noise, delta):
    """Epsilon of Gaussian releases without slack (Balle and Wang 2018, theorem 8): composed they are one of noise z."""
    z = 1 / math.sqrt(sum(1 / one**2 for one in noise))

    def excess(e):
        return norm.cdf(1 / (2 * z) - e * z) - math.exp(e + norm.logcdf(-1 / (2 * z) - e * z)) - delta

    return brentq(excess, 0, 1 / (2 * z**2) + 20 / z)


@pytest.mark.parametrize(
    "noise", [[0.1], [0.5], [1.0], [2.0], [10.0], [1.0] * 30, [3.0] * 10 + [5.0] * 10, [1.0, 2.0, 4.0]]
)
def test_it_bounds_the_exact_epsilon_closely_from_above(noise):
    assert exact(noise, DELTA) <= epsilon(noise, DELTA) <= 1.12 * exact(noise, DELTA)


@pytest.mark.parametrize("noise", [[1.0], [2.0, 3.0]])
def test_it_is_the_best_conversion_over_all_orders(noise):
    orders = 1 + np.geomspace(1e-4, 1e4, 100_000)
    renyi = orders * sum(1 / (2 * z**2) for z in noise)
    converted = renyi + np.log1p(-1 / orders) - (math.log(DELTA) + np.log(orders)) / (orders - 1)
    assert epsilon(noise, DELTA) == pytest.approx(converted.min(), rel=1e-3)


def test_epsilon_of_one_release_is_the_published_value():
    assert exact([1.0], DELTA) == pytest.approx(4.3772, abs=1e-4)  # Dong, Roth and Su 2022: mu = 1
    assert epsilon([1.0], DELTA) == pytest.approx(4.7285, abs=1e-3)


def test_it_grows_with_every_release_and_knows_no_order():
    assert epsilon([], DELTA) == 0
    values = [epsilon([1.0] * count, DELTA) for count in (1, 2, 5)]
    assert values == sorted(values)
    assert epsilon([1.0, 2.0, 1.0], DELTA) == pytest.approx(epsilon([2.0, 1.0, 1.0], DELTA), rel=1e-12)


@pytest.mark.parametrize("noise", [[0.0], [1.0, -1.0], [float("nan")]])
def test_a_release_without_noise_has_no_epsilon(noise):
    with pytest.raises(FedpeftError, match="has no epsilon"):
        epsilon(noise, DELTA)


def test_a_missing_accountant_is_refused_with_the_remedy(monkeypatch):
    original = builtins.__import__

    def without(name, *rest):
        if name.startswith("opacus"):
            raise ImportError("No module named 'opacus'")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(FedpeftError, match=r"pip install 'flare-fedpeft\[privacy\]'"):
        epsilon([1.0], DELTA)
