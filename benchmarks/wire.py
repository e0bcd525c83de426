# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Bytes on the wire for one adapter to a site and back, against the adapter's own bytes.

    python benchmarks/wire.py

Two processes talk through FLARE's own cells, channel and topics over TCP, with fedpeft's messages: a site fetches
`train`, as it does in a round, and submits its reply. Counted is every frame that either process gives to the
connection: requests, envelopes, tensor streams, acknowledgements. TCP's and TLS's own headers are not in it.
"""

import argparse
import multiprocessing
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from measured import machine, sections, show

TRAIN, REPLY, IDLE = "get_task", "submit_update", "no_task"
QUIET_SECONDS = 1.0
LARGEST = 2 * 10**9  # bytes of a message


def adapters_measured() -> dict[str, dict[str, Any]]:
    """The main job's adapter for the tiny ViLT, and the papers' for ViLT-B/32."""
    tiny = sections([])["method"]["settings"]["houlsby"]
    return {
        "tiny ViLT, Houlsby": {"adapter": "houlsby", "settings": tiny, "hidden_size": 96},
        "ViLT-B/32, Houlsby": {"adapter": "houlsby", "settings": {"reduction_factor": 16}, "hidden_size": 768},
    }


def initial(adapter: str, settings: Mapping[str, Any], hidden_size: int) -> dict:
    """An untrained adapter for a ViLT of 12 layers, in wire form."""
    from fedpeft import adapters

    return adapters.initial_state(adapters.config(adapter, **settings), "vilt", 12, hidden_size)


def cell(name: str, port: int) -> tuple[Any, list[int]]:
    """A started FLARE cell of this process, and the list to which the size of every frame it sends is added."""
    from nvflare.fuel.f3.cellnet.cell import Cell
    from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

    from fedpeft.flare.hardening.message_limits import limit_messages
    from fedpeft.flare.messages import register_tensors
    from fedpeft.protocol.fields import Limit

    register_tensors()
    limit_messages(Limit(LARGEST, "only this benchmark's adapters are that large."))
    frames: list[int] = []
    send = SfmConnection.send_frame

    def counted(connection, prefix, headers, payload) -> None:
        send(connection, prefix, headers, payload)
        frames.append(prefix.length)

    SfmConnection.send_frame = counted
    made = Cell(fqcn=name, root_url=f"tcp://localhost:{port}", secure=False, credentials={})
    made.start()
    return made, frames


def serve(port: int, adapter: Mapping[str, Any], pipe: Connection) -> None:
    """The server's process: send the adapter, take the reply, report the bytes sent on request."""
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils
    from nvflare.fuel.f3.cellnet.defs import CellChannel, ReturnCode
    from nvflare.fuel.f3.cellnet.utils import make_reply

    from fedpeft.flare.messages import from_model, to_model
    from fedpeft.protocol.types import TrainOrder, TrainReply

    state = initial(**adapter) if adapter else {}
    own, frames = cell("server", port)

    def hand_out(_):
        order = TrainOrder(lineage="job-1", round=1, base=0, version=1, layers=None, scored=False, state=state)
        return make_reply(ReturnCode.OK, body=FLModelUtils.to_shareable(to_model(order, round=1, rounds=5)))

    def take(request):
        back = from_model(TrainReply, FLModelUtils.from_shareable(request.payload)).state
        same = back.keys() == state.keys() and all(back[key].equal(state[key]) for key in state)
        return make_reply(ReturnCode.OK if same else ReturnCode.INVALID_REQUEST)

    def wait(_):
        return make_reply(ReturnCode.OK, body=Shareable())

    own.register_request_cb(channel=CellChannel.SERVER_COMMAND, topic=IDLE, cb=wait)
    own.register_request_cb(channel=CellChannel.SERVER_COMMAND, topic=TRAIN, cb=hand_out)
    own.register_request_cb(channel=CellChannel.SERVER_COMMAND, topic=REPLY, cb=take)
    pipe.send(sum(tensor.nbytes for tensor in state.values()))
    with pipe:
        while pipe.recv():
            pipe.send((len(frames), sum(frames)))
    own.stop()


def visit(port: int, pipe: Connection) -> None:
    """The site's process: fetch the adapter on request, then send it back on request."""
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils
    from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, ReturnCode
    from nvflare.fuel.f3.cellnet.utils import new_cell_message

    from fedpeft.flare.messages import from_model, to_model
    from fedpeft.protocol.types import METRICS, TrainOrder, TrainReply

    own, frames = cell("site", port)
    while not own.is_cell_connected("server"):
        time.sleep(0.05)

    def ask(topic: str, shareable: Shareable) -> Any:
        answer = own.send_request(
            channel=CellChannel.SERVER_COMMAND,
            target="server",
            topic=topic,
            request=new_cell_message({}, shareable),
            timeout=60,
        )
        code = answer.get_header(MessageHeaderKey.RETURN_CODE)
        if code != ReturnCode.OK:
            raise RuntimeError(f"{topic} came back with {code!r}")
        return answer.payload

    order = None
    with pipe:  # closed by an error too, which ends the wait at the other end
        pipe.send(None)
        while request := pipe.recv():
            if request == IDLE:
                ask(IDLE, Shareable())
            elif request == TRAIN:
                order = from_model(TrainOrder, FLModelUtils.from_shareable(ask(TRAIN, Shareable())))
            elif request == REPLY:
                facts = {"samples": 300, "metrics": dict.fromkeys(METRICS, 0.5), "seconds": 1.0}
                reply = TrainReply(round=order.round, state=order.state, scores=[], problem="", **facts)
                ask(REPLY, FLModelUtils.to_shareable(to_model(reply, round=1)))
            pipe.send((len(frames), sum(frames)))
    own.stop()


@contextmanager
def talking(adapter: Mapping[str, Any]) -> Iterator[tuple[int, Connection, Connection, int]]:
    """Start both processes; bytes of the adapter, the pipes to server and site, and the server's process id."""
    from nvflare.fuel.utils.network_utils import get_open_ports

    port = get_open_ports(1)[0]
    spawn = multiprocessing.get_context("spawn")
    (server, far_server), (site, far_site) = spawn.Pipe(), spawn.Pipe()
    processes = [
        spawn.Process(target=serve, args=(port, dict(adapter), far_server), daemon=True),
        spawn.Process(target=visit, args=(port, far_site), daemon=True),
    ]
    try:
        for process, far in zip(processes, (far_server, far_site), strict=True):
            process.start()
            far.close()
        size = server.recv()
        site.recv()
        yield size, server, site, processes[0].pid
        for pipe in (server, site):
            pipe.send("")
            pipe.close()
        for process in processes:
            process.join(timeout=5)
    finally:
        for process in processes:
            process.kill()


def measure(adapter: Mapping[str, Any]) -> tuple[int, dict[str, int]]:
    """Bytes of the adapter, and bytes that both processes sent for each of the two tasks."""
    with talking(adapter) as (size, server, site, _):
        sent = {"": all_sent(server, site)}
        for task in (TRAIN, REPLY):
            site.send(task)
            site.recv()
            sent[task] = all_sent(server, site)
    return size, {TRAIN: sent[TRAIN][1] - sent[""][1], REPLY: sent[REPLY][1] - sent[TRAIN][1]}


def all_sent(server: Connection, site: Connection) -> tuple[int, int]:
    """Frames and bytes sent by both, once neither has sent anything for a while: acknowledgements trail behind."""
    before = None
    while True:
        counts = []
        for pipe in (server, site):
            pipe.send("count")
            counts.append(pipe.recv())
        total = (sum(frames for frames, _ in counts), sum(size for _, size in counts))
        if total == before:
            return total
        before = total
        time.sleep(QUIET_SECONDS)


def run() -> None:
    """Measure and print."""
    rows = []
    for name, adapter in adapters_measured().items():
        size, sent = measure(adapter)
        to_site, back = sent[TRAIN], sent[REPLY]
        rows.append((name, f"{size:,}", f"{to_site:,}", f"{back:,}", f"{(to_site + back) / 2 / size:.3f}"))
    columns = ("adapter", "its bytes", "server to site", "site to server", "wire / adapter")
    show(
        "Bytes on the wire",
        columns,
        rows,
        "All frames of both sides for one task; the ratio is of both tasks. Aim: 1.05.",
    )


def main() -> None:
    """Read the command line."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print(machine())
    run()


if __name__ == "__main__":
    main()
