# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A hundred clients of one data set, ten drawn in each round, in one run of the simulator: time, memory and messages.

    python benchmarks/many_clients.py                       # most of half an hour of two cores
    python benchmarks/many_clients.py --clients 30 --rounds 2 --threads 4

It runs `fedpeft simulate fedpia_task4` with the settings that docs/data.md shows. Memory is the sum over all processes
of the run of what each has to itself and its part of what they share (PSS), looked at every two seconds.
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
from measured import machine, python, show

from fedpeft.protocol.fields import MB
from fedpeft.report.history_reader import read
from fedpeft.report.status import run_folder
from fedpeft.report.wording import percent

EVERY = 2.0  # seconds
SMALL = ("data.train_size=40", "data.validation_size=8", "data.test_size=16")


def command(clients: int, drawn: int, rounds: int, threads: int, workspace: Path) -> list[str]:
    """The command line of the run."""
    settings = [
        f"data.parts={clients}",
        f"schedule.clients_per_round={drawn}",
        f"federation.sites=[{','.join(f'client-{number}' for number in range(1, clients + 1))}]",
        "federation.hello_timeout=1800",
        f"training.rounds={rounds}",
        *SMALL,
    ]
    changed = [part for setting in settings for part in ("--set", setting)]
    return python("-m", "fedpeft.cli", "simulate", "fedpia_task4", "-t", str(threads), "-w", str(workspace), *changed)


def memory(process: psutil.Process) -> int:
    """Bytes of a process and all that it started."""
    total = 0
    for one in (process, *process.children(recursive=True)):
        try:
            total += one.memory_full_info().pss
        except psutil.Error:  # it has just ended
            continue
    return total


def watched(line: list[str], log: Path) -> tuple[float, int]:
    """Run a command; its seconds, and the most memory that it and its processes had at once, in bytes.

    Raises:
        RuntimeError: it failed; with the end of what it printed.
    """
    most, began = 0, time.monotonic()
    with log.open("wb") as output, subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT) as running:
        family = psutil.Process(running.pid)
        while running.poll() is None:
            most = max(most, memory(family))
            time.sleep(EVERY)
    seconds = time.monotonic() - began
    if running.returncode:
        raise RuntimeError(f"the run ended with {running.returncode}:\n{log.read_text()[-2000:]}")
    return seconds, most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--drawn", type=int, default=10, help="clients in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="clients that work at the same time")
    chosen = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        workspace = Path(name) / "workspace"
        line = command(chosen.clients, chosen.drawn, chosen.rounds, chosen.threads, workspace)
        seconds, most = watched(line, Path(name) / "log")
        history = read(run_folder(workspace))
    rows = []
    for one in history.rounds:
        reached = [site.overall for site in one.sites.values() if site.overall is not None]
        sent = statistics.fmean(site.sent or 0 for site in one.sites.values()) / MB
        mean = percent(statistics.fmean(reached)) if reached else "-"
        rows.append((str(one.round), str(len(one.sites)), f"{one.seconds or 0:.0f}", f"{sent:.2f}", mean))
    in_rounds = sum(one.seconds or 0 for one in history.rounds)
    show(
        f"{chosen.clients} clients, {chosen.drawn} drawn in each round, {chosen.threads} at a time",
        ("round", "replies", "seconds", "MB sent by a client", "macro-F1 of the drawn, %"),
        rows,
        f"{seconds:.0f} s in all, {in_rounds:.0f} in the rounds; all processes: at most {most / 2**30:.1f} GiB.",
    )


if __name__ == "__main__":
    main()
