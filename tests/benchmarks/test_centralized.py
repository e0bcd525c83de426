# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A centralized model among all answers, and among those of the site that asks."""

import pytest

SIZES = ("train_size=8", "validation_size=2", "test_size=6")
SMALL = ("training.rounds=1", *(f"data.{size}" for size in SIZES))


@pytest.mark.slow
def test_among_its_own_answers_a_site_is_answered_right_at_least_as_often(benchmark):
    centralized = benchmark("centralized")
    figures = centralized.run("houlsby, centralized", 0, list(SMALL))
    assert len(figures) == len(centralized.SITES)
    for right, among, others in figures:
        assert 0 <= right <= among <= 100
        assert among - right <= others
