# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The largest eigenvalue, and scores, at the ends of the range of numbers."""

import pytest
import torch

from fedpeft.importance.lntk import gram, principal_eigenvalue
from fedpeft.importance.registry import normalized


@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1e-13, 1.0, 1e18, 1e30])
def test_the_kernel_of_single_precision_rows_of_any_size(scale):
    rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = float(torch.linalg.eigvalsh(rows @ rows.T)[-1])
    assert principal_eigenvalue(gram((rows * scale).float())) / scale**2 == pytest.approx(expected, rel=1e-4)


def test_a_trace_that_overflows():
    matrix = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64) * 1e308
    assert principal_eigenvalue(matrix) == pytest.approx(1.5e308)


def test_scores_whose_sum_overflows_sum_to_1():
    assert normalized(torch.tensor([1.5e308, 1.5e308, 0.0], dtype=torch.float64), "lntk").tolist() == [0.5, 0.5, 0.0]
    assert normalized(torch.tensor([1.5e308, -1.5e308], dtype=torch.float64), "grasp").tolist() == [1.0, 0.0]
