# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Drawn layers: the same for all clients, any layer alike, whatever the scores say."""

import numpy as np

from fedpeft.scheduling import names, names_with_front, schedule


def drawn(budgets, seed, layers=6):
    scores = np.random.default_rng(seed + 1000).random((len(budgets), layers))
    (mask,) = schedule(scores, np.array(budgets), solver="drawn", seed=seed).masks
    return [np.flatnonzero(row).tolist() for row in mask]


def test_all_clients_get_the_same_layer_and_every_layer_gets_its_turn():
    blocks = []
    for seed in range(300):
        (first, *others) = drawn([1, 1, 1], seed)
        assert others == [first, first]
        blocks += first
    assert np.bincount(blocks, minlength=6).min() > 300 / 6 / 2


def test_a_smaller_budget_gets_a_part_of_what_the_largest_gets():
    for seed in range(20):
        none, two, four = drawn([0, 2, 4], seed)
        assert none == []
        assert set(two) < set(four)


def test_scores_do_not_matter_and_it_has_no_front():
    for seed in range(5):
        zero = schedule(np.zeros((2, 6)), 1, solver="drawn", seed=seed)
        assert np.array_equal(zero.masks, schedule(np.eye(6)[:2], 1, solver="drawn", seed=seed).masks)
        assert len(zero) == 1
    assert set(names()) - set(names_with_front()) == {"drawn"}
