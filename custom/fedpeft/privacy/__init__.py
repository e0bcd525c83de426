# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What may leave a site, and in what form.

problem_codes   what a site may say about a problem: a code and the name of a setting
settings        PrivacySettings: how much of its data a site may give away
clipping, noise, release    clip what it sends, and add Gaussian noise
accountant      the (epsilon, delta) of all of it
"""

import importlib

# torch costs seconds, and a site's executor needs the codes at once: a name is imported when it is first used
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
