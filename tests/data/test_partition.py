# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Parts are cut by image, from a seed, and lose nothing."""

from __future__ import annotations

import numpy as np
import pytest

from fedpeft.data import DataError, DataSettings, Example
from fedpeft.data.partition import arrange, halves, pooled, split_by_image

PIXEL = np.zeros((1, 1, 3), np.uint8)


def _examples(images: int, start: int = 0) -> tuple[Example, ...]:
    """Image number n has 1 + n % 3 questions."""
    return tuple(
        Example(image=PIXEL, question=f"q{n}.{k}", answer="yes", closed=True, image_id=f"i{n}")
        for n in range(start, start + images)
        for k in range(1 + n % 3)
    )


def _images(part) -> set[str]:
    return {example.image_id for example in part}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fractions", [(0.1, 0.2), (0.3,), (0, 0.5), (0.01, 0.01, 0.01)])
def test_parts_are_disjoint_by_image_and_complete(seed, fractions):
    examples = _examples(50)
    parts = split_by_image(examples, fractions, np.random.default_rng(seed))
    assert sorted(e.question for part in parts for e in part) == sorted(e.question for e in examples)
    assert sum(len(_images(part)) for part in parts) == 50
    expected = [max(1, round(50 * fraction)) if fraction else 0 for fraction in fractions]
    assert [len(_images(part)) for part in parts[1:]] == expected


def test_the_cut_depends_on_the_seed_and_not_on_the_order_of_rows():
    examples = _examples(40)
    one, again = (split_by_image(examples, (0.25,), np.random.default_rng(7)) for _ in range(2))
    assert one == again
    shuffled = split_by_image(examples[::-1], (0.25,), np.random.default_rng(7))
    assert _images(shuffled[1]) == _images(one[1])
    assert _images(split_by_image(examples, (0.25,), np.random.default_rng(8))[1]) != _images(one[1])
    positions = [examples.index(example) for example in one[0]]
    assert positions == sorted(positions)


def test_too_few_images_are_refused():
    with pytest.raises(DataError, match=r"2 images are too few for parts of 0\.1, 0\.2"):
        split_by_image(_examples(2), (0.1, 0.2), np.random.default_rng(0))


def test_published_splits_stay_and_a_missing_validation_set_is_cut_from_train():
    train, test, own = _examples(20), _examples(5, start=15), _examples(4, start=40)
    settings = DataSettings(dataset="slake", validation_fraction=0.2)
    assert arrange(settings, train=train, test=test, validation=own) == (train, own, test)
    rest, cut, same = arrange(settings, train=train, test=test)
    assert same == test
    assert len(_images(cut)) == 4
    assert not _images(rest) & _images(cut)
    assert _images(rest) | _images(cut) == _images(train)
    without = arrange(DataSettings(dataset="slake", validation_fraction=0), train=train, test=test)
    assert without == (train, (), test)


def test_image_disjoint_takes_apart_what_the_publisher_mixed():
    train, test = _examples(30), _examples(20, start=10)
    settings = DataSettings(dataset="slake", split="image_disjoint", seed=3)
    splits = arrange(settings, train=train, test=test)
    assert [len(_images(part)) for part in splits] == [21, 3, 6]
    assert not _images(splits[0]) & _images(splits[2])
    assert splits == pooled((*train, *test), settings)


def test_halves_are_disjoint_complete_and_know_no_seed():
    ids = [f"synpic{n}" for n in range(107)]
    first, second = halves(ids)
    assert (len(first), len(second)) == (54, 53)
    assert not first & second
    assert halves(reversed(ids)) == (first, second)
    assert halves(ids[:3])[0] == {"synpic0", "synpic1"}
