# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Privacy settings of a site: clipping, noise and the limit on epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import at_least, one_of

RECEIVED, ZERO = "received", "zero"
WITHHOLD, PASS = "withhold", "pass"


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """How much of its data a site may reveal: the `privacy` argument of `AdapterOnly`.

    Args:
        clip: largest L2 norm of the adapter's difference to `reference`, over all tensors of a reply together.
        noise: standard deviation of the Gaussian noise on the adapter, in units of its sensitivity 2 * `clip`; 0: clip
            only, which is no differential privacy.
        score_clip: largest L2 norm of a reply's layer scores; 0: with noise on, no scores may leave.
        score_noise: as `noise`, for the scores, in units of their sensitivity sqrt(2) * `score_clip`.
        delta: the delta at which epsilon is given.
        limit: the largest epsilon of all releases together; a reply that would exceed it does not leave. 0: none.
        reference: `received` (what is clipped is the difference to the global adapter that the server sent) or `zero`
            (the adapter itself is clipped).
        metrics: `withhold` (losses and accuracies become "not measured") or `pass` (they leave as the site's own
            file lets them, and the guarantee does not cover them).
    """

    clip: float
    noise: float
    score_clip: float = 0.0
    score_noise: float = 0.0
    delta: float = 1e-5
    limit: float = 0.0
    reference: str = RECEIVED
    metrics: str = WITHHOLD

    def __post_init__(self) -> None:
        for name in ("clip", "noise", "score_clip", "score_noise", "delta", "limit"):
            if not math.isfinite(getattr(self, name)):
                raise FedpeftError(f"{name} is {getattr(self, name)!r}, it must be a finite number.")
        at_least("clip", self.clip, 0, exclusive=True)
        for name in ("noise", "score_clip", "score_noise", "limit"):
            at_least(name, getattr(self, name), 0)
        at_least("delta", self.delta, 0, exclusive=True)
        if self.delta >= 1:
            raise FedpeftError(f"delta is {self.delta!r}, it must be below 1.")
        one_of("reference", self.reference, (RECEIVED, ZERO))
        one_of("metrics", self.metrics, (WITHHOLD, PASS))
        if self.score_noise and not self.score_clip:
            raise FedpeftError("score_noise needs score_clip: noise without a bound on what it hides protects nothing.")
        if bool(self.score_noise) != bool(self.noise) and self.score_clip:
            raise FedpeftError(
                f"noise is {self.noise!r} and score_noise {self.score_noise!r}: both must be above 0, or both 0, "
                f"because one without noise reveals what the other hides."
            )
        if self.limit and not self.noise:
            raise FedpeftError("limit needs noise: without noise, epsilon is infinite from the first reply on.")

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on every number of the adapter."""
        return self.noise * 2 * self.clip

    @property
    def score_deviation(self) -> float:
        """Standard deviation of the noise on every score."""
        return self.score_noise * math.sqrt(2) * self.score_clip
