# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The operations that `capture` supports: what they compute, what their backward pass records, and the rows.

    y = x W^T + c     rows of W: sum_t g[b, t] x[b, t]^T    rows of c: sum_t g[b, t]
    y = x * s + c     rows of s: sum_t g[b, t] * x[b, t]    rows of c: sum_t g[b, t]

Another operation is a function of the tape and the arguments of torch's own, and one line in `CAPTURES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedpeft.core.errors import FedpeftError

if TYPE_CHECKING:
    from fedpeft.importance.capture import Tape


class LinearOperation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, anchor, collect):
        ctx.save_for_backward(x, weight)
        ctx.collect = collect
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        ctx.collect(x, g)
        carried = (g.to(weight.dtype) @ weight).to(x.dtype) if ctx.needs_input_grad[0] else None
        return carried, None, None, None, None


class AffineOperation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, shift, anchor, collect):
        ctx.save_for_backward(x, scale)
        ctx.collect = collect
        scaled = x if scale is None else x * scale
        return scaled.clone() if shift is None else scaled + shift

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        ctx.collect(x, g)
        carried = g if scale is None else (g * scale).to(x.dtype)
        return carried, None, None, None, None


def _linear(tape: Tape, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    def outer(x: Tensor, g: Tensor) -> Tensor:
        return torch.bmm(_tokens(g).transpose(1, 2), _tokens(x))  # (B, out, in)

    return tape.capture(LinearOperation, input, ((weight, outer), (bias, lambda x, g: _tokens(g).sum(1))))


def _layer_norm(
    tape: Tape, input: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Any:
    if not any(tape.sources(tensor) for tensor in (weight, bias)):
        return NotImplemented
    return _affine(tape, F.layer_norm(input, shape, None, None, eps), weight, bias)


def _rms_norm(tape: Tape, input: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Any:
    if not tape.sources(weight):
        return NotImplemented
    return _affine(tape, F.rms_norm(input, shape, None, eps), weight, None)


def _mul(tape: Tape, input: Any, other: Any, **kwargs: Any) -> Any:
    if kwargs or not (isinstance(input, Tensor) and isinstance(other, Tensor)):
        return NotImplemented
    for x, scale in ((input, other), (other, input)):
        # a weight that is scaled before it is used is not an activation: its first dimension is not the samples'
        if scale.requires_grad and x.is_floating_point() and _repeats(scale, x) and not tape.sources(x):
            return _affine(tape, x, scale, None)
    return NotImplemented


def _batch_norm(tape: Tape, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("training", args[5] if len(args) > 5 else False):
        raise FedpeftError(
            "the model normalizes over its batch, so samples depend on each other: put it into eval mode, or score "
            "with gradients='rows'."
        )
    return NotImplemented


def _affine(tape: Tape, x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Any:
    if not all(tensor is None or _repeats(tensor, x) for tensor in (scale, shift)):
        return NotImplemented
    weights = (
        (scale, lambda x, g: _sum_to(g * x, scale.shape)),
        (shift, lambda x, g: _sum_to(g, shift.shape)),
    )
    return tape.capture(AffineOperation, x, weights)


# what torch calls for nn.Linear, nn.LayerNorm, nn.RMSNorm, for scaling by a parameter, and for what cannot be captured
CAPTURES = {
    F.linear: _linear,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.batch_norm: _batch_norm,
    torch.mul: _mul,
    torch.Tensor.mul: _mul,
}


def _tokens(tensor: Tensor) -> Tensor:
    """(B, ..., d) -> (B, T, d)."""
    return tensor.unsqueeze(1) if tensor.ndim == 2 else tensor.flatten(1, -2)


def wide(tensor: Tensor) -> Tensor:
    """Return the tensor in single precision or wider: products of half-precision gradients underflow."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _repeats(weight: Tensor, x: Tensor) -> bool:
    """Return whether a weight is the same for every sample of x (B, ...), and broadcasts to it without enlarging it."""
    if weight.ndim > x.ndim or (weight.ndim == x.ndim and len(weight) != 1):
        return False
    return all(own in (1, size) for own, size in zip(reversed(weight.shape), reversed(x.shape), strict=False))


def _sum_to(values: Tensor, shape: torch.Size) -> Tensor:
    """Sum (B, ...) to (B, *shape), where shape broadcasts to one sample."""
    padded = (1,) * (values.ndim - len(shape)) + tuple(shape)
    return values.sum_to_size(len(values), *padded[1:]).reshape(len(values), *shape)
