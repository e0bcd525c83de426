# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a GPU changes, in one call of a quarter of an hour; nothing is downloaded.

    python benchmarks/gpu.py                          # on a card
    python benchmarks/gpu.py --write                  # and keeps the figures for `python benchmarks/publish.py --write`
    python benchmarks/gpu.py --write --parts steps    # of one table or row; others of that day and card stay
    python benchmarks/gpu.py --device cpu --small     # tiny shapes without a card, to try the script out

Steps of ViLT-B and ViT-B beside PEFT's and FedDAT's in float32 and bfloat16; a round of a site with LLaVA-1.5-7B's
shape in bfloat16, and in four bits where bitsandbytes is installed; the memory budget beside the allocator; a job with
`device: cuda` in the pool, with one and several sites on the card, and in FLARE's simulator; every method, score and
way to compute for a round on the card beside the same round on the CPU. All weights at full size are random.

Each row is a process of its own. A row that fails says why, the others go on, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import every_method
import psutil
import training
from measured import JOB, ROOT, machine, python
from result_table import ResultTable
from rich.console import Console

from fedpeft import importance
from fedpeft.job.composing import compose

RESULTS = ROOT / "benchmarks" / "results" / "gpu.json"
MIB = 2**20
Figures = dict[str, Any]
FEW = ("PEFT LoRA", "lora, less", "ViT, PEFT LoRA", "ViT, lora, less")
STEPS = (
    *FEW,
    "PEFT LoRA, bf16",
    "lora, less, bf16",
    "FedDAT",
    "feddat, less",
    "FedDAT, bf16",
    "feddat, less, bf16",
    "houlsby, less",
    "ViT, PEFT LoRA, bf16",
    "ViT, lora, less, bf16",
    "lora, less, compiled",
    "lora, less, bf16, compiled",
    "feddat, less, compiled",
)
FIRST = ("pool", 1)  # engine and sites at a time of the row that the other rows of sites are compared with
SCORING = "f3ocus_task1"
FEDAVG = ["method.aggregation=fedavg"]
COMPUTING = {
    "attention: fused": ["training.attention=fused"],
    "last_layer: first_token": ["training.last_layer=first_token"],
    "checkpointing": ["training.checkpointing=true"],
    "micro_batch": ["training.micro_batch=4"],
    "features_mib": ["training.features_mib=64", "method.name=classifier", "method.aggregation=none"],
    "compile": ["training.compile=true"],
    "bfloat16": ["training.precision=bfloat16", "training.frozen_precision=bfloat16"],
    "ditto": [*FEDAVG, "training.personalization=ditto"],
    "fedala": [*FEDAVG, "training.personalization=fedala"],
    "moon": ["training.moon_mu=1"],
    "scaffold": [*FEDAVG, "training.optimizer=sgd", "training.scaffold=true"],
    "krum": [*FEDAVG, "method.robust.average=krum"],
    "fixed point": ["method.aggregation=pia", "method.pia.reference=fixed_point"],
}
BESIDE: dict[str, dict[str, tuple[str, list[str]]]] = {  # what is compared -> run -> its job and settings
    "methods": {
        name: (JOB, settings) for name, settings in every_method.EVERY.items() if not name.endswith("centralized")
    },
    "scores": {name: (SCORING, ["schedule.solver=own", f"schedule.score={name}"]) for name in importance.names()},
    "ways to compute": {name: (JOB, settings) for name, settings in COMPUTING.items()},
    "backbones": {
        "ViT": ("vit_ham10000", []),
        "ALBEF": ("fedpia_task1_albef", []),
        "labels": ("fedpia_task4", []),
        "ranking": (JOB, ["backbone.name=tiny-albef-decoder", "training.answering=ranking"]),
    },
}


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Args:
        part: the table.
        call: from the command line and the folder of this run to the figures.
        missing: why it is not measured here; empty: it is.
    """

    part: str
    call: Callable[[argparse.Namespace, Path], Figures]
    missing: str = ""


def step(name: str, options: argparse.Namespace, scratch: Path) -> Figures:
    """A training step of a row of training.py."""
    del scratch
    sizes = (
        {"samples": 2, "tokens": 5, "classes": 5} if options.small else {"samples": 16, "tokens": 40, "classes": 500}
    )
    chosen = argparse.Namespace(tiny=options.small, threads=1, device=options.device, **sizes)
    wall, _, peak, held = training.measure(name, chosen)
    return {"seconds": wall, "samples": chosen.samples, "peak": peak, "held": held}


def full_size(frozen: str, options: argparse.Namespace, scratch: Path) -> Figures:
    """A round of a site with the shape of LLaVA-1.5-7B."""
    del scratch
    import full_size_round
    import torch

    small = ["--backbone", "vilt-b", "--layers", "1", "--samples", "2", "--batch-size", "1"] if options.small else []
    chosen = full_size_round.parsed(["--device", options.device, "--frozen", frozen, *small])
    took = full_size_round.measure(chosen, torch.device(options.device))
    return {"batch": chosen.batch_size, **took._asdict()}


def budget(options: argparse.Namespace, scratch: Path) -> Figures:
    """What the memory budget charges beside what a step takes."""
    del scratch
    import memory
    import torch

    chosen = argparse.Namespace(full_size=not options.small, samples=16, classes=20, seed=0)
    taken = memory.measure(chosen, torch.device(options.device))
    charged = {choice: fixed + float(costs.sum()) for choice, (fixed, costs) in taken.pop("charged").items()}
    return {"charged": charged, **taken}


def federation(engine: str, at_once: int, options: argparse.Namespace, scratch: Path) -> Figures:
    """A job of several sites through an engine, whose adapter is compared with that of the first of these rows."""
    import torch
    import virtual_clients
    from safetensors.torch import load_file

    folder = scratch / f"{engine}-{at_once}"
    settings = [
        f"training.device={options.device}",
        f"training.rounds={1 if options.small else 2}",
        *virtual_clients.SMALL,
        *(["federation.sites=[slake,vqa-rad]"] if options.small else virtual_clients.vilt(scratch / "vilt")),
    ]
    line = python("-m", "fedpeft.cli", "simulate", str(ROOT / "jobs" / JOB), "--engine", engine)
    line += ["-t", str(at_once), "-w", str(folder), *(part for one in settings for part in ("--set", one))]
    on_card = options.device == "cuda"
    before = _on_card() if on_card else 0
    look = (lambda _: _on_card() - before) if on_card else virtual_clients.memory
    seconds, _, peak = virtual_clients.watched(line, scratch / f"{folder.name}.log", look)
    run = folder / "server" / "simulate_job" / "fedpeft"
    rounds = json.loads((run / "history.json").read_text())["rounds"]
    state, first = load_file(run / "global.safetensors"), scratch / "first.txt"
    if not first.exists():
        if (engine, at_once) != FIRST:
            raise ValueError(
                f"{engine}, {at_once} at a time, is compared with the first row: measure both in one call."
            )
        first.write_text(str(run / "global.safetensors"))
    expected = load_file(first.read_text())
    apart = max(float((state[key] - expected[key]).abs().max()) for key in expected)
    largest = max(float(tensor.abs().max()) for tensor in expected.values())
    equal = all(torch.equal(state[key], expected[key]) for key in expected)
    in_rounds = sum(one["seconds"] for one in rounds)
    return {"seconds": seconds, "rounds": in_rounds, "peak": peak, "apart": apart / largest, "equal": equal}


def beside_cpu(group: str, options: argparse.Namespace, scratch: Path) -> Figures:
    """A round of two sites on the device and on the CPU, of every run of a group; each run in one of the processes."""
    del scratch
    runs = dict(list(BESIDE[group].items())[:1]) if options.small else BESIDE[group]
    processes = min(len(runs), os.cpu_count() or 1)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        made = {name: pool.submit(two_devices, *one, options.device) for name, one in runs.items()}
        found = {name: future.exception() or future.result() for name, future in made.items()}
    return {
        "runs": {name: one for name, one in found.items() if not isinstance(one, BaseException)},
        "failed": {
            name: f"{type(one).__name__}: {one}".splitlines()[0]
            for name, one in found.items()
            if isinstance(one, BaseException)
        },
    }


def two_devices(job: str, settings: Sequence[str], device: str) -> Figures:
    """How far the adapter and the loss of a round on the device lie from the CPU's, as a share; and their layers."""
    import torch
    import virtual_clients

    from fedpeft.federate import federate
    from fedpeft.site.learner import Learner

    torch.set_num_threads(1)
    ends = []
    for place in ("cpu", device):
        small = (*virtual_clients.SMALL, "method.probe_samples=8", "training.rounds=1", f"training.device={place}")
        sections = compose(ROOT / "app_configs", job, [*settings, *small])
        with tempfile.TemporaryDirectory() as folder:
            learners = {
                site: Learner.from_sections(sections, site=site, folder=Path(folder) / site)
                for site in sections["federation"]["sites"][:2]
            }
            ends.append(list(federate(learners))[-1])
    cpu, other = ends
    expected, state = (
        torch.cat([torch.zeros(1), *(one.state[key].cpu().flatten() for key in sorted(cpu.state))]) for one in ends
    )
    losses = [other.updates[site].metrics["loss"] / one.metrics["loss"] - 1 for site, one in cpu.updates.items()]
    return {
        "apart": float((state - expected).norm() / expected.norm().clamp(min=1e-12)),
        "loss": max(map(abs, losses)),
        "layers": cpu.assignment is None or cpu.assignment.layers == other.assignment.layers,
    }


def _on_card() -> int:
    """Bytes of the card that are taken, by whatever process."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free


def rows(options: argparse.Namespace) -> dict[str, Row]:
    """Name -> row, the most wanted first: the limit of time ends the last ones."""
    at_once = 2 if options.small else 4
    four_bits = "" if find_spec("bitsandbytes") else "not installed: pip install flare-fedpeft[quantized]"
    shape = "ViLT-B, one layer" if options.small else "LLaVA-1.5-7B"
    return {
        **{name: Row("steps", partial(step, name)) for name in (FEW if options.small else STEPS)},
        f"{shape}, bfloat16": Row("round", partial(full_size, "bfloat16")),
        f"{shape}, four bits": Row("round", partial(full_size, "nf4"), four_bits),
        "Houlsby adapters": Row("memory", budget),
        "pool, a site at a time": Row("sites", partial(federation, *FIRST)),
        f"pool, {at_once} sites at a time": Row("sites", partial(federation, "pool", at_once)),
        f"FLARE's simulator, {at_once} at a time": Row("sites", partial(federation, "flare", at_once)),
        **{group: Row("beside the CPU", partial(beside_cpu, group)) for group in BESIDE},
    }


def measured(name: str, row: Row, options: argparse.Namespace, scratch: Path, deadline: float) -> Figures:
    """The figures of a row, from a process of its own; or `problem`, why there are none."""
    if row.missing:
        return {"missing": row.missing}
    late = f"--minutes {options.minutes:g} were over"
    if (left := deadline - time.monotonic()) <= 0:
        return {"problem": f"not begun: {late}."}
    result = scratch / "row.json"
    result.unlink(missing_ok=True)
    line = [sys.executable, __file__, "--device", options.device, "--row", name, str(scratch)]
    log = scratch / "row.log"
    with log.open("wb") as output:
        running = subprocess.Popen([*line, *["--small"] * options.small], stdout=output, stderr=subprocess.STDOUT)
        try:
            code = running.wait(left)
        except subprocess.TimeoutExpired:
            return {"problem": f"ended before its end: {late}."}
        finally:
            _end(running)
    if code == 0 and result.exists():
        return json.loads(result.read_text())
    said = [one.strip() for one in log.read_text(errors="replace").splitlines() if one.strip()]
    return {"problem": f"{said[-1] if said else 'it printed nothing'} (exit code {code})"}


def _end(running: subprocess.Popen) -> None:
    """End a process and all that it started; one that has ended has nothing left."""
    if running.poll() is not None:
        return
    family = psutil.Process(running.pid)
    for one in (*family.children(recursive=True), family):
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    running.wait()


def tables(results: Mapping[str, Any]) -> list[ResultTable]:
    """The figures of a run; a table whose rows were not measured is left out."""
    parts: dict[str, dict[str, Figures]] = {}
    for name, part, figures in results["rows"]:
        parts.setdefault(part, {})[name] = figures
    made = [TABLES[part](named, results["small"]) for part, named in parts.items()]
    return [table for table in made if table.rows]


def reasons(results: Mapping[str, Any]) -> list[str]:
    """Why rows have no figures, a sentence for each."""
    given = [(name, figures.get("missing") or figures.get("problem")) for name, _, figures in results["rows"]]
    given += [(name, why) for *_, figures in results["rows"] for name, why in figures.get("failed", {}).items()]
    return [f"{name}: {reason}" for name, reason in given if reason]


def _taken(named: Mapping[str, Figures]) -> dict[str, Figures]:
    return {name: one for name, one in named.items() if not {"missing", "problem"} & one.keys()}


def _steps(named: Mapping[str, Figures], small: bool) -> ResultTable:
    taken, lines = _taken(named), []
    for name, one in taken.items():
        theirs = taken.get(training.ROWS[name].theirs)
        beside = ("-", "-")
        if theirs:
            growth = (one["peak"] - one["held"]) / max(theirs["peak"] - theirs["held"], 1e-9)
            beside = f"{theirs['seconds'] / one['seconds']:.2f}", f"{growth:.2f}"
        speed = one["samples"] / one["seconds"]
        lines.append((name, f"{speed:.1f}", beside[0], f"{one['peak']:.0f}", beside[1]))
    title = f"A training step, {'tiny shapes' if small else 'ViLT-B and ViT-B, batch 16'}"
    return ResultTable(title, ("step", "samples / s", "times as fast", "peak MiB", "growth"), lines)


def _round(named: Mapping[str, Figures], small: bool) -> ResultTable:
    del small
    lines = [
        (
            name,
            f"{one['frozen']:.0f}",
            f"{one['step']:.2f}",
            f"{one['batch'] / one['step']:.1f}",
            f"{one['round']:.1f}",
            f"{one['peak']:.0f}",
        )
        for name, one in _taken(named).items()
    ]
    heads = ("a round of one site", "frozen MiB", "s a step", "samples / s", "s a round", "peak MiB")
    return ResultTable("A round at full size, Houlsby adapters", heads, lines)


def _memory(named: Mapping[str, Figures], small: bool) -> ResultTable:
    lines = [
        (name, *(f"{size / MIB:.0f}" for size in (*one["charged"].values(), one["grown"], one["tensors"])))
        for name, one in _taken(named).items()
    ]
    heads = ("step", "charged, any", "charged, last", "memory grows by", "tensors at the peak")
    return ResultTable(f"The memory budget, {'tiny ViLT' if small else 'ViLT-B'}, batch 16, MiB", heads, lines)


def _sites(named: Mapping[str, Figures], small: bool) -> ResultTable:
    lines = [
        (
            name,
            f"{one['seconds']:.0f}",
            f"{one['rounds']:.0f}",
            f"{one['peak']:.1f}",
            "the same bytes" if one["equal"] else f"{one['apart']:.1e} of the largest value apart",
        )
        for name, one in _taken(named).items()
    ]
    heads = (JOB, "seconds", "in the rounds", "GiB at most", "adapter, beside the first row's")
    return ResultTable("Two sites, a round, tiny ViLT" if small else "Five sites, two rounds, ViLT-B", heads, lines)


def _beside(named: Mapping[str, Figures], small: bool) -> ResultTable:
    del small
    lines = []
    for group, one in _taken(named).items():
        runs = one["runs"]
        farthest = max(runs, key=lambda name: runs[name]["apart"], default="-")
        lines.append(
            (
                group,
                f"{len(runs)} of {len(runs) + len(one['failed'])}",
                _share(sorted(run["apart"] for run in runs.values())[len(runs) // 2] if runs else 0),
                f"{_share(runs[farthest]['apart'] if runs else 0)} ({farthest})",
                _share(max((run["loss"] for run in runs.values()), default=0)),
                str(sum(not run["layers"] for run in runs.values())),
            )
        )
    heads = ("", "ran", "adapters apart, median", "at most", "losses apart at most", "other layers chosen")
    return ResultTable("A round of two sites on the device beside the CPU, tiny backbones", heads, lines)


def _share(value: float) -> str:
    return f"{value:.0e}"


TABLES: dict[str, Callable[[Mapping[str, Figures], bool], ResultTable]] = {
    "steps": _steps,
    "round": _round,
    "memory": _memory,
    "sites": _sites,
    "beside the CPU": _beside,
}


def section(file: Path) -> str:
    """The tables of the kept results for a page; empty: there are none."""
    if not file.exists():
        return ""
    results = json.loads(file.read_text())
    measured_on = results["machine"].replace("\n", "  \n")
    return "\n\n".join((measured_on, *(one.section() for one in tables(results)), *reasons(results)))


def _kept(results: Mapping[str, Any]) -> list[Any]:
    """The other rows of the kept results, where they are of the same day, machine and sizes."""
    if not RESULTS.exists():
        return []
    before = json.loads(RESULTS.read_text())
    same = _place(before) == _place(results) and before["small"] == results["small"]
    return before["rows"] if same else []


def _place(results: Mapping[str, Any]) -> list[str]:
    """What was measured on, without how busy it was."""
    return [line.partition(", load")[0] for line in results["machine"].splitlines()]


def card(device: str) -> str:
    """The device in words."""
    import torch

    if device != "cuda":
        return device
    known = torch.cuda.get_device_properties(0)
    return f"{known.name}, {known.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="tiny shapes")
    parser.add_argument("--parts", nargs="+", default=list(TABLES), help="names of tables and rows")
    parser.add_argument("--minutes", type=float, default=20, help="after which no row goes on")
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results/gpu.json")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where a row has failed."""
    options = parsed(arguments)
    named = rows(options)
    if unknown := set(options.parts) - {*TABLES, *named}:
        print(f"{sorted(unknown)} is neither a table nor a row: {[*TABLES, *named]}.", file=sys.stderr)
        return 1
    if options.row:
        name, scratch = options.row
        figures = named[name].call(options, Path(scratch))
        (Path(scratch) / "row.json").write_text(json.dumps(figures))
        return 0
    if options.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            print("torch finds no CUDA device here: --device cpu --small tries the script out.", file=sys.stderr)
            return 1
    deadline = time.monotonic() + 60 * options.minutes
    results: dict[str, Any] = {"machine": f"{machine()}\n{card(options.device)}", "small": options.small, "rows": []}
    print(results["machine"], flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, row in named.items():
            if not {row.part, name} & set(options.parts):
                continue
            figures = measured(name, row, options, Path(scratch), deadline)
            results["rows"].append((name, row.part, figures))
            print(f"{name}: {figures.get('missing') or figures.get('problem') or 'measured'}", flush=True)
    console = Console(width=118, highlight=False)
    for table in tables(results):
        console.print(table.table())
    for reason in reasons(results):
        print(reason)
    failed = any("problem" in figures or figures.get("failed") for *_, figures in results["rows"])
    if options.write:
        every, no_figures = {row[0]: row for row in _kept(results)}, {"problem", "missing"}
        today = {row[0] for row in results["rows"]}
        every = {name: row for name, row in every.items() if name not in today or not no_figures & row[2].keys()}
        every |= {row[0]: row for row in results["rows"] if row[0] not in every or not no_figures & row[2].keys()}
        results["rows"] = [every[name] for name in named if name in every]
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
