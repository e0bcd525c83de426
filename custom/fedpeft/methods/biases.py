# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which parameters of a model are biases: what its linear maps, convolutions and norms add to their outputs.

A parameter is one if it is called `bias`, or if its name has that word and a map whose outputs it fits is beside it:

    in_proj_bias (3d)                     in_proj_weight (3d, d), of the same name but for the word; torch's attention
    gate_up_proj_bias (E, m)              gate_up_proj (E, d, m) or (E, m, d): one matrix for each expert or head
    dense_bias (d), gate_bias (heads)     dense, gate_proj: linear layers; one value for each output or group of them
    q_bias, k_bias, v_bias, dt_bias (d)   a linear layer that makes several things at once, these among them

Tables and vectors that are added elsewhere are none, whatever they are called: to the attention's logits or queries for
the sake of positions, to a router's scores, to what a loss reads.
"""

from __future__ import annotations

from torch import Tensor, nn

WORD, SUFFIX, IN_PROJ = "bias", "_bias", "in_proj_bias"
JOINED = ("q", "k", "v", "dt")  # among the outputs of one map: attention's three, and a state space model's step


def bias_names(model: nn.Module) -> list[str]:
    """Return the names of the biases in a model, in its order.

    Args:
        model: without adapters.
    """
    return [name for name, _ in model.named_parameters() if _is_bias(model, name)]


def _is_bias(model: nn.Module, name: str) -> bool:
    path, _, own = name.rpartition(".")
    if own == WORD or WORD not in own:
        return own == WORD
    module, bias = model.get_submodule(path), model.get_parameter(name)
    if isinstance(module, nn.MultiheadAttention):
        return own == IN_PROJ  # its weights are three if keys or values have another width
    maps = [getattr(module, other, None) for other in (own.replace(WORD, "weight"), own.removesuffix(SUFFIX))]
    if any(isinstance(weight, nn.Parameter) and weight is not bias and _fits(bias, weight) for weight in maps):
        return True
    if not own.endswith(SUFFIX) or bias.numel() != bias.shape[-1:].numel():
        return False
    what, linear = own.removesuffix(SUFFIX), {child: _outputs(inner) for child, inner in module.named_children()}
    if what in JOINED:
        return any(outputs >= bias.numel() for outputs in linear.values())
    return any(outputs and outputs % bias.numel() == 0 for outputs in map(linear.get, (what, f"{what}_proj")))


def _fits(bias: Tensor, weight: Tensor) -> bool:
    """Return whether a bias has one value for each output of a matrix, as it is or turned, or of each of a stack."""
    *stack, rows, columns = weight.shape if weight.dim() > 1 else (0, 0)
    return tuple(bias.shape) in ((*stack, rows), (*stack, columns))


def _outputs(module: nn.Module) -> int:
    """Return the outputs of a linear layer, 0 for any other module."""
    return module.out_features if isinstance(module, nn.Linear) else 0
