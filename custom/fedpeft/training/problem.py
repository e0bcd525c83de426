# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What went wrong at a site: in full for its own log, and as much as the server may know."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from fedpeft.data.errors import DataError
from fedpeft.errors import FedpeftError, LocalError


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a request of the server could not be answered.

    Args:
        full: everything, for the site's own log.
        told: what the server may know; it names no file and no value of the site.
        traceback: where it happened; empty where the sentence alone says what to do.
        again: whether another attempt in a new process may end better.
    """

    full: str
    told: str
    traceback: str = ""
    again: bool = False

    @classmethod
    def of(cls, error: Exception) -> Problem:
        """The problem that an exception tells of; bad input stays bad, anything else is worth another attempt."""
        if isinstance(error, FedpeftError):
            return cls(full=str(error), told=_told(error))
        name = type(error).__name__
        return cls(
            full=f"{name}: {error}",
            told=f"{name} in its training code; its own log has the traceback.",
            traceback="".join(traceback.format_exception(error)),
            again=True,
        )


def _told(error: FedpeftError) -> str:
    if isinstance(error, DataError):
        return "its data cannot be used; its own log says why."
    if isinstance(error, LocalError):
        return "a file of its own cannot be used; its own log says why."
    return str(error)
