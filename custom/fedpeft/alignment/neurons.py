# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Where the neurons of each kind of adapter lie in its tensors, and so what may be permuted.

Every adapter here is a two-layer network, `h -> up(act(down(h)))`, and reordering its hidden neurons does not change
its function. A new kind of adapter is one more `Neurons`, which its method declares. Tensors of no registered kind
(LayerNorm, biases, prompts, Compacter's shared rule) have no neurons to reorder and are averaged as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import by_place
from fedpeft.core.registry import Registry
from fedpeft.core.states import State, computable

Tensors = Mapping[str, Tensor]


class Bottleneck(NamedTuple):
    """A plain adapter `h -> up @ act(down @ h + down_bias) + up_bias`: r hidden neurons on a stream of width d."""

    down: Tensor  # (r, d)
    down_bias: Tensor | None  # (r)
    up: Tensor  # (d, r)
    up_bias: Tensor | None  # (d)


@dataclass(frozen=True, kw_only=True)
class Neurons:
    """Where the neurons of one kind of adapter lie: tensor name -> axis.

    Args:
        kind: its name.
        needs: tensors by which the kind is recognized.
        incoming: axes of the hidden neurons in their incoming weights (`down` and its bias).
        outgoing: axes of the hidden neurons in their outgoing weights (`up`).
        outputs: axes of the d output neurons, permuted only with `output_axis="matched"`.
        dense: converts the adapter to a plain bottleneck, from which supports are computed.
        blocked: tensors whose neuron axis is a stack of blocks that are all reordered alike.
        counts_blocks: tensor whose first axis counts these blocks; "" if there is one.
        shared: keys of the whole model that `dense` needs besides the tensors of its place.
    """

    kind: str
    needs: frozenset[str]
    incoming: Mapping[str, int]
    outgoing: Mapping[str, int]
    outputs: Mapping[str, int]
    dense: Callable[[Tensors], Bottleneck]
    blocked: frozenset[str] = field(default_factory=frozenset)
    counts_blocks: str = ""
    shared: tuple[str, ...] = ()

    def blocks(self, tensors: Tensors) -> int:
        """Return the number of blocks that are reordered alike; 1 if every neuron can move alone."""
        return tensors[self.counts_blocks].shape[0] if self.counts_blocks else 1

    def width(self, tensors: Tensors) -> int:
        """Return the number of hidden neurons that can be reordered (Compacter: in each block)."""
        name, axis = next((name, axis) for name, axis in self.incoming.items() if name in tensors)
        return tensors[name].shape[axis] // (self.blocks(tensors) if name in self.blocked else 1)

    def gather(self, state: State, names: Mapping[str, str]) -> dict[str, Tensor]:
        """Return one place's tensors and its kind's shared ones, by name and in a dtype to compute in."""
        return {name: computable(state[key]) for name, key in [*names.items(), *((k, k) for k in self.shared)]}

    def network(self, names: Iterable[str]) -> list[str]:
        """Return the names of a place's tensors that form the two-layer network; LayerNorm, for instance, does not."""
        return [name for name in names if name in self.incoming or name in self.outgoing or name in self.outputs]

    def hidden_support(self, tensors: Tensors) -> Tensor:
        """Return the incoming weights of each hidden neuron, its bias as one more coordinate: (r, d + 1)."""
        adapter = self.dense(tensors)
        return self._by_neuron(_with_bias(adapter.down, adapter.down_bias), tensors)

    def output_support(self, tensors: Tensors) -> Tensor:
        """Return the incoming weights of each output neuron, its bias as one more coordinate: (d, r + 1)."""
        adapter = self.dense(tensors)
        return self._by_neuron(_with_bias(adapter.up, adapter.up_bias), tensors)

    def hidden_activations(self, tensors: Tensors, hidden: Tensor) -> Tensor:
        """Return activations (m, r) of m samples as supports, one row for each hidden neuron: (r, m)."""
        return self._by_neuron(hidden.T, tensors)

    def output_activations(self, tensors: Tensors, hidden: Tensor) -> Tensor:
        """Return the outputs for activations (m, r), one row for each output neuron: (d, m).

        Exact also for token means, because `up` is linear.
        """
        adapter = self.dense(tensors)
        outputs = adapter.up @ hidden.T.to(adapter.up.dtype)
        return self._by_neuron(outputs if adapter.up_bias is None else outputs + adapter.up_bias[:, None], tensors)

    def _by_neuron(self, rows: Tensor, tensors: Tensors) -> Tensor:
        """Join the rows of neurons that move together, one from each block: (n r, f) -> (r, n f)."""
        blocks = self.blocks(tensors)
        return rows if blocks == 1 else rows.unflatten(0, (blocks, -1)).transpose(0, 1).flatten(1)


@runtime_checkable
class HasNeurons(Protocol):
    """A method of an installed package, as far as its neurons are concerned (`fedpeft.methods.TuningMethod`)."""

    def neuron_layout(self) -> Neurons | None:
        """Return where the neurons of its adapters lie; None: it has none."""


_PLUGINS: Registry[HasNeurons] = Registry("method", "fedpeft.methods", HasNeurons)


def register(neurons: Neurons) -> None:
    """Register a kind of adapter for alignment; each name can be used once.

    The kinds of methods that declare their `neurons` need no registration.
    """
    if neurons.kind in KINDS:
        raise FedpeftError(f"the adapter kind {neurons.kind!r} is registered already: give the new one another name.")
    KINDS[neurons.kind] = neurons


def neurons_of(names: Collection[str]) -> Neurons | None:
    """Return the kind of adapter that has these tensors; None if it has no neurons to reorder."""
    present = set(names)
    return next((neurons for neurons in (*KINDS.values(), *_of_plugins()) if neurons.needs <= present), None)


@cache
def _of_plugins() -> tuple[Neurons, ...]:
    """Return the kinds that methods of installed plugins declare; what cannot be imported is left out."""
    declared = []
    for name, method in _PLUGINS.usable():
        try:
            declared.append(method.neuron_layout())
        except FedpeftError as error:
            _PLUGINS.skip(name, error)
    return tuple(neurons for neurons in declared if neurons is not None and neurons.kind not in KINDS)


def materialize(state: State) -> State:
    """Replace every adapter in a factored form (Compacter) by the plain bottleneck that computes the same.

    Args:
        state: an adapter state.

    Returns:
        A state with `down.weight (r, d)`, `down.bias`, `up.weight (d, r)`, `up.bias`, whose neurons can be reordered
        one by one instead of alike in every block; what only the factored form needed (`shared.rule`) is gone.
    """
    plain: dict[str, Tensor] = {}
    spent: set[str] = set()
    for place, names in by_place(state).items():
        neurons = neurons_of(names)
        if neurons is None or not neurons.shared:
            plain |= {key: state[key] for key in names.values()}
            continue
        spent.update(neurons.shared)
        adapter = neurons.dense(
            {name: state[key] for name, key in names.items()} | {k: state[k] for k in neurons.shared}
        )
        tensors = zip(("down.weight", "down.bias", "up.weight", "up.bias"), adapter, strict=True)
        plain |= {f"{place}.{name}": tensor.contiguous() for name, tensor in tensors if tensor is not None}
    return {key: tensor for key, tensor in plain.items() if key not in spent}


def _with_bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)


def _dense_bottleneck(tensors: Tensors) -> Bottleneck:
    return Bottleneck(tensors["down.weight"], tensors.get("down.bias"), tensors["up.weight"], tensors.get("up.bias"))


def _dense_lora(tensors: Tensors) -> Bottleneck:
    return Bottleneck(tensors["A"], None, tensors["B"], None)


def _dense_compacter(tensors: Tensors) -> Bottleneck:
    def phm(side: str) -> Tensor:
        """H = sum_i kron(rule[i], left[i] @ right[i]), transposed to (out, in)."""
        factors = tensors[f"{side}.left"] @ tensors[f"{side}.right"]  # (n, in/n, out/n)
        blocks = torch.einsum("iab,ipq->bqap", tensors["shared.rule"], factors)
        return blocks.flatten(2).flatten(0, 1)

    return Bottleneck(phm("down"), tensors.get("down.bias"), phm("up"), tensors.get("up.bias"))


BOTTLENECK = Neurons(
    kind="bottleneck",  # Houlsby, Pfeiffer, Parallel
    needs=frozenset({"down.weight", "up.weight"}),
    incoming={"down.weight": 0, "down.bias": 0},
    outgoing={"up.weight": 1},
    outputs={"up.weight": 0, "up.bias": 0},
    dense=_dense_bottleneck,
)
LORA = Neurons(
    kind="lora",  # a neuron is a rank direction: row of A, column of B
    needs=frozenset({"A", "B"}),
    incoming={"A": 0},
    outgoing={"B": 1},
    outputs={"B": 0},
    dense=_dense_lora,
)
COMPACTER = Neurons(
    kind="compacter",  # its Kronecker structure absorbs one order within the blocks, the same for all
    needs=frozenset({"down.left", "down.right", "up.left", "up.right"}),
    incoming={"down.right": 2, "down.bias": 0},
    outgoing={"up.left": 1},
    outputs={"up.right": 2, "up.bias": 0},
    dense=_dense_compacter,
    blocked=frozenset({"down.bias", "up.bias"}),
    counts_blocks="down.left",
    shared=("shared.rule",),
)
KINDS = {neurons.kind: neurons for neurons in (BOTTLENECK, LORA, COMPACTER)}
