# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site takes only tensors of the adapter that it announced, in its own shapes and dtype."""

import pytest
import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.site.orders import AdapterSchema, check_received

DOWN, UP = "layer.0.output.down.weight", "layer.0.output.up.weight"
ANNOUNCED = AdapterSchema(shapes={DOWN: [2, 6], UP: [6, 2]}, dtype="float32")
OWN = {DOWN: torch.ones(2, 6), UP: torch.ones(6, 2)}
WIDER = {DOWN: torch.ones(6, 6), UP: torch.ones(6, 6)}


@pytest.mark.parametrize(
    ("state", "how"),
    [
        (OWN, {"whole": True}),
        ({}, {"whole": True}),
        ({DOWN: OWN[DOWN]}, {"whole": False}),
        (WIDER, {"whole": True, "any_width": True}),
    ],
)
def test_an_adapter_of_the_announced_kind_is_not_refused(state, how):
    check_received(state, ANNOUNCED, **how)


REFUSED = [
    ({**OWN, "x" * 500: torch.ones(1)}, {}, "has a tensor 'xxx"),
    ({**OWN, 7: torch.ones(1)}, {}, "has a tensor '7'"),
    ({DOWN: OWN[DOWN]}, {}, f"lacks {UP}"),
    ({**OWN, DOWN: torch.ones(2000, 6)}, {}, "with shape .2000, 6."),
    (WIDER, {}, "with shape .6, 6."),
    ({**OWN, DOWN: torch.ones(4097, 6)}, {"any_width": True}, "with shape .4097, 6."),
    ({**OWN, DOWN: torch.ones(2, 6, 6)}, {"any_width": True}, "with shape .2, 6, 6."),
    ({**OWN, DOWN: OWN[DOWN].double()}, {}, "as torch.float64"),
    ({**OWN, DOWN: OWN[DOWN].long()}, {}, "as torch.int64"),
    ({**OWN, DOWN: OWN[DOWN].to_sparse()}, {}, "no dense tensor"),
    ({**OWN, DOWN: OWN[DOWN].to("meta")}, {}, "no dense tensor"),
    ({**OWN, DOWN: "a text"}, {}, "no dense tensor"),
]


@pytest.mark.parametrize(("state", "how", "what"), REFUSED)
def test_anything_else_is_refused(state, how, what):
    with pytest.raises(FedpeftError, match=what) as refused:
        check_received(state, ANNOUNCED, **{"whole": True, **how})
    assert refused.value.code == "order-refused"
