# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Aggregate what one client sent, and compare what must be equal to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedpeft import methods
from fedpeft.alignment.factors import lora_pairs, product_pairs
from fedpeft.core.states import State
from fedpeft.methods.aggregations import AGGREGATIONS
from fedpeft.methods.settings import MethodSettings
from fedpeft.server.aggregation import aggregate

PAIRS = {"products": product_pairs, "factors": lora_pairs}  # which an aggregation multiplies, by what it needs


def aggregations(name: str) -> list[str]:
    """Return the ways in which a method, by its declaration, can be aggregated; its own default is among them."""
    method = methods.get(name)
    able = [way for way, rule in AGGREGATIONS.items() if rule.exchanges and rule.fits(method)]
    assert MethodSettings(name=name).aggregation in able
    return able


def check_identity(
    name: str, way: str, settings: Mapping[str, Any], state: State, pia: Mapping[str, Any] | None = None
) -> None:
    """Aggregate the tensors of one client as a job would: nothing changes.

    Where the products of factors are averaged these are compared, up to rounding, and all else to the bit.

    Args:
        name: of the method.
        way: of `method.aggregation`.
        settings: of the method.
        state: what the client sent.
        pia: settings of `method.pia`.
    """
    method = MethodSettings(name=name, aggregation=way, settings={name: settings}, pia=pia or {})
    merged, _ = aggregate({"a": (state, 7)}, method, previous=None)
    assert merged.keys() == state.keys()
    of_products = set()
    if pairs_of := PAIRS.get(method.rule.needs):
        pairs = pairs_of(state)
        assert pairs
        for pair in pairs:
            of_products |= {pair.down, *pair.ups}
            for up in pair.ups:
                now, sent = (tensors[up] @ tensors[pair.down] for tensors in (merged, state))
                torch.testing.assert_close(now, sent, rtol=1e-5, atol=1e-6)
                assert bool(sent.any())
    assert all(torch.equal(merged[key], state[key]) for key in state.keys() - of_products)
