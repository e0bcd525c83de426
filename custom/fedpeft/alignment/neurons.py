# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Where the neurons of each kind of adapter lie, and so what may be permuted; which adapters fit together.

Every adapter here is a two-layer network, `h -> up(act(down(h)))`, and reordering its hidden neurons does not change
its function. A new kind of adapter is one more `Neurons`, which its method declares. Tensors of no registered kind
(LayerNorm, biases, prompts, Compacter's shared rule) have no neurons to reorder and are averaged as in FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import group_by_place, is_key
from fedpeft.core.registry import Registry
from fedpeft.core.states import State, computable, plain

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

    def gather(self, state: State, names: Mapping[str, str], *, convert: bool = True) -> dict[str, Tensor]:
        """Return one place's tensors and its kind's shared ones, by name; `convert`: in a dtype to compute in."""
        tensors = {name: state[key] for name, key in [*names.items(), *((k, k) for k in self.shared)]}
        return {name: computable(tensor) for name, tensor in tensors.items()} if convert else tensors

    def network(self, names: Iterable[str]) -> list[str]:
        """Return the names of a place's tensors that form the two-layer network; LayerNorm, for instance, does not."""
        parts = (self.needs, self.incoming, self.outgoing, self.outputs)
        return [name for name in names if any(name in part for part in parts)]

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
    """Return the kind of adapter that has these tensors, of several the one that needs most; None if there is none."""
    present = set(names)
    _add_kinds_of_plugins()
    fitting = (neurons for neurons in KINDS.values() if neurons.needs <= present)
    return max(fitting, key=lambda neurons: len(neurons.needs), default=None)


@cache
def _add_kinds_of_plugins() -> None:
    """Register the kinds that methods of installed plugins declare; what cannot be imported is left out."""
    for name, method in _PLUGINS.usable():
        try:
            if (layout := method.neuron_layout()) is not None:
                KINDS.setdefault(layout.kind, layout)
        except FedpeftError as error:
            _PLUGINS.skip(name, error)


@plain
def materialize(state: State) -> State:
    """Replace every adapter in a factored form (Compacter) by the plain bottleneck that computes the same.

    Args:
        state: an adapter state.

    Returns:
        A state with `down.weight (r, d)`, `down.bias`, `up.weight (d, r)`, `up.bias`, whose neurons can be reordered
        one by one instead of alike in every block; what only the factored form needed (`shared.rule`) is gone.

    Example:
        >>> import torch
        >>> factors = ("down.left", "down.right", "up.left", "up.right")
        >>> compacter = {f"layer.0.output.{name}": torch.ones(2, 1, 1) for name in factors}
        >>> list(materialize({"shared.rule": torch.ones(2, 2, 2), **compacter}))
        ['layer.0.output.down.weight', 'layer.0.output.up.weight']
    """
    plain: dict[str, Tensor] = {}
    spent: set[str] = set()
    for place, names in group_by_place(state).items():
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


GLOBAL = "the global adapter"


def check_round(
    states: Sequence[State], counts: Sequence[float], owners: Sequence[str], previous: State | None
) -> dict[str, Tensor]:
    """Refuse a round whose adapters do not fit together; return every key with an example of its tensor.

    The keys are in the order of `previous`, the global adapter so far, which may be None.
    """
    if not states or not len(states) == len(counts) == len(owners) == len(set(owners)):
        raise FedpeftError(
            f"there are {len(states)} adapters, {len(counts)} counts and {len(set(owners))} different names: give one "
            f"of each for every site, and at least one site."
        )
    model = dict(previous or {})
    check_tensors(model, GLOBAL)
    for owner, count, state in zip(owners, counts, states, strict=True):
        if not (math.isfinite(count) and count > 0):
            raise FedpeftError(f"{owner} counts {count} training samples: it must be a finite number above 0.")
        check_tensors(state, owner)
        check_alike(state, owner, model, GLOBAL if previous else "another adapter", complete=bool(previous))
        model = model | {key: tensor for key, tensor in state.items() if key not in model}
    if not model:
        raise FedpeftError("no adapter has a tensor, so there is nothing to average: give at least one.")
    return model


def check_tensors(state: State, owner: str, *, check_keys: bool = True) -> None:
    """Refuse values that are not finite floating-point tensors, and wrong keys.

    Without a schema (that is `fedpeft.core.states`): widths may differ between sites, and whoever calls this from
    a notebook has announced nothing.
    """
    for key, tensor in state.items():
        if check_keys and not is_key(key):
            raise FedpeftError(
                f"{owner} has {key!r}, which is not a key such as layer.0.output.down.weight: make states with "
                f"fedpeft.adapters.adapter_state(model), not with PEFT's get_peft_model_state_dict."
            )
        if not isinstance(tensor, Tensor):
            raise FedpeftError(
                f"{owner} has {key} as {_type_name(tensor)}: pass torch tensors, for instance torch.as_tensor(...)."
            )
        if not tensor.is_floating_point():
            raise FedpeftError(f"{owner} has {key} as {tensor.dtype}: only floating-point tensors can be averaged.")
        # A finite sum proves finite elements, ten times faster than checking each; an infinite one may be an overflow.
        total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
        if not torch.isfinite(total) and not torch.isfinite(tensor).all():
            raise FedpeftError(f"{owner} has NaN or infinity in {key}: its training diverged, leave out this round.")


def check_alike(state: State, owner: str, model: State, model_owner: str, *, complete: bool = True) -> None:
    """Refuse an adapter that differs from another in more than the number of its hidden neurons.

    It may lack whole places (layers that were not trained), but no tensor of a place that it has. Where `model` is not
    `complete`, only common places are compared.
    """
    expected = group_by_place(model)
    for place, names in group_by_place(state).items():
        neurons = neurons_of(names)
        if neurons is not None:
            _check_width(state, place, names, neurons, owner)
        if place not in expected and not complete:
            continue
        for key in names.values():
            if key not in model:
                raise FedpeftError(f"{owner} has {key}, which {model_owner} lacks: use one kind of adapter everywhere.")
        for key in expected[place].values():
            if key not in state:
                raise FedpeftError(f"{owner} lacks {key}: a layer that is sent must be sent with all its tensors.")
        for name, key in names.items():
            if _free_shape(state[key], name, neurons) != _free_shape(model[key], name, neurons):
                raise FedpeftError(
                    f"{owner} has {key} with shape {tuple(state[key].shape)}, {model_owner} has it with "
                    f"{tuple(model[key].shape)}: nothing but an adapter's number of neurons may differ."
                )


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _check_width(state: State, place: str, names: Mapping[str, str], neurons: Neurons, owner: str) -> None:
    """Refuse a place whose tensors differ in the number of neurons, or which lacks a shared tensor of its kind."""
    for key in neurons.shared:
        if key not in state:
            raise FedpeftError(f"{owner} has {place} without {key}, which an adapter of kind {neurons.kind} needs.")
    first, width = "", 0
    for name, axis in {**neurons.incoming, **neurons.outgoing}.items():
        if name not in names:
            continue
        key, shape = names[name], tuple(state[names[name]].shape)
        blocks = _leading(state, names[neurons.counts_blocks], owner) if name in neurons.blocked else 1
        if axis >= len(shape) or shape[axis] == 0 or shape[axis] % blocks:
            raise FedpeftError(
                f"{owner} has {key} with shape {shape}: its axis {axis} must hold the adapter's neurons."
            )
        if not first:
            first, width = key, shape[axis] // blocks
        elif shape[axis] // blocks != width:
            raise FedpeftError(
                f"{owner} has {width} neurons in {first} but {shape[axis] // blocks} in {key}: one adapter, one width."
            )


def _leading(state: State, key: str, owner: str) -> int:
    """Return the length of a tensor's first axis."""
    shape = tuple(state[key].shape)
    if not shape:
        raise FedpeftError(f"{owner} has {key} with shape {shape}: its first axis must hold the blocks.")
    return shape[0]


def _free_shape(tensor: Tensor, name: str, neurons: Neurons | None) -> tuple[int | None, ...]:
    """Return the shape with None at the axis of the hidden neurons."""
    axis = {**neurons.incoming, **neurons.outgoing}.get(name) if neurons else None
    return tuple(None if i == axis else size for i, size in enumerate(tensor.shape))
