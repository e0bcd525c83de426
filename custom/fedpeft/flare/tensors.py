# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FLARE's own tensor messages: every dtype as it is, safetensors inside, no pickle, of bounded size."""

from __future__ import annotations

from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs

from fedpeft.flare.message_limits import limit_messages


def register_tensors() -> None:
    """Let this process send and receive torch tensors."""
    fobs.register(TensorDecomposer)
    limit_messages()
