# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The loop in which a tiny backbone is pre-trained in one process: seeded, logged, and resumed from its checkpoint."""

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


def arguments(description: str, *, steps: int) -> argparse.Namespace:
    """Read the command line of a pre-training script.

    Args:
        description: of the script.
        steps: over which the learning rate falls, where nothing else is said.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True, help="folder of the backbone and its checkpoint")
    parser.add_argument("--steps", type=int, default=steps, help="over which the learning rate falls")
    parser.add_argument("--until", type=int, default=0, help="stop at this step; 0: at the last")
    parser.add_argument("--batch", type=int, default=64, help="images a step")
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def train(
    modules: nn.Module,
    losses: Callable[[int], tuple[Tensor, Mapping[str, float]]],
    args: argparse.Namespace,
    *,
    kept: Mapping[str, Tensor] | None = None,
) -> None:
    """Train modules to the last step, with a checkpoint every 200 steps, from which an interrupted run goes on.

    Args:
        modules: what is trained, heads of pre-training included.
        losses: from the number of a step to the loss that is minimized and the figures to print.
        args: of `arguments`.
        kept: tensors that `losses` changes in place and that belong into the checkpoint, by name.
    """
    parameters = list(modules.parameters())
    groups = [[p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]]
    optimizer = torch.optim.AdamW(
        [{"params": group, "weight_decay": decay} for group, decay in zip(groups, (0.02, 0), strict=True)],
        lr=args.lr,
        betas=(0.9, 0.98),
    )
    kept = kept or {}
    checkpoint, step = args.out / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        modules.load_state_dict(state["modules"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        for name, tensor in kept.items():
            tensor.copy_(state[name])
    start, window = time.process_time(), defaultdict(list)
    last = min(args.steps, args.until or args.steps)
    while step < last:
        for group in optimizer.param_groups:
            cosine = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / args.steps))
            group["lr"] = args.lr * min(1.0, (step + 1) / 150) * cosine
        total, figures = losses(step)
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step += 1
        for name, value in figures.items():
            window[name].append(value)
        if step % 50 == 0:
            line = {"step": step, "images": step * args.batch, "processor seconds": round(time.process_time() - start)}
            line |= {name: round(float(np.mean(values)), 3) for name, values in window.items()}
            print(json.dumps(line), flush=True)
            window.clear()
        if step % 200 == 0 or step == last:
            state = {"modules": modules.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"step": step} | dict(kept), checkpoint)


def as_float16(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as they are stored."""
    return {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in tensors.items()}
