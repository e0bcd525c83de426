# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The memory budget of a step beside the tensors that are alive in it."""

from argparse import Namespace

import pytest
import torch


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["any", "last"])
def test_what_all_layers_are_charged_is_what_the_tensors_of_a_step_need(benchmark, choice):
    memory = benchmark("memory")
    options = Namespace(full_size=False, samples=16, classes=20, seed=0)
    fixed, costs = memory.expected(memory.on_device(options, torch.device("cpu")), choice)
    needed = memory.live_tensors(memory.on_device(options, torch.device("cpu")))
    assert fixed + float(costs.sum()) == pytest.approx(needed, rel=0.1)
