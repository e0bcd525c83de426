# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Functions of FLARE that are replaced or checked first: a process that cannot check must not start.

    jobs             jobs are checked before FLARE reads them; the quorum decides when a site's part ends
    connections      who connects, how often and under which name; other users of this machine
    requests         requests that no site or server may make, messages under another's name, texts in the audit trail
    message_limits   bytes of one message or frame, and what one participant's streams take together

`fedpeft.flare.admission_components`, which start-up kits name, installs them before a process takes any message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fedpeft.core.errors import FedpeftError

_GUARD = "fedpeft_guard"


def replace_function(owner: Any, name: str, guard: Callable) -> None:
    """Replace `owner.name` by `guard`, which gets the function before its arguments; a second call changes nothing."""
    present = getattr(owner, name, None)
    if not callable(present):
        raise FedpeftError(f"FLARE has no {owner.__name__}.{name}: install the version in constraints.txt.")
    if hasattr(present, _GUARD):
        return

    @functools.wraps(present)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        return guard(present, *args, **kwargs)

    setattr(guarded, _GUARD, True)
    setattr(owner, name, guarded)
