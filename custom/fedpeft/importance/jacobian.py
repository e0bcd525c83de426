# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Rows of a model's Jacobian: the gradient of every sample's output with respect to every scored parameter.

Samples do not see each other, so the gradient of the sum of their outputs holds the gradient of every sample in its
rows: one backward pass through the activations yields all per-sample gradients. For that, the operations of the forward
pass that read scored parameters are recorded. A weight may itself be computed from parameters (Compacter's Kronecker
factors, two fused adapters): its rows are then carried back to them. Unknown operations stay in autograd's graph, and
are differentiated row by row.

Source: Goodfellow 2015, Efficient Per-Example Gradient Computations.

The supported operations: what they compute, what their backward pass records, and the rows.

    y = x W^T + c     rows of W: sum_t g[b, t] x[b, t]^T    rows of c: sum_t g[b, t]
    y = x * s + c     rows of s: sum_t g[b, t] * x[b, t]    rows of c: sum_t g[b, t]

Another operation is a function of the tape and the arguments of torch's own, and one line in `CAPTURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction, once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedpeft.core.errors import FedpeftError

Receive = Callable[[Tensor, int, Tensor], None]
# by model: hashes of the operations that were found to keep its samples apart
_INDEPENDENT: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()

MAX_DERIVATION_LENGTH = 64  # autograd nodes between a weight and its parameters; with more it counts as an activation
RowsOf = Callable[[Tensor, Tensor], Tensor]


def jacobian_rows(
    outputs: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    receive: Receive,
    *,
    gradients: str = "captured",
    model: nn.Module | None = None,
) -> tuple[int, int]:
    """Compute `d outputs[b, k] / d theta` for all b at once, one column k and one parameter at a time; return B and K.

    With `captured`, a column costs one backward pass through the activations, and its rows; parameters in operations
    that are not in `CAPTURES` are differentiated row by row and added. Nothing is kept.

    `outputs` runs the model and returns (B, K). `receive(parameter, k, rows)` gets rows (B, *parameter.shape) in single
    precision or wider, at most once for each column, and not where the column does not depend on the parameter. One
    more backward pass checks that samples do not depend on each other, only once for the same operations of `model`.
    """
    if gradients == "rows":
        tape, values = None, outputs()
    else:
        tape, values = _recorded(outputs, parameters)
    uncaptured, nodes = _reached(values, parameters)
    if not uncaptured and not (tape and tape.uses):
        raise FedpeftError("no scored parameter influences the outputs: check that the layers are the model's own.")
    if tape is not None and tape.uses:
        known = set() if model is None else _INDEPENDENT.setdefault(model, set())
        if (operations := hash((*nodes, *tape.operations))) not in known:
            tape.check_independence(values[0].sum())
            if len(values) > 1:  # of a single sample it sees nothing
                known.add(operations)
    columns = values.shape[1]
    for column in range(columns):
        sums = _Sums(tape.uses if tape else (), uncaptured, lambda p, rows, k=column: receive(p, k, rows))
        for parameter, rows in zip(uncaptured, _row_by_row(values[:, column], uncaptured), strict=True):
            sums.add(parameter, rows)
        if tape is not None and tape.uses:
            tape.take = sums.take
            torch.autograd.grad(
                values[:, column].sum(), tape.anchor, retain_graph=column + 1 < columns, allow_unused=True
            )
            tape.take = None
        sums.finish()
    return len(values), columns


def _recorded(outputs: Callable[[], Tensor], parameters: Sequence[Tensor]) -> tuple[Tape, Tensor]:
    """Run the model under a tape, and again if it captured an operation whose first dimension is not B."""
    samples = None
    while True:
        tape = Tape(parameters, samples)
        with tape:
            values = outputs()
        if tape.first_dimensions <= {len(values)}:
            return tape, values
        samples = len(values)


def _reached(values: Tensor, parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[tuple]]:
    """Return the parameters that autograd reaches through uncaptured operations, and what the nodes of its graph do."""
    scored, reached = {id(p) for p in parameters}, set()
    operations: list[tuple] = []
    visited, queue = set(), [values.grad_fn]
    while queue:
        node = queue.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        operations.append((node.name(), getattr(node, "_saved_dim", None)))
        reached.add(id(getattr(node, "variable", None)))
        queue.extend(following for following, _ in node.next_functions)
    return [p for p in parameters if id(p) in reached & scored], operations


def _row_by_row(values: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return rows (B, *shape) of each parameter, with one backward pass per row."""
    rows = [p.new_zeros((len(values), *p.shape)) for p in parameters]
    if parameters:
        for number, value in enumerate(values):
            gradients = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
            for row, gradient in zip(rows, gradients, strict=True):
                if gradient is not None:
                    row[number] = gradient
    return rows


class _Sums:
    """Adds up the rows of all uses of a parameter, and passes the sum on when it is complete."""

    def __init__(self, uses: Sequence[Use], uncaptured: Sequence[Tensor], receive: Callable[[Tensor, Tensor], None]):
        self.receive = receive
        self.derived: list[tuple[Use, Tensor]] = []
        self.partial: dict[int, tuple[Tensor, Tensor]] = {}
        self.missing: dict[int, int] = {}
        for parameter in [*uncaptured, *(source for use in uses for source in use.sources)]:
            self.missing[id(parameter)] = self.missing.get(id(parameter), 0) + 1

    def take(self, uses: Sequence[Use], x: Tensor, g: Tensor) -> None:
        """Take the rows of one captured operation, from its input and the gradients of its output."""
        for use in uses:
            rows = use.rows(wide(x), wide(g))
            if use.weight.is_leaf:
                self.add(use.weight, rows)
            else:
                self.derived.append((use, rows))

    def add(self, parameter: Tensor, rows: Tensor) -> None:
        """Add the rows of a parameter from one of its uses."""
        key, rows = id(parameter), wide(rows)
        if key in self.partial:
            rows = self.partial.pop(key)[1] + rows
        self.missing[key] -= 1
        if self.missing[key]:
            self.partial[key] = (parameter, rows)
        else:
            self.receive(parameter, rows)

    def finish(self) -> None:
        """Carry the rows of computed weights back to their parameters, and pass on all remaining rows."""
        for use, rows in self.derived:
            pulled = torch.autograd.grad(
                use.weight,
                use.sources,
                rows.to(use.weight.dtype),
                retain_graph=True,
                is_grads_batched=True,
                allow_unused=True,
            )
            for source, gradient in zip(use.sources, pulled, strict=True):
                if gradient is not None:
                    self.add(source, gradient)
        self.derived = []
        for parameter, rows in list(self.partial.values()):
            self.receive(parameter, rows)


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
    """Reshape (B, ..., d) to (B, T, d)."""
    return tensor.unsqueeze(1) if tensor.ndim == 2 else tensor.flatten(1, -2)


def wide(tensor: Tensor) -> Tensor:
    """Return the tensor in single precision or wider: products of half-precision gradients underflow."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _repeats(weight: Tensor, x: Tensor) -> bool:
    """Return whether a weight is the same for all samples of x (B, ...), and broadcasts to x without enlarging it."""
    if weight.ndim > x.ndim or (weight.ndim == x.ndim and len(weight) != 1):
        return False
    return all(own in (1, size) for own, size in zip(reversed(weight.shape), reversed(x.shape), strict=False))


def _sum_to(values: Tensor, shape: torch.Size) -> Tensor:
    """Sum values (B, ...) to (B, *shape), where shape broadcasts to one sample."""
    padded = (1,) * (values.ndim - len(shape)) + tuple(shape)
    return values.sum_to_size(len(values), *padded[1:]).reshape(len(values), *shape)


class Use(NamedTuple):
    """A weight as an operation reads it, the parameters it comes from, and the function (x, g) -> its rows."""

    weight: Tensor
    sources: tuple[Tensor, ...]
    rows: RowsOf


class Tape(TorchFunctionMode):
    """While active, replaces linear, normalizing and scaling operations on scored parameters by captured ones.

    Operations with another first dimension of their input than `samples` are left alone; None: B is not known yet.
    """

    def __init__(self, parameters: Sequence[Tensor], samples: int | None) -> None:
        super().__init__()
        self.scored = {id(parameter): parameter for parameter in parameters}
        self.samples = samples
        self.first_dimensions: set[int] = set()
        self.uses: list[Use] = []
        self.operations: list[tuple] = []  # what was captured: kind and shapes, without the samples and their tokens
        self.anchor = torch.zeros((), requires_grad=True)  # makes autograd visit every captured operation
        self.take: Callable[[Sequence[Use], Tensor, Tensor], None] | None = None

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func in CAPTURES and torch.is_grad_enabled():
            result = CAPTURES[func](self, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)

    def capture(self, kind: type, x: Tensor, weights: Sequence[tuple[Tensor | None, RowsOf]]) -> Any:
        """Run an operation with detached weights and record their uses; NotImplemented if it cannot be captured."""
        if x.ndim < 2 or (self.samples is not None and len(x) != self.samples):
            return NotImplemented
        uses = []
        for weight, rows in weights:
            sources = self.sources(weight)
            if sources is None:
                return NotImplemented
            if sources:
                uses.append(Use(weight, sources, rows))
        if not uses:
            return NotImplemented
        detached = [None if weight is None else weight.detach() for weight, _ in weights]
        y = kind.apply(x, *detached, self.anchor, partial(self._collect, uses))
        self.uses += uses
        self.first_dimensions.add(len(x))
        shapes = tuple(None if weight is None else tuple(weight.shape) for weight, _ in weights)
        self.operations.append((kind, x.ndim, x.shape[-1], shapes))
        return y

    def check_independence(self, output: Tensor) -> None:
        """Refuse a model whose samples depend on each other, or are not the first dimension of its layers' inputs.

        `output` is one number of sample 0; no captured operation may pass a gradient to another row.
        """
        others: list[Tensor] = []  # by operation, whether another row than the first has a gradient
        self.take = lambda uses, x, g: others.append(g[1:].nan_to_num().any())
        torch.autograd.grad(output, self.anchor, retain_graph=True, allow_unused=True)
        self.take = None
        if any(others):
            raise FedpeftError(
                "the first sample's output depends on other rows of a layer's input than the first: put the model "
                "into eval mode and samples into the first dimension, or score with gradients='rows'."
            )

    def _collect(self, uses: Sequence[Use], x: Tensor, g: Tensor) -> None:
        if self.take is not None:
            self.take(uses, x, g)

    def sources(self, tensor: Tensor | None) -> tuple[Tensor, ...] | None:
        """Return the scored parameters that a tensor is computed from; None if it may depend on captured operations."""
        if tensor is None or not tensor.requires_grad:
            return ()
        if tensor.is_leaf:
            return (tensor,) if id(tensor) in self.scored else ()
        variables, visited, queue = {}, set(), [tensor.grad_fn]
        while queue:
            node = queue.pop()
            if node in visited:
                continue
            visited.add(node)
            if len(visited) > MAX_DERIVATION_LENGTH or isinstance(node, BackwardCFunction):
                return None
            variable = getattr(node, "variable", None)
            if id(variable) in self.scored:
                variables[id(variable)] = variable
            queue.extend(following for following, _ in node.next_functions if following is not None)
        return tuple(variables.values())
