# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Wall time of a whole federation in FLARE's simulator, against the same training as one bare PyTorch loop.

    python benchmarks/wall_time.py [--runs 3] [--ways "--engine pool -t 2"] [--set SECTION.NAME=VALUE]

The federation is the command that a user types: `fedpeft simulate jobs/fedpia_task1` with the flags of each row. The
loop is `fedpeft.federate` in one process that trains one site after the other with one thread. All are timed as
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
FLAGS = ("-t 5", "-t 1", "--engine pool -t 2", "--engine pool -t 1")


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


def measure(overrides: Sequence[str], runs: int, ways: Sequence[str]) -> tuple[dict[str, list[float]], list[float]]:
    """Wall seconds of every way in every run, the ways taken in turns, and those of the loop's training alone.

    Raises:
        RuntimeError: a way failed, or ended with another adapter than the loop.
    """
    changed = [part for override in overrides for part in ("--set", override)]
    spent: dict[str, list[float]] = {way: [] for way in (BARE, *ways)}
    training = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            wall, _ = timed(python(__file__, "--bare", scratch, *changed))
            spent[BARE].append(wall)
            training.append(json.loads((folder / "seconds.json").read_text()))
            expected = (folder / "global.safetensors").read_bytes()
            for way in ways:
                workspace = folder / way.replace(" ", "")
                job = str(ROOT / "jobs" / JOB)
                command = ["-m", "fedpeft.cli", "simulate", job, *way.split(), "-w", str(workspace), *changed]
                wall, _ = timed(python(*command))
                spent[way].append(wall)
                _check_same(workspace / "server" / "simulate_job" / "fedpeft" / "global.safetensors", expected, way)
    return spent, training


def _check_same(file: Path, expected: bytes, way: str) -> None:
    from safetensors.torch import load

    got, wanted = load(file.read_bytes()), load(expected)
    differing = [key for key in wanted if key not in got or not got[key].equal(wanted[key])]
    if differing or got.keys() != wanted.keys():
        raise RuntimeError(f"simulate {way} ended with another adapter than the loop, e.g. {differing[:1]}.")


def at_once(way: str) -> int:
    """Sites that train at once with these flags."""
    words = way.split()
    return int(words[words.index("-t") + 1]) if "-t" in words else 1


def run(overrides: Sequence[str], runs: int, ways: Sequence[str] = FLAGS) -> None:
    """Measure and print."""
    spent, training = measure(overrides, runs, ways)
    chosen = sections(overrides)
    sites, rounds = len(chosen["federation"]["sites"]), chosen["training"]["rounds"]
    rows = []
    for way, seconds in spent.items():
        paired = [a / b for a, b in zip(seconds, spent[BARE], strict=True)]
        processes = 1 if way == BARE else at_once(way)
        if way != BARE and processes == 1 and "pool" not in way:  # FLARE starts one for each site in each round, and
            processes = sites * (rounds + 1)  # for its handshake
        beyond = statistics.median(a - b for a, b in zip(seconds, training, strict=True))
        middle = f"{statistics.median(seconds):.1f}"
        rows.append((way, middle, ratio(paired), f"{beyond:.1f}", str(processes), f"{beyond / processes:.1f}"))
    columns = ("simulate", "wall (s)", "/ bare loop", "beyond training (s)", "site processes", "s beyond per process")
    note = (
        f"{runs} runs, in turns; medians, ratios with least and greatest. Training alone takes the loop "
        f"{statistics.median(training):.1f} s. All ways ended with the same adapter, to the bit."
    )
    show(f"{JOB}: {sites} sites, {rounds} rounds", columns, rows, note)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="runs of each way")
    parser.add_argument("--ways", nargs="+", default=FLAGS, metavar="FLAGS", help="of the command; default: all four")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    parser.add_argument("--bare", type=Path, metavar="FOLDER", help="be the loop: train and write to FOLDER")
    options = parser.parse_args()
    if options.bare:
        bare(options.set, options.bare)
        return
    print(machine())
    run(options.set, options.runs, options.ways)


if __name__ == "__main__":
    main()
