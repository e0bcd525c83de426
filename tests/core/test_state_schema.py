# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The one comparison of a state with its schema finds the first thing that is wrong, and says which."""

import pytest
import torch

from fedpeft.core.states import first_misfit

SHAPES = {"a": [2, 3], "b": [3]}
STATE = {"a": torch.ones(2, 3), "b": torch.ones(3)}
NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("change", "how", "what", "key"),
    [
        ({}, {}, None, ""),
        ({"c": torch.ones(1)}, {}, "keys", ""),
        ({7: torch.ones(1)}, {}, "keys", ""),
        ({"b": [1.0, 1.0, 1.0]}, {}, "form", "b"),
        ({"b": torch.ones(3).to_sparse()}, {}, "form", "b"),
        ({"b": torch.ones(3, device="meta")}, {}, "form", "b"),
        ({"b": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}, {}, "form", "b"),
        ({"b": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)}, {}, "form", "b"),
        ({"b": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)}, {}, "form", "b"),
        ({"b": torch.nn.Parameter(torch.ones(3))}, {}, "form", "b"),
        ({"b": torch.ones(3).long()}, {}, "form", "b"),
        ({"b": torch.ones(3).double()}, {}, None, ""),
        ({"b": torch.ones(3).double()}, {"dtype": "float32"}, "dtype", "b"),
        ({"b": torch.ones(3).long()}, {"dtype": "float32"}, "dtype", "b"),
        ({"b": torch.ones(3)}, {"dtype": ""}, "dtype", "a"),
        ({"b": torch.ones(2)}, {}, "shape", "b"),
        ({"b": torch.ones(2)}, {"max_side": 3}, None, ""),
        ({"b": torch.ones(4)}, {"max_side": 3}, "shape", "b"),
        ({"b": torch.ones(3, 1)}, {"max_side": 3}, "shape", "b"),
        ({"b": torch.tensor([1.0, NAN, 1.0])}, {}, None, ""),
        ({"b": torch.tensor([1.0, NAN, 1.0])}, {"bound": 10.0}, "finite", "b"),
        ({"b": torch.tensor([1.0, -INFINITY, 1.0])}, {"bound": 10.0}, "finite", "b"),
        ({"b": torch.tensor([1.0, -11.0, 1.0])}, {"bound": 10.0}, "size", "b"),
    ],
)
def test_the_first_tensor_that_does_not_fit_is_named_with_the_reason(change, how, what, key):
    misfit = first_misfit({**STATE, **change}, SHAPES, **how)
    assert (misfit and misfit.what, misfit.key if misfit else "") == (what, key)


def test_missing_and_unknown_keys_are_both_named():
    state = {"a": STATE["a"], "c": STATE["b"]}
    misfit = first_misfit(state, SHAPES)
    assert (misfit.missing, misfit.unknown) == (("b",), ("c",))
    assert first_misfit(state, SHAPES, whole=False).missing == ()
    assert first_misfit({"a": STATE["a"]}, SHAPES, whole=False) is None


def test_an_empty_tensor_has_no_values_to_refuse():
    assert first_misfit({"a": torch.ones(0, 3)}, {"a": [0, 3]}, bound=1.0) is None
