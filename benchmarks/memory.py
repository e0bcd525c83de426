# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a training step takes beside what the memory budget expects, and what it charges for each layer.

    python benchmarks/memory.py                 tiny ViLT, batch 16
    python benchmarks/memory.py --full-size     ViLT-B with random weights, 384 x 384 pixels
    python benchmarks/memory.py --full-size --device cuda     on a GPU, by CUDA's allocator

The step is forward, backward and AdamW with Houlsby adapters, twice. Printed are the bytes that the budget charges, the
most that tensors take at once, and by how much the peak of memory rises: on the CPU the resident memory of a fresh
process with one thread, on CUDA what torch's allocator has handed out (`torch.cuda.max_memory_allocated`). Without
--device it is CUDA where there is one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import weakref
from typing import Any

import torch
from measured import machine
from scoring import Scored
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.importance import MemorySettings, layer_memory
from fedpeft.site.computing import device_of

MIB = 2**20


def expected(model: Scored, choice: str) -> tuple[float, torch.Tensor]:
    """The bytes that the budget expects: of a step without layers, and of each further layer."""
    settings = MemorySettings(choice=choice)
    model.train()
    return layer_memory(model, model.layers, model.batch, model.losses, model=model, settings=settings)


def on_device(options: argparse.Namespace, device: torch.device) -> Scored:
    """The model with its batch on a device."""
    model = Scored(options, "houlsby").train().to(device)
    model.batch = {name: tensor.to(device) for name, tensor in model.batch.items()}
    model.target = model.target.to(device)
    return model


def allocator_growth(model: Scored) -> int:
    """By how many bytes two steps raise the peak of CUDA's allocator; a step of one sample goes before them."""
    one = {name: tensor[:1] for name, tensor in model.batch.items()}
    model.losses(model(one), one).mean().backward()  # what stays: workspaces of products of matrices
    model.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        model.step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def process_growth(options: argparse.Namespace) -> int:
    """By how many bytes two steps raise the peak of this process."""
    torch.set_num_threads(1)
    model = Scored(options, "houlsby").train()
    one = {name: tensor[:1] for name, tensor in model.batch.items()}
    model.losses(model(one), one).mean().backward()  # loads what torch loads once
    model.zero_grad(set_to_none=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):
        model.step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


class Alive(TorchDispatchMode):
    """Follow the bytes of tensors that operations make, until they are freed."""

    def __init__(self, model: Scored) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = {
            tensor.untyped_storage()._cdata for tensor in (*model.state_dict().values(), *model.batch.values())
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and (key := tensor.untyped_storage()._cdata) not in self._known:
                size = tensor.untyped_storage().nbytes()
                self._known.add(key)
                self.now += size
                self.peak = max(self.peak, self.now)
                weakref.finalize(tensor.untyped_storage(), self._freed, key, size)
        return result

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def live_tensors(model: Scored) -> int:
    """Bytes of the tensors alive at the peak of two steps, gradients and the optimizer's state among them."""
    with Alive(model) as alive:
        for _ in range(2):
            model.step()
    return alive.peak


def measure(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Measure everything in bytes: what each `choice` is charged, the tensors at the peak, by how much memory grows."""
    if device.type == "cpu":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            grown = pool.apply(process_growth, (options,))
    torch.set_num_threads(1)
    model = on_device(options, device)
    if device.type == "cuda":
        grown = allocator_growth(model)
        model = on_device(options, device)  # whose optimizer has no state yet
    charged = {choice: expected(model, choice) for choice in ("any", "last")}
    return {"charged": charged, "grown": grown, "tensors": live_tensors(model)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full-size", action="store_true")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    options = parser.parse_args()
    device = device_of(TrainingSettings(rounds=1, device=options.device))
    result = measure(options, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    print(f"{machine()}\n{name}, batch {options.samples}, Houlsby adapters, MiB\n")
    for choice, (fixed, costs) in result["charged"].items():
        listed = " ".join(f"{cost / MIB:.2f}" for cost in costs.tolist())
        print(f"charged, choice={choice}: {fixed / MIB:.1f} and {listed}: {(fixed + float(costs.sum())) / MIB:.1f}")
    where = "CUDA's allocator grows by" if device.type == "cuda" else "the process grows by "
    print(f"{where:<25} {result['grown'] / MIB:.1f}")
    print(f"{'tensors at the peak':<25} {result['tensors'] / MIB:.1f}")


if __name__ == "__main__":
    main()
