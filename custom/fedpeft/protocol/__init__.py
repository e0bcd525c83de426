# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What travels between server and sites, what a reply must be, and what may leave a site; without FLARE."""

from fedpeft.core.registry import lazy_module

# importing torch takes seconds, and a site's executor needs only the codes: a name is imported on first use
_HOME = {
    "PrivacySettings": "fedpeft.job.site_policy",
    "clipped_scores": "differential_privacy",
    "clipped_update": "differential_privacy",
    "epsilon": "differential_privacy",
    "gaussian": "differential_privacy",
    "release_adapter": "differential_privacy",
    "release_scores": "differential_privacy",
}

__all__ = list(_HOME)
__getattr__, __dir__ = lazy_module(__name__, _HOME)
