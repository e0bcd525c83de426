# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What went wrong at a site: in full for its own log, and the code that the server learns."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from fedpeft.errors import FedpeftError
from fedpeft.privacy.problem_codes import CODES, SETTING, is_known
from fedpeft.setting_names import declared_part

NO_MORE = "can't allocate memory"  # what torch says on a processor, as a RuntimeError
MEMORY = ("MemoryError", "OutOfMemoryError")  # torch has one of its own, and torch is not needed here


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a request of the server could not be answered.

    Args:
        detail: everything, for the site's own log.
        code: what the server learns, one of `problem_codes.CODES`.
        setting: name of the job's setting that it is about, where the code's sentence has room for one.
        traceback: where it happened; empty where the sentence alone says what to do.
        retryable: whether another attempt in a new process may end better.
    """

    detail: str
    code: str
    setting: str = ""
    traceback: str = ""
    retryable: bool = False

    def __post_init__(self) -> None:
        if not is_known(self.code, self.setting):
            raise ValueError("a problem with a code or a setting that is not declared")

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """The problem that an exception tells of; bad input stays bad, anything else is worth another attempt."""
        if isinstance(error, FedpeftError):
            setting = declared_part(error.setting) if SETTING in CODES[error.code] else ""
            return cls(detail=str(error), code=error.code, setting=setting)
        name = type(error).__name__
        return cls(
            detail=f"{name}: {error}",
            code="out-of-memory" if name in MEMORY or NO_MORE in str(error) else "training-failed",
            traceback="".join(traceback.format_exception(error)),
            retryable=True,
        )
