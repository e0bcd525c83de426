# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How far what one model answers is from what another does, KL(teacher || learner), for a method that distills.

A way to answer says which it is (`Answering.divergence`): its logits are of one choice, or of labels each for itself.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpeft.errors import FedpeftError


def of_choices(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return KL of two distributions over classes, `sum_c p_c log(p_c / q_c)` with softmax, mean over the batch.

    Args:
        logits: of what learns, (B, C).
        teacher: logits of what teaches, (B, C).

    Raises:
        FedpeftError: a sample has more than one distribution, as written answers have.
    """
    if logits.dim() != 2:
        raise FedpeftError(
            f"this method distills one distribution for each sample, and the logits are of shape "
            f"{tuple(logits.shape)}: set training.answering to 'classification', or choose another method.name.",
            setting="training.answering",
        )
    return F.kl_div(logits.log_softmax(-1), teacher.log_softmax(-1), reduction="batchmean", log_target=True)


def of_labels(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return KL of two distributions over sets of labels, each of which applies or not whatever the others do.

    It is the sum over labels of `p log(p / q) + (1 - p) log((1 - p) / (1 - q))` with sigmoid, mean over the batch.

    Args:
        logits: of what learns, (B, L).
        teacher: logits of what teaches, (B, L).
    """
    learned, taught = (torch.stack((F.logsigmoid(z), F.logsigmoid(-z)), dim=-1) for z in (logits, teacher))
    return F.kl_div(learned, taught, reduction="batchmean", log_target=True)
