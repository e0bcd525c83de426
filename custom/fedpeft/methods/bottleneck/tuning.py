# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The tuning code of all bottleneck adapters (shapes, parameters, names, initial values) and their activations.

The activations of their neurons on the same inputs are the supports of client-side alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from fedpeft.backbones.backbone import Backbone
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import SHARED, parse_key, place_of
from fedpeft.core.states import State
from fedpeft.methods.bottleneck.branches import Branches
from fedpeft.methods.bottleneck.config import Bottleneck, BottleneckConfig
from fedpeft.methods.bottleneck.layer import BottleneckLayer
from fedpeft.methods.first_values import FirstValues
from fedpeft.methods.slot_tuning import Parameters, Shapes, SlotTuning, check_layers


def hidden_activations(
    model: nn.Module,
    states: Sequence[Mapping[str, torch.Tensor]],
    batches: Iterable[Mapping[str, torch.Tensor]],
    masks: Iterable[torch.Tensor | None] | None = None,
    adapter_name: str = "default",
) -> list[dict[str, torch.Tensor]]:
    """Return token-averaged activations of the bottleneck neurons of several adapter states on the same inputs.

        a_k[s, i] = sum_t w[s, t] act(down_k(h[s, t]))_i / sum_t w[s, t]

    h is the adapter's input at a place while the model runs with its active adapters. It is used for all states at once
    and never stored: beyond a forward pass, only one (B, T, r) tensor and the result need memory.

    Args:
        model: module with bottleneck adapters, called as `model(**batch)`.
        states: adapter states k, of any widths; each may leave out places.
        batches: keyword arguments of the calls.
        masks: for each batch w (B, T), 1 where a token counts and 0 where it is padding, or None for all tokens.
        adapter_name: adapter of the model whose kind (activation, LayerNorm) the states have.

    Returns:
        For each state: "layer.<l>.<slot>" -> (m, r_k) float32 on the CPU, m the number of samples in all batches.

    Raises:
        FedpeftError: a state names a place or tensor that the model's adapter does not have, a mask does not fit, or
            there is no batch.

    Source: FedPIA, client-side integration (activation-based supports).
    """
    layers = {
        module.place: module
        for module in model.modules()
        if isinstance(module, BottleneckLayer) and adapter_name in module.adapters
    }
    if not layers:
        raise FedpeftError(f"{type(model).__name__} has no bottleneck adapter {adapter_name!r}: activations need one.")
    probes = [_probes(state, layers, adapter_name) for state in states]
    means: list[dict[str, list[torch.Tensor]]] = [{place: [] for place in probe} for probe in probes]
    weights: torch.Tensor | None = None
    samples = 0

    def record(layer: BottleneckLayer, args: tuple, result: torch.Tensor | tuple) -> None:
        h = layer.branch_input(args, result[0] if isinstance(result, tuple) else result)
        for probe, collected in zip(probes, means, strict=True):
            if layer.place in probe:
                bottleneck = probe[layer.place]
                hidden = bottleneck.hidden(h.to(bottleneck.down.bias.dtype))
                if hidden.dim() == 2:  # OPT's feed-forward block reads the tokens of all samples in one row
                    hidden = hidden.unflatten(0, (samples, -1))
                collected[layer.place].append(_token_mean(hidden, weights, layer.place).float().cpu())

    with _evaluated(model, layers.values(), record):
        for batch, mask in _pairs(batches, masks):
            weights = None if mask is None else _normalized(mask)
            samples = len(batch["input_ids"] if "input_ids" in batch else next(iter(batch.values())))
            model(**batch)
    if not all(tensors for collected in means for tensors in collected.values()):
        raise FedpeftError("there is no batch to compute activations on: pass at least one.")
    return [{place: torch.cat(tensors) for place, tensors in collected.items()} for collected in means]


@contextmanager
def _evaluated(
    model: nn.Module, layers: Iterable[BottleneckLayer], record: Callable[[BottleneckLayer, tuple, Any], None]
) -> Iterator[None]:
    """Evaluate a model without gradient in this block, and call `record` whenever one of its layers has run."""
    hooks = [
        layer.base_layer.register_forward_hook(lambda module, args, result, layer=layer: record(layer, args, result))
        for layer in layers
    ]
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, flag in training.items():
            module.training = flag


def _probes(
    state: Mapping[str, torch.Tensor], layers: Mapping[str, BottleneckLayer], adapter_name: str
) -> dict[str, Bottleneck]:
    """Return place -> bottleneck with the state's own tensors as weights."""
    by_place: dict[str, dict[str, torch.Tensor]] = {}
    shared = {}
    for key, tensor in state.items():
        parts = parse_key(key)
        if parts is None:
            shared[key.removeprefix("shared.")] = tensor
        else:
            by_place.setdefault(parts.place, {})[parts.tensor] = tensor
    for place in by_place:
        if place not in layers:
            raise FedpeftError(f"the adapter state has place {place!r}, the model's adapter has {', '.join(layers)}.")
    return {place: layers[place].probe(adapter_name, tensors, shared) for place, tensors in by_place.items()}


def _pairs(
    batches: Iterable[Mapping[str, torch.Tensor]], masks: Iterable[torch.Tensor | None] | None
) -> Iterator[tuple[Mapping[str, torch.Tensor], torch.Tensor | None]]:
    if masks is None:
        yield from ((batch, None) for batch in batches)
        return
    missing = object()
    for batch, mask in zip_longest(batches, masks, fillvalue=missing):
        if batch is missing or mask is missing:
            raise FedpeftError("there are not as many masks as batches: give one mask, or None, for each batch.")
        yield batch, mask


def _normalized(mask: torch.Tensor) -> torch.Tensor:
    """Return weights (B, T) that sum to 1 over the tokens of each sample."""
    if mask.dim() != 2:
        raise FedpeftError(f"a mask has shape {tuple(mask.shape)}: it must be (samples, tokens).")
    total = mask.float().sum(1, keepdim=True)
    if not bool((total > 0).all()):
        raise FedpeftError(
            f"the mask of sample {int((total <= 0).nonzero()[0, 0])} counts no token: give 1 for at least one."
        )
    return mask.float() / total


def _token_mean(hidden: torch.Tensor, weights: torch.Tensor | None, place: str) -> torch.Tensor:
    """Average over tokens, (B, T, r) -> (B, r), with weights if there are any."""
    if weights is None:
        return hidden.mean(1)
    if weights.shape != hidden.shape[:2]:
        raise FedpeftError(
            f"a mask has shape {tuple(weights.shape)}, but {place} reads (samples, tokens) = {tuple(hidden.shape[:2])}."
        )
    return torch.einsum("bt,btr->br", weights.to(hidden), hidden)


class BottleneckTuning(SlotTuning):
    """A kind of bottleneck adapter, defined by its configuration class."""

    may_differ = SlotTuning.may_differ | {"layers", "reduction_factor", "layer_widths", "rule_std"}

    def __init__(self, config_cls: type[BottleneckConfig]) -> None:
        super().__init__(config_cls)
        self.name = config_cls.method

    def seeded(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        return {**settings, "init_seed": seed}

    def branches(self, backbone: Backbone, settings: Mapping[str, Any], seeds: Mapping[str, int]) -> Branches:
        """Freeze a backbone and put several adapters side by side into it; see `Branches`."""
        return Branches(backbone, self, settings, seeds)

    def templates(self, config: BottleneckConfig, family: str | None) -> dict[str, str]:
        return config.templates(family)

    def shapes(self, config: BottleneckConfig, family: str | None, num_layers: int, hidden_size: int) -> Shapes:
        layers = list(range(num_layers)) if config.layers is None else config.layers
        check_layers({*layers, *(config.layer_widths or ())}, num_layers)
        shapes = {
            f"{place_of(layer, slot)}.{name}": shape
            for layer in layers
            for slot in sorted(config.templates(family))
            for name, shape in config.tensor_shapes(hidden_size, config.width(hidden_size, layer)).items()
        }
        return shapes | {f"{SHARED}{name}": shape for name, shape in config.shared_shapes().items()}

    def parameters(self, model: nn.Module, config: BottleneckConfig, adapter_name: str) -> dict[str, Parameters]:
        return {
            layer.place: dict(layer.adapters[adapter_name].named_parameters()) for layer in _layers(model, adapter_name)
        }

    def shared_parameters(self, model: nn.Module, adapter_name: str) -> Parameters:
        shared: Parameters = {}
        for layer in _layers(model, adapter_name):
            shared |= layer.shared_parameters(adapter_name)
        return shared

    def activations(
        self, model: nn.Module, states: Sequence[State], inputs: Iterable[Mapping[str, torch.Tensor]], adapter_name: str
    ) -> list[dict[str, torch.Tensor]]:
        return hidden_activations(model, states, inputs, adapter_name=adapter_name)

    def mix(self, model: nn.Module, weights: Mapping[str, float]) -> None:
        for layer in (module for module in model.modules() if isinstance(module, BottleneckLayer)):
            layer.weights = dict(weights)

    def first_state(self, config: BottleneckConfig, shapes: Shapes) -> State:
        return {key: config.initial_tensor(_name(key), shape, key) for key, shape in shapes.items()}

    def first_values(self, settings: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> FirstValues:
        return self.config(settings).first_values(_name(key), shape)

    def peft_name(self, tensor: str) -> str:
        return f"{self.name}_adapter.{tensor}"

    def split_peft_name(self, name: str) -> tuple[str, str] | None:
        path, mark, tensor = name.partition(f".{self.name}_adapter.")
        return (path, tensor) if mark else None

    def name_modules(
        self, config: BottleneckConfig, templates: Mapping[str, str], model: nn.Module | None = None
    ) -> None:
        config.target_modules = dict(templates)

    def width(self, settings: Mapping[str, Any], layer: int, stream: int) -> int:
        return self.config(settings).width(stream, layer)

    def state_settings(self, state: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
        widths: dict[int, set[int]] = {}
        for key, tensor in state.items():
            parts = parse_key(key)
            if parts and parts.tensor == "down.bias":
                widths.setdefault(parts.layer, set()).add(len(tensor))
        # two towers of unequal width have layers of one number: their widths follow from the reduction factor
        return {"layer_widths": {layer: min(found) for layer, found in widths.items() if len(found) == 1}}


def _name(key: str) -> str:
    parts = parse_key(key)
    return parts.tensor if parts else key.removeprefix(SHARED)


def _layers(model: nn.Module, adapter_name: str) -> list[BottleneckLayer]:
    modules = (module for module in model.modules() if isinstance(module, BottleneckLayer))
    return [module for module in modules if adapter_name in module.adapters]
