# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A frame larger than any that FLARE sends is refused by the length that it announces, over each kind of connection."""

import asyncio
import socket
from functools import partial
from types import SimpleNamespace

import pytest
from aiohttp import ClientSession, WSMsgType, web
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers import aio_conn, aio_http_driver, socket_conn
from nvflare.fuel.f3.drivers.aio_http_driver import AioHttpDriver
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from fedpeft.core.errors import FedpeftError
from fedpeft.flare.hardening import message_limits
from fedpeft.flare.hardening.message_limits import FRAME, limit_frames


@pytest.fixture(autouse=True)
def limited(monkeypatch):
    for driver in (aio_http_driver, aio_conn, socket_conn):
        monkeypatch.setattr(driver, "MAX_FRAME_SIZE", driver.MAX_FRAME_SIZE)
    limit_frames()


def frame(length):
    """The first bytes of a frame that announces that length."""
    data = bytearray(PREFIX_LEN)
    Prefix(length=length).to_buffer(data, 0)
    return bytes(data)


@pytest.mark.parametrize(("length", "code"), [(FRAME + 1, CommError.BAD_DATA), (2**31 - 2**21, CommError.BAD_DATA)])
def test_a_socket_takes_no_large_frame(length, code):
    here, there = socket.socketpair()
    with here, there:
        there.sendall(frame(length))
        with pytest.raises(CommError) as refused:
            SocketConnection(here, SimpleNamespace(params={}, name="test")).read_frame()
    assert refused.value.code == code


@pytest.mark.parametrize(("size", "arrives"), [(1000, True), (FRAME + 1, False)])
def test_a_web_socket_takes_no_large_frame(size, arrives):
    seen = []

    async def talk():
        driver = SimpleNamespace(_connection_handler=lambda ws: _read(ws, seen))
        app = web.Application()
        app.router.add_get("/", partial(AioHttpDriver._websocket_handler, driver))
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        async with ClientSession() as session, session.ws_connect(f"http://127.0.0.1:{port}/", compress=15) as ws:
            await ws.send_bytes(bytes(size))
            await ws.receive()
        await runner.cleanup()

    asyncio.run(talk())
    assert seen == ([size] if arrives else [])


async def _read(ws, seen):
    async for message in ws:
        assert message.type == WSMsgType.BINARY
        seen.append(len(message.data))
        await ws.close()


def test_a_flare_without_the_limit_cannot_start(monkeypatch):
    monkeypatch.setattr(message_limits, "_MAX_FRAME", "NO_SUCH_NAME")
    with pytest.raises(FedpeftError, match=r"aio_http_driver\.NO_SUCH_NAME: install the version"):
        limit_frames()
