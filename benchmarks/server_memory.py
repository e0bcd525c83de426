# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's memory in a job, with replies in memory and on disk, and what a limit of what a site may send saves.

    python benchmarks/server_memory.py --sites 8 12 --megabytes 100 --methods fedavg pia

A server and a process with all sites talk through FLARE's cells, channel and topics, over TCP. The sites train nothing:
they add noise to the adapter that they were sent. FLARE's job runner is left out, and with it the copy of every order
that it makes where replies stay in memory.

`attacks.py` and the simulator's tests put `MeasuredAggregator` into a job in place of fedpeft's; this folder must then
be on PYTHONPATH, and `server_memory.` on the workspace's allow-list.
"""

import argparse
import contextlib
import io
import json
import logging
import math
import multiprocessing
import os
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from measured import machine, show
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message
from nvflare.fuel.utils.network_utils import get_open_ports

import fedpeft
from fedpeft.core.files import digest
from fedpeft.core.states import on_disk
from fedpeft.core.workspace import GLOBAL_ADAPTER
from fedpeft.flare import controller, messages
from fedpeft.flare.aggregator import PIAAggregator
from fedpeft.flare.hardening import message_limits
from fedpeft.flare.hardening.message_limits import limit_messages
from fedpeft.flare.messages import from_model, register_tensors, to_model
from fedpeft.flare.persistor import SafetensorsPersistor
from fedpeft.methods.first_values import normal
from fedpeft.protocol.fields import Limit
from fedpeft.protocol.types import HELLO, METRICS, Hello, Introduction, TrainOrder, TrainReply

UNLIMITED = Limit(10**12, "a terabyte.")
FETCH, SUBMIT = "get_task", "submit_update"


class MeasuredAggregator(PIAAggregator):
    """Writes the largest memory so far, in bytes, whenever a round is integrated.

    Args:
        file: that it writes.
        limited: whether the server refuses what is larger than announced, as it always does outside this benchmark.
        settings: those of `PIAAggregator`.
    """

    def __init__(self, file: str, limited: bool = True, **settings) -> None:
        super().__init__(**settings)
        self._file = Path(file)
        if not limited:
            controller.limit_messages = lambda _: limit_messages(UNLIMITED)

    def aggregate_model(self):
        """Integrate as ever."""
        integrated = super().aggregate_model()
        self._file.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
        return integrated


LAYOUTS = {
    "houlsby": {"down.weight": (64, 4096), "down.bias": (64,), "up.weight": (4096, 64), "up.bias": (4096,)},
    "lora": {"A": (64, 4096), "B": (4096, 64)},
}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"aggregation": "fedavg"},
    "pia": {"aggregation": "pia"},
    "fixed_point": {"aggregation": "pia", "pia": {"reference": "fixed_point"}},
    "svd": {"name": "lora", "aggregation": "svd"},
    "stack": {"name": "lora", "aggregation": "stack"},
    "median": {"aggregation": "fedavg", "robust": {"average": "median"}},
    "trimmed_mean": {"aggregation": "fedavg", "robust": {"average": "trimmed_mean"}},
    "geometric_median": {"aggregation": "fedavg", "robust": {"average": "geometric_median"}},
    "adam": {"aggregation": "fedavg", "server_optimizer": "adam"},
}
LOOK = 0.01  # seconds between two looks at the memory
WAIT = 0.5  # seconds between two requests of a site that has nothing to do; FLARE keeps 1 MB for each answer a while


def schema_of(method: dict[str, Any], megabytes: int) -> dict[str, list[int]]:
    """Shapes by key of an adapter of about that size, in float32."""
    layout = LAYOUTS[method.get("name", "houlsby")]
    slot = "query" if "A" in layout else "output"
    layer_bytes = 4 * sum(math.prod(shape) for shape in layout.values())
    layers = max(1, round(megabytes * 1e6 / layer_bytes))
    return {f"layer.{n}.{slot}.{name}": list(shape) for n in range(layers) for name, shape in layout.items()}


def names(count: int) -> list[str]:
    return [f"site-{number:03d}" for number in range(1, count + 1)]


def anonymous() -> int:
    """Bytes of this process that belong to no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


class Peak:
    """Looks at the memory of this process until it is stopped."""

    def __init__(self) -> None:
        self.most, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(LOOK):
            self.most = max(self.most, anonymous())

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return self.most


class CellController(controller.FederationController):
    """A job's server whose sites fetch their orders and submit their replies through FLARE's cells."""

    def __init__(self, cell: Any, folder: Path, method: dict[str, Any], sites: list[str], rounds: int) -> None:
        federation = {"sites": sites, "hello_timeout": 600, "round_timeout": 3600}
        super().__init__(job="memory", federation=federation, method=method, training={"rounds": rounds}, schedule={})
        self.aggregator, self.abort_signal, self.failure = PIAAggregator(method), Signal(), ""
        self._given: dict[str, tuple[str, ClientTask]] = {}  # until the site's reply is there
        self._waiting: set[str] = set()
        workspace = SimpleNamespace(get_run_dir=lambda job: str(folder / "run"), get_root_dir=lambda: str(folder))
        engine = SimpleNamespace(
            get_workspace=lambda: workspace, get_cell=lambda: cell, get_client_from_name=lambda site: None
        )
        self.fl_ctx = FLContext()
        self.fl_ctx.set_prop(ReservedKey.ENGINE, engine, private=True)
        self.fl_ctx.set_prop(ReservedKey.RUN_NUM, "memory")
        cell.register_request_cb(channel=CellChannel.SERVER_COMMAND, topic=FETCH, cb=self._hand_out)
        cell.register_request_cb(channel=CellChannel.SERVER_COMMAND, topic=SUBMIT, cb=self._take)

    def _hand_out(self, request: Any) -> Any:
        name, task = self._given.get(request.payload["site"], ("", None))
        if task is None:
            return make_reply(ReturnCode.OK, body=Shareable())
        order = task.task.data
        order["task"] = name
        return make_reply(ReturnCode.OK, body=order)

    def _take(self, request: Any) -> Any:
        site = request.payload.pop("site")
        _, task = self._given.pop(site, ("", None))
        if task is not None:  # a reply that was sent twice has come before
            task.result = request.payload
            with contextlib.suppress(Exception):
                self._process_result(task, self.fl_ctx)
            self._waiting.discard(site)
        return make_reply(ReturnCode.OK)

    def send_model(self, task_name, data, targets, timeout, callback) -> None:
        """Keep an order until its site fetches it."""
        (site,) = targets
        self._waiting.add(site)
        self._given[site] = (
            task_name,
            ClientTask(Client(site, "token"), self._prepare_task(data, task_name, timeout, callback)),
        )

    def get_num_standing_tasks(self) -> int:
        return len(self._waiting)

    def get_client_disconnect_time(self, site: str) -> None:
        return None

    def event(self, event_type: str) -> None:
        """No component listens."""

    def get_component(self, component_id: str) -> PIAAggregator:
        return self.aggregator

    def save_model(self, model: FLModel) -> None:
        SafetensorsPersistor().save(make_model_learnable(model.params, {}), self.fl_ctx)

    def panic(self, reason: str) -> None:
        self.failure = reason

    def info(self, message: str) -> None:
        """Nobody reads it."""

    warning = error = info


def cell_of(name: str, port: int) -> Cell:
    register_tensors()
    made = Cell(fqcn=name, root_url=f"tcp://localhost:{port}", secure=False, credentials={})
    made.start()
    return made


def serve(port: int, method: dict[str, Any], sites: list[str], rounds: int, disk: bool, pipe: Connection) -> None:
    """The server's process: run a job, and report what it took."""
    messages.MAX_IN_MEMORY = 0 if disk else 10**15
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        job = CellController(cell_of("server", port), folder, method, sites, rounds)
        before, peak = anonymous(), Peak()
        with contextlib.redirect_stdout(io.StringIO()):  # the tables of its report
            job.run()
        most = peak.stop()
        result: dict[str, Any] = {"failure": job.failure}
        if not job.failure:
            history = json.loads((folder / "run" / "fedpeft" / "history.json").read_text())["rounds"]
            result |= {
                "before": before,
                "peak": most,
                "seconds": sum(one["seconds"] for one in history),
                "rejected": [one["rejected"] for one in history if one["rejected"]],
                "digest": digest(folder / "run" / "fedpeft" / GLOBAL_ADAPTER),
                "left": sorted(str(path) for path in folder.glob("fedpeft/.*")),
            }
    pipe.send(result)
    os._exit(0)  # FLARE's threads would go on


def first(key: str, shape: tuple[int, ...]) -> torch.Tensor:
    """As a site of the job begins."""
    return torch.zeros(shape) if key.endswith(("bias", ".B")) else normal(shape, 0.02, 0, key)


def answer(
    site: str, kind: str, shareable: Shareable, method: dict[str, Any], schema: dict[str, list[int]], folder: Path
) -> Any:
    """What a site sends for an order: the global adapter with noise of its own, which lies in a folder."""
    if kind == HELLO:
        hello = from_model(Hello, FLModelUtils.from_shareable(shareable))
        start = {key: first(key, tuple(shape)) for key, shape in schema.items()} if hello.initial else {}
        return Introduction(
            version=fedpeft.__version__,
            schema=schema,
            classes=2,
            samples={"train": 5, "validation": 1, "test": 2},
            dataset="phantom",
            procedural=True,
            backbone="tiny-vilt",
            tiny=True,
            family="vilt",
            state=start,
        )
    order = from_model(TrainOrder, FLModelUtils.from_shareable(shareable))
    generator = torch.Generator().manual_seed(int(site.rpartition("-")[2]) + 1000 * order.round)
    state = {}
    for key, shape in schema.items():
        before = order.state[key] if key in order.state and list(order.state[key].shape) == shape else 0
        state[key] = torch.rand(shape, generator=generator).sub_(0.5).mul_(0.002).add_(before)
    state = on_disk(state, folder)
    facts = {"samples": 5, "metrics": dict.fromkeys(METRICS, 0.5), "seconds": 1.0}
    return TrainReply(round=order.round, scores=[], problem="", state=state, **facts)


def visit(port: int, method: dict[str, Any], sites: list[str], megabytes: int) -> None:
    """The process of all sites: each fetches orders and submits replies through a cell of its own.

    As FLARE's sites do, it asks again for an order that did not arrive, and sends a reply again. Orders and replies lie
    on the disk, and one site at a time computes: else this process would need more memory than the server.
    """
    logging.disable(logging.ERROR)  # FLARE's, until the server is there
    schema = schema_of(method, megabytes)
    limit_messages(UNLIMITED)
    message_limits._turns = threading.BoundedSemaphore(len(sites))  # which a process of its own would not wait for
    computing = threading.Lock()

    def one(site: str, folder: Path) -> None:
        own = cell_of(site, port)
        engine = SimpleNamespace(get_cell=lambda: own)
        with messages.offloaded(SimpleNamespace(get_engine=lambda: engine), folder):
            attend(site, own, folder)

    def attend(site: str, own: Cell, folder: Path) -> None:
        while not own.is_cell_connected("server"):
            time.sleep(WAIT)
        logging.disable(logging.WARNING)

        def request(topic: str, shareable: Shareable) -> Any:
            shareable["site"] = site
            message = new_cell_message({}, shareable)
            try:
                reply = own.send_request(
                    channel=CellChannel.SERVER_COMMAND, target="server", topic=topic, request=message, timeout=3600
                )
                if (code := reply.get_header(MessageHeaderKey.RETURN_CODE)) == ReturnCode.OK:
                    return reply.payload or {}
            except RuntimeError as error:  # FLARE's, where tensors do not arrive
                code = error
            print(f"{site}: {topic} failed ({code}) and is sent again", flush=True)
            return None

        while True:
            order = request(FETCH, Shareable())
            if not order or "task" not in order:
                time.sleep(WAIT)
                continue
            with computing:
                reply = answer(site, order["task"], order, method, schema, folder)
            del order
            shareable = FLModelUtils.to_shareable(to_model(reply, round=getattr(reply, "round", 0)))
            while request(SUBMIT, shareable) is None:
                time.sleep(WAIT)

    with tempfile.TemporaryDirectory() as scratch:
        threads = [threading.Thread(target=one, args=(site, Path(scratch)), daemon=True) for site in sites]
        for thread in threads:
            thread.start()
        while all(thread.is_alive() for thread in threads):
            time.sleep(1)
    os._exit(1)  # a site has failed, and printed why


def measure(method: dict[str, Any], *, sites: int, megabytes: int, rounds: int, disk: bool) -> dict[str, Any]:
    """Run a job in two processes; what `serve` reports."""
    port, spawn = get_open_ports(1)[0], multiprocessing.get_context("spawn")
    near, far = spawn.Pipe()
    server = spawn.Process(target=serve, args=(port, method, names(sites), rounds, disk, far), daemon=True)
    visitors = spawn.Process(target=visit, args=(port, method, names(sites), megabytes), daemon=True)
    try:
        server.start()
        far.close()
        visitors.start()
        while not near.poll(1):
            if not (visitors.is_alive() and server.is_alive()):
                raise RuntimeError("a process has ended: what it printed says why.")
        result = near.recv()
    finally:
        for process in (server, visitors):
            process.kill()
            process.join()
    if result["failure"]:
        raise RuntimeError(result["failure"])
    return result


def rows(name: str, **options: Any) -> Iterator[list[str]]:
    """A method in memory and on disk."""
    seen: dict[str, Any] = {}
    for place in options.pop("places"):
        one = measure(METHODS[name], disk=place == "disk", **options)
        first = seen.setdefault("first", one)
        bytes_equal = "" if one is first else "yes" if one["digest"] == first["digest"] else "NO"
        share = "" if one is first else f"{one['seconds'] / first['seconds']:.2f}"
        yield [
            name,
            str(options["sites"]),
            place,
            f"{one['peak'] / 1e9:.2f}",
            f"{(one['peak'] - one['before']) / 1e9:.2f}",
            f"{one['seconds']:.1f}",
            share,
            bytes_equal,
        ]
        if one["rejected"] or one["left"]:
            print("rejected:", one["rejected"], "left behind:", one["left"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[8])
    parser.add_argument("--megabytes", type=int, default=100, help="of one reply")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["fedavg"])
    parser.add_argument("--places", nargs="+", choices=["memory", "disk"], default=["memory", "disk"])
    options = parser.parse_args()
    os.environ["NVFLARE_TENSOR_STREAMING_PER_REQUEST_TIMEOUT"] = "60"  # as in jobs for a laptop: FLARE waits 600 s
    common = {"megabytes": options.megabytes, "rounds": options.rounds, "places": options.places}
    table = [row for sites in options.sites for name in options.methods for row in rows(name, sites=sites, **common)]
    columns = ["method", "replies", "kept in", "peak GB", "beyond start", "seconds", "times", "same bytes"]
    note = "Anonymous memory of the server's process (RssAnon); seconds are those of the rounds."
    show(f"{options.megabytes} MB a reply, {options.rounds} rounds", columns, table, note)
    print(machine())


if __name__ == "__main__":
    main()
