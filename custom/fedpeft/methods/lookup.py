# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Find the tuning method of an adapter's configuration."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

from fedpeft.core.errors import FedpeftError
from fedpeft.methods import METHODS
from fedpeft.methods.method import adapter_names

if TYPE_CHECKING:
    from peft import PeftConfig

    from fedpeft.methods.slot_tuning import SlotTuning


def tuning_of(config: PeftConfig) -> SlotTuning:
    """Return the code of the method that uses this configuration class.

    Raises:
        FedpeftError: no method of fedpeft or of a plugin does.
    """
    for name in adapter_names():
        with contextlib.suppress(Exception):  # of a plugin whose code cannot be imported: another may be meant
            tuning = cast("SlotTuning", METHODS.get(name).tuning())
            if tuning.matches(config):
                return tuning
    raise FedpeftError(
        f"{type(config).__name__} is of no method of fedpeft: use one of fedpeft.adapters.names(), "
        f"{', '.join(adapter_names())}."
    )
