# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The learning rate over the whole federation, not over one round."""

from __future__ import annotations

import math

from fedpeft.answering.training_settings import LINEAR, TrainingSettings

POINTS = 1000  # at which the rates of a round are added up, at most


def rate_factor(step: int, *, total_steps: int, warmup: float, decays: bool = True) -> float:
    """Return the factor of the peak learning rate: (s+1)/w during warm-up, then (T-s)/(T-w), or 1 without decay.

    Args:
        step: index of the optimizer step, counted from 0 over all rounds.
        total_steps: T, the steps of all rounds.
        warmup: fraction of T spent rising; w = ceil(warmup * T).
        decays: linearly to 0 at the end.

    Source: FedPIA, Training and Implementation Details (linear decay, 10 % warm-up, 30 rounds).
    """
    warmup_steps = -int(-warmup * total_steps // 1)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 1.0 if not decays else max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))


def learning_in_round(training: TrainingSettings, *, samples: float, round: int, first: int = 1) -> float:
    """Return the sum of the factors of all steps of a round.

    Args:
        training: the local recipe.
        samples: of the site's training split.
        round: counted from 1.
        first: the site's first round.
    """
    batches = math.ceil(samples / training.batch_size)
    begin = batches * training.epochs_before(round, first=first)
    steps = batches * training.epochs_in(round, first=first)
    total = batches * training.epochs_before(training.rounds + 1, first=first)
    counted = range(begin, begin + steps, math.ceil(max(steps, 1) / POINTS))
    decays = training.decay == LINEAR
    factors = [rate_factor(step, total_steps=total, warmup=training.warmup, decays=decays) for step in counted]
    return steps * sum(factors) / len(factors) if factors else 0.0
