# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
from itertools import pairwise

import pytest

from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import LayerNumbers, all_layers, matched_layers, one_layer

SHAPE = [2, 3]


def shapes(layers, slots=("output",), shape=SHAPE):
    return {f"layer.{layer}.{slot}.up.weight": shape for layer in layers for slot in slots} | {"shared.rule": [4]}


@pytest.mark.parametrize("deepest", [1, 2, 3, 7, 12, 13, 32])
def test_layers_keep_their_order_and_the_ends_meet(deepest):
    assert matched_layers(deepest, deepest) == tuple(range(deepest))
    for own in range(1, deepest + 1):
        numbers = matched_layers(own, deepest)
        assert len(numbers) == own
        assert all(a < b for a, b in pairwise(numbers))
        assert numbers[-1] == deepest - 1
        assert own == 1 or numbers[0] == 0
        for layer, number in enumerate(numbers[: own if own > 1 else 0]):
            assert abs(number / max(1, deepest - 1) - layer / (own - 1)) <= 0.5 / max(1, deepest - 1) + 1e-12


def test_the_layers_of_shallower_backbones_are_spread_evenly():
    assert matched_layers(6, 12) == (0, 2, 4, 7, 9, 11)
    assert matched_layers(3, 4) == (0, 2, 3)


def test_a_deeper_backbone_is_refused_with_what_to_set():
    with pytest.raises(FedpeftError, match=r"has 7 layers, and method.matched_layers is 6: set it to") as caught:
        matched_layers(7, 6)
    assert caught.value.setting == "method.matched_layers"


def test_a_state_comes_back_with_its_own_numbers():
    numbers, state = LayerNumbers.for_backbone(3, 5), shapes(range(3)) | {"head.0.weight": [1]}
    sent = numbers.renumber_to_send(state)
    assert sent == shapes([0, 2, 4]) | {"head.0.weight": [1]}
    assert numbers.received(sent) == state
    with pytest.raises(FedpeftError, match="of a layer that this backbone lacks"):
        numbers.received(shapes([1]))
    assert LayerNumbers.for_backbone(3, None).renumber_to_send(state) == state


@pytest.mark.parametrize("own", [1, 2, 3, 5])
def test_adapters_of_any_depth_are_the_same_in_one_layer(own):
    announced = shapes(matched_layers(own, 5), slots=("attention", "output"))
    assert one_layer(announced, 5, owner="site a") == shapes([0], slots=("attention", "output"))
    assert all_layers(announced, 5) == (own == 5)


@pytest.mark.parametrize(
    ("announced", "message"),
    [
        (shapes(range(6)), "6 layers, and method.matched_layers is 5"),
        (shapes([0, 99_999]), "output.up.weight in layers 0, 99999, and 2 layers are matched with 0, 4 of 5"),
        (shapes([0, 3]), "in layers 0, 3, and 2 layers are matched with 0, 4 of 5"),
        (shapes([0, 2, 4]) | shapes([0, 4], ("attention",)), "attention.up.weight in layers 0, 4, and 3 layers"),
        (shapes([0]) | shapes([4], shape=[2, 4]), r"shape \[2, 4\] and the same tensor of another layer with \[2, 3\]"),
    ],
    ids=["deeper", "far away", "not matched", "a slot in some layers", "unequal layers"],
)
def test_what_cannot_be_matched_is_refused(announced, message):
    with pytest.raises(FedpeftError, match=f"^site a has .*{message}"):
        one_layer(announced, 5, owner="site a")
