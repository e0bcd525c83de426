# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Samples per second and peak memory of a training step, ours beside transformers with PEFT, and beside FedDAT's.

    python benchmarks/training.py                     ViLT-B with random weights, 384 x 384 pixels, batch 16, 40 tokens
    python benchmarks/training.py --tiny --runs 1     the tiny ViLT's shape, to try it out

Every measurement is a new process: it builds the model, computes one step of a single sample, then one of the whole
batch, which counts; where layers are compiled or features kept, one of the whole batch goes before it. Rows take turns.
Memory is the process's peak of resident memory, or that of CUDA's allocator.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from measured import machine, memory_mib, ratio, show

Measured = tuple[float, float, float, float]  # of one step: wall seconds, CPU seconds, MiB at the peak and before it


class Row(NamedTuple):
    """What is measured.

    Args:
        theirs: the row that it is compared with.
        method: ours; empty in the rows of others.
        training: settings that are not the default ones.
        last_third: whether the last third of the layers alone has adapters.
        vit: whether the model is a ViT of the same width and depth, patches of 16 and at most 224 pixels a side, which
            reads the image alone.
    """

    theirs: str
    method: str = ""
    training: Mapping[str, Any] = MappingProxyType({})
    last_third: bool = False
    vit: bool = False


HALF = {"precision": "bfloat16"}
FIRST_TOKEN = {"last_layer": "first_token"}  # all of less that a ViT has: its attention is fused anyway
LESS = {"attention": "fused", **FIRST_TOKEN}
LORA, LORA_HALF = "PEFT LoRA", "PEFT LoRA, bf16"
FEDDAT, FEDDAT_HALF = "FedDAT", "FedDAT, bf16"
VIT = "ViT, houlsby, last third"
VIT_LORA, VIT_LORA_HALF = "ViT, PEFT LoRA", "ViT, PEFT LoRA, bf16"
ROWS = {
    LORA: Row(LORA),
    "lora": Row(LORA, "lora"),
    "lora, less": Row(LORA, "lora", LESS),
    "lora, less, compiled": Row(LORA, "lora", LESS | {"compile": True}),
    "houlsby": Row(LORA, "houlsby"),
    "houlsby, less": Row(LORA, "houlsby", LESS),
    "houlsby, less, compiled": Row(LORA, "houlsby", LESS | {"compile": True}),
    "houlsby, checkpointing": Row(LORA, "houlsby", {"checkpointing": True}),
    "houlsby, last third": Row(LORA, "houlsby", last_third=True),
    "houlsby, last third, kept": Row(LORA, "houlsby", {"features_mib": 64}, True),
    LORA_HALF: Row(LORA_HALF, "", HALF),
    "lora, less, autocast": Row(LORA_HALF, "lora", LESS | HALF),
    "lora, less, bf16": Row(LORA_HALF, "lora", LESS | HALF | {"frozen_precision": "bfloat16"}),
    "lora, less, bf16, compiled": Row(
        LORA_HALF, "lora", LESS | HALF | {"frozen_precision": "bfloat16", "compile": True}
    ),
    FEDDAT: Row(FEDDAT),
    "feddat": Row(FEDDAT, "feddat_houlsby"),
    "feddat, less": Row(FEDDAT, "feddat_houlsby", LESS),
    "feddat, less, compiled": Row(FEDDAT, "feddat_houlsby", LESS | {"compile": True}),
    "feddat, less, reuse": Row(FEDDAT, "feddat_houlsby", LESS | {"reuse_passes": True}),
    "feddat, less, reuse, micro": Row(FEDDAT, "feddat_houlsby", LESS | {"reuse_passes": True, "micro_batch": 4}),
    FEDDAT_HALF: Row(FEDDAT_HALF, "", HALF),
    "feddat, less, bf16": Row(FEDDAT_HALF, "feddat_houlsby", LESS | HALF | {"frozen_precision": "bfloat16"}),
    VIT: Row(VIT, "houlsby", last_third=True, vit=True),
    "ViT, houlsby, last third, kept": Row(VIT, "houlsby", {"features_mib": 64}, last_third=True, vit=True),
    VIT_LORA: Row(VIT_LORA, vit=True),
    "ViT, lora, less": Row(VIT_LORA, "lora", FIRST_TOKEN, vit=True),
    VIT_LORA_HALF: Row(VIT_LORA_HALF, "", HALF, vit=True),
    "ViT, lora, less, bf16": Row(
        VIT_LORA_HALF, "lora", FIRST_TOKEN | HALF | {"frozen_precision": "bfloat16"}, vit=True
    ),
}
STEPS_ON_CUDA = 10  # that count: one takes milliseconds
VIT_PIXELS = 224
TINY = {"hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 4, "image_size": 96}


def own_step(row: Row, config: Any, device: Any) -> tuple[Callable[[dict, Any], float], Any]:
    """The step of a site with one of our methods, with the head of ViLT for questions, and what a round is in."""
    import torch

    from fedpeft import methods
    from fedpeft.answering.answering import Batch
    from fedpeft.answering.classification import Classification, build_head
    from fedpeft.answering.training_settings import TrainingSettings
    from fedpeft.backbones.matrices import matrices
    from fedpeft.data.answers import AnswerVocabulary
    from fedpeft.methods.settings import MethodSettings
    from fedpeft.site import computing
    from fedpeft.site.loop import build_optimizer, parts_of

    settings = TrainingSettings(rounds=1, **row.training)
    backbone = vit(config) if row.vit else vilt(config)
    weights = matrices(backbone.model)
    first = min(backbone.num_layers * 2 // 3, backbone.num_layers - 1)
    own = {"layers": list(range(first, backbone.num_layers))} if row.last_third else {}
    trainable = methods.get(row.method).tuning().prepare(backbone, own, seed=0)
    trainable.start(trainable.state(), None)
    head = build_head("mlp", config.hidden_size, config.num_labels, torch.Generator().manual_seed(0))
    vocabulary = AnswerVocabulary([f"answer {number}" for number in range(config.num_labels)])
    computing.keep_frozen(backbone, settings, weights, device, MethodSettings(name=row.method))
    answering = Classification(backbone, head, vocabulary).to(device).train()
    computing.set_up(backbone, settings)
    if settings.reuse_passes:
        trainable.reuse_passes()
    features = computing.kept_features(backbone, trainable, settings, some_layers=False)
    optimizer = build_optimizer(
        trainable.parameters().items(),
        head.named_parameters(),
        kind=settings.optimizer,
        learning_rate=1e-4,
        head_learning_rate=1e-4,
        weight_decay=0.01,
    )

    def step(inputs: dict, target: torch.Tensor) -> float:
        batch = Batch(inputs, target, None, torch.zeros(len(target)))
        return trainable.step(parts_of(batch, answering, settings.micro_batch), optimizer).item()

    return step, computing.shortcuts(backbone, settings, features)


def vilt(config: Any) -> Any:
    """A ViLT with random weights."""
    from transformers import ViltModel

    from fedpeft.backbones.vilt import Vilt

    return Vilt(ViltModel(config), tokenizer=None, prepare=None, text_length=40)


def vit_config(config: Any) -> Any:
    """The configuration of a ViT of the width, depth and classes of a ViLT."""
    from transformers import ViTConfig

    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_labels")
    size = min(config.image_size, VIT_PIXELS)
    return ViTConfig(**{name: getattr(config, name) for name in names}, image_size=size, patch_size=16)


def vit(config: Any) -> Any:
    """A ViT of the width and depth of a ViLT, with random weights."""
    from transformers import ViTModel

    from fedpeft.backbones.vit import Vit

    shape = vit_config(config)
    return Vit(ViTModel(shape, add_pooling_layer=False), shape.image_size)


def peer_of(row: Row, config: Any) -> Any:
    """The model and step of others."""
    import training_peers

    if row.vit:
        return training_peers.PeftLoraVit(vit_config(config))
    return (training_peers.PeftLora if row.theirs in (LORA, LORA_HALF) else training_peers.FedDat)(config)


def random_batch(config: Any, options: argparse.Namespace) -> tuple[dict, Any]:
    """Tokens, pixels and classes of a batch, as ViLT's processor makes them from images of one size."""
    import torch

    rng = torch.Generator().manual_seed(0)
    size, samples = config.image_size, options.samples
    inputs = {
        "input_ids": torch.randint(5, config.vocab_size, (samples, options.tokens), generator=rng),
        "attention_mask": torch.ones(samples, options.tokens, dtype=torch.long),
        "pixel_values": torch.randn(samples, 3, size, size, generator=rng),
        "pixel_mask": torch.ones(samples, size, size, dtype=torch.long),
    }
    return inputs, torch.randint(0, options.classes, (samples,), generator=rng)


def measure(name: str, options: argparse.Namespace) -> Measured:
    """Measure one step of a row; in a process of its own."""
    import torch
    from transformers import ViltConfig

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    row, device = ROWS[name], torch.device(options.device)
    config = ViltConfig(**(TINY if options.tiny else {}), num_labels=options.classes)
    inputs, target = random_batch(config, options)
    if row.vit:
        inputs = {"pixel_values": inputs["pixel_values"][..., :VIT_PIXELS, :VIT_PIXELS]}
    inputs, target = {key: tensor.to(device) for key, tensor in inputs.items()}, target.to(device)
    if row.method:
        step, around = own_step(row, config, device)
    else:
        peer = peer_of(row, config)
        peer.model.to(device)
        step = peer.step
        around = torch.autocast(device.type, dtype=torch.bfloat16, enabled=row.training == HALF)
    with around:
        step({key: tensor[:1] for key, tensor in inputs.items()}, target[:1])
        on_cuda = device.type == "cuda"
        steps = STEPS_ON_CUDA if on_cuda else 1
        if on_cuda or {"compile", "features_mib"} & row.training.keys():  # another size of the batch: compiled again
            step(inputs, target)
        held = memory_mib(device, peak=False)
        if on_cuda:
            torch.cuda.synchronize()
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step(inputs, target)
        if on_cuda:
            torch.cuda.synchronize()
    wall, spent = time.perf_counter() - began, time.process_time() - cpu
    return wall / steps, spent / steps, memory_mib(device, peak=True), held


def table_rows(taken: Mapping[str, Sequence[Measured]], samples: int) -> list[tuple[str, ...]]:
    """Row by row: samples per second, how many times faster than others (wall, CPU), MiB at the peak, growth.

    Args:
        taken: by row, what `measure` returned for each run; a row whose others are not among them is its own other.
        samples: of a batch.
    """
    rows = []
    for name, steps in taken.items():
        theirs = taken.get(ROWS[name].theirs, steps)
        wall, cpu = ([a[k] / b[k] for a, b in zip(theirs, steps, strict=True)] for k in range(2))
        growth = [(b[2] - b[3]) / (a[2] - a[3]) for a, b in zip(theirs, steps, strict=True)]
        speed = samples / statistics.median(step[1] for step in steps)
        peak = statistics.median(step[2] for step in steps)
        rows.append((name, f"{speed:.2f}", ratio(wall), ratio(cpu), f"{peak:.0f}", f"{statistics.median(growth):.2f}"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="the tiny ViLT's shape instead of ViLT-B's")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS, metavar="ROW", help="; ".join(ROWS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--classes", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    where = machine()
    taken: dict[str, list[Measured]] = {name: [] for name in options.rows}
    new_process = partial(multiprocessing.get_context("spawn").Pool, 1, maxtasksperchild=1)
    for _ in range(options.runs):
        for name, steps in taken.items():
            with new_process() as pool:
                steps.append(pool.apply(measure, (name, options)))
    rows = table_rows(taken, options.samples)
    shape = "the tiny ViLT's shape" if options.tiny else "ViLT-B"
    print(where)
    show(
        f"{shape}, batch {options.samples}, {options.tokens} tokens, {options.classes} answers, {options.device}",
        ("step", "samples / CPU s", "faster, wall", "faster, CPU", "peak MiB", "growth"),
        rows,
        f"Medians of {options.runs} processes in turns (least to greatest). Faster, and growth of memory in the step: "
        "against the row of others (PEFT LoRA, FedDAT) above. less: attention=fused, last_layer=first_token; bf16: "
        "theirs in autocast, ours with precision (autocast) and frozen_precision; reuse: reuse_passes; micro: "
        "micro_batch=4; last third: adapters in the last four of twelve layers alone; kept: features_mib=64, "
        "in a step after a sample's first. ViT: B/16 at 224 pixels; its kept features are beside its row without them.",
    )


if __name__ == "__main__":
    main()
