# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FedDAT in a ViLT without any of fedpeft's code: adapters as equations in forward hooks, plain gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

State = Mapping[str, Tensor]
MODULES = {"attention": "attention.output", "output": "output"}  # slot -> module of a layer of ViLT


class Kind(NamedTuple):
    """The equation of a kind of adapter: `scaling up(activation(down(h)))`.

    Args:
        activation: of the neurons.
        slots: where it stands.
        scaling: of what it adds.
        beside: whether h is what the block of the slot reads from the residual stream; otherwise what it returns.
        fused: whether attention over what the adapters add takes the place of their mean.
    """

    activation: Any
    slots: tuple[str, ...]
    scaling: float = 1.0
    beside: bool = False
    fused: bool = False


KINDS = {
    "feddat_houlsby": Kind(F.silu, ("attention", "output")),
    "feddat_parallel": Kind(F.relu, ("output",), scaling=4.0, beside=True),
    "feddat_compacter": Kind(F.gelu, ("attention", "output")),
    "feddat_adapterfusion": Kind(F.relu, ("output",), fused=True),
}


class ByHand:
    """A ViLT with a0, a1 and a2, and a head.

    Args:
        kind: of the adapters.
        model: a ViLT, whose weights stay as they are.
        head: from its pooled output to logits; it trains.
        states: by adapter, its tensors under their keys; those of the fusion are among a0's.
    """

    def __init__(self, kind: Kind, model: nn.Module, head: nn.Module, states: Mapping[str, State]) -> None:
        self.kind, self.model, self.head = kind, model.requires_grad_(False), head
        self.states = {
            name: {key: tensor.clone().requires_grad_(name != "a2") for key, tensor in state.items()}
            for name, state in states.items()
        }
        self.active: tuple[str, ...] = ()
        for number, layer in enumerate(model.encoder.layer):
            for slot in kind.slots:
                layer.get_submodule(MODULES[slot]).register_forward_hook(self._hook(f"layer.{number}.{slot}"))

    def logits(self, batch: Mapping[str, Tensor], *active: str) -> Tensor:
        """Logits with one adapter, or with what takes the place of several."""
        self.active = active
        return self.head(self.model(**batch).pooler_output)

    def descend(self, loss: Tensor, name: str, rate: float) -> None:
        """A step of gradient descent of one adapter and the head."""
        values = [*self.states[name].values(), *self.head.parameters()]
        gradients = torch.autograd.grad(loss, values, allow_unused=True)  # one adapter alone is not fused
        with torch.no_grad():
            for value, gradient in zip(values, gradients, strict=True):
                value -= rate * (0 if gradient is None else gradient)

    def _hook(self, place: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            h = inputs[1] if self.kind.beside else output
            added = [self._added(self.states[name], place, h) for name in self.active]
            if len(added) == 1:
                return output + added[0]
            return output + (self._fused(place, h, added) if self.kind.fused else (added[0] + added[1]) / 2)

        return hook

    def _added(self, state: State, place: str, h: Tensor) -> Tensor:
        hidden = self.kind.activation(h @ _matrix(state, f"{place}.down") + state[f"{place}.down.bias"])
        return self.kind.scaling * (hidden @ _matrix(state, f"{place}.up") + state[f"{place}.up.bias"])

    def _fused(self, place: str, h: Tensor, added: list[Tensor]) -> Tensor:
        fusion = {name: self.states["a0"][f"{place}.fusion.{name}.weight"] for name in ("query", "key", "value")}
        query = h @ fusion["query"].T + self.states["a0"][f"{place}.fusion.query.bias"]
        scores = torch.stack([(query * (z @ fusion["key"].T)).sum(-1) for z in added])
        shares = scores.exp() / scores.exp().sum(0)
        return sum(share[..., None] * (z @ fusion["value"].T) for share, z in zip(shares, added, strict=True))


def _matrix(state: State, name: str) -> Tensor:
    """The matrix (in, out) of a projection; Compacter's is a sum of Kronecker products with the shared rule."""
    if f"{name}.weight" in state:
        return state[f"{name}.weight"].T
    terms = zip(state["shared.rule"], state[f"{name}.left"], state[f"{name}.right"], strict=True)
    return sum(torch.kron(rule, left @ right) for rule, left, right in terms)
