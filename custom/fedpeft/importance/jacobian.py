# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Rows of a model's Jacobian: the gradient of every sample's output with respect to every scored parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedpeft.core.errors import FedpeftError
from fedpeft.importance.capture import Tape, Use, wide

Receive = Callable[[Tensor, int, Tensor], None]


def jacobian_rows(
    outputs: Callable[[], Tensor], parameters: Sequence[Tensor], receive: Receive, *, gradients: str = "captured"
) -> tuple[int, int]:
    """Compute `d outputs[b, k] / d theta` for all b at once, one column k and one parameter at a time; return B and K.

    With `captured`, a column costs one backward pass through the activations and what the rows themselves cost;
    parameters in operations that `capture` does not know are differentiated row by row and added. Nothing is kept.
    `outputs` runs the model and returns (B, K). `receive(parameter, k, rows)` gets rows (B, *parameter.shape) of at
    least single precision once for each column at most; a parameter that a column does not depend on may be left out.
    """
    if gradients == "rows":
        tape, values = None, outputs()
    else:
        tape, values = _watched(outputs, parameters)
    uncaptured = _reached(values, parameters)
    if not uncaptured and not (tape and tape.uses):
        raise FedpeftError("no scored parameter influences the outputs: check that the layers are the model's own.")
    if tape is not None and tape.uses:
        tape.check_independence(values[0].sum())
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


def _watched(outputs: Callable[[], Tensor], parameters: Sequence[Tensor]) -> tuple[Tape, Tensor]:
    """Run the model under a tape; again if an operation was captured whose first dimension is not B."""
    samples = None
    while True:
        tape = Tape(parameters, samples)
        with tape:
            values = outputs()
        if tape.first_dimensions <= {len(values)}:
            return tape, values
        tape.latest.clear()
        samples = len(values)


def _reached(values: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters that autograd's graph still reaches: those of operations that are not captured."""
    scored, reached = {id(p) for p in parameters}, set()
    visited, queue = set(), [values.grad_fn]
    while queue:
        node = queue.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        reached.add(id(getattr(node, "variable", None)))
        queue.extend(following for following, _ in node.next_functions)
    return [p for p in parameters if id(p) in reached & scored]


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
    """Sums the rows of all uses of a parameter, and passes them on when they are complete."""

    def __init__(self, uses: Sequence[Use], uncaptured: Sequence[Tensor], receive: Callable[[Tensor, Tensor], None]):
        self.receive = receive
        self.derived: list[tuple[Use, Tensor]] = []
        self.partial: dict[int, tuple[Tensor, Tensor]] = {}
        self.missing: dict[int, int] = {}
        for parameter in [*uncaptured, *(source for use in uses for source in use.sources)]:
            self.missing[id(parameter)] = self.missing.get(id(parameter), 0) + 1

    def take(self, use: Use, rows: Tensor) -> None:
        """Take the rows of one captured use."""
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
        """Carry rows of computed weights back to their parameters, and pass on all remaining rows."""
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
