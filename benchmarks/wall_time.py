# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Wall time of a whole federation in FLARE's simulator, against the same training as one bare PyTorch loop.

    python benchmarks/wall_time.py [--runs 3] [--set SECTION.NAME=VALUE]

The federation is the command that a user types, `fedpeft simulate jobs/fedpia_task1 -t 5` and `-t 1`. The loop is
`fedpeft.federate` in one process that trains one site after the other with one thread. All are timed as
processes, from the start of Python to its end; that all end with the same adapter, to the bit, is checked.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from measured import JOB, ROOT, machine, python, ratio, sections, show, timed

BARE = "bare loop"


def bare(overrides: Sequence[str], folder: Path) -> None:
    """All rounds of the job in this process; writes the final adapter, and how many seconds training took."""
    from safetensors.torch import save_file

    from fedpeft.federate import federate
    from fedpeft.site.learner import Learner

    chosen = sections(overrides)
    sites = chosen["federation"]["sites"]
    learners = {site: Learner.from_sections(chosen, site=site, folder=folder / site) for site in sites}
    began = time.perf_counter()
    *_, last = federate(learners)
    (folder / "seconds.json").write_text(json.dumps(time.perf_counter() - began))
    save_file({key: tensor.contiguous() for key, tensor in last.state.items()}, folder / "global.safetensors")


def measure(overrides: Sequence[str], threads: Sequence[int], runs: int) -> tuple[dict[str, list[float]], list[float]]:
    """Wall seconds of every way in every run, the ways taken in turns, and those of the loop's training alone.

    Raises:
        RuntimeError: a way failed, or ended with another adapter than the loop.
    """
    changed = [part for override in overrides for part in ("--set", override)]
    spent: dict[str, list[float]] = {BARE: [], **{f"fedpeft simulate -t {n}": [] for n in threads}}
    training = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            wall, _ = timed(python(__file__, "--bare", scratch, *changed))
            spent[BARE].append(wall)
            training.append(json.loads((folder / "seconds.json").read_text()))
            expected = (folder / "global.safetensors").read_bytes()
            for n in threads:
                workspace = folder / f"workspace-{n}"
                job = str(ROOT / "jobs" / JOB)
                command = ["-m", "fedpeft.cli", "simulate", job, "-t", str(n), "-w", str(workspace), *changed]
                wall, _ = timed(python(*command))
                spent[f"fedpeft simulate -t {n}"].append(wall)
                _check_same(workspace / "server" / "simulate_job" / "fedpeft" / "global.safetensors", expected, n)
    return spent, training


def _check_same(file: Path, expected: bytes, threads: int) -> None:
    from safetensors.torch import load

    got, wanted = load(file.read_bytes()), load(expected)
    differing = [key for key in wanted if key not in got or not got[key].equal(wanted[key])]
    if differing or got.keys() != wanted.keys():
        raise RuntimeError(f"simulate -t {threads} ended with another adapter than the loop, e.g. {differing[:1]}.")


def run(overrides: Sequence[str], runs: int, threads: Sequence[int] = (5, 1)) -> None:
    """Measure and print."""
    spent, training = measure(overrides, threads, runs)
    chosen = sections(overrides)
    sites, rounds = len(chosen["federation"]["sites"]), chosen["training"]["rounds"]
    starts = {
        1: sites * (rounds + 1),
        sites: sites,
    }  # with 1 thread: one process a site for the handshake and each round
    rows = []
    for way, seconds in spent.items():
        paired = [a / b for a, b in zip(seconds, spent[BARE], strict=True)]
        processes = 1 if way == BARE else starts.get(int(way.rsplit(" ", 1)[1]))
        beyond = statistics.median(a - b for a, b in zip(seconds, training, strict=True))
        each = f"{beyond / processes:.1f}" if processes else ""
        middle = f"{statistics.median(seconds):.1f}"
        rows.append((way, middle, ratio(paired), f"{beyond:.1f}", str(processes or ""), each))
    columns = ("way", "wall (s)", "/ bare loop", "beyond training (s)", "site processes", "s beyond per process")
    note = (
        f"{runs} runs, in turns; medians, ratios with least and greatest. Training alone takes the loop "
        f"{statistics.median(training):.1f} s. All ways ended with the same adapter, to the bit."
    )
    show(f"{JOB}: {sites} sites, {rounds} rounds", columns, rows, note)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="runs of each way")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    parser.add_argument("--bare", type=Path, metavar="FOLDER", help="be the loop: train and write to FOLDER")
    options = parser.parse_args()
    if options.bare:
        bare(options.set, options.bare)
        return
    print(machine())
    run(options.set, options.runs)


if __name__ == "__main__":
    main()
