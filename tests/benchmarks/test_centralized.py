# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A centralized model among all answers, and among those of the site that asks."""

import pytest

SIZES = ("train_size=8", "validation_size=2", "test_size=6")
SMALL = ("training.rounds=1", *(f"data.{size}" for size in SIZES))


@pytest.mark.slow
def test_the_two_accuracies_differ_by_answers_in_words_that_a_site_has_not(benchmark):
    centralized = benchmark("centralized")
    figures = centralized.run("houlsby, centralized", 0, list(SMALL))
    assert len(figures) == len(centralized.SITES)
    for right, among, others in figures:
        assert 0 <= min(right, among) <= max(right, among) <= 100
        assert abs(among - right) <= others <= 100
