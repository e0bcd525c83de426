# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""benchmarks/dials.py: its figures are what they are called, and each dial moves its own."""

import numpy as np
import pytest

from fedpeft.data.phantom import SITES, site_profile, skewed
from fedpeft.data.phantom_scene import CLINICAL, PAIRS

pytestmark = pytest.mark.slow

SMALL = {"train_size": 45}


@pytest.fixture
def dials(benchmark):
    return benchmark("dials")


def test_contradiction_is_nothing_without_dialects_and_rises_with_them(dials):
    found = [dials.figures(dials.World(dialects=dialects, sites=3, **SMALL)) for dialects in (0, 3, 7)]
    shares = [f.contradicted for f in found]
    assert shares[0] == 0 < shares[1] < shares[2] < 1
    assert len({(f.training, f.type_distance, f.unseen_answers) for f in found}) == 1, "nothing else changes"


def test_the_words_that_contradict_are_those_of_the_pairs_that_one_of_two_sites_swaps(dials):
    one, other = SITES[1], SITES[2]  # the page's table: vqa-rad swaps 1, 5, 6, 7 of the pairs, vqa-med-2019 swaps 2, 5
    expected = {CLINICAL[concept] for number in (1, 2, 6, 7) for concept in PAIRS[number - 1]}
    assert dials.ambiguous_words(one, other, 7) == dials.ambiguous_words(other, one, 7) == expected
    assert dials.ambiguous_words(one, one, 7) == set()


def test_type_distance_is_0_without_label_skew_and_rises_with_it(dials):
    found = [dials.figures(dials.World(label_skew=label_skew, sites=3, **SMALL)) for label_skew in (0, 0.5, 1, 3)]
    distances = [f.type_distance for f in found]
    assert distances[0] == pytest.approx(0)
    assert distances == sorted(distances)
    assert distances[-1] > 1.3 * distances[2] > 1.3 * distances[1] > 0.01


@pytest.mark.parametrize("label_skew", [0, 1, 3, 10])
def test_shares_of_types_are_those_of_many_draws(dials, label_skew):
    weights = skewed(site_profile("vqa-med-2020").type_weights, label_skew)
    rng = np.random.default_rng(0)
    drawn = [rng.choice(len(weights), size=3, replace=False, p=weights) for _ in range(8000)]
    shares = dials.type_shares(weights)
    assert sum(shares) == pytest.approx(1)
    assert np.bincount(np.ravel(drawn), minlength=len(weights)) / 24000 == pytest.approx(shares, abs=0.01)


def test_total_variation_of_equal_and_of_disjoint_distributions(dials):
    assert dials.total_variation((0.25, 0.75), (0.25, 0.75)) == 0
    assert dials.total_variation((0, 1), (1, 0)) == 1


def test_a_smaller_training_split_lacks_more_of_the_answers_of_the_same_test_questions(dials):
    few, more = (dials.World(train_size=size, sites=2) for size in (12, 120))
    assert all(len(few.data()[site].train) == 12 for site in few.names)
    assert [e.question for e in few.data()["slake"].test] == [e.question for e in more.data()["slake"].test]
    assert dials.figures(few).unseen_answers > dials.figures(more).unseen_answers > 0
    lacking = dials.World(train_size=1, sites=1).data()["slake"]
    assert dials.unseen_answers(lacking) == np.mean([e.answer != lacking.train[0].answer for e in lacking.test])


def test_more_sites_bring_more_questions_and_the_named_ones_come_first(dials):
    assert dials.World(sites=2).names == SITES[:2]
    assert dials.World(sites=7).names == (*SITES, "clinic-1", "clinic-2")
    assert dials.figures(dials.World(sites=2, **SMALL)).training == 90


def test_every_value_of_every_dial_has_a_row_and_the_defaults_have_the_same_figures(dials):
    named = dict(dials.worlds())
    assert list(named) == [f"{dial} {value}" for dial, values in dials.DIALS.items() for value in values]
    default = ("data.dialects 0", "data.label_skew 1", "data.train_size 300", "number of sites 5")
    assert {named[name] for name in default} == {dials.World()}


def test_the_file_of_results_shows_what_is_printed(dials, benchmark):
    file = benchmark("measured").ROOT / "benchmarks" / "results" / "embedded.md"
    shown = [line.split() for line in file.read_text().splitlines()]
    assert all(" ".join(row).split() in shown for row in dials.table().rows)
