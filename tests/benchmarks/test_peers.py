# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The pull towards an anchor acts in its block only."""

from types import SimpleNamespace

import torch


def test_every_step_in_the_block_is_pulled_and_none_after_it(benchmark):
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    learner = SimpleNamespace(trainable=SimpleNamespace(parameters=lambda: {"w": weight}))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.zeros(1)
    with benchmark("peers").held_near(learner, optimizer, {"w": torch.zeros(1), "other": torch.zeros(1)}, 0.5):
        optimizer.step()
    assert weight.item() == 1.0  # 2 - 0.5 (2 - 0)
    weight.grad = torch.zeros(1)
    optimizer.step()
    assert weight.item() == 1.0
