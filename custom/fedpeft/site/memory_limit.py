# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Limit the memory of a site's training process, as its own file sets it."""

from __future__ import annotations

import resource

GIB = 2**30


def limit_memory(gib: float) -> None:
    """Limit this process's main memory and its share of each GPU; the limit cannot be raised again.

    RLIMIT_DATA counts private writable memory. RLIMIT_AS (address space) would also count what CUDA reserves and never
    uses.

    Args:
        gib: above 0, in GiB.
    """
    most = int(gib * GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    import torch

    for number in range(torch.cuda.device_count()):
        whole = torch.cuda.get_device_properties(number).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, most / whole), number)
