# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Differential privacy of what a site sends: clip it, add Gaussian noise, and know the (epsilon, delta) of it all."""

from fedpeft.privacy.accountant import epsilon
from fedpeft.privacy.clipping import clipped_scores, clipped_update
from fedpeft.privacy.noise import gaussian
from fedpeft.privacy.release import release_adapter, release_scores
from fedpeft.privacy.settings import PrivacySettings

__all__ = [
    "PrivacySettings",
    "clipped_scores",
    "clipped_update",
    "epsilon",
    "gaussian",
    "release_adapter",
    "release_scores",
]
