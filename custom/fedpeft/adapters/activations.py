# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Activations of the neurons of several adapters on the same inputs: the supports of client-side alignment."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

import torch
from torch import nn

from fedpeft.adapters.bottleneck.layer import BottleneckLayer
from fedpeft.adapters.bottleneck.module import Bottleneck
from fedpeft.adapters.keys import parse_key
from fedpeft.errors import FedpeftError


def hidden_activations(
    model: nn.Module,
    states: Sequence[Mapping[str, torch.Tensor]],
    batches: Iterable[Mapping[str, torch.Tensor]],
    masks: Iterable[torch.Tensor | None] | None = None,
    adapter_name: str = "default",
) -> list[dict[str, torch.Tensor]]:
    """Token-averaged activations of the bottleneck neurons of several adapter states on the same inputs.

        a_k[s, i] = sum_t w[s, t] act(down_k(h[s, t]))_i / sum_t w[s, t]

    h is what the adapter reads at a site while the model runs with its active adapters. It is used there and then for
    every state and never stored: the memory beyond a forward pass is one (B, T, r) tensor and the result.

    Args:
        model: module with bottleneck adapters, called as ``model(**batch)``.
        states: wire states k, of any widths; each may leave out sites.
        batches: keyword arguments of the calls.
        masks: for each batch w (B, T), 1 where a token counts and 0 where it is padding, or None for all tokens.
        adapter_name: adapter of the model whose kind (activation, LayerNorm) the states have.

    Returns:
        For each state: "layer.<l>.<site>" -> (m, r_k) float32 on the CPU, m the number of samples in all batches.

    Raises:
        FedpeftError: a state names a site or tensor that the model's adapter does not have, a mask does not fit, or
            there is no batch.

    Source: FedPIA, client-side integration (activation-based supports).
    """
    layers = {
        module.site: module
        for module in model.modules()
        if isinstance(module, BottleneckLayer) and adapter_name in module.adapters
    }
    if not layers:
        raise FedpeftError(f"{type(model).__name__} has no bottleneck adapter {adapter_name!r}: activations need one.")
    probes = [_probes(state, layers, adapter_name) for state in states]
    means: list[dict[str, list[torch.Tensor]]] = [{site: [] for site in probe} for probe in probes]
    weights: torch.Tensor | None = None

    def record(layer: BottleneckLayer, args: tuple, result: torch.Tensor | tuple) -> None:
        h = layer.branch_input(args, result[0] if isinstance(result, tuple) else result)
        for probe, collected in zip(probes, means, strict=True):
            if layer.site in probe:
                bottleneck = probe[layer.site]
                hidden = bottleneck.hidden(h.to(bottleneck.down.bias.dtype))
                collected[layer.site].append(_token_mean(hidden, weights, layer.site).float().cpu())

    hooks = [
        layer.base_layer.register_forward_hook(lambda module, args, result, layer=layer: record(layer, args, result))
        for layer in layers.values()
    ]
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            for batch, mask in _pairs(batches, masks):
                weights = None if mask is None else _normalized(mask)
                model(**batch)
    finally:
        for hook in hooks:
            hook.remove()
        for module, flag in training.items():
            module.training = flag
    if not all(tensors for collected in means for tensors in collected.values()):
        raise FedpeftError("there is no batch to compute activations on: pass at least one.")
    return [{site: torch.cat(tensors) for site, tensors in collected.items()} for collected in means]


def _probes(
    state: Mapping[str, torch.Tensor], layers: Mapping[str, BottleneckLayer], adapter_name: str
) -> dict[str, Bottleneck]:
    """A state's bottlenecks by site, with the state's own tensors as their weights."""
    by_site: dict[str, dict[str, torch.Tensor]] = {}
    shared = {}
    for key, tensor in state.items():
        parts = parse_key(key)
        if parts is None:
            shared[key.removeprefix("shared.")] = tensor
        else:
            by_site.setdefault(f"layer.{parts.layer}.{parts.site}", {})[parts.tensor] = tensor
    for site in by_site:
        if site not in layers:
            raise FedpeftError(f"the adapter state has site {site!r}, the model's adapter has {', '.join(layers)}.")
    return {site: layers[site].probe(adapter_name, tensors, shared) for site, tensors in by_site.items()}


def _pairs(
    batches: Iterable[Mapping[str, torch.Tensor]], masks: Iterable[torch.Tensor | None] | None
) -> Iterator[tuple[Mapping[str, torch.Tensor], torch.Tensor | None]]:
    """Each batch with its mask, one at a time."""
    if masks is None:
        yield from ((batch, None) for batch in batches)
        return
    nothing = object()
    for batch, mask in zip_longest(batches, masks, fillvalue=nothing):
        if batch is nothing or mask is nothing:
            raise FedpeftError("there are not as many masks as batches: give one mask, or None, for each batch.")
        yield batch, mask


def _normalized(mask: torch.Tensor) -> torch.Tensor:
    """Weights (B, T) that sum to 1 over the tokens of each sample."""
    if mask.dim() != 2:
        raise FedpeftError(f"a mask has shape {tuple(mask.shape)}: it must be (samples, tokens).")
    total = mask.float().sum(1, keepdim=True)
    if not bool((total > 0).all()):
        raise FedpeftError(
            f"the mask of sample {int((total <= 0).nonzero()[0, 0])} counts no token: give 1 for at least one."
        )
    return mask.float() / total


def _token_mean(hidden: torch.Tensor, weights: torch.Tensor | None, site: str) -> torch.Tensor:
    """(B, T, r) -> (B, r), weighted where weights are given."""
    if weights is None:
        return hidden.mean(1)
    if weights.shape != hidden.shape[:2]:
        raise FedpeftError(
            f"a mask has shape {tuple(weights.shape)}, but {site} reads (samples, tokens) = {tuple(hidden.shape[:2])}."
        )
    return torch.einsum("bt,btr->br", weights.to(hidden), hidden)
