# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import pytest

from fedpeft.site.loop import rate_factor


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0), (55, 0.5), (99, 1 / 90), (100, 0.0), (120, 0.0)]
)
def test_rises_over_the_warm_up_then_falls_to_zero(step, expected):
    assert rate_factor(step, total_steps=100, warmup=0.1) == pytest.approx(expected)


def test_without_warm_up_it_starts_at_the_peak():
    assert rate_factor(0, total_steps=10, warmup=0.0) == 1.0


def test_only_warm_up_never_exceeds_the_peak():
    assert max(rate_factor(s, total_steps=10, warmup=1.0) for s in range(12)) == 1.0


def test_without_decay_it_stays_at_the_peak():
    rates = [rate_factor(step, total_steps=10, warmup=0.2, decays=False) for step in range(12)]
    assert rates == [0.5, *[1.0] * 11]
