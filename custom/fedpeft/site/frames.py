# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Frames between a site's executor and its training process: a JSON object and named tensors, no pickle.

A frame is two messages of a `multiprocessing` connection, which prefixes each with its length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

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
