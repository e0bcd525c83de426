# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Merge adapters that sites trained apart, beside PEFT's own ways.

    python benchmarks/merging.py                       # what is missing in the results
    python benchmarks/merging.py --table               # the tables of what is there, without a run

The five sites of the embedded federation train alone, each from a start of its own, as in the case `tuned_before`
before its first exchange, with 100 questions and six epochs. In the kinds of class folders the sites are four clients
that share 1,200 procedural images of six classes, a body region in a modality each as in MedNIST, as `fedpeft new`
shares them: 210 training images each, the tiny ViT, six epochs. Then their adapters are merged once. Two figures, both
mean accuracies of the sites' test questions or images: with the head that each site trained with its own adapter, and
with a head that it trains anew on the frozen merged model. PEFT's `ties` and `dare` keep half of the numbers (density
0.5); they and `linear` need one rank.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import json_lines
import numpy as np
import torch
from measured import ROOT, machine
from PIL import Image
from result_table import ResultTable
from rich.console import Console
from torch import nn

import fedpeft
from fedpeft.adapters import save_adapter
from fedpeft.alignment.factors import FACTORS, FrozenProducts
from fedpeft.backbones import BackboneSettings, build
from fedpeft.compare.table import signed
from fedpeft.core.keys import group_by_place
from fedpeft.core.states import State
from fedpeft.data.phantom_scene import KINDS as FINDINGS
from fedpeft.data.phantom_scene import Finding, Scene, draw_look, render
from fedpeft.data.schema import Example
from fedpeft.job.composing import CONFIGS, compose
from fedpeft.job.writing import look, write_new
from fedpeft.methods.adapters import read_config, read_state
from fedpeft.methods.lora import TUNING
from fedpeft.site import computing
from fedpeft.site.learner import Learner

RESULTS = Path(__file__).parent / "results" / "merging.jsonl"
SMALL = "data.train_size=100"  # minutes for five seeds
LORA = ["method.name=lora", "method.aggregation=svd", SMALL]
UNEQUAL = "LoRA of ranks 4 and 8"
FOLDERS = ("Houlsby, class folders", "LoRA of rank 4, class folders")
KINDS = {
    "Houlsby": ["method.aggregation=fedavg", SMALL],
    "LoRA of rank 4": LORA,
    UNEQUAL: [*LORA, "method.site_settings={vqa-rad: {r: 8}, vqa-med-2020: {r: 8}}"],
    FOLDERS[0]: ["method.aggregation=fedavg", "method.initialization=own"],
    FOLDERS[1]: ["method.name=lora", "method.aggregation=svd", "method.initialization=own"],
}
CLASSES = ("abdomen ct", "chest ct", "chest xray", "head ct", "head mr", "limb xray")  # region and modality
IMAGES = 200  # of a class
OWN, PLAIN, MERGED, CUT = "own adapter", "plain mean", "fedpeft merge", "fedpeft merge --rank 4"
# PEFT's name of a combination, its other arguments, and whether it takes unequal ranks
PEFTS: dict[str, tuple[dict[str, Any], bool]] = {
    "linear": ({}, False),
    "svd": ({}, True),
    "ties": ({"density": 0.5}, False),
    "ties_svd": ({"density": 0.5}, True),
    "dare_linear": ({"density": 0.5}, False),
    "dare_linear_svd": ({"density": 0.5}, True),
}
HEAD_STEPS, HEAD_RATE = 200, 0.01


def run(kind: str, seed: int, overrides: Sequence[str]) -> dict[str, Any]:
    """One seed of one kind: way -> mean accuracy with the old heads and with new ones."""
    with tempfile.TemporaryDirectory() as name:
        folder, learners, folders = Path(name), {}, []
        sections = sections_of(kind, seed, overrides, folder)
        for site in sections["federation"]["sites"]:
            learners[site] = learner = Learner.from_sections(sections, site=site, folder=folder / "state" / site)
            update = learner.train_round(1, {})
            folders.append(
                save_adapter(folder / site, update.state, learner.trainable.peft_config(), learner.backbone.family)
            )
        lora = sections["method"]["name"] == "lora"
        ways = {OWN: dict(zip(learners, folders, strict=True))}
        merged = merged_folders(folders, folder, sections["backbone"], lora=lora, one_rank=kind != UNEQUAL)
        ways |= {way: dict.fromkeys(learners, out) for way, out in merged.items()}
        measured = {way: [accuracies(learners[s], f, seed) for s, f in of.items()] for way, of in ways.items()}
    figures = {
        way: [round(100 * statistics.fmean(one), 2) for one in zip(*rows, strict=True)]
        for way, rows in measured.items()
    }
    return {"kind": kind, "seed": seed, "overrides": list(overrides), "figures": figures}


def sections_of(kind: str, seed: int, overrides: Sequence[str], room: Path) -> dict[str, Any]:
    """The job in which the sites train alone, in one round; images and the job of class folders go into `room`."""
    settings = ["training.rounds=1", "training.first_epochs=6", "training.validate=false"]
    settings += [f"training.seed={seed}", f"data.seed={seed}", *KINDS[kind], *overrides]
    if kind not in FOLDERS:
        return compose(ROOT / "app_configs", "cases/tuned_before", settings)
    write_images(room / "images", seed, IMAGES)
    found = look(room / "images", out=room, backbone="tiny_vit")
    write_new("own", found, folder=room / "images", out=room, backbone="tiny_vit")
    return compose(room / CONFIGS, "own", settings)


def write_images(root: Path, seed: int, images: int) -> None:
    """Write a folder of procedural images for each class, with one finding of any kind in each."""
    for number, name in enumerate(CLASSES):
        region, modality = name.split()
        folder = root / name.replace(" ", "_")
        folder.mkdir(parents=True)
        for image in range(images):
            rng = np.random.default_rng([seed, number, image])
            kind, (quadrant, bright, large) = FINDINGS[rng.integers(len(FINDINGS))], rng.integers((4, 2, 2))
            finding = Finding(kind=kind, quadrant=int(quadrant), bright=bool(bright), large=bool(large))
            scene = Scene(region=region, modality=modality, findings=(finding,))
            Image.fromarray(render(scene, draw_look(modality, rng), rng)).save(folder / f"{image:03d}.png")


def merged_folders(
    folders: Sequence[Path], room: Path, backbone: Mapping[str, Any], *, lora: bool, one_rank: bool
) -> dict[str, Path]:
    """The merged folders by way."""
    ways = {MERGED: fedpeft.merge(folders, room / "merged")}
    if one_rank:
        ways[PLAIN] = fedpeft.merge(folders, room / "plain", plain=True)
    if lora:
        ways[CUT] = fedpeft.merge(folders, room / "cut", rank=4)
        ways |= {
            f"PEFT {way}": out for way, out in of_peft(folders, room / "peft", backbone, one_rank=one_rank).items()
        }
    return ways


def of_peft(folders: Sequence[Path], room: Path, backbone: Mapping[str, Any], *, one_rank: bool) -> dict[str, Path]:
    """What PEFT's add_weighted_adapter makes of LoRA folders, by its combination type."""
    from peft import PeftModel

    names = [f"site{number}" for number in range(len(folders))]
    model = PeftModel.from_pretrained(build(BackboneSettings(**backbone)).model, folders[0], adapter_name=names[0])
    for name, folder in zip(names[1:], folders[1:], strict=True):
        model.load_adapter(folder, name)
    made = {}
    for way, (arguments, any_ranks) in PEFTS.items():
        if one_rank == any_ranks and way != "svd":
            continue
        torch.manual_seed(0)
        weight = 1.0 if way.startswith("ties") else 1 / len(names)  # ties divides by how many agree
        model.add_weighted_adapter(names, [weight] * len(names), way, combination_type=way, **arguments)
        model.save_pretrained(room, selected_adapters=[way])
        made[way] = room / way
    return made


def accuracies(learner: Learner, folder: Path, seed: int) -> tuple[float, float]:
    """Accuracy of a site with an adapter: under its own head, and under one that is trained anew."""
    products = load(learner, folder)
    head, heads = learner.head, copy.deepcopy(learner.head.state_dict())
    train, test = (features(learner, split) for split in (learner.data.train, learner.data.test))
    before = right(head, test)
    train_head(head, train, seed)
    after = right(head, test)
    head.load_state_dict(heads)
    if products:
        products.set({})
    return before, after


Features = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@torch.no_grad()
def features(learner: Learner, examples: Sequence[Example]) -> Features:
    """What the head reads of questions (n, d), their answers' classes (n), and all that are right (n, A)."""
    answering = learner.answering.eval()
    batches = [batch.to(learner.device) for batch in learner.batches.draw(examples, len(examples))]
    with computing.shortcuts(learner.backbone, learner.training, learner.model.features):
        pooled = [answering.pooled(batch.inputs) for batch in batches]
    return torch.cat(pooled), torch.cat([b.target for b in batches]), torch.cat([b.accepted for b in batches])


@torch.no_grad()
def right(head: nn.Module, test: Features) -> float:
    """Accuracy of a head."""
    return float((head(test[0]).argmax(-1)[:, None] == test[2]).any(-1).float().mean())


def load(learner: Learner, folder: Path) -> FrozenProducts | None:
    """Put an adapter into a site's model; the product of LoRA, of any rank, into the frozen matrices."""
    config = read_config(folder)
    state = read_state(folder, config, learner.backbone.family)
    if not (frozen := learner.trainable.products()):
        learner.trainable.load(state)
        return None
    off = {key: torch.zeros_like(t) if key.endswith(".B") else t for key, t in learner.trainable.state().items()}
    learner.trainable.load(off)
    factors: State = {}
    for place, names in group_by_place(state).items():
        down, up = (state[names[name]] for name in FACTORS)
        factors[f"{place}.A"], factors[f"{place}.B"] = (
            down,
            up * TUNING.scale(config, "", len(down)) / frozen[place].scale,
        )
    products = FrozenProducts(frozen)
    products.set(factors)
    return products


def train_head(head: nn.Module, train: Features, seed: int) -> None:
    """Train a head anew on features."""
    torch.manual_seed(seed)
    for module in head.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    optimizer = torch.optim.AdamW(head.parameters(), lr=HEAD_RATE, weight_decay=0.01)
    for _ in range(HEAD_STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(train[0]), train[1], ignore_index=-1).backward()
        optimizer.step()


def tables(results: Sequence[Mapping[str, Any]]) -> Iterator[ResultTable]:
    """A table for each kind: both figures, and the paired difference of each way from the plain mean or PEFT's svd."""
    for kind in KINDS:
        mine = sorted((one for one in results if one["kind"] == kind), key=lambda one: one["seed"])
        if not mine:
            continue
        base = PLAIN if PLAIN in mine[0]["figures"] else "PEFT svd"
        rows = []
        for way in mine[0]["figures"]:
            figures = [[one["figures"][way][which] for one in mine] for which in (0, 1)]
            gaps = [
                [value - one["figures"][base][which] for value, one in zip(figures[which], mine, strict=True)]
                for which in (0, 1)
            ]
            differ = [("" if way == base else signed(gap)) for gap in gaps]
            means = [f"{statistics.fmean(one):.1f}" for one in figures]
            rows.append((way, means[0], differ[0], means[1], differ[1]))
        heads = ("adapter", "site's head %", f"minus {base}", "new head %", f"minus {base}")
        yield ResultTable(f"{kind}, seeds {', '.join(str(one['seed']) for one in mine)}", heads, rows)


def published() -> list[dict]:
    """The runs of the published results: those without other settings."""
    return [one for one in json_lines.read(RESULTS) if not one["overrides"]]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    parser.add_argument("--out", type=Path, default=RESULTS, help="a JSON line for each run; what is there is kept")
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    chosen = parser.parse_args()
    print(machine())
    results = [one for one in json_lines.read(chosen.out) if one["overrides"] == chosen.set]
    known = {(one["kind"], one["seed"]) for one in results}
    for seed in [] if chosen.table else chosen.seeds:
        for kind in chosen.kinds:
            if (kind, seed) not in known:
                results.append(run(kind, seed, chosen.set))
                json_lines.append(chosen.out, results[-1])
                print(f"{kind}, seed {seed}: {results[-1]['figures']}", flush=True)
    for table in tables(results):
        Console(width=120).print(table.table())


if __name__ == "__main__":
    main()
