# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The bottleneck: a down-projection, an activation and an up-projection."""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": F.relu, "swish": F.silu, "gelu": F.gelu}


class Projection(nn.Linear):
    """A linear layer whose weights are set by the adapter's own initialization."""

    def reset_parameters(self) -> None:
        """Do nothing: torch would draw from the global generator."""


class Bottleneck(nn.Module):
    """One adapter at one place: ``up(act(down(norm(h))))``; the layer around it adds the result to its output.

    Args:
        down: projection from the hidden width d to the bottleneck width r.
        up: projection from r to d.
        activation: key of ``ACTIVATIONS``.
        norm: the adapter's own LayerNorm, applied to h first.
        scaling: factor of the result when the layer adds it.

    Source: Houlsby et al. 2019, section 2.1 (without the residual, which the layer adds).
    """

    def __init__(
        self,
        down: nn.Module,
        up: nn.Module,
        activation: str,
        *,
        norm: nn.LayerNorm | None = None,
        scaling: float = 1.0,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.down = down
        self.up = up
        self.scaling = scaling
        self.activation = activation
        self.activate = ACTIVATIONS[activation]

    @property
    def kind(self) -> tuple:
        """What must be equal for bottlenecks to be fused: without a LayerNorm, only their weights then differ."""
        return self.norm is None, self.activation, self.scaling, self.down.bias.dtype

    def hidden(self, h: torch.Tensor) -> torch.Tensor:
        """Return the activations of the bottleneck's neurons: (..., d) -> (..., r)."""
        if self.norm is not None:
            h = self.norm(h)
        return self.activate(self.down(h))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Return what the adapter adds to the residual stream: (..., d) -> (..., d)."""
        return self.up(self.hidden(h))


def add_branches(
    output: torch.Tensor, h: torch.Tensor, bottlenecks: Sequence[Bottleneck], weights: Sequence[float]
) -> torch.Tensor:
    """Return ``output + sum_k weight_k scaling_k up_k(act(down_k(norm_k(h))))``.

    K bottlenecks of one kind are computed as one bottleneck with all their neurons: a second adapter then costs no
    further pass over the tokens.

    Args:
        output: (..., d)
        h: the adapters' input, (..., d).
        bottlenecks: the K adapters, of any widths.
        weights: one for each.
    """
    first, alike = bottlenecks[0], len(set(weights)) == 1
    if len(bottlenecks) > 1 and alike and first.norm is None and all(other.kind == first.kind for other in bottlenecks):
        down_weight = torch.cat([each.down.weight for each in bottlenecks])
        down_bias = torch.cat([each.down.bias for each in bottlenecks])
        up_weight = torch.cat([each.up.weight for each in bottlenecks], dim=1)
        up_bias = sum(each.up.bias for each in bottlenecks)
        hidden = first.activate(F.linear(h.to(down_weight.dtype), down_weight, down_bias))
        branch = F.linear(hidden, up_weight, up_bias)
        return torch.add(output, branch.to(output.dtype), alpha=first.scaling * weights[0])
    for each, weight in zip(bottlenecks, weights, strict=True):
        branch = each(h.to(each.down.bias.dtype))
        output = torch.add(output, branch.to(output.dtype), alpha=each.scaling * weight)
    return output
