# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Attacks on a job by a site, a lead or a server, and what each cost: the tables of the documentation.

    python benchmarks/attacks.py [--only WORD ...] [--write]
    python benchmarks/attacks.py --poisoning      accuracy with each average when one of five sites sends wrong updates

What a site sends in a round goes over FLARE's wire in the simulator, one attack in each round of one job: three sites,
one of them hostile, quorum 2. What was lost is measured against a federation of the other two sites alone. Three groups
start a consortium over mutual TLS. All other attacks meet the real component in this process.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fuzzed_replies
import hostile_files
import hostile_folders
import hostile_handshakes
import hostile_machines
import hostile_participants
import hostile_servers
import poisoning
import repeated_sums
import torch
from hostile_jobs import CLIENT, VARIABLE, Target, app_archive, attacks, job_archive, listener
from hostile_replies import REPLIES, SCORES, UNREFUSED
from measured import JOB, ROOT, machine, sections
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from small_run import FAULTY_SITE, SITES, SMALL, Run, simulate

from fedpeft.core.text import printable
from fedpeft.federate import federate
from fedpeft.flare.admission_components import AdmittedAppDeployer, SubmissionGuard
from fedpeft.protocol.types import SCORE, TRAIN
from fedpeft.site.learner import Learner

RESULTS = ROOT / "benchmarks" / "results" / "attacks.md"
SECRET = "hospital-database-password"
SCHEDULED = ("method.aggregation=fedavg", "schedule.solver=exact", "schedule.budget=4", "schedule.score_samples=8")
LARGE = {
    "nothing large": ("none", True),
    "a tensor of 1 GB": ("giant", True),
    "1000 tensors of 1 MB": ("many tensors", True),
    "a text of 1 GB": ("giant text", True),
    "a tensor of 1 GB, to a server without the limit": ("giant", False),
    "a text of 1 GB, to a server without the limit": ("giant text", False),
}
Row = tuple[str, str, str]
State = Mapping[str, torch.Tensor]


def reply_rows(names: Sequence[str] = tuple(REPLIES)) -> Iterator[Row]:
    """A site's replies to `train`, one attack a round; what no check can refuse has a job of two rounds for itself.

    In the last of forty rounds the learning rate is next to nothing, and so is what such an update moves. In a first
    round the server sends no adapter that an update could start from.
    """
    refused = [name for name in names if name not in UNREFUSED]
    for job in (refused, *((refused[0], name) for name in names if name in UNREFUSED)):
        rounds = [f"training.rounds={len(job)}", f"federation.checkpoints={len(job)}"]
        run = _attacked(job, TRAIN, rounds)
        expected = _others(rounds)
        for number, name in enumerate(job, 1):
            if job is refused or name in UNREFUSED:
                yield f"round {number} of {len(job)}: {name}", *_outcome(run, number, expected)


def score_rows(names: Sequence[str] = tuple(SCORES)) -> Iterator[Row]:
    """A site's replies to `score` in a job with scheduled layers, one attack a round."""
    rounds = [*SCHEDULED, f"training.rounds={len(names)}", f"federation.checkpoints={len(names)}"]
    run = _attacked(names, SCORE, rounds)
    expected = _others(rounds)
    for number, name in enumerate(names, 1):
        yield f"round {number}: {name}", *_outcome(run, number, expected)


def large_rows() -> Iterator[Row]:
    """One reply of 1 GB in round 1 of 2, with and without the server's limit."""
    os.environ["FEDPEFT_GIANT_MB"] = "1000"  # read at the sites
    rounds = ["training.rounds=2", "federation.checkpoints=2"]
    expected = _others(rounds)
    for name, (fault, limited) in LARGE.items():
        with tempfile.TemporaryDirectory() as scratch:
            peak = Path(scratch) / "peak"
            run = simulate(
                Path(scratch),
                ["federation.quorum=2", *rounds],
                executor=("faulty_executor.FaultyExecutor", {"faults": {"1": fault}, "faulty_site": FAULTY_SITE}),
                aggregator=("server_memory.MeasuredAggregator", {"file": str(peak), "limited": limited}),
            )
            what, lost = _outcome(run, 1, expected)
            used = f"{int(peak.read_text()) / 1e9:.2f} GB" if peak.exists() else "not measured"
        yield name, what, f"{lost}; {len(run.rounds)} of 2 rounds finished; largest memory of the server {used}"


def job_rows() -> Iterator[Row]:
    """A lead's or a server's job that reads from the machine that parses it."""
    SubmissionGuard()
    site = AdmittedAppDeployer()
    os.environ[VARIABLE] = SECRET
    for attack in attacks():
        with tempfile.TemporaryDirectory() as scratch, listener() as (url, seen), _logged() as log:
            job = shutil.copytree(ROOT / "jobs" / JOB, Path(scratch) / JOB)
            file = Path(scratch) / "secret.env"
            file.write_text(f'adapter = "{SECRET}"')
            meta = json.loads((job / "meta.json").read_text())
            attack.change(job, Target(file=file, url=url))
            # by a site, which gets meta parsed
            unseen = not attack.at_site or ((job / CLIENT).exists() and not (job / "meta.json").exists())
            meta = json.loads((job / "meta.json").read_text()) if (job / "meta.json").exists() else meta
            valid, at_server, _ = JobMetaValidator().validate(job.name, job_archive(job))
            at_site = None if unseen else site.deploy(None, "id", meta, "app", app_archive(job), None)
        answers = {"server": "admitted" if valid else at_server}
        if not unseen:
            answers["site"] = at_site or "deployed"
        what = _by_answer(answers)
        leaked = [place for place, text in (("answer", what), ("log", log.getvalue())) if SECRET in text]
        leaked += ["listening address"] * bool(seen)
        yield attack.name, what, f"a value reached the {', '.join(leaked)}" if leaked else "nothing"


def sum_rows() -> Iterator[Row]:
    """Jobs that differ at one site, where only sums leave."""
    yield from hostile_servers.sum_rows()
    yield from repeated_sums.rows()


GROUPS: dict[str, tuple[str, Callable[[], Iterator[Row]]]] = {
    "replies": ("What a site sends in place of its adapter (simulator)", reply_rows),
    "scores": ("What a site sends in place of its layer scores (simulator)", score_rows),
    "lengths": (
        "Sites that hardly move, move too far in every round, or lie about figures (in this process)",
        poisoning.rows,
    ),
    "large": ("What a site sends that is too large (simulator)", large_rows),
    "handshakes": ("What a site claims in the handshake (in this process)", hostile_handshakes.rows),
    "jobs": ("Jobs that read from the machine that parses them (in this process)", job_rows),
    "settings": ("Jobs that set what only the site decides (in this process)", hostile_servers.settings_rows),
    "sums": ("Two secure sums that differ at one site (in this process)", sum_rows),
    "fuzz": ("Malformed hellos, scores and adapters, drawn with a seed (in this process)", fuzzed_replies.rows),
    "parquet": ("Parquet and Arrow files of a stranger (a process for each)", hostile_files.parquet_rows),
    "xml": ("Open-I's reports, of a stranger (a process for each)", hostile_files.xml_rows),
    "safetensors": ("An adapter's file, of a stranger (a process for each)", hostile_files.tensor_rows),
    "images": ("DICOM and PNG of a stranger (a process for each)", hostile_files.image_rows),
    "folders": ("Run folders, exports, ledgers and visitors of the live page (on this machine)", hostile_folders.rows),
    "orders": ("A server whose orders the job does not provide for (in this process)", hostile_servers.order_rows),
    "participants": ("Sites and servers that lie, over mutual TLS (a consortium)", hostile_participants.rows),
    "majorities": (
        "Sites that the others cannot outvote, or whose adapter all start from, over mutual TLS (a consortium)",
        hostile_participants.majority_rows,
    ),
    "machines": ("Machines where something is wrong, over mutual TLS (a consortium)", hostile_machines.rows),
}


def _by_answer(answers: Mapping[str, str]) -> str:
    """Each answer once, after those who gave it."""
    who = {text: " and ".join(name for name, own in answers.items() if own == text) for text in answers.values()}
    return " ".join(f"{names}: {text}" for text, names in who.items())


def _attacked(names: Sequence[str], task: str, overrides: Sequence[str]) -> Run:
    attacker = ("hostile_replies.Attacker", {"faulty_site": FAULTY_SITE, "attacks": list(names), "task": task})
    with tempfile.TemporaryDirectory() as scratch:
        return simulate(Path(scratch), ["federation.quorum=2", *overrides], executor=attacker)


def _others(overrides: Sequence[str]) -> list[State]:
    """The global adapter after each round of the sites that do no harm."""
    chosen = sections([*SMALL, *overrides])
    with tempfile.TemporaryDirectory() as scratch:
        sites = [site for site in SITES if site != FAULTY_SITE]
        learners = {site: Learner.from_sections(chosen, site=site, folder=Path(scratch) / site) for site in sites}
        return [result.state for result in federate(learners)]


def _outcome(run: Run, number: int, expected: Sequence[State]) -> tuple[str, str]:
    """What the manifest says of a round, and what is missing beside the federation of the other two."""
    if number > len(run.rounds):
        return run.manifest.get("reason", "nothing").replace("\n", " "), "the job ended before this round"
    faults = [fault["what"] for fault in run.manifest["faults"] if fault["round"] == number]
    replies = len(run.rounds[number - 1]["sites"])
    differs = [n for n in range(1, number + 1) if not _same(run.states[n], expected[n - 1])]
    if not differs:
        state = "the global adapter is that of the other two to the bit"
    elif differs[0] < number:
        state = f"the global adapter differs from that of the other two since round {differs[0]}"
    else:
        state = f"the global adapter is {_distance(run.states[number], expected[number - 1]):.2g} away from that of the"
        state += " other two, relative to its norm"
    lost = f"{len(SITES) - replies} of {len(SITES)} replies" if replies < len(SITES) else "no reply"
    return "; ".join(faults) or "nothing was noticed", f"{lost}; {state}"


def _same(state: State, expected: State) -> bool:
    return state.keys() == expected.keys() and all(torch.equal(state[key], expected[key]) for key in expected)


def _distance(state: State, expected: State) -> float:
    """The norm of the difference, relative to that of the expected adapter."""
    apart = sum(float((state[key].double() - expected[key].double()).square().sum()) for key in expected)
    return (apart / sum(float(tensor.double().square().sum()) for tensor in expected.values())) ** 0.5


@contextlib.contextmanager
def _logged() -> Iterator[io.StringIO]:
    """All that is logged meanwhile, which nothing else prints."""
    text = io.StringIO()
    handler, root = logging.StreamHandler(text), logging.getLogger()
    before, root.handlers = root.handlers, [handler]
    try:
        yield text
    finally:
        root.handlers = before


def table(title: str, rows: Iterator[Row]) -> Iterator[str]:
    """Markdown lines of one group."""
    yield f"\n## {title}\n\n| what was done | what happened | what was lost |\n|---|---|---|"
    for row in rows:
        yield "| " + " | ".join(_cell(text) for text in row) + " |"


def replaced(page: str, title: str, section: str) -> str:
    """The page of results with this section in place of the one of the same title, or at its end."""
    before, _, after = page.partition(f"\n## {title}\n")
    rest = after[after.index("\n## ") :] if "\n## " in after else ""
    return f"{before.rstrip()}\n{section}\n{rest}"


def _cell(text: Any) -> str:
    return printable(str(text)).replace("|", "\\|").replace("\n", " ").strip()


def main() -> None:
    """Read the command line, attack, and print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(GROUPS), choices=GROUPS, metavar="WORD", help=str([*GROUPS]))
    parser.add_argument("--write", action="store_true", help=f"replace the tables in {RESULTS.relative_to(ROOT)}")
    parser.add_argument("--poisoning", action="store_true", help="measure what wrong updates do to the accuracy")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of training, for --poisoning")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="for --poisoning")
    options = parser.parse_args()
    if options.poisoning:
        poisoning.run(options.set, options.seeds)
        return
    print(machine())
    for name in options.only:
        print(name, file=sys.stderr, flush=True)
        title, rows = GROUPS[name]
        lines = []
        for line in table(title, rows()):
            print(line, flush=True)
            lines.append(line)
        if options.write:
            RESULTS.write_text(replaced(RESULTS.read_text(), title, "\n".join(lines)))


if __name__ == "__main__":
    main()
