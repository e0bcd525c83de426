# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How far what one model answers is from what another does, KL(teacher || learner), for a method that distills.

A way to answer says which it is (`Answering.divergence`): its logits are of one choice, of labels each for itself,
or of the tokens of an answer.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpeft.core.errors import FedpeftError


def of_choices(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return KL of two distributions over classes, `sum_c p_c log(p_c / q_c)` with softmax, mean over the batch.

    Args:
        logits: of what learns, (B, C).
        teacher: logits of what teaches, (B, C).
    """
    if logits.dim() != 2:
        raise FedpeftError(
            f"this method distills, and the divergence of one choice needs logits (B, C), here they are "
            f"{tuple(logits.shape)}: give the way to answer a `divergence` of its own, set training.answering to "
            f"'classification', or choose another method.name.",
            setting="training.answering",
        )
    return F.kl_div(logits.log_softmax(-1), teacher.log_softmax(-1), reduction="batchmean", log_target=True)


def of_labels(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return KL of two distributions over sets of labels, each of which applies or not whatever the others do.

    It is the sum over labels of `p log(p / q) + (1 - p) log((1 - p) / (1 - q))` with sigmoid, mean over the batch (B,
    L).
    """
    learned, taught = (torch.stack((F.logsigmoid(z), F.logsigmoid(-z)), dim=-1) for z in (logits, teacher))
    return F.kl_div(learned, taught, reduction="batchmean", log_target=True)


def of_tokens(logits: Tensor, teacher: Tensor, answered: Tensor) -> Tensor:
    """Return KL of the distributions over the next token, given the right ones before it, summed over an answer (B,).

    Args:
        logits, teacher: (B, T, V).
        answered: whether a token is one of the answer, (B, T); those behind its end do not count.
    """
    tokens = F.kl_div(logits.log_softmax(-1), teacher.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    return (tokens * answered).sum(-1)
