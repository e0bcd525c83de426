# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What went wrong at a site: the full message for its own log, and the code that the server gets."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import DISK_FULL, is_full
from fedpeft.protocol.problem_codes import CODES, SETTING, is_known
from fedpeft.job.setting_names import declared_part

NO_MEMORY = "can't allocate memory"  # in the RuntimeError that torch raises on a CPU
MEMORY = ("MemoryError", "OutOfMemoryError")  # names, so that torch need not be imported for its own class


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a request of the server could not be answered.

    Args:
        detail: the full message, for the site's own log.
        code: what the server gets, one of `problem_codes.CODES`.
        setting: name of the job's setting that is the cause; empty unless the code's sentence names a setting.
        traceback: of the exception; empty where the message is enough.
        retryable: whether another attempt in a new process may succeed.
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
        """Convert an exception; a `FedpeftError` (bad input) is not retryable, any other exception is."""
        if isinstance(error, FedpeftError):
            setting = declared_part(error.setting) if SETTING in CODES[error.code] else ""
            return cls(detail=str(error), code=error.code, setting=setting)
        name = type(error).__name__
        memory = name in MEMORY or NO_MEMORY in str(error)
        return cls(
            detail=f"{name}: {error}",
            code=DISK_FULL if is_full(error) else "out-of-memory" if memory else "training-failed",
            traceback="".join(traceback.format_exception(error)),
            retryable=True,
        )
