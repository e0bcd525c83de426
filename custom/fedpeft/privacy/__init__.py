# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What may leave a site, and in what form.

problem_codes   what a site may report of a problem: a code and the name of a setting
settings        PrivacySettings: clipping, noise and limits of what a site sends
clipping, noise, release    clip what a site sends, and add Gaussian noise
dp_release      one reply's release, recorded in the ledger
accountant      the (epsilon, delta) of all releases
"""

import importlib

# importing torch takes seconds, and a site's executor needs only the codes: a name is imported on first use
_HOME = {
    "PrivacySettings": "settings",
    "clipped_scores": "clipping",
    "clipped_update": "clipping",
    "epsilon": "accountant",
    "gaussian": "noise",
    "release_adapter": "release",
    "release_scores": "release",
}

__all__ = list(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
