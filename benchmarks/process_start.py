# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the start of a site's process costs, part by part, beside plain torch and beside importing everything at once.

    python benchmarks/process_start.py [--runs 5]

Every line is a fresh Python that does what the line says and all lines above it that it stands on. FLARE's own waiting
(connecting, synchronising) is not in here: `wall_time.py` measures whole federations.
"""

import argparse
import os
import statistics
from collections.abc import Mapping

from measured import machine, python, show, timed

from fedpeft.site import fork_server

TORCH = "import torch"
TRAINING = f"{TORCH}; torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])"
FLARE = "import nvflare.private.fed.app.simulator.simulator_worker"
EXECUTOR = f"{FLARE}; import fedpeft.flare.executor"
TENSORS = f"{EXECUTOR}; fedpeft.flare.executor._import_tensors()"
WORKER = "import fedpeft.site.training_process"
LEARNER = f"{WORKER}; import fedpeft.site.learner"
JOB = """
import json, pathlib, tempfile
job = json.loads(pathlib.Path("jobs/fedpia_task1/app/config/config_fed_client.json").read_text())
sections = job["executors"][0]["executor"]["args"]
"""
BUILD = """
with tempfile.TemporaryDirectory() as folder:
    fedpeft.site.learner.Learner.from_sections(sections, site="slake", folder=pathlib.Path(folder))
"""
READY = f"{LEARNER}{JOB}{BUILD}"
ONE = f"{TENSORS}; import fedpeft.site.learner{JOB}{BUILD}"
BOTH = f"""{EXECUTOR}{JOB}
site = fedpeft.flare.executor.SiteExecutor(**sections)
with tempfile.TemporaryDirectory() as folder:
    site._supervisor.open("slake", pathlib.Path(folder), policy=None)
    fedpeft.flare.executor._import_tensors()
    hello = {{"do": "introduce", "initial": False, "finished": 0, "own": 0, "folder": folder}}
    site._supervisor.request(hello, aborted=lambda: False, report=print)
    site._supervisor.close()
"""
FORKED = f"""
import os, sys
os.environ["{fork_server.ADDRESS}"] = sys.argv[1]
{BOTH}
"""
EVERYTHING = f"""{TENSORS}; import fedpeft.site.learner
import fedpeft.report, matplotlib.pyplot, ot, scipy.stats
from transformers import AutoModel, AutoProcessor, ViltForQuestionAnswering, ViltProcessor
"""
LINES = {
    "python": "",
    "torch": TORCH,
    "torch with an optimizer": TRAINING,
    "FLARE's client": FLARE,
    "  + the executor": EXECUTOR,
    "  + FLARE's tensor messages, and torch with them": TENSORS,
    "the training process": WORKER,
    "  + the learner's imports": LEARNER,
    "  + model, adapters and data: ready to train": READY,
    "both processes beside each other: ready to train": BOTH,
    "both processes, the training one forked: ready to train": FORKED,
    "all of it in one process: ready to train": ONE,
    "every library imported at the top, nothing built": EVERYTHING,
}
NOTE = "What a forked process computes is not in this CPU time but in that of the server that forks it."
BEFORE = {
    "torch": "python",
    "torch with an optimizer": "torch",
    "FLARE's client": "python",
    "  + the executor": "FLARE's client",
    "  + FLARE's tensor messages, and torch with them": "  + the executor",
    "the training process": "python",
    "  + the learner's imports": "the training process",
    "  + model, adapters and data: ready to train": "  + the learner's imports",
}


def measure(lines: Mapping[str, str], runs: int) -> dict[str, tuple[float, float]]:
    """Median wall and CPU seconds of each line, taken in turns; a first turn fills the caches and does not count."""
    taken: dict[str, list[tuple[float, float]]] = {line: [] for line in lines}
    server = fork_server.start()
    address = os.environ.pop(fork_server.ADDRESS, "")
    for turn in range(runs + 1):
        for line, code in lines.items():
            spent = timed(python("-W", "ignore", "-c", code, address))
            if turn:
                taken[line].append(spent)
    if server:
        server.communicate()
    return {line: tuple(map(statistics.median, zip(*spent, strict=True))) for line, spent in taken.items()}


def run(runs: int) -> None:
    """Measure and print."""
    seconds = measure(LINES, runs)
    torch_wall, torch_cpu = seconds["torch"]
    rows = []
    for line, (wall, cpu) in seconds.items():
        before = seconds[BEFORE[line]] if line in BEFORE else (0.0, 0.0)
        part = (f"{wall - before[0]:.2f}", f"{cpu - before[1]:.2f}") if line in BEFORE else ("", "")
        rows.append((line, f"{wall:.2f}", f"{cpu:.2f}", *part, f"{wall / torch_wall:.2f}", f"{cpu / torch_cpu:.2f}"))
    columns = (
        "up to here",
        "wall (s)",
        "CPU (s)",
        "this part, wall",
        "this part, CPU",
        "/ torch, wall",
        "/ torch, CPU",
    )
    show("Start of a site's process", columns, rows, f"Medians of {runs} starts each, in turns. {NOTE}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="starts of each kind")
    options = parser.parse_args()
    print(machine())
    run(options.runs)


if __name__ == "__main__":
    main()
