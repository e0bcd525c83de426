# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Clip and noise the adapter and the scores that a site sends.

    adapter:  round(reference + clip(sent - reference) + N(0, (noise * 2 * clip)^2))
    scores:   max(0, clip(scores) + N(0, (score_noise * sqrt(2) * score_clip)^2))

The sum is formed in float64 and then rounded to the tensor's own dtype, float32 or bf16. Rounding is
post-processing of the noised number, so it cannot weaken the guarantee; the same holds for max(0, .). The theorem does
not model the finite precision of float64 in the sum itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.job.privacy_settings import PrivacySettings
from fedpeft.protocol.clipping import State, clipped_scores, clipped_update
from fedpeft.protocol.noise import Source, gaussian


def release_adapter(
    sent: State, reference: State | None, settings: PrivacySettings, source: Source = os.urandom
) -> tuple[dict[str, torch.Tensor], float]:
    """Clip and noise an adapter, in the dtypes of `sent`; also return the norm before clipping, which is private.

    Raises:
        FedpeftError: see `clipped_update`; or a noised number exceeds the range of its dtype.
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
    """Clip and noise layer scores; the result is not negative.

    Raises:
        FedpeftError: invalid scores, or noise is set for the adapter and not for the scores.
    """
    if not settings.score_clip:
        if settings.noise:
            raise FedpeftError("layer scores may not leave without noise: set score_clip and score_noise.")
        return list(scores)
    values = torch.tensor(clipped_scores(scores, settings.score_clip), dtype=torch.float64)
    if settings.score_noise:
        values = values + gaussian((len(values),), settings.score_deviation, source)
    return values.clamp(min=0).tolist()
