# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What it costs to score layers, in training steps; whether LNTK is exact; and what a round sends for the layers it
trains.

    python benchmarks/scoring.py                     tiny ViLT, all scores
    python benchmarks/scoring.py --full-size         ViLT-B (random weights), batch 16, 384 x 384 pixels, 40 tokens
    python benchmarks/scoring.py --full-size --adapters houlsby --methods lntk gradflow --repeats 3
    python benchmarks/scoring.py --full-size --eigenvalues         one eigenvalue against all (F3OCUS, Table 7)
    python benchmarks/scoring.py --spectrum docs/spectrum.png      eigenvalues of trained layers (F3OCUS, Figure 18)
    python benchmarks/scoring.py --spectrum llava.png --job paper/f3ocus_task4_llava --rounds 30

A training step is forward, backward and AdamW over all adapters and the head, on the same batch and in the same
process. Seconds are the processor's, which other processes do not lengthen; scores and steps are taken in turns.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import eigenvalues
import torch
from peft import get_peft_model
from torch import Tensor, nn

from fedpeft import adapters, backbones
from fedpeft.core.errors import FedpeftError
from fedpeft.importance import adapter_layers, names, score
from fedpeft.importance.scoring_task import ScoringTask
from fedpeft.methods.adapters import adapter_parameters

SLOW = ("lntk_squared", "lntk, logits")  # a backward pass for each class
OUTPUTS = {  # the kernel of the outputs, exact and of a few combinations of logits for each sample
    "lntk, logits": {"target": "logits"},
    **{f"lntk, {count} directions": {"target": "logits", "directions": count} for count in (4, 8)},
    "lntk, first call": {},  # checks that samples do not depend on each other
}
KNOWN = (*names(), *OUTPUTS)
ROUND_LAYERS = 4
FEW_SAMPLES = 2  # a backward pass for each
DPI = 150  # of the picture


class Scored(nn.Module):
    """A backbone with adapters and a classifier, and one batch for it."""

    def __init__(self, options: argparse.Namespace, adapter: str) -> None:
        super().__init__()
        torch.manual_seed(options.seed)
        self.backbone = full_size() if options.full_size else backbones.build(backbones.BackboneSettings())
        self.backbone.requires_grad_(False)
        self.peft = get_peft_model(self.backbone.model, adapters.config(adapter))
        rng = torch.Generator().manual_seed(options.seed)
        state = {  # not the initial values, where the up-projections of some adapters are zero
            key: tensor + 0.02 * torch.randn(tensor.shape, generator=rng)
            for key, tensor in adapters.adapter_state(self.peft).items()
        }
        adapters.load_adapter_state(self.peft, state)
        self.head = nn.Linear(self.backbone.hidden_size, options.classes)
        self.layers = adapter_layers(self.peft)
        size, words = self.backbone.model.config.image_size, 40
        vocabulary = self.backbone.model.config.vocab_size
        self.batch = {
            "input_ids": torch.randint(5, vocabulary, (options.samples, words), generator=rng),
            "attention_mask": torch.ones(options.samples, words, dtype=torch.long),
            "pixel_values": torch.randn(options.samples, 3, size, size, generator=rng),
        }
        self.target = torch.randint(0, options.classes, (options.samples,), generator=rng)
        trained = [p for p in self.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-5, foreach=True)
        self.eval()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(self.backbone(**batch))

    def losses(self, logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(logits, self.target[: len(logits)], reduction="none")

    def step(self) -> None:
        """One training step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.losses(self(self.batch), self.batch).mean().backward()
        self.optimizer.step()

    def score(self, method: str, *, samples: int | None = None, **settings: Any) -> Tensor:
        """Scores of the layers by one method, with what it needs, on the batch or its first few samples."""
        if method == "fd":
            settings["generator"] = torch.Generator().manual_seed(0)
        if method == "fedselect":
            settings["previous"] = {layer: [p.detach() + 1 for p in group] for layer, group in self.layers.items()}
        settings |= OUTPUTS.get(method, {})
        model = None if method == "lntk, first call" else self  # as jobs do
        method = method.partition(",")[0]
        batch = {name: tensor[:samples] for name, tensor in self.batch.items()}
        return score(self, self.layers, [batch], self.losses, method=method, model=model, **settings)


def full_size() -> nn.Module:
    """ViLT-B/32 with random weights: no download."""
    from transformers import ViltConfig, ViltModel

    from fedpeft.backbones.vilt import Vilt

    return Vilt(ViltModel(ViltConfig()), tokenizer=None, prepare=None, text_length=40)


def medians(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median processor seconds of each, taken in turns; the first turn does not count."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            if turn:
                taken[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


def disagreement(model: Scored, method: str, samples: int) -> float:
    """Largest relative difference between LNTK's eigenvalues and those from autograd, row by row."""
    fast = model.score(method, samples=samples, normalize=False)
    slow = model.score(method, samples=samples, normalize=False, gradients="rows")
    return float(((fast - slow).abs() / slow).max())


def communication() -> list[tuple[str, float, float]]:
    """MB that a site uploads a round on ViLT-B, float32: all 12 layers, and 4 of them."""
    rows = []
    for label, name, settings in (
        ("pfeiffer", "pfeiffer", {}),
        ("pfeiffer with its LayerNorm", "pfeiffer", {"layer_norm": True}),
        ("houlsby", "houlsby", {}),
        ("parallel", "parallel", {}),
        ("compacter", "compacter", {}),
        ("lora", "lora", {}),
    ):
        shapes = adapters.schema(adapters.config(name, **settings), "vilt", 12, 768)
        megabytes = {key: 4e-6 * torch.Size(shape).numel() for key, shape in shapes.items()}
        chosen = tuple(f"layer.{layer}." for layer in range(ROUND_LAYERS))
        some = sum(size for key, size in megabytes.items() if key.startswith((*chosen, "shared.")))
        rows.append((label, sum(megabytes.values()), some))
    return rows


def measure(options: argparse.Namespace, adapter: str, methods: Sequence[str]) -> None:
    """Print the table of one kind of adapter."""
    model = Scored(options, adapter)
    runs: dict[str, Callable[[], Any]] = {"training step": model.step}
    runs |= {method: partial(model.score, method) for method in methods}
    compared = min(options.samples, FEW_SAMPLES) if options.full_size else options.samples
    compared_methods = [method for method in ("lntk", "lntk, logits") if method in methods]
    errors = {method: disagreement(model, method, compared) for method in compared_methods}
    times = medians(runs, options.repeats)
    print(f"{adapter:<24}{'CPU s':>10}{'/ step':>9}")
    for name, value in times.items():
        print(f"{name:<24}{value:>10.3f}{value / times['training step']:>9.2f}")
    for method, error in errors.items():
        print(f"{method}: largest relative difference to {compared} samples by autograd, row by row: {error:.1e}")
    print(flush=True)


def measure_eigenvalues(options: argparse.Namespace, adapter: str) -> None:
    """Print the seconds of eigenvalues of the last layer's tensors, and of an adapter of LLaVA's size."""
    model = Scored(options, adapter)
    last = list(model.layers)[-1]
    task = ScoringTask(
        model_fn=model, layers={last: model.layers[last]}, batches=(model.batch,), loss=model.losses, model=model
    )
    names = {id(parameter): key for key, parameter in adapter_parameters(model.peft).items()}
    eigenvalues.print_seconds(adapter, eigenvalues.squares(task, names), options.repeats)
    if options.full_size:
        large = eigenvalues.of_one_adapter(options.samples, options.classes, *eigenvalues.LLAVA)
        eigenvalues.print_seconds("one of LLaVA's size", large, options.repeats)


def measure_spectrum(options: argparse.Namespace) -> None:
    """Print the spectra of a trained site's layers, and draw them."""
    found = eigenvalues.spectra(options.rounds, options.samples, options.job)
    federation = options.job or "the embedded federation, Pfeiffer adapters and FedAvg"
    print(f"the first site of {federation}, after {options.rounds} rounds\n")
    eigenvalues.print_spectra(found)
    eigenvalues.draw(found).savefig(options.spectrum, dpi=DPI)


def picture(text: str) -> str:
    """Return the path of a picture, whose folder must be there before anything is computed."""
    if not Path(text).absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: its folder does not exist: make it first")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full-size", action="store_true", help="ViLT-B instead of the tiny ViLT")
    parser.add_argument("--adapters", nargs="+", default=["houlsby", "pfeiffer"], choices=adapters.names())
    parser.add_argument("--methods", nargs="+", default=None, choices=KNOWN, metavar="SCORE", help="; ".join(KNOWN))
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eigenvalues", action="store_true", help="seconds of one eigenvalue and of all, by tensor")
    parser.add_argument(
        "--spectrum", metavar="PICTURE", type=picture, help="eigenvalues of trained layers, printed and drawn"
    )
    parser.add_argument("--job", default="", help="of --spectrum, such as paper/f3ocus_task4_llava")
    parser.add_argument("--rounds", type=int, default=3, help="of training before the spectrum; 0: none")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    methods = options.methods or [name for name in KNOWN if not (options.full_size and name in SLOW)]

    print(f"{platform.platform()}, {os.cpu_count()} cores, torch {torch.__version__}, {datetime.date.today()}")
    print(
        f"{'ViLT-B' if options.full_size else 'tiny ViLT'}, batch {options.samples}, {options.classes} classes, "
        f"{options.threads} torch threads, medians of {options.repeats} turns\n"
    )
    if options.spectrum:
        try:
            measure_spectrum(options)
        except FedpeftError as error:
            parser.error(f"--spectrum: {error}")
    if options.eigenvalues:
        for adapter in options.adapters:
            measure_eigenvalues(options, adapter)
    if options.spectrum or options.eigenvalues:
        return
    for adapter in options.adapters:
        measure(options, adapter, methods)

    print(f"{'upload a round, ViLT-B, MB':<32}{'12 layers':>10}{f'{ROUND_LAYERS} layers':>10}")
    for label, every, some in communication():
        print(f"{label:<32}{every:>10.2f}{some:>10.2f}")


if __name__ == "__main__":
    main()
