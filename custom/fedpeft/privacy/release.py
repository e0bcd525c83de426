# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What leaves a site in place of its adapter and its scores.

    adapter:  round(reference + clip(sent - reference) + N(0, (noise * 2 * clip)^2))
    scores:   max(0, clip(scores) + N(0, (score_noise * sqrt(2) * score_clip)^2))

The sum is formed in float64 and then rounded to the tensor's own dtype, float32 or bf16. Rounding sees nothing but the
noised number, so it cannot weaken the guarantee; bf16 merely shows less of it. The same holds for the cut at zero. What
the theorem does not model is that the sum itself has float64's finite precision.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from fedpeft.errors import FedpeftError
from fedpeft.privacy.clipping import State, clipped_scores, clipped_update
from fedpeft.privacy.noise import Source, gaussian
from fedpeft.privacy.settings import PrivacySettings


def release_adapter(
    sent: State, reference: State | None, settings: PrivacySettings, source: Source = os.urandom
) -> tuple[dict[str, torch.Tensor], float]:
    """A clipped and noised adapter, in the dtypes of `sent`, and the update's norm before it was clipped (private).

    Raises:
        FedpeftError: see `clipped_update`; or a number that its dtype cannot hold.
    """
    update, norm = clipped_update(sent, reference, settings.clip)
    released = {}
    for key, tensor in update.items():
        total = tensor if reference is None else tensor + reference[key].to("cpu", torch.float64)
        if settings.noise:
            total = total + gaussian(tuple(total.shape), settings.deviation, source)
        released[key] = total.to(sent[key].dtype)
        if not torch.isfinite(released[key]).all():
            raise FedpeftError(f"{key} does not fit into {sent[key].dtype} once it is noised: lower clip or noise.")
    return released, norm


def release_scores(scores: Sequence[float], settings: PrivacySettings, source: Source = os.urandom) -> list[float]:
    """Clipped and noised layer scores, not negative.

    Raises:
        FedpeftError: scores that are no scores, or noise on the adapter and none allowed for here.
    """
    if not settings.score_clip:
        if settings.noise:
            raise FedpeftError("layer scores may not leave without noise: set score_clip and score_noise.")
        return list(scores)
    values = torch.tensor(clipped_scores(scores, settings.score_clip), dtype=torch.float64)
    if settings.score_noise:
        values = values + gaussian((len(values),), settings.score_deviation, source)
    return values.clamp(min=0).tolist()
