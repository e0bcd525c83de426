# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The methods of the study on real images: the tasks that fit a laptop, with FEDPEFT_DATA.

    FEDPEFT_DATA=/data python benchmarks/real_images.py                  # what is missing in the results: hours
    FEDPEFT_DATA=/data python benchmarks/real_images.py --tasks vqa_rad --seeds 0
    FEDPEFT_DATA=/data python benchmarks/real_images.py --tiny           # with the backbones of procedural images
    python benchmarks/real_images.py --table                             # the tables of what is there, without a run
    python benchmarks/publish.py --write                                 # the same in the docs

Every method trains Houlsby adapters with the steps of the task's job, and heads stay at the sites. With the job's
backbone each method runs with every rate of `RATES`, and its row has, of the rates with most seeds, the one that is
best on the sites' validation splits, the mean of the seeds and the last three rounds; with the tiny ones all have one
rate, and VQA-RAD five rounds. Two rows are on demand: `fedavg, one head` averages the head too, and `pooled` trains one
adapter on the batches of all sites, with a head for each. A figure is the mean of the sites and the last three rounds,
as in `study.py`, of what the task is measured by. A run is one line of `benchmarks/results/real_images.jsonl`; what is
there is not run again. All runs read the last layer of the image encoder alone; Fed-ISIC2019's job reads every layer.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import json_lines
import learning
import parallel
import study
import torch
from measured import ROOT, WIDTH, machine
from result_table import ResultTable
from rich.console import Console

from fedpeft.backbones.images import EncodedImages
from fedpeft.compare.runs import Variant, sections_of
from fedpeft.compare.table import paired, signed

RESULTS = Path(__file__).parent / "results" / "real_images.jsonl"
TASKS = {"vqa_rad": "accuracy %", "fed_isic2019": "balanced accuracy %", "nih_cxr14": "macro-F1 %"}
SEEDS = (0, 1, 2, 3, 4)
RATES = (3e-4, 1e-3, 3e-3)  # of adapters; heads keep the job's
BASELINES = ("local", "fedavg")
PRETRAINED = "mmbt-small"  # the backbone of the tasks' jobs
HALF = "training.precision=bfloat16"  # halves the time of a processor that has it; a card waits for the next product
LAST_LAYER = ["backbone.image_layers=last"]  # as the results have it; the job of Fed-ISIC2019 reads all layers
TINY = {"vqa_rad": "tiny-vilt", "fed_isic2019": "tiny-vit", "nih_cxr14": "tiny-vilt"}
SETTINGS_OF_TINY = {  # in the place of the job's, which are for the other backbone; samples as they come
    task: [
        f"backbone.name={TINY[task]}",
        "backbone.image_features=true",
        *LAST_LAYER,
        "training.features_mib=0",
        "training.sampling=default",
        f"training.thresholds={'validation' if task == 'nih_cxr14' else 'half'}",
        f"training.learning_rate={rate}",
        f"training.head_learning_rate={rate}",
        f"training.rounds={rounds}",
    ]
    for task, rate, rounds in (("vqa_rad", "1e-3", 5), ("fed_isic2019", "5e-3", 10), ("nih_cxr14", "5e-3", 10))
}
ONE_HEAD, POOLED = "fedavg, one head", "pooled"
ROWS = {
    **{name: learning.METHODS[name] for name in study.METHODS},
    ONE_HEAD: ["method.aggregation=fedavg", "method.head=federated"],  # where all sites have the same classes
    POOLED: learning.METHODS[POOLED],
}
ENCODED = EncodedImages()  # of this process, in which runs follow each other
Run = tuple[str, str, int, str, float | None]  # task, row of the study, seed, backbone, rate of the adapters


def run(task: str, method: str, seed: int, backbone: str = PRETRAINED, rate: float | None = None) -> dict[str, Any]:
    """The line of a run; a rate of None is the job's."""
    overrides = [f"training.seed={seed}", f"data.seed={seed}"]
    if backbone != PRETRAINED:
        overrides += [learning.UNVALIDATED, *SETTINGS_OF_TINY[task]]
    else:
        overrides += [*LAST_LAYER, *([] if torch.cuda.is_available() else [HALF])]
    if rate is not None:
        overrides.append(f"training.learning_rate={rate}")
    variant = Variant(name=method, method="fedavg", settings=tuple(ROWS[method]))
    sections = sections_of(ROOT / "app_configs", task, variant, overrides)
    result = learning.run_sections(sections, method, seed, ENCODED)
    line = {"task": task, "backbone": backbone, "method": method, "seed": seed, "refused": result["refused"]}
    return line | ({} if rate is None else {"rate": rate}) | {"rounds": [*map(_measured, result["rounds"])]}


def _measured(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """What is measured at each site whose test split can be: one without any label has no figure."""
    return {
        site: {name: round(metrics[name], 4) for name in ("overall", "validation") if metrics.get(name) is not None}
        for site, metrics in sites.items()
        if metrics["overall"] is not None
    }


def key_of(line: Mapping[str, Any]) -> Run:
    """What tells a run from others in the file of the results."""
    return line["task"], line["method"], line["seed"], line["backbone"], line.get("rate")


def on_validation(line: Mapping[str, Any]) -> float:
    """What a rate is chosen by: the mean of the sites with a validation split and of the last rounds, in percent.

    A run without any counts below all others.
    """
    measured = [site for sites in line["rounds"][-study.LAST :] for site in sites.values()]
    figures = [site["validation"] for site in measured if "validation" in site]
    return 100 * statistics.fmean(figures) if figures else -math.inf


def at_own_rates(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Each method's runs at the rate that is best on validation; of rates with fewer seeds than others, none is."""
    runs: dict[str, dict[float | None, list[Mapping[str, Any]]]] = {}
    for line in lines:
        runs.setdefault(line["method"], {}).setdefault(line.get("rate"), []).append(line)
    best = {}
    for method, rates in runs.items():
        most = max(map(len, rates.values()))
        complete = [ran for ran in rates.values() if len(ran) == most]
        best[method] = complete[0] if len(complete) == 1 else max(complete, key=_mean_on_validation)
    return best


def _mean_on_validation(lines: Sequence[Mapping[str, Any]]) -> float:
    return statistics.fmean(map(on_validation, lines))


def tables(lines: Sequence[Mapping[str, Any]]) -> Iterator[ResultTable]:
    """A table for each task and backbone: the figure of each method that has runs, and its paired differences."""
    for (task, metric), tiny in itertools.product(TASKS.items(), (False, True)):
        ran = at_own_rates([one for one in lines if (one["task"], one["backbone"] != PRETRAINED) == (task, tiny)])
        figures = {method: {one["seed"]: study.figure(dict(one)) for one in own} for method, own in ran.items()}
        rows = []
        for method in (method for method in ROWS if method in figures):
            mine = figures[method]
            pairs = [[] if method == name else paired(mine, figures.get(name, {})) for name in BASELINES]
            differences = [signed(one) if one else "" for one in pairs]
            rate = () if tiny else (str(ran[method][0].get("rate") or "the job's"),)
            rows.append((method, f"{statistics.fmean(mine.values()):.1f}", *differences, *rate, str(len(mine))))
        rates = () if tiny else ("rate",)
        columns = ("method", metric, *(f"minus {name}, 95 %" for name in BASELINES), *rates, "seeds")
        yield ResultTable(f"{task} {TINY[task]}" if tiny else task, columns, rows)


def rates(lines: Sequence[Mapping[str, Any]]) -> Iterator[ResultTable]:
    """A table for each task of the rates that were tried with the job's backbone: what they have on validation."""
    for task, metric in TASKS.items():
        runs: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
        for line in lines:
            if line["task"] == task and line.get("rate") and math.isfinite(on_validation(line)):
                runs.setdefault((line["method"], line["rate"]), []).append(line)
        ordered = sorted(runs, key=lambda one: ([*ROWS].index(one[0]), one[1]))
        rows = []
        for method, rate in ordered:
            own = runs[method, rate]
            figures = (_mean_on_validation(own), statistics.fmean(study.figure(dict(one)) for one in own))
            seeds = ", ".join(str(one["seed"]) for one in sorted(own, key=lambda one: one["seed"]))
            rows.append((method, str(rate), *(f"{figure:.1f}" for figure in figures), seeds))
        if rows:
            yield ResultTable(f"{task} rates", ("method", "rate", "on validation %", metric, "seeds"), rows)


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
    parser.add_argument("--tiny", action="store_true", help="the tiny backbones in the place of the jobs' own")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help=f"default: {SEEDS}")
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES), help=f"of adapters; default: {RATES}")
    parser.add_argument("--processes", type=parallel.at_least_one, default=learning.CORES, help="runs at the same time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="a JSON line for each run")
    parser.add_argument("--table", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    known = {key_of(line) for line in json_lines.read(chosen.out)}
    wanted = [
        (task, method, seed, TINY[task] if chosen.tiny else PRETRAINED, rate)
        for seed in chosen.seeds
        for task in chosen.tasks
        for method in chosen.methods
        for rate in ([None] if chosen.tiny or method in study.HEADS else chosen.rates)
        if (task, method) != ("vqa_rad", ONE_HEAD)  # its sites have answers of their own
    ]
    missing = [one for one in wanted if not chosen.table and one not in known]
    with parallel.processes(chosen.processes) as pool:
        futures = {pool.submit(run, *one): one for one in missing}
        for number, future in enumerate(as_completed(futures), 1):
            line = future.result()
            json_lines.append(chosen.out, line)
            print(
                f"{number}/{len(futures)} {line['task']} {line['backbone']}, {line['method']}, "
                f"rate {line.get('rate', 'of the job')}, seed {line['seed']}: "
                f"{study.figure(line):.1f} %",
                flush=True,
            )
    console = Console(width=WIDTH, highlight=False)
    lines = json_lines.read(chosen.out)
    for table in (*tables(lines), *rates(lines)):
        if table.rows:
            console.print(table.table())
    console.print(machine())


if __name__ == "__main__":
    main()
