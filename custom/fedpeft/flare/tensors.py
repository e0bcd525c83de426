# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Register FLARE's tensor messages: any dtype, safetensors inside, no pickle, bounded size."""

from __future__ import annotations

from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs

from fedpeft.flare.message_limits import limit_messages


def register_tensors() -> None:
    """Register the decomposer of torch tensors in this process, and limit messages."""
    fobs.register(TensorDecomposer)
    limit_messages()
