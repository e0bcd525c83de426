# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What passes between a site's executor and its training process: a JSON object, then named tensors, and no pickle.

A frame is two messages of a `multiprocessing` connection, which prefixes each with its length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

Frame = tuple[bytes, bytes]


class BadFrame(ValueError):
    """What arrived is no frame; the sentence says what is wrong with it."""


def send(connection: Connection, header: Mapping[str, Any], tensors: Mapping[str, Any] | None = None) -> None:
    """Send one frame.

    Args:
        connection: one end of a pipe.
        header: whatever JSON can hold; floats arrive as they were, to the bit.
        tensors: torch tensors of any dtype, by name.
    """
    blob = b""
    if tensors:
        from safetensors.torch import save

        blob = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    connection.send_bytes(json.dumps(header).encode())
    connection.send_bytes(blob)


def receive(connection: Connection) -> Frame:
    """Wait for one frame, still packed.

    Raises:
        EOFError: the other side is gone.
        OSError: it went in the middle of a message.
    """
    return connection.recv_bytes(), connection.recv_bytes()


def unpack(frame: Frame) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and tensors of a frame.

    Raises:
        BadFrame: the header is no JSON object, or the tensors are no safetensors.
    """
    try:
        header = json.loads(frame[0])
    except ValueError as error:
        raise BadFrame(f"a header that is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise BadFrame(f"a header that is no JSON object but {type(header).__name__}")
    return header, _tensors(frame[1])


def _tensors(blob: bytes) -> dict[str, Any]:
    if not blob:
        return {}
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(blob)
    except SafetensorError as error:
        raise BadFrame(f"tensors that are no safetensors: {error}") from error
