# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What federating costs, as ratios: rounds, bytes on the wire, process starts, whole runs.

    python benchmarks/federation.py                     everything but the full-size round
    python benchmarks/federation.py --full-size         with it: ViLT-B/32 with random weights
    python benchmarks/federation.py --parts wire start  some parts only

Each part is a file of its own (`rounds.py`, `wire.py`, `process_start.py`, `wall_time.py`) with a command of its own.
"""

import argparse

import process_start
import rounds
import wall_time
import wire
from measured import machine

PARTS = ("rounds", "wire", "start", "wall")


def main() -> None:
    """Read the command line and run the parts one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)")
    parser.add_argument("--runs", type=int, default=5, help="counted rounds, and starts of each kind")
    parser.add_argument("--wall-runs", type=int, default=3, help="whole runs of each way")
    parser.add_argument("--full-size", action="store_true", help="rounds of a full-size ViLT too")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    options = parser.parse_args()
    print(machine(), flush=True)
    if "wire" in options.parts:
        wire.run()
    if "start" in options.parts:
        process_start.run(options.runs)
    if "wall" in options.parts:
        wall_time.run(options.set, options.wall_runs)
    if "rounds" in options.parts:
        rounds.run(options.set, options.runs, full_size=False)
        if options.full_size:
            rounds.run(options.set, options.runs, full_size=True)


if __name__ == "__main__":
    main()
