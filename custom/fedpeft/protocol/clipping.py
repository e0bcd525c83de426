# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Clip adapter updates and layer scores, in double precision, to bound what one site can change in a release."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import State


def clipped_update(sent: State, reference: State | None, bound: float) -> tuple[dict[str, torch.Tensor], float]:
    """Clip the difference between an adapter and a reference to an L2 ball; return it and its norm before.

        u = sent - reference,    clipped = u * min(1, bound / |u|)

    The norm is the L2 norm over all tensors together. Two clipped updates u, v of any two data sets are at most
    |u - v| <= |u| + |v| <= 2 * bound apart: that is the sensitivity, without assumptions on the data, the training or
    the order of the neurons. The reference may depend on the site's data only through earlier releases.

    Args:
        sent: the adapter that would leave, any shapes.
        reference: holds every key of `sent` in the same shape; None: zero.
        bound: the radius, above 0.

    Returns:
        the clipped update in float64, and |u|, which is private.

    Raises:
        FedpeftError: NaN, infinity, or a key that the reference lacks or has in another shape.
    """
    update = {}
    for key, tensor in sent.items():
        update[key] = tensor.detach().to("cpu", torch.float64)
        if reference is not None:
            if key not in reference or reference[key].shape != tensor.shape:
                expected = tuple(reference[key].shape) if key in reference else "missing"
                raise FedpeftError(
                    f"{key} has shape {tuple(tensor.shape)}, {expected} in the global adapter that the site received: "
                    f"with adapters of several widths, use reference='zero'."
                )
            update[key] = update[key] - reference[key].to("cpu", torch.float64)
    norm = math.sqrt(sum(float(tensor.square().sum()) for tensor in update.values()))
    if not math.isfinite(norm):
        raise FedpeftError("the adapter's update has NaN or infinity: the site's training diverged.")
    factor = min(1.0, bound / norm) if norm else 1.0
    return {key: tensor * factor for key, tensor in update.items()}, norm


def clipped_scores(scores: Sequence[float], bound: float) -> list[float]:
    """Clip non-negative layer scores to an L2 ball.

    Two such vectors s, t have a non-negative inner product, so |s - t|^2 = |s|^2 + |t|^2 - 2 <s, t> <= 2 * bound^2: the
    sensitivity is sqrt(2) * bound.

    Raises:
        FedpeftError: a score is negative, NaN or infinite.
    """
    if not all(math.isfinite(score) and score >= 0 for score in scores):
        raise FedpeftError("the layer scores must be finite and not negative: the site's gradients diverged.")
    norm = math.hypot(*scores)
    if not math.isfinite(norm):
        raise FedpeftError("the layer scores are too large to be clipped: the site's gradients diverged.")
    factor = min(1.0, bound / norm) if norm else 1.0
    return [score * factor for score in scores]
