# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Faults caused in real runs, and what each cost: the table of the documentation.

    python benchmarks/faults.py [--only WORD ...] [--set SECTION.NAME=VALUE]

Three sites, three rounds, few samples. One site, or the server, fails in round 2; all others do as they should. All
runs are of the simulator, except those in a consortium: server and sites over mutual TLS on this machine. What
was lost is measured against the same job without the fault: its rounds, its replies, its final adapter to the bit.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from consortium_faults import end_by, in_a_consortium, kill_again_and_again
from measured import machine
from small_run import FAULTY_SITE, GRACE, Run, simulate

ROUND, ROUNDS = 2, 3
ALL, TWO = 0, 2
OWN = "FLARE's own process at a site of a consortium"


def happened(run: Run) -> str:
    """What the manifest says, in its own words."""
    said = []
    for fault in run.manifest.get("faults", []):
        named = "" if fault["site"] in fault["what"] else f", site {fault['site']}"
        said.append(f"round {fault['round']}{named}: {fault['what'].rstrip('.')}")
    return (run.manifest.get("reason") or "; ".join(said) or "nothing was noticed").replace("\n", " ")


def lost(run: Run, sound: Run) -> str:
    """What is missing from a run beside the same one without the fault."""
    if run.manifest["status"] != "completed":
        return f"the job from round {len(run.rounds) + 1} on; {len(run.rounds)} of {len(sound.rounds)} rounds are kept"
    if len(run.rounds) < len(sound.rounds):
        return f"{len(sound.rounds) - len(run.rounds)} rounds"
    replies = sum(len(entry["sites"]) for entry in run.rounds)
    wanted = sum(len(entry["sites"]) for entry in sound.rounds)
    repeated = sum(site["attempts"] - 1 for entry in run.rounds for site in entry["sites"].values())
    if replies < wanted:
        return f"{wanted - replies} of {wanted} replies; all {len(run.rounds)} rounds finished"
    same = "the final adapter is the same to the bit" if run.tensors == sound.tensors else "the final adapter differs"
    return f"{repeated} local round{'s' * (repeated != 1)} done twice, nothing else: {same}" if repeated else same


Fault = Callable[[Iterable[str], Path, Run], tuple[str, str]]


def of_a_site(fault: str, quorum: int) -> Fault:
    """A fault that a site commits: from settings, an empty folder and the sound run to what happened and was lost."""

    def bring_about(overrides: Iterable[str], folder: Path, sound: Run) -> tuple[str, str]:
        faulty_executor = (
            "faulty_executor.FaultyExecutor",
            {"faults": {str(ROUND): fault}, "faulty_site": FAULTY_SITE},
        )
        run = simulate(folder, [f"federation.quorum={quorum}", *overrides], executor=faulty_executor)
        return happened(run), lost(run, sound)

    return bring_about


def of_the_server(overrides: Iterable[str], folder: Path, sound: Run) -> tuple[str, str]:
    """The server's process is killed, and the job submitted again with `resume_from=latest`."""
    crashing = ("faulty_executor.CrashingAggregator", {"round": ROUND, "marker": str(folder / "killed")})
    killed = simulate(folder, overrides, aggregator=crashing)
    resumed = simulate(folder, [*overrides, "resume_from=latest"])
    kept = resumed.manifest.get("resumed", {}).get("after_round", 0)
    left = f"no manifest, {len(killed.rounds)} of {len(sound.rounds)} rounds kept"
    return f"{left}; the resumed job went on after round {kept}", lost(resumed, sound)


def in_flare(break_down: Callable, quorum: int) -> Fault:
    """A site's own process of the job breaks down in a consortium."""

    def bring_about(overrides: Iterable[str], folder: Path, sound: Run) -> tuple[str, str]:
        run = in_a_consortium(folder, [f"federation.quorum={quorum}", *overrides], break_down)
        return happened(run), lost(run, sound)

    return bring_about


def of_the_servers_disk(overrides: Iterable[str], folder: Path, sound: Run) -> tuple[str, str]:
    """The server's disk is full from a round on, and the job submitted again with `resume_from=latest`."""
    full = ("faulty_executor.FullDiskAggregator", {"round": ROUND, "marker": str(folder / "full")})
    ended = simulate(folder, overrides, aggregator=full)
    resumed = simulate(folder, [*overrides, "resume_from=latest"])
    kept = resumed.manifest.get("resumed", {}).get("after_round", 0)
    left = f"{happened(ended)} It says {ended.manifest.get('rounds')} of {len(sound.rounds)} rounds"
    return f"{left}; the resumed job went on after round {kept}", lost(resumed, sound)


# A fault of another kind, say of a certificate, is one more row: a function of the same kind.
FAULTS: dict[str, Fault] = {
    "kill -9 of a site's training process, once": of_a_site("kill once", ALL),
    "kill -9 of a site's training process, twice; quorum 2 of 3": of_a_site("kill", TWO),
    "kill -9 of a site's training process, twice; quorum all": of_a_site("kill", ALL),
    f"a site's training hangs; quorum 2 of 3, grace {GRACE} s": of_a_site("hang", TWO),
    "an exception in a site's training, twice; quorum 2 of 3": of_a_site("raise", TWO),
    "torch.OutOfMemoryError in a site's training, twice; quorum 2 of 3": of_a_site("out of memory", TWO),
    "a site sends NaN; quorum 2 of 3": of_a_site("nan", TWO),
    "a site sends NaN; quorum all": of_a_site("nan", ALL),
    "a site sends a tensor of another shape; quorum 2 of 3": of_a_site("shape", TWO),
    "a site sends a tensor too many; quorum 2 of 3": of_a_site("extra", TWO),
    "a site sends no tensors; quorum 2 of 3": of_a_site("no tensors", TWO),
    "a site sends an empty reply; quorum 2 of 3": of_a_site("empty", TWO),
    "kill -9 of FLARE's own process at a site; quorum 2 of 3": of_a_site("kill FLARE's process", TWO),
    "a site's disk is full; quorum 2 of 3": of_a_site("full disk", TWO),
    "kill -9 of the server's process, then resumed": of_the_server,
    f"kill -9 of {OWN}, once; quorum all": in_flare(kill_again_and_again(1), ALL),
    f"kill -9 of {OWN}, and of the three started in its place; quorum 2 of 3": in_flare(kill_again_and_again(4), TWO),
    f"SIGTERM to {OWN}; quorum 2 of 3": in_flare(end_by(signal.SIGTERM), TWO),
    f"{OWN} exits with code 1; quorum 2 of 3": in_flare(end_by(signal.SIGUSR1), TWO),
    f"{OWN} exits with code 1; quorum all": in_flare(end_by(signal.SIGUSR1), ALL),
    "the server's disk is full, then resumed": of_the_servers_disk,
}


def main() -> None:
    """Read the command line, run, and print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="faults whose name holds one of these")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    options = parser.parse_args()
    overrides = [f"training.rounds={ROUNDS}", *options.set]
    chosen = {name: fault for name, fault in FAULTS.items() if any(word in name for word in options.only)}
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as scratch:
        sound = simulate(Path(scratch), overrides)
    if sound.manifest["status"] != "completed" or sound.manifest["faults"]:
        raise RuntimeError(f"the job without a fault failed: {happened(sound)}")
    print("| fault | what happened | what was lost |\n|---|---|---|", flush=True)
    for name, fault in chosen.items():
        print(name, file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            what, cost = fault(overrides, Path(scratch), sound)
        print(f"| {name} | {what} | {cost} |", flush=True)


if __name__ == "__main__":
    main()
