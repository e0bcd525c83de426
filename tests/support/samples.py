# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Small random adapters of every kind, and what they compute, written down independently of the code under test."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Tensors = dict[str, Tensor]
PLACES = ("layer.0.attention", "layer.0.output", "layer.1.output")
D, BLOCKS, RANK = 32, 4, 2


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def adapter(kind: str, rng: torch.Generator, width: int = 16) -> Tensors:
    """One adapter with random weights everywhere (a zero would hide mistakes); width counts all hidden neurons."""

    def draw(*shape: int) -> Tensor:
        return 0.3 * torch.randn(*shape, generator=rng)

    if kind == "lora":
        return {"A": draw(width, D), "B": draw(D, width)}
    if kind == "compacter":
        n = BLOCKS
        return {
            "down.left": draw(n, D // n, RANK),
            "down.right": draw(n, RANK, width // n),
            "down.bias": draw(width),
            "up.left": draw(n, width // n, RANK),
            "up.right": draw(n, RANK, D // n),
            "up.bias": draw(D),
            "shared.rule": draw(n, n, n),
        }
    tensors = {"down.weight": draw(width, D), "down.bias": draw(width), "up.weight": draw(D, width), "up.bias": draw(D)}
    return tensors | ({"norm.weight": 1 + draw(D), "norm.bias": draw(D)} if kind == "pfeiffer" else {})


def hidden(kind: str, tensors: Tensors, h: Tensor) -> Tensor:
    """Activations of the hidden neurons: (m, D) -> (m, r)."""
    if kind == "lora":
        return h @ tensors["A"].T
    if kind == "compacter":
        return functional.gelu(h @ phm(tensors, "down") + tensors["down.bias"])
    if kind == "pfeiffer":
        h = functional.layer_norm(h, (D,), tensors["norm.weight"], tensors["norm.bias"])
    activate: Callable = functional.silu if kind == "houlsby" else functional.relu
    return activate(h @ tensors["down.weight"].T + tensors["down.bias"])


def output(kind: str, tensors: Tensors, h: Tensor) -> Tensor:
    """What the adapter adds to the residual stream: (m, D) -> (m, D)."""
    a = hidden(kind, tensors, h)
    if kind == "lora":
        return a @ tensors["B"].T
    if kind == "compacter":
        return a @ phm(tensors, "up") + tensors["up.bias"]
    return (4.0 if kind == "parallel" else 1.0) * (a @ tensors["up.weight"].T + tensors["up.bias"])


def phm(tensors: Tensors, side: str) -> Tensor:
    """H = sum_i kron(rule[i], left[i] @ right[i]), (in, out), by torch's own Kronecker product."""
    terms = zip(tensors["shared.rule"], tensors[f"{side}.left"], tensors[f"{side}.right"], strict=True)
    return sum(torch.kron(rule, left @ right) for rule, left, right in terms)


def shuffled(kind: str, tensors: Tensors, rng: torch.Generator) -> Tensors:
    """The same function with its neurons in another order (Compacter: the same order in every block)."""
    copy = dict(tensors)
    if kind == "lora":
        order = torch.randperm(len(tensors["A"]), generator=rng)
        return copy | {"A": tensors["A"][order], "B": tensors["B"][:, order]}
    if kind == "compacter":
        width = tensors["down.right"].shape[2]
        order = torch.randperm(width, generator=rng)
        every_block = (torch.arange(BLOCKS)[:, None] * width + order).flatten()
        return copy | {
            "down.right": tensors["down.right"][:, :, order],
            "down.bias": tensors["down.bias"][every_block],
            "up.left": tensors["up.left"][:, order],
        }
    order = torch.randperm(len(tensors["down.bias"]), generator=rng)
    return copy | {
        "down.weight": tensors["down.weight"][order],
        "down.bias": tensors["down.bias"][order],
        "up.weight": tensors["up.weight"][:, order],
    }


def state(kind: str, rng: torch.Generator, width: int = 16, places: tuple[str, ...] = PLACES) -> Tensors:
    """A model's adapters in wire form."""
    return on_wire({place: adapter(kind, rng, width) for place in places})


def on_wire(adapters: dict[str, Tensors]) -> Tensors:
    """Adapters by place as one state; the rule of the first serves the whole model."""
    wire: Tensors = {}
    for place, tensors in adapters.items():
        for name, tensor in tensors.items():
            wire.setdefault(name if name.startswith("shared.") else f"{place}.{name}", tensor)
    return wire


def at(state: Tensors, place: str) -> Tensors:
    """One place's tensors, with what the model shares."""
    shared = {key: tensor for key, tensor in state.items() if key.startswith("shared.")}
    return {key.removeprefix(place + "."): t for key, t in state.items() if key.startswith(place + ".")} | shared


def shuffled_state(kind: str, state: Tensors, rng: torch.Generator, places: tuple[str, ...] = PLACES) -> Tensors:
    """A state whose adapters all have an order of their own."""
    return on_wire({place: shuffled(kind, at(state, place), rng) for place in places})


def noisy(state: Tensors, rng: torch.Generator, scale: float = 0.01) -> Tensors:
    return {key: tensor + scale * torch.randn(tensor.shape, generator=rng) for key, tensor in state.items()}


def same_bytes(a: Tensors, b: Tensors) -> bool:
    return list(a) == list(b) and all(torch.equal(a[key], b[key]) for key in a)


def largest_difference(kind: str, a: Tensors, b: Tensors, places: tuple[str, ...] = PLACES) -> float:
    """How far two states are apart as functions: the largest output difference over places and random inputs."""
    h = torch.randn(64, D, generator=generator(99))
    return max(float((output(kind, at(a, place), h) - output(kind, at(b, place), h)).abs().max()) for place in places)
