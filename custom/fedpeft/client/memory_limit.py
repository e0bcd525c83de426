# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The largest memory of a site's training process, as its own file sets it."""

from __future__ import annotations

import resource

GIB = 2**30


def limit_memory(gib: float) -> None:
    """Let this process fail to get more memory than this, of the machine or of one GPU; it cannot be raised again.

    RLIMIT_DATA counts what the process can write to and shares with nobody. Address space (RLIMIT_AS) would count what
    CUDA reserves and never uses.

    Args:
        gib: above 0, in GiB.
    """
    most = int(gib * GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    import torch

    for number in range(torch.cuda.device_count()):
        whole = torch.cuda.get_device_properties(number).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, most / whole), number)
