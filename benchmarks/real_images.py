# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The methods of the study on real images: the tasks that fit a laptop, with FEDPEFT_DATA.

    FEDPEFT_DATA=/data python benchmarks/real_images.py                  # what is missing in the results: hours
    FEDPEFT_DATA=/data python benchmarks/real_images.py --tasks vqa_rad --seeds 0
    FEDPEFT_DATA=/data python benchmarks/real_images.py --backbone mmbt-small --methods local fedavg ours
    python benchmarks/real_images.py --table                             # the tables of what is there, without a run
    python benchmarks/publish.py --write                                 # the same in the docs

Every method trains Houlsby adapters with the rounds, steps and learning rate of the task's job, or with `SETTINGS`, and
heads stay at the sites. Two rows are on demand: `fedavg, one head` averages the head too, and `pooled` trains one
adapter on the batches of all sites, with a head for each. A figure is the mean of the sites and the last three rounds,
as in `study.py`, of what the task is measured by. A run is one line of `benchmarks/results/real_images.jsonl`; what is
there is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import json_lines
import learning
import parallel
import study
from measured import ROOT, WIDTH, machine
from result_table import ResultTable
from rich.console import Console

from fedpeft.backbones.mmbt import EncodedImages
from fedpeft.compare.runs import Variant, sections_of
from fedpeft.compare.table import paired, signed

RESULTS = Path(__file__).parent / "results" / "real_images.jsonl"
TASKS = {"vqa_rad": "accuracy %", "fed_isic2019": "balanced accuracy %", "nih_cxr14": "macro-F1 %"}
SEEDS = (0, 1, 2)
BASELINES = ("local", "fedavg")
OWN = ""  # the backbone of the task's job, a tiny one
AS_THEY_COME = "training.sampling=default"  # of the runs with the tiny backbones, which are older than the setting
SETTINGS = {  # beside those of the job, for all rows alike; no grid chose them
    ("mmbt-small", "vqa_rad"): [
        "backbone.image_features=false",
        "training.head_learning_rate=1e-2",
        "training.precision=bfloat16",
    ],
    ("mmbt-small", "fed_isic2019"): ["training.learning_rate=3e-4", "training.head_learning_rate=1e-3"],
    ("mmbt-small", "nih_cxr14"): [
        "training.learning_rate=3e-4",
        "training.head_learning_rate=1e-3",
        "training.thresholds=share",
        "training.precision=bfloat16",
    ],
}
PRETRAINED = tuple(f"{task} {backbone}" for backbone, task in SETTINGS)  # further tables in the docs
ONE_HEAD, POOLED = "fedavg, one head", "pooled"
ROWS = {
    **{name: learning.METHODS[name] for name in study.METHODS},
    ONE_HEAD: ["method.aggregation=fedavg", "method.head=federated"],  # where all sites have the same classes
    POOLED: learning.METHODS[POOLED],
}
ENCODED = EncodedImages()  # of this process, in which runs follow each other
Run = tuple[str, str, int, str]  # task, row of the study, seed, backbone


def run(task: str, method: str, seed: int, backbone: str = OWN) -> dict[str, Any]:
    """The line of a run."""
    overrides = [f"training.seed={seed}", f"data.seed={seed}"]
    overrides += [f"backbone.name={backbone}", *SETTINGS.get((backbone, task), [])] if backbone else [AS_THEY_COME]
    variant = Variant(name=method, method="fedavg", settings=(learning.UNVALIDATED, *ROWS[method]))
    sections = sections_of(ROOT / "app_configs", task, variant, overrides)
    result = learning.run_sections(sections, method, seed, ENCODED)
    chosen = {"backbone": backbone} if backbone else {}
    return {"task": task, **chosen, **study.compact({**result, "rounds": [*map(_measured, result["rounds"])]})}


def _measured(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The sites whose test split can be measured: one without any label has no figure."""
    return {site: metrics for site, metrics in sites.items() if metrics["overall"] is not None}


def key_of(line: Mapping[str, Any]) -> Run:
    """What tells a run from others in the file of the results."""
    return line["task"], line["method"], line["seed"], line.get("backbone", OWN)


def tables(lines: Sequence[Mapping[str, Any]]) -> Iterator[ResultTable]:
    """A table for each backbone and task that has runs: the figure, and its paired differences to the baselines."""
    backbones = sorted({line.get("backbone", OWN) for line in lines})
    for backbone, (task, metric) in itertools.product(backbones, TASKS.items()):
        figures: dict[str, dict[int, float]] = {}
        for line in lines:
            if (line["task"], line.get("backbone", OWN)) == (task, backbone):
                figures.setdefault(line["method"], {})[line["seed"]] = study.figure(dict(line))
        rows = []
        for method in (method for method in ROWS if method in figures):
            mine = figures[method]
            pairs = [[] if method == name else paired(mine, figures.get(name, {})) for name in BASELINES]
            differences = [signed(one) if one else "" for one in pairs]
            rows.append((method, f"{statistics.fmean(mine.values()):.1f}", *differences, str(len(mine))))
        if rows:
            title = f"{task} {backbone}".strip()
            yield ResultTable(title, ("method", metric, *(f"minus {name}, 95 %" for name in BASELINES), "seeds"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=ROWS,
        default=list(study.METHODS),
        metavar="METHOD",
        help="; ".join(ROWS).replace("%", "%%"),
    )
    parser.add_argument("--backbone", default=OWN, help="in the place of the job's own, e.g. mmbt-small")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help=f"default: {SEEDS}")
    parser.add_argument("--processes", type=parallel.at_least_one, default=learning.CORES, help="runs at the same time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="a JSON line for each run")
    parser.add_argument("--table", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    known = {key_of(line) for line in json_lines.read(chosen.out)}
    wanted = [
        (task, method, seed, chosen.backbone)
        for seed in chosen.seeds
        for task in chosen.tasks
        for method in chosen.methods
        if (task, method) != ("vqa_rad", ONE_HEAD)  # its sites have answers of their own
    ]
    missing = [one for one in wanted if not chosen.table and one not in known]
    with parallel.processes(chosen.processes) as pool:
        futures = {pool.submit(run, *one): one for one in missing}
        for number, future in enumerate(as_completed(futures), 1):
            line = future.result()
            json_lines.append(chosen.out, line)
            print(
                f"{number}/{len(futures)} {line['task']} {chosen.backbone}, {line['method']}, seed {line['seed']}: "
                f"{study.figure(line):.1f} %",
                flush=True,
            )
    console = Console(width=WIDTH, highlight=False)
    for table in tables(json_lines.read(chosen.out)):
        console.print(table.table())
    console.print(machine())


if __name__ == "__main__":
    main()
