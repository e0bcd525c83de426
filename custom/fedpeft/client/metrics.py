# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Accuracy of answers: overall, and for open and closed questions."""

from __future__ import annotations

import torch


def answer_accuracy(right: torch.Tensor, closed: torch.Tensor) -> dict[str, float | None]:
    """Fractions of correct answers; None where a split has no such question.

    Args:
        right: booleans (n,): the predicted answer is among the accepted ones.
        closed: booleans (n,), True for closed questions.

    Source: FedPIA, Table 1 (open, closed, overall).
    """
    return {"overall": _mean(right), "open": _mean(right[~closed]), "closed": _mean(right[closed])}


def _mean(right: torch.Tensor) -> float | None:
    return right.float().mean().item() if len(right) else None
