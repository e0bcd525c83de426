# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Frames between a site's executor and its training process: a JSON object and named tensors, no pickle.

A frame is two messages of a `multiprocessing` connection, which prefixes each with its length.

What went wrong at a site: the full message for its own log, and the code that the server gets.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from fedpeft.core.errors import FedpeftError, is_out_of_memory
from fedpeft.core.files import DISK_FULL, is_full
from fedpeft.job.setting_names import declared_part
from fedpeft.protocol.fields import CODES, SETTING_MARK, is_known

Frame = tuple[bytes, bytes]


class BadFrame(ValueError):
    """Received bytes that are not a valid frame; the message says what is wrong."""


def send(connection: Connection, header: Mapping[str, Any], tensors: Mapping[str, Any] | None = None) -> None:
    """Send one frame.

    Args:
        connection: one end of a pipe.
        header: JSON-serializable; floats keep every bit.
        tensors: torch tensors of any dtype, by name.
    """
    blob = b""
    if tensors:
        from safetensors.torch import save

        blob = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    connection.send_bytes(json.dumps(header).encode())
    connection.send_bytes(blob)


def receive(connection: Connection) -> Frame:
    """Wait for one frame and return it without parsing.

    Raises:
        EOFError: the other side closed the connection.
        OSError: it closed in the middle of a message.
    """
    return connection.recv_bytes(), connection.recv_bytes()


def unpack(frame: Frame) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and tensors of a frame.

    Raises:
        BadFrame: the header is not a JSON object, or the tensors are not in safetensors format.
    """
    try:
        header = json.loads(frame[0])
    except ValueError as error:
        raise BadFrame(f"a header that is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise BadFrame(f"a header that is not a JSON object but {type(header).__name__}")
    return header, _tensors(frame[1])


def _tensors(blob: bytes) -> dict[str, Any]:
    if not blob:
        return {}
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(blob)
    except SafetensorError as error:
        raise BadFrame(f"tensors that are not safetensors: {error}") from error


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
            setting = declared_part(error.setting) if SETTING_MARK in CODES[error.code] else ""
            return cls(detail=str(error), code=error.code, setting=setting)
        name = type(error).__name__
        return cls(
            detail=f"{name}: {error}",
            code=DISK_FULL if is_full(error) else "out-of-memory" if is_out_of_memory(error) else "training-failed",
            traceback="".join(traceback.format_exception(error)),
            retryable=True,
        )
