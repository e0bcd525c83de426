# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The largest message, and what stands in place of the tensors of a larger one. Imports nothing that takes long."""

from __future__ import annotations

from dataclasses import dataclass

MB = 10**6
LARGEST_MB = 1024  # of a job's message: the weights of ViLT-B, masked for a secure sum, have 900 MB
MOST_ATTEMPTS = 2  # a site begins a round again where its training process was lost


@dataclass(frozen=True)
class Limit:
    """The largest message in bytes, and the remedy if a larger one is legitimate."""

    size: int
    remedy: str

    def __str__(self) -> str:
        return f"more than {self.size / MB:.0f} MB, which was not read: {self.remedy}"


@dataclass(frozen=True)
class Unread:
    """Placeholder of a tensor that was not fetched, because its message exceeds the limit."""

    limit: Limit
