# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Interface of a way to answer: batches from examples, logits, targets, loss, and the check of answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from fedpeft.backbones.backbone import Backbone
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY
from fedpeft.core.processes import no_sockets
from fedpeft.data.images import open_image
from fedpeft.data.schema import Example
from fedpeft.methods import trainable

UNKNOWN = -1  # in a target: nobody knows whether the label applies
Row = tuple[Any, Example]


@dataclass(frozen=True, slots=True)
class Batch:
    """B samples: a model's inputs and the correct answers, in the form of the site's way of answering."""

    inputs: dict[str, torch.Tensor]  # the model's keyword arguments
    target: torch.Tensor  # of the loss, (B, ...); negative numbers do not count
    accepted: Any  # right answers, one entry for each sample
    closed: torch.Tensor  # booleans (B,)

    def to(self, device: torch.device) -> Batch:
        """Return the same batch with inputs and target on a device."""
        inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()}
        return Batch(inputs, self.target.to(device), self.accepted, self.closed)


OpenImage = Callable[[Any], Any]
Collate = Callable[[Sequence[Any], Sequence[Example]], Batch]


class Order(Protocol):
    """Indices of examples, with their number."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...


class _Examples(Dataset):
    """Examples with their images; after the first view of all n come the second views, and so on."""

    def __init__(self, examples: Sequence[Example], open_image: OpenImage, views: Sequence[str]) -> None:
        self.examples, self._open, self._views = examples, open_image, views

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Row | FedpeftError:
        view, place = divmod(index, len(self))
        example, turned = self.examples[place], self._views[view]
        try:
            image = self._open(example.image)
            return image.transpose(Image.Transpose[turned]) if turned else image, example
        except FedpeftError as error:
            return error  # raised by the reader: from a worker it would arrive as the text of a traceback


def largest_batch(count: int, batch_size: int, smallest: int) -> int:
    """Return the size of the largest of the batches of `count` examples; a last one below `smallest` joins another."""
    rest = count % batch_size
    return batch_size + rest if 0 < rest < min(smallest, count) else min(count, batch_size)


class _Viewed:
    """An order of n examples, each in a random one of `views` views."""

    def __init__(self, order: Order, views: int, generator: torch.Generator) -> None:
        self._order, self._views, self._generator = order, views, generator

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        count = len(self)
        drawn = torch.randint(self._views, (count,), generator=self._generator).tolist()
        yield from (count * view + place for place, view in zip(self._order, drawn, strict=True))


class _Indices(BatchSampler):
    """Sample indices of each batch; a last batch with fewer than `smallest` samples joins the one before it."""

    def __init__(self, order: Order, batch_size: int, smallest: int) -> None:
        super().__init__(order, batch_size, drop_last=False)
        self._joins = largest_batch(len(order), batch_size, smallest) > batch_size

    def __len__(self) -> int:
        return super().__len__() - self._joins

    def __iter__(self) -> Iterator[list[int]]:
        batches = super().__iter__()
        yield from itertools.islice(batches, len(self) - self._joins)
        if self._joins:
            yield [index for batch in batches for index in batch]


class Batches:
    """Iterate over `Batch`; with a generator every pass has a new random order."""

    def __init__(
        self,
        examples: Sequence[Example],  # images are decoded when their batch is drawn
        collate: Collate,
        *,
        batch_size: int,  # the last batch may be smaller, or larger where `smallest` is above 1
        smallest: int = 1,  # a last batch of fewer samples joins the one before it
        generator: torch.Generator | None = None,  # for the random order; None: that of `examples`
        workers: int = 0,  # processes that decode images
        open_image: OpenImage = open_image,
        weights: Sequence[float] = (),  # to draw n examples with replacement; empty: each comes once
        views: Sequence[str] = ("",),  # transpositions of an image, by their names in Pillow; one is drawn each time
    ) -> None:
        if workers and (problem := no_sockets()):
            raise FedpeftError(f"training.workers is {workers}: {problem}", setting="training.workers")
        self._collate = collate
        rows = _Examples(examples, open_image, views)
        order: Order = SequentialSampler(rows)
        if generator is not None:
            order = RandomSampler(rows, generator=generator)
            if weights:
                order = WeightedRandomSampler(weights, len(rows), generator=generator)
            if len(views) > 1:
                order = _Viewed(order, len(views), generator)
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


class Scored(NamedTuple):
    """An answer or label, and its probability."""

    text: str
    probability: float


class Answering(nn.Module):
    """A backbone with the part that turns its output into answers.

    Attributes:
        metrics: that can measure it (`fedpeft.core.metrics`).
        labelled: whether it gives any number of labels instead of one answer.

    Args:
        backbone: frozen except for what the method trains.
        head: parameters that every round trains and that leave the site only if they are federated (`method.head`); a
            module without parameters if there are none.
    """

    metrics: ClassVar[tuple[str, ...]] = (ACCURACY,)
    labelled: ClassVar[bool] = False

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def train(self, mode: bool = True) -> Answering:
        """Set the mode; in training batch norms keep the statistics of pre-training.

        These are no parameters: they would drift with a site's images and neither be kept nor exchanged.
        """
        super().train(mode)
        for module in self.modules():
            if getattr(module, "track_running_stats", False):
                module.eval()
        return self

    def collate(self, images: Sequence[Any], examples: Sequence[Example]) -> Batch:
        """Return B examples with their opened images as a batch on the CPU; runs in the processes that load data."""
        raise NotImplementedError

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits (B, ..., C) of a batch's inputs."""
        raise NotImplementedError

    def loss(self, logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        """Return the loss of a batch.

        Args:
            logits: as `forward` returns them.
            target: of the batch; a sample with only negative numbers does not count.
            reduction: `mean` or `sum` over the samples, or `none`: one value for each (B,).
        """
        raise NotImplementedError

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the log-probability (B,) of each sample's target, that of labels in the mean."""
        return -self.loss(logits, target, reduction="none")

    def weigh(self, examples: Sequence[Example]) -> None:
        """Weight classes or labels in the loss by how rare they are among a site's training examples.

        Raises:
            FedpeftError: this way of answering has no classes.
        """
        raise FedpeftError(
            f"class_weights is 'balanced', and {type(self).__name__} tells no classes apart: leave it out.",
            setting="training.class_weights",
        )

    def outputs(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the outputs (B, C) whose kernel is the score of a layer.

        Args:
            logits: as `forward` returns them; here of one choice, (B, C), and all count.
            target: of the batch, as for `loss`; that of one choice does not matter.
        """
        return logits

    def divergence(self, logits: Tensor, teacher: Tensor, target: Tensor) -> Tensor:
        """Return KL(teacher || logits) of the answers, mean over the batch, for a method that distills.

        Args:
            logits: as `forward` returns them; here of one choice, (B, C).
            teacher: logits of the teacher, of the same shape.
            target: of the batch, as for `loss`; that of one choice does not matter.

        Raises:
            FedpeftError: they are of another shape.
        """
        return trainable.kl_of_choices(logits, teacher)

    def chosen(self, batch: Batch) -> Tensor:
        """Return the number of each sample's most probable answer among those of training (B,), on the CPU."""
        raise NotImplementedError

    def probabilities(self, batch: Batch) -> Tensor:
        """Return the probability of each label for each sample (B, L)."""
        raise NotImplementedError

    def answers(self, batch: Batch, max_answers: int) -> list[list[Scored]]:
        """Return each sample's most probable answers, the most probable first; of labels all of them.

        Args:
            batch: on the model's device; its target is not read.
            max_answers: answers of a sample.

        Raises:
            FedpeftError: this way of answering does not say how probable its answers are.
        """
        raise FedpeftError(f"{type(self).__name__} does not say how probable its answers are: it lacks `answers`.")

    def pooled(self, inputs: dict[str, Tensor]) -> Tensor | None:
        """Return the vector of each sample (B, d) that its answer is made from; None: there is no such vector."""
        return None

    def unanswerable(self, examples: Sequence[Example]) -> int:
        """Return how many examples can never be answered correctly; they count as wrong."""
        raise NotImplementedError

    def right(self, batch: Batch) -> Tensor:
        """Return whether the model answers each sample with an accepted answer, booleans (B,) on the CPU."""
        raise NotImplementedError


def reduced(samples: Tensor, reduction: str) -> Tensor:
    """Return the `mean` or `sum` of the samples' losses (B,), or for `none` the losses."""
    if reduction == "none":
        return samples
    return samples.mean() if reduction == "mean" else samples.sum()
