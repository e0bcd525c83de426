# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Messages, bytes, seconds and memory of a round at server and relays, for 10 to 10,000 sites.

    python benchmarks/scale.py                                     # the tables of docs/scale.md
    python benchmarks/scale.py --server-gbit 10 --site-mbit 100    # with another network
    python benchmarks/scale.py --measure                           # measure the constants anew: a few minutes, 6 GB

The tables are computed, from constants that `--measure` writes into results/scale.json. It measures one site and one
server over TCP on this machine, without TLS: FLARE's cells with fedpeft's messages (wire.py), then the server's checks
and its sum on some replies. No federation of the sizes in the tables has run.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from measured import machine, show
from wire import IDLE, REPLY, TRAIN, all_sent, initial, talking

CONSTANTS = Path(__file__).parent / "results" / "scale.json"
ADAPTERS: dict[str, dict[str, Any]] = {  # the tiny ViLT's, ViLT-B/32's, and as many bytes as a language model's
    "0.5 MB": {"adapter": "houlsby", "settings": {"reduction_factor": 4}, "hidden_size": 96},
    "7 MB": {"adapter": "houlsby", "settings": {"reduction_factor": 16}, "hidden_size": 768},
    "540 MB": {"adapter": "houlsby", "settings": {"reduction_factor": 4}, "hidden_size": 3360},
}
SITES = (10, 100, 1_000, 10_000)
SUMMED, IDLE_REQUESTS = 4, 500
ROUNDS, LARGE = 20, 100_000_000  # of an adapter from this size on three rounds are measured
SITES_OF_RELAY = 100
POLL, SELDOM = 2.0, 20.0  # seconds between two requests of a waiting site: FLARE's default, and the longest advised
HEARTBEAT = 10.0  # seconds between two heartbeats of a site's process of a job: FLARE's default
WIDER = 2  # a sum has 8 bytes for each 4 of an adapter
BARE = "none"  # the messages of a site whose adapter goes to its relay
IDLE_RELAY = 0.3e9  # bytes of a relay's process before an adapter comes, measured: torch, FLARE, fedpeft
IDLE_SERVER = 0.4e9  # bytes of the server's process of a job before a reply comes, measured: torch, FLARE, fedpeft
MB, GB = 1e6, 1e9


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one site costs a round, by measurement.

    Args:
        size: bytes of the adapter.
        frames: of both tasks, both ways, acknowledgements included.
        sent: bytes of these frames.
        wall: seconds of both tasks over the loopback.
        processor: seconds of the server's process for both tasks.
        summing: seconds of one thread for checks and sum of a reply.
        peak: bytes by which the server's process grew at most while it read a reply.
        adding: seconds of one thread to check a reply and add it to a partial sum.
    """

    size: int
    frames: int
    sent: int
    wall: float
    processor: float
    summing: float
    peak: int
    adding: float


@dataclass(frozen=True, kw_only=True)
class Network:
    """What carries the messages.

    Args:
        server_gbit: gigabits a second of the server, each way.
        relay_gbit: the same of a relay.
        site_mbit: megabits a second of a site, each way.
    """

    server_gbit: float = 1.0
    relay_gbit: float = 1.0
    site_mbit: float = 50.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """A round at one place: server or relay; bytes of both ways, seconds of network and processor, bytes of memory and
    disk."""

    connections: int
    messages: int
    sent: float
    network: float
    processor: float
    memory: float
    disk: float = 0.0


def at_server(costs: Costs, sites: int, network: Network) -> Load:
    """Every site's reply comes to the server, directly or forwarded; all are kept until the round's check."""
    sent = sites * costs.sent
    return Load(
        connections=sites,
        messages=sites * costs.frames,
        sent=sent,
        network=sent / 2 * 8 / (network.server_gbit * GB),
        processor=sites * (costs.processor + costs.summing),
        memory=IDLE_SERVER + (sites + 2) * costs.size + max(costs.peak - costs.size, 0),
    )


def at_relay(costs: Costs, sites: int, network: Network) -> Load:
    """One relay that forwards: every byte comes in and goes out, and no reply is kept."""
    below = min(sites, SITES_OF_RELAY)
    sent = 2 * below * costs.sent
    return Load(
        connections=below + 1,
        messages=2 * below * costs.frames,
        sent=sent,
        network=sent / 2 * 8 / (network.relay_gbit * GB),
        processor=2 * below * costs.processor,  # at most: it decodes no tensors
        memory=0.0,
    )


def with_partial_sums(costs: Costs, bare: Costs, sites: int, network: Network) -> tuple[Load, Load]:
    """Server and one relay, where relays hand out the global adapter and add up those of their sites.

    Args:
        costs: of a site whose adapter travels.
        bare: of one whose messages have no tensors, which all go to the server through a relay.
        sites: of the round.
        network: see `Network`.
    """
    from fedpeft.flare.messages import MAX_IN_MEMORY
    from fedpeft.server.relay_sums import MAX_AT_ONCE

    relays, below = math.ceil(sites / SITES_OF_RELAY), min(sites, SITES_OF_RELAY)
    kept = below * costs.size  # of the relay's sites, on its disk where they are large together
    one = costs.sent / 2 * (1 + WIDER)  # the global adapter down, a sum up
    sent = sites * bare.sent + relays * one
    server = Load(
        connections=relays,
        messages=sites * bare.frames + relays * math.ceil(costs.frames * (1 + WIDER) / 2),
        sent=sent,
        network=(sites * bare.sent / 2 + relays * costs.sent / 2 * WIDER) * 8 / (network.server_gbit * GB),
        processor=sites * bare.processor + relays * (WIDER * costs.processor + costs.adding),
        memory=IDLE_SERVER + (3 + min(relays, MAX_AT_ONCE)) * WIDER * costs.size,
    )
    passed = 2 * below * bare.sent
    relay = Load(
        connections=below + 1,
        messages=below * (costs.frames + 2 * bare.frames),
        sent=below * costs.sent + passed + one,
        network=(below * costs.sent / 2 + passed / 2 + costs.sent / 2 * WIDER) * 8 / (network.relay_gbit * GB),
        processor=below * (costs.processor + costs.adding + 2 * bare.processor) + WIDER * costs.processor,
        memory=IDLE_RELAY
        + (1 + WIDER) * costs.size
        + (kept if kept <= MAX_IN_MEMORY else 0)
        + max(costs.peak - costs.size, 0),
        disk=kept if kept > MAX_IN_MEMORY else 0,
    )
    return server, relay


def polling(sites: int, idle: float, interval: float = POLL) -> float:
    """Seconds of processor that the server's process of a job spends in every second on sites that wait for a task."""
    return sites * (1 / interval + 1 / HEARTBEAT) * idle


def round_seconds(costs: Costs, load: Load, network: Network) -> float:
    """A round without training: a site's transfer both ways, and the slower of the server's network and processor."""
    return costs.sent * 8 / (network.site_mbit * MB) + max(load.network, load.processor)


def measure() -> dict[str, Any]:
    """Measure every adapter; one after the other, each in new processes."""
    costs, idle = {}, math.inf
    for name, adapter in {BARE: None, **ADAPTERS}.items():
        costs[name], seconds = _measured(adapter)
        idle = min(idle, seconds)
    return {"machine": machine(), "idle": idle, "costs": {name: asdict(one) for name, one in costs.items()}}


def _measured(adapter: Mapping[str, Any] | None) -> tuple[Costs, float]:
    with talking(adapter or {}) as (size, server, site, pid):
        process = psutil.Process(pid)
        idle = _processor(process)
        for _ in range(IDLE_REQUESTS):
            _done(site, IDLE)
        idle = (_processor(process) - idle) / IDLE_REQUESTS
        resident = _memory(pid, "VmRSS")
        for task in (TRAIN, REPLY):  # the first one opens the streams
            _done(site, task)
        frames, sent = all_sent(server, site)
        rounds = ROUNDS if size < LARGE else 3
        spent, began = _processor(process), time.perf_counter()
        for _ in range(rounds):
            for task in (TRAIN, REPLY):
                _done(site, task)
        wall = (time.perf_counter() - began) / rounds
        spent = (_processor(process) - spent) / rounds
        peak = _memory(pid, "VmHWM") - resident
        after = all_sent(server, site)
    costs = Costs(
        size=size,
        frames=round((after[0] - frames) / rounds),
        sent=round((after[1] - sent) / rounds),
        wall=wall,
        processor=spent,
        summing=summing_seconds(adapter) if adapter else 0.0,
        peak=peak,
        adding=adding_seconds(adapter) if adapter else 0.0,
    )
    return costs, idle


def _done(site: Any, task: str) -> None:
    site.send(task)
    site.recv()


def _processor(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _memory(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def summing_seconds(adapter: Mapping[str, Any]) -> float:
    """Seconds of one thread for the server's checks of a reply and its part of the mean."""
    from fedpeft.methods.settings import MethodSettings
    from fedpeft.protocol.reply_contract import check_tensors
    from fedpeft.server.aggregation import aggregate
    from fedpeft.server.update_check import update_length

    start, replies = _replies(adapter)
    schema = {key: list(tensor.shape) for key, tensor in start.items()}
    with _one_thread():
        began = time.process_time()
        for name, (state, _) in replies.items():
            check_tensors(state, site=name, schema=schema, dtype="float32")
            update_length(state, start)
        aggregate(replies, MethodSettings(aggregation="fedavg"), previous=start)
        return (time.process_time() - began) / SUMMED


def adding_seconds(adapter: Mapping[str, Any]) -> float:
    """Seconds of one thread for a relay's checks of a reply and its part of the sum."""
    from fedpeft.protocol.types import SumOrder, Upload
    from fedpeft.server.relay_sums import GroupSum

    start, replies = _replies(adapter)
    weights = {name: weight for name, (_, weight) in replies.items()}
    order = SumOrder(round=1, weights=weights, together=SUMMED, dtype="float32", masked=False, state=start)
    with _one_thread():
        began = time.process_time()
        one = GroupSum(order)
        for name, (state, _) in replies.items():
            one.take(name, Upload(round=1, state=state))
        one.measured()
        one.total(list(replies))
        return (time.process_time() - began) / SUMMED


def _replies(adapter: Mapping[str, Any]) -> tuple[dict, dict[str, tuple[dict, int]]]:
    start = initial(**adapter)
    return start, {f"site-{number}": ({k: t + 1e-3 for k, t in start.items()}, 100) for number in range(SUMMED)}


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def constants(file: Path = CONSTANTS) -> tuple[str, float, dict[str, Costs]]:
    """Where they were measured, the seconds of an idle request, and the costs by adapter."""
    read = json.loads(file.read_text())
    return read["machine"], read["idle"], {name: Costs(**one) for name, one in read["costs"].items()}


def measured_table(idle: float, costs: Mapping[str, Costs]) -> None:
    """Print what was measured, of messages without an adapter last."""
    show(
        "One site in a round, measured",
        (
            "adapter",
            "MB",
            "frames",
            "MB sent",
            "wall s",
            "server CPU s",
            "check and mean s",
            "at a relay s",
            "server grows, MB",
        ),
        [
            (
                name,
                f"{one.size / MB:,.2f}",
                f"{one.frames}",
                f"{one.sent / MB:,.2f}",
                f"{one.wall:.2f}",
                f"{one.processor:.3f}",
                f"{one.summing:.4f}",
                f"{one.adding:.4f}",
                f"{one.peak / MB:,.0f}",
            )
            for name, one in costs.items()
        ],
        f"Both tasks of a round, there and back; {BARE}: messages without an adapter. A request of a site that waits: "
        f"{idle * 1000:.2f} ms of the server's processor.",
    )


def tables(idle: float, measured: Mapping[str, Costs], network: Network) -> None:
    """Print the page's tables."""
    bare, costs = measured[BARE], {name: one for name, one in measured.items() if name != BARE}
    measured_table(idle, {**costs, BARE: bare})
    show(
        "The server, computed: all sites reply to it, directly or through relays that forward",
        (
            *("adapter", "sites", "messages", "GB", "network s", "CPU s", "round s", "memory GB"),
            *("polling, cores", "seldom"),
        ),
        [
            (
                *(name, f"{sites:,}", *_cells(load), *_last(one, load, network)),
                *(f"{polling(sites, idle):.2f}", f"{polling(sites, idle, SELDOM):.2f}"),
            )
            for name, one in costs.items()
            for sites in SITES
            for load in [at_server(one, sites, network)]
        ],
        _network_note(network) + f" Polling: each waiting site every {POLL:g} s, seldom: every {SELDOM:g} s; and "
        f"a heartbeat of each every {HEARTBEAT:g} s.",
    )
    show(
        f"One relay that forwards, computed: {SITES_OF_RELAY} sites below it",
        ("adapter", "connections", "messages", "GB", "network s", "CPU s"),
        [
            (name, f"{load.connections}", *_cells(load))
            for name, one in costs.items()
            for load in [at_relay(one, SITES_OF_RELAY, network)]
        ],
        "CPU at most: as much as the server takes to send and read them.",
    )
    show(
        f"federation.sums_at_relays, computed: a relay for each {SITES_OF_RELAY} sites",
        (
            *("adapter", "sites", "messages", "GB", "network s", "CPU s", "memory GB"),
            *("relay: net s", "CPU s", "memory GB", "disk GB"),
        ),
        [
            (
                name,
                f"{sites:,}",
                *_cells(server),
                f"{server.memory / GB:,.1f}",
                f"{relay.network:,.1f}",
                f"{relay.processor:,.1f}",
                f"{relay.memory / GB:,.1f}",
                f"{relay.disk / GB:,.1f}",
            )
            for name, one in costs.items()
            for sites in SITES[1:]
            for server, relay in [with_partial_sums(one, bare, sites, network)]
        ],
        _network_note(network),
    )


def _cells(load: Load) -> tuple[str, ...]:
    return f"{load.messages:,}", f"{load.sent / GB:,.2f}", f"{load.network:,.1f}", f"{load.processor:,.1f}"


def _last(costs: Costs, load: Load, network: Network) -> tuple[str, ...]:
    return f"{round_seconds(costs, load, network):,.0f}", f"{load.memory / GB:,.1f}"


def _network_note(network: Network) -> str:
    return (
        f"Server {network.server_gbit:g} Gbit/s, relay {network.relay_gbit:g} Gbit/s, site {network.site_mbit:g} "
        f"Mbit/s, each way."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help=f"write {CONSTANTS.name} anew first")
    for name, value in asdict(Network()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=value, metavar="NUMBER")
    options = parser.parse_args(arguments)
    if options.measure:
        CONSTANTS.write_text(json.dumps(measure(), indent=2) + "\n")
    where, idle, costs = constants()
    print(f"Constants: {where}")
    tables(idle, costs, Network(**{name: getattr(options, name) for name in asdict(Network())}))


if __name__ == "__main__":
    main()
