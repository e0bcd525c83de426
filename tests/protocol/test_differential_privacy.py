# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Clipping, noise and the sum of both: bounds that hold for any data, noise of the promised size, and its epsilon."""

import builtins
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import kstest
from scipy.stats import norm as gauss

from fedpeft.core.errors import FedpeftError
from fedpeft.protocol import (
    PrivacySettings,
    clipped_scores,
    clipped_update,
    epsilon,
    gaussian,
    release_adapter,
    release_scores,
)

KEYS = ("layer.0.output.down.weight", "layer.1.output.down.bias")


def adapter(seed, *, scale=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((40, 50), (7,))
    return {k: (scale * torch.randn(s, generator=generator)).to(dtype) for k, s in zip(KEYS, shapes, strict=True)}


def seeded(seed=7):
    return np.random.default_rng(seed).bytes


def silent(count):
    """Random bytes whose noise is zero."""
    return np.full(count // 8, 1 << 63, dtype=np.uint64).tobytes()


def chosen(**changes):
    return PrivacySettings(**{"clip": 1.0, "noise": 1.0, "score_clip": 1.0, "score_noise": 1.0, **changes})


def norm(state, other=None):
    parts = (t.double() - (other[k].double() if other else 0) for k, t in state.items())
    return math.sqrt(sum(float(p.square().sum()) for p in parts))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32), st.floats(1e-3, 1e3), st.floats(1e-6, 1e6), st.booleans())
def test_two_clipped_updates_are_at_most_two_bounds_apart(one, two, bound, scale, referenced):
    reference = adapter(1) if referenced else None
    first, _ = clipped_update(adapter(one, scale=scale), reference, bound)
    second, _ = clipped_update(adapter(two, scale=-scale), reference, bound)
    assert norm(first) <= bound * (1 + 1e-12)
    assert norm(first, second) <= 2 * bound * (1 + 1e-12)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(*(st.lists(st.floats(0, 1e12), min_size=4, max_size=4) for _ in range(2)), st.floats(1e-3, 1e3))
def test_two_clipped_score_vectors_are_at_most_root_two_bounds_apart(one, two, bound):
    first, second = clipped_scores(one, bound), clipped_scores(two, bound)
    assert math.dist(first, second) <= math.sqrt(2) * bound * (1 + 1e-12)


def test_the_bound_on_scores_is_reached():
    assert math.dist(clipped_scores([9, 0], 1.0), clipped_scores([0, 4], 1.0)) == pytest.approx(math.sqrt(2))


def test_a_small_update_is_not_touched():
    sent, reference = adapter(2, scale=1e-3), adapter(1, scale=1e-3)
    update, size = clipped_update(sent, reference, 1.0)
    assert size == pytest.approx(norm(sent, reference))
    assert all(torch.equal(update[k], sent[k].double() - reference[k].double()) for k in KEYS)


def test_noise_is_gaussian_and_of_the_requested_deviation():
    draws = gaussian((200, 500), 3.0, seeded())
    assert draws.shape == (200, 500)
    assert kstest(draws.reshape(-1).numpy() / 3.0, "norm").pvalue > 0.01
    assert abs(draws.mean()) < 4 * 3.0 / math.sqrt(draws.numel())
    assert draws.std() == pytest.approx(3.0, rel=0.01)


def test_the_extreme_bits_give_finite_noise():
    for bits in (b"\x00", b"\xff"):
        assert torch.isfinite(gaussian((3,), 1.0, lambda count, bits=bits: bits * count)).all()


def test_by_default_noise_comes_from_the_system_and_from_no_seed():
    torch.manual_seed(0)
    first = gaussian((8,), 1.0)
    torch.manual_seed(0)
    assert not torch.equal(first, gaussian((8,), 1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reference", [None, adapter(1)])
def test_a_release_is_the_clipped_update_and_noise_in_the_adapters_own_dtype(dtype, reference):
    sent = adapter(2, dtype=dtype)
    base = None if reference is None else {k: t.to(dtype) for k, t in reference.items()}
    quiet, size = release_adapter(sent, base, chosen(clip=2.0), silent)
    assert size > 2.0
    assert all(t.dtype == dtype for t in quiet.values())
    spacing = 2.0 ** (-7 if dtype == torch.bfloat16 else -22)
    assert norm(quiet, base) <= 2.0 + spacing * norm(quiet)
    noised, _ = release_adapter(sent, base, chosen(clip=2.0, noise=0.5), seeded())
    difference = torch.cat([(noised[k].double() - quiet[k].double()).reshape(-1) for k in KEYS])
    assert difference.std() == pytest.approx(0.5 * 2 * 2.0, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_comes_after_the_noise(dtype):
    sent = adapter(2, dtype=dtype)
    update, _ = clipped_update(sent, None, 1.0)
    noised, _ = release_adapter(sent, None, chosen(), seeded())
    source = seeded()
    for key in KEYS:
        exact = update[key] + gaussian(tuple(update[key].shape), 2.0, source)
        assert torch.equal(noised[key], exact.to(dtype))


def test_scores_are_noised_and_not_negative():
    released = release_scores([0.0] * 20000, chosen(score_clip=2.0, score_noise=0.5), seeded())
    assert min(released) == 0
    assert sum(s == 0 for s in released) == pytest.approx(10000, rel=0.05)
    positive = np.array([s for s in released if s > 0])
    assert math.sqrt((positive**2).mean()) == pytest.approx(0.5 * math.sqrt(2) * 2.0, rel=0.03)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: clipped_update({KEYS[0]: torch.tensor([float("nan")])}, None, 1.0), "NaN or infinity"),
        (lambda: clipped_update({KEYS[0]: torch.tensor([float("inf")])}, None, 1.0), "NaN or infinity"),
        (lambda: clipped_update(adapter(0), {}, 1.0), "missing in the global adapter"),
        (lambda: clipped_update(adapter(0), dict.fromkeys(KEYS, torch.ones(2)), 1.0), "reference='zero'"),
        (lambda: clipped_scores([1.0, float("nan")], 1.0), "must be finite"),
        (lambda: clipped_scores([1.0, -0.1], 1.0), "not negative"),
        (lambda: release_scores([1.0], chosen(score_clip=0.0, score_noise=0.0)), "may not leave without noise"),
        (
            lambda: release_adapter({KEYS[0]: torch.ones(2, dtype=torch.float16)}, None, chosen(clip=1e6), seeded()),
            "does not fit into torch.float16",
        ),
    ],
)
def test_what_cannot_be_protected_is_refused(act, message):
    with pytest.raises(FedpeftError, match=message):
        act()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip": 0}, "clip is 0, it must be above 0"),
        ({"clip": float("nan")}, "clip is nan"),
        ({"clip": float("inf")}, "clip is inf"),
        ({"noise": -1}, "noise is -1"),
        ({"noise": float("nan")}, "noise is nan"),
        ({"delta": 0}, "delta is 0"),
        ({"delta": 1}, "delta is 1, it must be below 1"),
        ({"score_clip": 0.0}, "noise without a bound"),
        ({"noise": 0.0}, "both must be above 0, or both 0"),
        ({"score_noise": 0.0}, "both must be above 0, or both 0"),
        ({"noise": 0.0, "score_noise": 0.0, "limit": 1.0}, "limit needs noise"),
        ({"reference": "own"}, "reference is 'own', allowed are received, zero"),
        ({"metrics": "noise"}, "metrics is 'noise', allowed are withhold, pass"),
    ],
)
def test_settings_that_protect_nothing_are_refused(changes, message):
    with pytest.raises(FedpeftError, match=message):
        chosen(**changes)


DELTA = 1e-5


def exact(noise, delta):
    """Epsilon of Gaussian releases without slack (Balle and Wang 2018, theorem 8): composed they are one of noise z."""
    z = 1 / math.sqrt(sum(1 / one**2 for one in noise))

    def excess(e):
        return gauss.cdf(1 / (2 * z) - e * z) - math.exp(e + gauss.logcdf(-1 / (2 * z) - e * z)) - delta

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
