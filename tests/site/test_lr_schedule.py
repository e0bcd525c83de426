# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import pytest

from fedpeft import backbones, methods
from fedpeft.site.loop import build_optimizer, rate_factor


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0), (55, 0.5), (99, 1 / 90), (100, 0.0), (120, 0.0)]
)
def test_rises_over_the_warm_up_then_falls_to_zero(step, expected):
    assert rate_factor(step, total_steps=100, warmup=0.1) == pytest.approx(expected)


@pytest.mark.parametrize(("warmup", "steps", "rising"), [(0.07, 100, 7), (0.14, 50, 7), (0.28, 25, 7), (0.071, 100, 8)])
def test_the_steps_that_rise_are_those_of_the_decimal_number(warmup, steps, rising):
    """0.07 * 100 is a little more than 7 in floats."""
    assert rate_factor(0, total_steps=steps, warmup=warmup) == 1 / rising


def test_without_warm_up_it_starts_at_the_peak():
    assert rate_factor(0, total_steps=10, warmup=0.0) == 1.0


def test_only_warm_up_never_exceeds_the_peak():
    assert max(rate_factor(s, total_steps=10, warmup=1.0) for s in range(12)) == 1.0


def test_without_decay_it_stays_at_the_peak():
    rates = [rate_factor(step, total_steps=10, warmup=0.2, decays=False) for step in range(12)]
    assert rates == [0.5, *[1.0] * 11]


@pytest.mark.parametrize(("name", "decays"), [("ia3", False), ("lora", True)])
def test_gains_around_one_do_not_decay_and_matrices_do(name, decays):
    trained = methods.get(name).tuning().prepare(backbones.skeleton("tiny-vilt"), {}, seed=0).parameters()
    rates = {"learning_rate": 0.1, "head_learning_rate": 0.1, "weight_decay": 0.01}
    optimizer = build_optimizer(trained.items(), [], kind="adamw", **rates)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01 * decays]
