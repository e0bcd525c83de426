# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The learning rate over the whole federation, not over one round."""

from __future__ import annotations


def linear_warmup_decay(step: int, *, total_steps: int, warmup: float) -> float:
    """Factor of the peak learning rate: s/w during warm-up, then (T-s)/(T-w).

    Args:
        step: index of the optimizer step, counted from 0 over all rounds.
        total_steps: T, the steps of all rounds.
        warmup: fraction of T spent rising; w = ceil(warmup * T).

    Source: FedPIA, Training and Implementation Details (linear decay, 10 % warm-up, 30 rounds).
    """
    warmup_steps = -int(-warmup * total_steps // 1)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))
