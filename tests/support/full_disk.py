# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A disk that takes no more: this process may write no file beyond a few bytes."""

import contextlib
import resource


@contextlib.contextmanager
def full_disk(room=64):
    """Within the block a file that grows beyond `room` bytes is refused by the system."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
