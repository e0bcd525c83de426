# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""GFLOPs and seconds of a site's round by method (F3OCUS, the comparison with other methods on task 1).

    python benchmarks/computation.py                 the tiny ViLT, the embedded job's first site with 16 samples
    python benchmarks/computation.py --full-size --samples 1     ViLT-B (random weights), 384 x 384 pixels, 40 tokens

torch's counter counts products of matrices, 2 for each multiplication and addition, in the passes forward and backward;
attention is computed by its plain formula for that. In the rows of four layers the site trains the four with the best
scores, and scoring, by the kernel of the outputs on 4 directions, has columns of its own. Seconds are the processor's,
of training in a second round and of scoring a second time, which are not counted. MB are what the site sends.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from measured import machine, sections, show
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fedpeft.backbones.registry import TINY_FOLDER
from fedpeft.site.learner import Learner

LAYERS = 4
F3OCUS = ("schedule.solver=exact", "schedule.score=lntk", "schedule.score_settings={target: logits, directions: 4}")
METHODS: dict[str, tuple[str, ...]] = {
    "classifier": ("method.aggregation=none",),
    **dict.fromkeys(("layernorm", "bias", "promptfl", "lora", "pfeiffer", "houlsby", "parallel", "compacter"), ()),
    "feddat_houlsby": (),
    "full": (),
    f"pfeiffer, {LAYERS} layers": (f"schedule.budget={LAYERS}", *F3OCUS),
    f"houlsby, {LAYERS} layers": (f"schedule.budget={LAYERS}", *F3OCUS),
}
FEW = ("training.validate=false", "data.test_size=2")


class Cost(NamedTuple):
    """What a round of one method takes: floating-point operations, CPU seconds and bytes."""

    training: int
    scoring: int
    seconds: float
    scoring_seconds: float
    sent: int
    samples: int


class Counter:
    """Floating-point operations in the block of `counted`, once it has ended."""

    flops = 0


@contextmanager
def counted() -> Iterator[Counter]:
    """Count the operations of products of matrices in this block, those of attention among them."""
    counter = Counter()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as mode:
        yield counter
    counter.flops = mode.get_total_flops()


class CountedLearner(Learner):
    """A site that counts what the training of its first round takes, and times that of every later one."""

    flops, seconds = 0, 0.0

    def fit(self, optimizer: torch.optim.Optimizer, round: int) -> dict[str, float]:
        if round == 1:
            with counted() as counter:
                losses = super().fit(optimizer, round)
            self.flops = counter.flops
            return losses
        began = time.process_time()
        losses = super().fit(optimizer, round)
        self.seconds = time.process_time() - began
        return losses


def cost(overrides: Sequence[str], folder: Path) -> Cost:
    """Two rounds of the first site of the embedded job, with some settings changed."""
    job = sections(["training.rounds=2", "training.local_epochs=1", *overrides])
    site = job["federation"]["sites"][0]
    learner = CountedLearner.from_sections(job, site=site, folder=folder / site)
    layers, scoring, scoring_seconds, received = None, 0, 0.0, learner.first_state()
    if learner.schedule.active:
        with counted() as counter:
            scores = torch.tensor(learner.score_layers(1, received))
        layers, scoring = sorted(scores.topk(learner.layer_budget()).indices.tolist()), counter.flops
        began = time.process_time()
        learner.score_layers(2, received)
        scoring_seconds = time.process_time() - began
    update = learner.train_round(1, received, layers)
    learner.train_round(2, {**received, **update.state}, layers)
    sent = sum(tensor.numel() * tensor.element_size() for tensor in update.state.values())
    return Cost(learner.flops, scoring, learner.seconds, scoring_seconds, sent, len(learner.data.train))


def save_backbone(folder: Path) -> None:
    """Write a ViLT-B with random weights as transformers does, with the tokenizer of the tiny one."""
    from transformers import ViltConfig, ViltModel

    torch.manual_seed(0)
    ViltModel(ViltConfig()).save_pretrained(folder)
    for file in (TINY_FOLDER / "tokenizer.json", TINY_FOLDER / "tokenizer_config.json", TINY_FOLDER / "vocab.txt"):
        shutil.copy(file, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full-size", action="store_true", help="ViLT-B instead of the tiny ViLT")
    parser.add_argument("--samples", type=int, default=16, help="of the training split, and at most of a batch")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, metavar="METHOD")
    options = parser.parse_args()
    print(machine())
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        more = [*FEW, f"data.train_size={options.samples}", f"training.batch_size={min(16, options.samples)}"]
        if options.full_size:
            save_backbone(folder / "vilt")
            more += ["backbone.name=vilt", f"backbone.source={folder / 'vilt'}", "schedule.score_samples=1"]
            more += ["backbone.image_size=384", "backbone.text_length=40"]
        for number, name in enumerate(options.methods):
            method = [f"method.name={name.partition(',')[0]}", "method.aggregation=fedavg", *METHODS[name]]
            one = cost([*more, *method], folder / str(number))
            each = f"{one.training / one.samples / 1e9:.3g}"
            scoring = (f"{one.scoring / 1e9:.4g}", f"{one.scoring_seconds:.2f}") if one.scoring else ("", "")
            training, sent = (f"{one.training / 1e9:.4g}", f"{one.seconds:.2f}"), f"{one.sent / 1e6:.3f}"
            rows.append((name, each, *training, *scoring, sent))
    show(
        f"{'ViLT-B' if options.full_size else 'tiny ViLT'}, a round of one site with {one.samples} training samples",
        ("method", "GFLOPs a sample", "a round", "CPU s", "scoring GFLOPs", "CPU s", "MB sent"),
        rows,
        "Forward and backward; 2 for each multiplication and addition.",
    )


if __name__ == "__main__":
    main()
