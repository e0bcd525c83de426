# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Turn examples into batches of tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from fedpeft.core.errors import FedpeftError
from fedpeft.core.processes import no_sockets
from fedpeft.data.images import open_image
from fedpeft.data.schema import Example

UNKNOWN = -1  # in a target: whether a label applies
Row = tuple[Any, Example]


@dataclass(frozen=True, slots=True)
class Batch:
    """B samples: a model's inputs and the correct answers, as the site's way of answering has them.

    Args:
        inputs: the model's keyword arguments.
        target: what the loss compares with, (B, ...); negative numbers are left out.
        accepted: what the model's answers are compared with, one entry for each sample.
        closed: booleans (B,).
    """

    inputs: dict[str, torch.Tensor]
    target: torch.Tensor
    accepted: Any
    closed: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch with inputs and target on a device."""
        inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()}
        return Batch(inputs, self.target.to(device), self.accepted, self.closed)


OpenImage = Callable[[Any], Any]
Collate = Callable[[Sequence[Any], Sequence[Example]], Batch]


class _Examples(Dataset):
    def __init__(self, examples: Sequence[Example], open_image: OpenImage) -> None:
        self.examples, self._open = examples, open_image

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Row | FedpeftError:
        example = self.examples[index]
        try:
            return self._open(example.image), example
        except FedpeftError as error:
            return error  # raised by the reader: from a worker it would arrive as the text of a traceback


class _Indices(BatchSampler):
    """Sample indices of each batch; a last batch of fewer than `smallest` samples joins the one before it."""

    def __init__(self, order: RandomSampler | SequentialSampler, batch_size: int, smallest: int) -> None:
        super().__init__(order, batch_size, drop_last=False)
        self._joins = 0 < len(order) % batch_size < min(smallest, len(order))

    def __len__(self) -> int:
        return super().__len__() - self._joins

    def __iter__(self) -> Iterator[list[int]]:
        batches = super().__iter__()
        yield from itertools.islice(batches, len(self) - self._joins)
        if self._joins:
            yield [index for batch in batches for index in batch]


class Batches:
    """Iterate over `Batch`, in a new random order on every pass if a generator is passed.

    Args:
        examples: n samples; images are decoded when their batch is drawn.
        collate: from images and examples to a batch, that of the site's way of answering.
        batch_size: B; the last batch may be smaller, or larger where `smallest` is above 1.
        smallest: a last batch of fewer samples joins the one before it, so that no step has only one or two samples.
        generator: for the random order; None keeps the order of `examples`.
        workers: number of processes that decode images.
        open_image: from an example's image to what `collate` reads.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        collate: Collate,
        *,
        batch_size: int,
        smallest: int = 1,
        generator: torch.Generator | None = None,
        workers: int = 0,
        open_image: OpenImage = open_image,
    ) -> None:
        if workers and (problem := no_sockets()):
            raise FedpeftError(f"training.workers is {workers}: {problem}", setting="training.workers")
        self._collate = collate
        rows = _Examples(examples, open_image)
        order = SequentialSampler(rows) if generator is None else RandomSampler(rows, generator=generator)
        self._loader = DataLoader(
            rows,
            batch_sampler=_Indices(order, batch_size, smallest),
            generator=generator,
            collate_fn=self._join,
            num_workers=workers,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            if isinstance(batch, FedpeftError):
                raise batch
            yield batch

    def _join(self, rows: list[Row | FedpeftError]) -> Batch | FedpeftError:
        if broken := [row for row in rows if isinstance(row, FedpeftError)]:
            return broken[0]
        images, examples = zip(*rows, strict=True)
        return self._collate(images, examples)
