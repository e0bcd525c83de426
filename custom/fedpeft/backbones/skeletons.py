# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Models without weights, on torch's meta device: what a configuration describes is counted before it takes memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

MOST_PARTS = 2**18  # twice as many as DeepSeek-V3 has where its experts are modules of their own


@contextmanager
def without_weights() -> Iterator[None]:
    """Make the models of this block on the meta device, and stop at one of too many modules and parameters.

    Tensors take no memory there, modules do: a number of layers, groups or experts is what fills it.

    Raises:
        ValueError: there are too many; with the bound.
    """
    parts = itertools.count(1)

    def counted(*_: Any) -> None:
        if next(parts) > MOST_PARTS:
            raise ValueError(
                f"its config.json describes a model of more than {MOST_PARTS:,} modules and parameters: give a whole "
                f"checkpoint"
            )

    hooks = (
        register_module_module_registration_hook(counted),
        register_module_parameter_registration_hook(counted),
    )
    try:
        with torch.device("meta"):
            yield
    finally:
        for hook in hooks:
            hook.remove()
