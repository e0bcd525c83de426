# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Register FLARE's tensor messages: any dtype, safetensors inside, no pickle, bounded size."""

from __future__ import annotations

import os

from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs

from fedpeft.flare.message_limits import limit_messages

DECOMPOSERS = "fedpeft.flare.decomposers"
SETTING = "NVFLARE_NVFLARE_DECOMPOSERS"  # the environment variable for FLARE's setting `nvflare_decomposers`


def register_tensors() -> None:
    """Register the decomposer of torch tensors in this process, and limit messages."""
    fobs.register(TensorDecomposer)
    limit_messages()


def register_early() -> None:
    """Let the sites' processes that this one starts later register the decomposer before anything else."""
    os.environ.setdefault(SETTING, DECOMPOSERS)
