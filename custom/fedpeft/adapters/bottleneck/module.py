# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The bottleneck itself: two projections and what stands between them."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": F.relu, "swish": F.silu, "gelu": F.gelu}


class Projection(nn.Linear):
    """A linear layer whose weights are set by the adapter's own initialisation."""

    def reset_parameters(self) -> None:
        """Draw nothing: torch would take the numbers from the global generator."""


class Bottleneck(nn.Module):
    """One adapter at one site: ``up(act(down(norm(h))))``; the wrapped layer adds what it returns to its output.

    Args:
        down: projection from the hidden width d to the bottleneck width r.
        up: projection from r to d.
        activation: key of ``ACTIVATIONS``.
        norm: LayerNorm of the adapter's own that h passes first.
        scaling: factor of what the layer adds.

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
        self._activate = ACTIVATIONS[activation]

    def hidden(self, h: torch.Tensor) -> torch.Tensor:
        """Activations of the bottleneck's neurons: (..., d) -> (..., r)."""
        if self.norm is not None:
            h = self.norm(h)
        return self._activate(self.down(h))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """What the adapter adds to the residual stream: (..., d) -> (..., d)."""
        return self.up(self.hidden(h))
