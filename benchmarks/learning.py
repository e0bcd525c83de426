# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which method learns best on the embedded federation, with the same data, steps and seeds for all.

    python benchmarks/learning.py                     # every site trains all layers: all methods, three seeds
    python benchmarks/learning.py --methods fedavg "fedpia, weight space" --seeds 10 11
    python benchmarks/learning.py --methods all       # every method of the registry, 20 rounds (every_method.py)
    python benchmarks/learning.py --methods all --rows adapterfusion --set training.learning_rate=0.0015
    python benchmarks/learning.py --own               # sites whose adapters start from different random seeds
    python benchmarks/learning.py --study             # the study of study.py: hours of two cores, resumable
    python benchmarks/learning.py --study --methods ours --seeds 0 1    # some of its rows and seeds
    python benchmarks/learning.py --layers            # every site trains 4 of the 12 layers: F3OCUS and its peers

Every method trains the same number of epochs on the same examples; the learning rates are those of `RATES`, with `all`
those that rates.py found. The figures are means over the five sites' test splits after the last round. The data are
procedural and the backbone tiny: the table compares methods, it says nothing about medicine.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import every_method
import json_lines
import parallel
import study
import torch
from result_table import ResultTable
from rich.console import Console

from fedpeft import importance, scheduling
from fedpeft.answering.training_settings import BALANCED, LINEAR
from fedpeft.backbones.images import EncodedImages
from fedpeft.compare.table import paired, signed
from fedpeft.core.seeds import derive
from fedpeft.data.schema import balancing
from fedpeft.federate import federate
from fedpeft.job.composing import compose, parse_overrides
from fedpeft.site.learner import Learner
from fedpeft.site.loop import build_optimizer, parts_of, rate_factor
from fedpeft.site.site_model import SharedModels

ROOT = Path(__file__).resolve().parents[1]
JOB = "fedpia_task1"
ALONE = ["method.aggregation=none"]
PIA = ["method.aggregation=pia", "method.pia.share=0.5", "method.pia.accept=false"]  # as the paper has them
FORMS = {  # of FedPIA: two readings of the paper and a third one; the rows below that name none are in weight space
    name: [*PIA, f"method.pia.integration={value}"]
    for name, value in (
        (study.WEIGHT_SPACE, "weight_space"),
        (study.TWO_BRANCHES, "two_branches"),
        (study.FROZEN_HALF, "frozen_half"),
    )
}
UNMOVED = ["method.pia.integration=weight_space", "method.pia.solver=identity"]
METHODS: dict[str, list[str]] = {
    "classifier": ["method.name=classifier", *ALONE],
    "local": ALONE,
    "fedavg": ["method.aggregation=fedavg"],
    **FORMS,
    "fedpia, two branches, upload local": [*FORMS[study.TWO_BRANCHES], "method.pia.upload=local"],
    "fedpia, gamma 0": [*PIA, "method.pia.integration=weight_space", "method.pia.gamma=0"],
    "fedpia, gamma 1": [*PIA, "method.pia.integration=weight_space", "method.pia.gamma=1"],
    "fedpia, not normalized": [*PIA, "method.pia.integration=weight_space", "method.pia.normalize=false"],
    "fedpia, largest site as reference": [*PIA, "method.pia.integration=weight_space", "method.pia.reference=largest"],
    "fedpia, server only": [*PIA, "method.pia.client=false"],
    "fedpia, client only": [*PIA, "method.pia.integration=weight_space", "method.pia.server=false"],
    "fedpia, aligned at the site": [*PIA, "method.pia.integration=weight_space", "method.pia.aligned_at=site"],
    "fedpia, no client PIA, aligned at the site": [*PIA, "method.pia.client=false", "method.pia.aligned_at=site"],
    "fedpia, weights": [*PIA, "method.pia.integration=weight_space", "method.pia.support=weights"],
    "fedpia, two branches, no server": [*FORMS[study.TWO_BRANCHES], "method.pia.server=false"],
    "fedavg, keeping 20 % of the own": [*PIA, *UNMOVED, "method.pia.server=false", "method.pia.share=0.8"],
    "fedavg, keeping by agreement": [*PIA, *UNMOVED, "method.pia.server=false", "method.pia.share=agreement"],
    "ours": [*PIA, "method.pia.integration=weight_space", "method.pia.share=agreement", "method.pia.accept=true"],
    "fedprox": ["method.aggregation=fedavg", "training.proximal_mu=0.01"],
    "ditto": ["method.aggregation=fedavg", "training.personalization=ditto", "training.ditto_lambda=0.1"],
    "fedala": ["method.aggregation=fedavg", "training.personalization=fedala", "training.ala_rate=1"],
    "full": ["method.name=full", "method.aggregation=fedavg"],
    "pooled": ALONE,
}
FEW = ["method.aggregation=fedavg", "schedule.budget=4"]
OUTPUTS = "schedule.score_settings.target=logits"
EVER = 1000  # rounds that no run has: layers are drawn once
LAYERS: dict[str, list[str]] = {
    **{f"f3ocus, {solver}": [*FEW, f"schedule.solver={solver}"] for solver in scheduling.names_with_front()},
    "f3ocus, exact, outputs": [*FEW, "schedule.solver=exact", OUTPUTS],
    study.OUTPUTS: [*FEW, "schedule.solver=own", OUTPUTS],
    "f3ocus, exact, with reply": [*FEW, "schedule.solver=exact", "schedule.scoring=with_reply"],
    study.ALONE: [*FEW, "schedule.solver=own"],
    study.RANDOM: [*FEW, "schedule.solver=own", "schedule.score=fd"],
    study.FIXED: [*FEW, "schedule.solver=own", "schedule.score=fd", f"schedule.every={EVER}"],
    **{
        f"4 layers, {score}": [*FEW, "schedule.solver=own", f"schedule.score={score}"]
        for score in importance.names()
        if score not in ("lntk", "fd")
    },
}
KNOWN = METHODS | LAYERS
ALL = "all"
NAMES = "; ".join([*KNOWN, ALL]).replace("%", "%%")  # argparse fills in what follows a %
BASELINES = ("classifier", "local", "fedavg", study.ALONE)
OWN_START = ["method.initialization=own"]
OWN = ("local", "fedavg", study.WEIGHT_SPACE, "fedpia, server only", "fedpia, largest site as reference")
RATES = {  # the best of a small grid for each kind of training, on seeds 100 to 102 (docs/embedded_benchmark.md)
    "classifier": ["training.learning_rate=3e-2"],
    "full": ["training.learning_rate=1e-3", "training.head_learning_rate=3e-3"],
    "pooled": ["training.learning_rate=3e-3"],
}
ADAPTERS = [f"training.learning_rate={study.RATE}"]
UNVALIDATED = "training.validate=false"  # no figure here is of the validation split
SEEDS = (0, 1, 2)
BYTES = 4  # of a number
COSTS = ("trained", "MB a round", "CPU s a run")
CORES = os.cpu_count() or 1


def run(method: str, seed: int, overrides: Sequence[str]) -> dict[str, Any]:
    """One method with one seed of data, initial values and order: accuracy by site, by round, and what it cost."""
    return run_with(settings_of(method), method, seed, overrides)


def settings_of(method: str) -> list[str]:
    """The settings of a method of this program, with its learning rate."""
    return [*KNOWN[method], *RATES.get(method, ADAPTERS)]


def run_from_registry(method: str, seed: int, overrides: Sequence[str]) -> dict[str, Any]:
    """`run`, of a row of `every_method.py`, without the figures that its table does not have."""
    result = run_with(every_method.settings_of(method), method, seed, overrides)
    return {**result, "rounds": study.overall(result["rounds"])}


def run_with(settings: Sequence[str], method: str, seed: int, overrides: Sequence[str]) -> dict[str, Any]:
    """`run`, of these settings of the job.

    Where one site holds the data of all (`data.pool`), the test splits of all sites are one set of questions, and the
    accuracy is the share of them that are answered correctly. The splits of the embedded sites are equally large, so
    this is the mean over the same five splits as in the other rows; the one head tells apart the answers of all sites.

    Raises:
        SystemExit: several sites would hold pooled data each.
    """
    chosen = [*settings, UNVALIDATED, f"training.seed={seed}", f"data.seed={seed}", *overrides]
    asked = parse_overrides(chosen)
    if asked["data"].get("pool") and len(asked.get("federation", {}).get("sites", ())) != 1:
        raise SystemExit(f"{method!r} pools the data of all sites at one: leave federation.sites out of --set")
    return run_sections(compose(ROOT / "app_configs", JOB, chosen), method, seed)


def run_sections(
    sections: Mapping[str, Any], method: str, seed: int, images: EncodedImages | None = None
) -> dict[str, Any]:
    """`run_with`, of a job's sections as they are; `images` are those that earlier runs of this process encoded."""
    began = time.process_time()
    sent = refused = 0
    rounds: list[dict[str, Any]] = []
    layers: list[dict[str, list[int]]] = []
    with tempfile.TemporaryDirectory() as folder:
        sites = sections["federation"]["sites"]
        shared = None if method == "pooled" else SharedModels(images)  # the sites take turns
        learners = {s: Learner.from_sections(sections, site=s, folder=Path(folder) / s, shared=shared) for s in sites}
        if method == "pooled":
            rounds = pooled(learners, seed)
        else:
            for result in federate(learners):
                rounds.append({s: u.metrics for s, u in result.updates.items()})
                sent = max(sent, *(sum(map(torch.numel, u.state.values())) for u in result.updates.values()))
                refused += len(result.refused)
                if result.assignment:
                    layers.append({site: sorted(own) for site, own in result.assignment.layers.items()})
        trained = sum(map(torch.numel, next(iter(learners.values())).trainable.parameters().values()))
    cost = {"trained": trained, "sent": sent, "seconds": time.process_time() - began}
    scheduled = {"layers": layers} if layers else {}
    return {"method": method, "seed": seed, "rounds": rounds, "refused": refused, **scheduled, **cost}


def pooled(learners: dict[str, Learner], seed: int) -> list[dict[str, Any]]:
    """The upper bound: one adapter trained on the batches of all sites in random order, a head for each site."""
    first, *others = learners.values()
    settings = first.training
    for learner in others:
        learner.trainable = first.trainable
        learner.backbone = learner.model.backbone = learner.answering.backbone = first.backbone
    heads = ((f"{s}.{n}", p) for s, learner in learners.items() for n, p in learner.head.named_parameters())
    optimizer = build_optimizer(
        first.trainable.parameters().items(),
        heads,
        kind=settings.optimizer,
        learning_rate=settings.learning_rate,
        head_learning_rate=settings.head_learning_rate or settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    generator = torch.Generator().manual_seed(derive(seed, "pooled"))
    size = settings.batch_size
    balanced, rates = settings.sampling == BALANCED, [group["lr"] for group in optimizer.param_groups]
    rows = {
        s: one.batches.draw(one.data.train, size, generator, weights=balancing(one.data.train) if balanced else ())
        for s, one in learners.items()
    }
    total = sum(map(len, rows.values())) * settings.epochs_before(settings.rounds + 1)
    step, rounds = 0, []
    for number in range(1, settings.rounds + 1):
        for _ in range(settings.epochs_in(number)):
            mixed = [(s, batch) for s in learners for batch in rows[s]]
            for i in torch.randperm(len(mixed), generator=generator).tolist():
                site, batch = mixed[i]
                decays = settings.decay == LINEAR
                rate = rate_factor(step, total_steps=total, warmup=settings.warmup, decays=decays)
                for group, peak in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = peak * rate
                first.trainable.step(parts_of(batch, learners[site].answering.train()), optimizer)
                step += 1
        rounds.append({s: learner.evaluate() for s, learner in learners.items()})
    return rounds


def overall(result: dict[str, Any]) -> float:
    """Mean over sites of the last round's overall accuracy, in percent."""
    return 100 * statistics.fmean(site["overall"] for site in result["rounds"][-1].values())


def report(
    results: Sequence[dict[str, Any]], baselines: Sequence[str] = BASELINES, *, variants: bool = False
) -> ResultTable:
    """Mean and spread over seeds, the paired difference to each baseline with a 95 % interval, and what a run costs.

    Args:
        results: runs.
        baselines: rows that all others are compared with.
        variants: compare besides each row that has a comma in its name with the row of what stands before it.
    """
    scores: dict[str, dict[int, float]] = {}
    for result in results:
        scores.setdefault(result["method"], {})[result["seed"]] = overall(result)
    present = [name for name in baselines if name in scores]
    rows = []
    for method, mine in scores.items():
        cells = [f"{statistics.fmean(mine.values()):.1f}", spread(list(mine.values()))]
        for name in present:
            pairs = [] if name == method else paired(mine, scores[name])
            cells.append(signed(pairs) if pairs else "")
        if variants:
            owner, comma, _ = method.partition(",")
            pairs = paired(mine, scores.get(owner, {})) if comma else []
            cells.append(signed(pairs) if pairs else "")
        rows.append((method, *cells, str(len(mine)), *costs([r for r in results if r["method"] == method])))
    compared = [f"minus {name}" for name in present] + ["minus its method"] * variants
    heads = ("method", "accuracy %", "sd", *compared, "seeds", *COSTS)
    return ResultTable("", heads, rows)


def costs(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Numbers that a site trains, MB that it sends in a round, and the median of the CPU seconds of a run."""
    for name, factor, form in (("trained", 1, ",.0f"), ("sent", BYTES / 1e6, ".2f")):
        yield format(factor * max(result[name] for result in results), form)
    yield f"{statistics.median(result['seconds'] for result in results):.0f}"


def spread(values: Sequence[float]) -> str:
    """Standard deviation over seeds, empty for one."""
    return f"{statistics.stdev(values):.1f}" if len(values) > 1 else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=[*KNOWN, ALL], metavar="METHOD", help=NAMES)
    parser.add_argument(
        "--rows", nargs="+", choices=list(every_method.EVERY), metavar="ROW", help=f"of --methods {ALL}, only these"
    )
    parser.add_argument("--seeds", nargs="+", type=int, help=f"default: {SEEDS}, of the study {study.SEEDS}")
    parser.add_argument("--own", action="store_true", help="every site's adapter starts from a seed of its own")
    parser.add_argument("--layers", action="store_true", help="4 of 12 layers: F3OCUS and its peers beside FedAvg")
    parser.add_argument("--study", action="store_true", help="all runs of study.py that are not in its results yet")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    parser.add_argument("--processes", type=parallel.at_least_one, default=CORES, help="runs at the same time")
    parser.add_argument("--out", type=Path, help="a JSON line for each run; what is there is kept")
    chosen = parser.parse_args()
    parallel.check_settings(parser, ROOT / "app_configs", JOB, chosen.set)
    if chosen.study:
        for name in ("own", "layers"):
            if getattr(chosen, name):
                parser.error(f"--{name} is another comparison than --study: leave out one of them")
        file, methods = chosen.out or study.RESULTS, chosen.methods or ()
        if problem := study.refusal(methods, chosen.set, file):
            parser.error(problem)
        run_study(file, chosen.seeds, methods=methods, overrides=chosen.set, processes=chosen.processes)
        return
    seeds = chosen.seeds or SEEDS
    everything = chosen.methods == [ALL]
    if not everything and ALL in (chosen.methods or ()):
        parser.error(f"{ALL!r} stands for every method: give it alone")
    if chosen.own and everything:
        parser.error(f"--own is for the rows of its own, not for --methods {ALL}: leave one out")
    if chosen.rows and not everything:
        parser.error(f"--rows are those of --methods {ALL}: give both")
    named = OWN if chosen.own else ("fedavg", *LAYERS) if chosen.layers else METHODS
    methods = chosen.rows or every_method.EVERY if everything else chosen.methods or named
    named_settings = every_method.SETTINGS if everything else OWN_START if chosen.own else []
    overrides = [*named_settings, *chosen.set]
    order = list(methods)
    console = Console(width=150)
    out = chosen.out or (every_method.RESULTS if everything else None)
    results = _earlier(out, overrides)
    known = {(result["method"], result["seed"]) for result in results}
    wanted = [(method, seed) for seed in seeds for method in methods]
    runner = run_from_registry if everything else run
    with parallel.processes(chosen.processes) as pool:
        futures = {pool.submit(runner, *one, overrides): one for one in wanted if one not in known}
        for number, future in enumerate(as_completed(futures), 1):
            last = {**future.result(), "overrides": overrides}
            results.append(last)
            if out:
                json_lines.append(out, last)
            console.print(
                f"{number}/{len(futures)} {last['method']}, seed {last['seed']}: {overall(last):.1f} % "
                f"({last['seconds']:.0f} s)",
                highlight=False,
            )
            sys.stdout.flush()
    results = sorted((r for r in results if (r["method"], r["seed"]) in wanted), key=lambda r: order.index(r["method"]))
    baselines = every_method.BASELINES if everything else BASELINES
    console.print(report(results, baselines, variants=everything).table())
    console.print(
        f"procedural data, tiny backbone; seeds: {len(seeds)}; {platform.processor() or platform.machine()}, "
        f"{CORES} cores, {time.strftime('%Y-%m-%d')}; {' '.join(overrides)}",
        highlight=False,
    )


def run_study(
    file: Path,
    seeds: Sequence[int] | None,
    *,
    methods: Sequence[str] = (),
    overrides: Sequence[str] = (),
    processes: int,
) -> None:
    """Run what is missing, a line at a time, and print the tables of all that is there.

    Args:
        file: of the results; its runs with the same overrides are not run again. Runs of the study as it is
            published have no overrides, and their lines no such field.
        seeds: of the runs; None: those of the study.
        methods: rows of the study to run; none: all.
        overrides: settings that every run gets beside its own.
        processes: runs at the same time.
    """
    console = Console(width=150)
    results = _earlier(file, overrides)
    known = set(map(study.run_of, results))
    missing = [one for one in study.runs(seeds) if one not in known and (not methods or one.method in methods)]
    marked = {"overrides": list(overrides)} if overrides else {}
    with parallel.processes(processes) as pool:
        futures = {pool.submit(run, one.method, one.seed, [*one.overrides, *overrides]): one for one in missing}
        for number, future in enumerate(as_completed(futures), 1):
            one, last = futures[future], future.result()
            rate = {"rate": one.rate} if one.rate else {}
            results.append({**study.compact(last), "dialects": one.dialects, **rate, **marked})
            json_lines.append(file, results[-1])
            figure = f"{study.figure(last):.1f} % ({last['seconds']:.0f} s)"
            console.print(
                f"{number}/{len(futures)} {one.dialects} {one.method}{f' at {one.rate}' * bool(one.rate)}, "
                f"seed {one.seed}: {figure}",
                highlight=False,
            )
    alike = study.alike(results)
    for title, some in (("Each row at its own rate", study.tuned(results)), ("All rows at one rate", alike)):
        if some:
            console.print(f"{title}:")
        for group in study.groups(some):
            console.print(group.table())
        console.print(study.aims(some).table())
    console.print(study.by_round(results).table())


def _earlier(file: Path | None, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """What an earlier run with the same settings wrote; a line without overrides had none."""
    lines = json_lines.read(file) if file else []
    return [line for line in lines if line.get("overrides", []) == list(overrides)]


if __name__ == "__main__":
    main()
