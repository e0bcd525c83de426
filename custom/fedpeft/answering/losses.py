# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Loss and outputs of answers that are read or written token by token."""

from __future__ import annotations

from torch import Tensor, nn

from fedpeft.backbones.answer_tokens import NO_TOKEN


def token_losses(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of each token (B, T), 0 behind an answer's end.

    Args:
        logits: (B, T, V).
        target: tokens (B, T), `NO_TOKEN` behind an answer's end.
    """
    return nn.functional.cross_entropy(logits.transpose(1, 2), target, ignore_index=NO_TOKEN, reduction="none")


def token_logits(logits: Tensor, target: Tensor) -> Tensor:
    """Return the logit of each of an answer's tokens (B, T), 0 behind its end; arguments as above."""
    chosen = logits.gather(-1, target.clamp_min(0)[..., None])[..., 0]
    return chosen.masked_fill(target == NO_TOKEN, 0)


def reduced(samples: Tensor, reduction: str) -> Tensor:
    """Return the `mean` or `sum` of the samples' losses (B,), or for `none` these."""
    if reduction == "none":
        return samples
    return samples.mean() if reduction == "mean" else samples.sum()
