# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Small models, batches and an independent way to their Jacobians: one sample at a time, one output at a time."""

import torch
from torch import nn
from torch.nn import functional as F

SAMPLES, CLASSES = 5, 3


class Batch(dict):
    """Inputs and targets; a batch of one sample is cut out with `one`."""

    def one(self, number):
        return Batch({key: value[number : number + 1] for key, value in self.items()})


class Block(nn.Module):
    """A layer of every operation that is captured, and one (`shift`, an addition) that is not."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width, bias=False)
        self.root = nn.RMSNorm(width)
        self.scale = nn.Parameter(torch.rand(width))
        self.gain = nn.Parameter(torch.rand(1))
        self.shift = nn.Parameter(torch.randn(width))

    def forward(self, h):
        h = h + self.scale * torch.tanh(self.narrow(F.gelu(self.wide(self.norm(h)))))
        return torch.mul(self.root(h), self.gain) + self.shift


class Net(nn.Module):
    """Tokens (B, T, d) through a few blocks to logits (B, C)."""

    def __init__(self, width=6, layers=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens):
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens.mean(1))


def net(dtype=torch.float32):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net().to(dtype)


def layers_of(model):
    return {f"block {number}": list(block.parameters()) for number, block in enumerate(model.blocks)}


def tokens(samples=SAMPLES, length=4, width=6, seed=1, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, length, width, generator=rng, dtype=dtype)
    return Batch(tokens=inputs, target=torch.randint(0, CLASSES, (samples,), generator=rng))


def loss(logits, batch):
    return F.cross_entropy(logits, batch["target"], reduction="none")


def model_fn(model):
    return lambda batch: model(batch["tokens"])


def jacobian(function, layers, batch, loss=loss, target="loss"):
    """Rows by autograd from batches of one sample: layer -> (n, p) or (n*C, p) float64."""
    rows = {layer: [] for layer in layers}
    for number in range(len(batch["target"])):
        one = batch.one(number)
        outputs = loss(function(one), one) if target == "loss" else function(one)[0]
        for output in outputs:
            for layer, parameters in layers.items():
                found = torch.autograd.grad(output, parameters, retain_graph=True, allow_unused=True)
                flat = [
                    (torch.zeros_like(p) if g is None else g).flatten().double()
                    for p, g in zip(parameters, found, strict=True)
                ]
                rows[layer].append(torch.cat(flat))
    return {layer: torch.stack(found) for layer, found in rows.items()}


def kernel_eigenvalues(rows):
    """Largest eigenvalue of every J J^T, by full decomposition."""
    return torch.stack([torch.linalg.eigvalsh(j @ j.T)[-1] for j in rows.values()])
