# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Faults of a site brought about in real simulator runs, and what each cost: the table of the documentation.

    python benchmarks/faults.py [--only WORD ...] [--set SECTION.NAME=VALUE]

Three sites, three rounds, few samples. One site misbehaves in round 2; all others do as they should. What was lost is
measured against the same job without the fault: its rounds, its replies, and its final adapter to the bit.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured import JOB, machine, sections

from fedpeft.jobs import write_job
from fedpeft.workspace import KEY, RESOURCES, resources

SITES = ("slake", "vqa-rad", "vqa-med-2019")
CULPRIT, ROUND, ROUNDS = "vqa-rad", 2, 3
ALL, TWO = 0, 2
SMALL = (
    f"federation.sites=[{', '.join(SITES)}]",
    "federation.round_timeout=300",
    "federation.grace=20",
    f"training.rounds={ROUNDS}",
    "method.probe_samples=8",
    "data.train_size=32",
    "data.validation_size=4",
    "data.test_size=16",
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a job ended: its manifest, its finished rounds and its final tensors."""

    manifest: dict[str, Any]
    rounds: list[dict[str, Any]]
    tensors: bytes


def simulate(deed: str, quorum: int, overrides: Iterable[str], folder: Path) -> Run:
    """Run the small job in the simulator with one deed in it.

    Args:
        deed: one of `saboteur.py`; empty for none.
        quorum: replies that a round needs; 0 for all.
        overrides: settings to change.
        folder: an empty one.

    Raises:
        RuntimeError: the job left no manifest.
    """
    job = folder / "job"
    write_job(job, JOB, sections([*SMALL, f"federation.quorum={quorum}", *overrides]))
    file = job / "app" / "config" / "config_fed_client.json"
    config = json.loads(file.read_text())
    executor = config["executors"][0]["executor"]
    executor["path"] = "saboteur.Saboteur"
    executor["args"] |= {"deed": deed, "culprit": CULPRIT, "round": ROUND}
    file.write_text(json.dumps(config))
    local = folder / "workspace" / "local"
    local.mkdir(parents=True)
    allowed = resources()
    allowed[KEY].append("saboteur.")
    (local / RESOURCES).write_text(json.dumps(allowed))
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "fedpeft.cli", "simulate", str(job), "-t", str(len(SITES))]
    command += ["-w", str(folder / "workspace")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, check=False)
    results = folder / "workspace" / "server" / "simulate_job" / "fedpeft"
    if not (results / "manifest.json").exists():
        raise RuntimeError(f"{deed!r} left no manifest:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    manifest = json.loads((results / "manifest.json").read_text())
    if (done.returncode == 0) != (manifest["status"] == "completed"):
        raise RuntimeError(f"{deed!r}: exit code {done.returncode}, but the manifest says {manifest['status']}.")
    history, tensors = results / "history.json", results / "global.safetensors"
    return Run(
        manifest=manifest,
        rounds=json.loads(history.read_text())["rounds"] if history.exists() else [],
        tensors=tensors.read_bytes() if tensors.exists() else b"",
    )


def happened(run: Run) -> str:
    """What the manifest says, in its own words."""
    said = [f"site {fault['site']}, round {fault['round']}: {fault['what']}" for fault in run.manifest["faults"]]
    return run.manifest.get("reason") or "; ".join(said) or "nothing was noticed"


def lost(run: Run, sound: Run) -> str:
    """What is missing from a run beside the same one without the fault."""
    if run.manifest["status"] != "completed":
        return f"the job from round {len(run.rounds) + 1} on; {len(run.rounds)} of {len(sound.rounds)} rounds are kept"
    replies = sum(len(entry["sites"]) for entry in run.rounds)
    wanted = sum(len(entry["sites"]) for entry in sound.rounds)
    repeated = sum(site["attempts"] - 1 for entry in run.rounds for site in entry["sites"].values())
    if replies < wanted:
        return f"{wanted - replies} of {wanted} replies; all {len(run.rounds)} rounds finished"
    same = "the final adapter is the same to the bit" if run.tensors == sound.tensors else "the final adapter differs"
    return f"the time of {repeated} repeated local round{'s' * (repeated != 1)}; {same}"


Fault = Callable[[Iterable[str], Path, Run], tuple[str, str]]


def in_simulator(deed: str, quorum: int) -> Fault:
    """A fault that a site commits: from settings, an empty folder and the sound run to what happened and was lost."""

    def bring_about(overrides: Iterable[str], folder: Path, sound: Run) -> tuple[str, str]:
        run = simulate(deed, quorum, overrides, folder)
        return happened(run), lost(run, sound)

    return bring_about


# A fault of another kind, say of the server or of a certificate, is one more row: a function of the same kind.
FAULTS: dict[str, Fault] = {
    "kill -9 of a site's training process, once": in_simulator("kill once", ALL),
    "kill -9 of a site's training process, twice; quorum 2 of 3": in_simulator("kill", TWO),
    "kill -9 of a site's training process, twice; quorum all": in_simulator("kill", ALL),
    "a site's training hangs; quorum 2 of 3, grace 20 s": in_simulator("hang", TWO),
    "an exception in a site's training, twice; quorum 2 of 3": in_simulator("raise", TWO),
    "out of GPU memory at a site, twice; quorum 2 of 3": in_simulator("out of memory", TWO),
    "a site sends NaN; quorum 2 of 3": in_simulator("nan", TWO),
    "a site sends a tensor of another shape; quorum 2 of 3": in_simulator("shape", TWO),
    "a site sends a tensor too many; quorum 2 of 3": in_simulator("extra", TWO),
    "a site sends no tensors; quorum 2 of 3": in_simulator("no tensors", TWO),
    "a site sends an empty reply; quorum 2 of 3": in_simulator("empty", TWO),
    "a site sends NaN; quorum all": in_simulator("nan", ALL),
}


def main() -> None:
    """Read the command line, run, and print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="faults whose name holds one of these")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    options = parser.parse_args()
    chosen = {name: fault for name, fault in FAULTS.items() if any(word in name for word in options.only)}
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as scratch:
        sound = simulate("", ALL, options.set, _folder(scratch, "sound"))
    if sound.manifest["status"] != "completed" or sound.manifest["faults"]:
        raise RuntimeError(f"the job without a fault failed: {happened(sound)}")
    print("| fault | what happened | what was lost |\n|---|---|---|", flush=True)
    for name, fault in chosen.items():
        with tempfile.TemporaryDirectory() as scratch:
            what, cost = fault(options.set, _folder(scratch, "run"), sound)
        print(f"| {name} | {what} | {cost} |", flush=True)


def _folder(scratch: str, name: str) -> Path:
    folder = Path(scratch) / name
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main()
