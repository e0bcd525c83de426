# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Draw the batches of a site from its own splits; all randomness follows from a seed.

Decoded images are kept in main memory within a budget, so that a file is read and decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from fedpeft.answering.answering import Batch, Batches, largest_batch
from fedpeft.answering.training_settings import BALANCED, VIEWS, TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.seeds import derive
from fedpeft.data.images import ImageSource, open_image
from fedpeft.data.schema import Example, SiteData, balancing
from fedpeft.protocol.outgoing_reply import probe_size

MIB = 2**20


class KeptImages:
    """Open images; the first ones that fit into `mib` are kept as 8-bit RGB."""

    def __init__(self, mib: float) -> None:
        self._limit, self._held = mib * MIB, 0
        self._images: dict[ImageSource, np.ndarray] = {}  # the key includes the window of a scan

    @property
    def held_bytes(self) -> int:
        """Bytes in use."""
        return self._held

    def open(self, image: ImageSource) -> Image.Image:
        """Open an image; see `fedpeft.data.images.open_image`."""
        if isinstance(image, np.ndarray):
            return open_image(image)
        if image in self._images:
            return Image.fromarray(self._images[image])
        opened = open_image(image)
        size = 3 * opened.width * opened.height
        if self._held + size <= self._limit:
            self._images[image] = np.asarray(opened)
            self._held += size
        return opened


class SiteBatches:
    """Draws batches from a site's splits.

    Args:
        site: the site's name.
        data: its splits.
        collate: function from examples to what the model reads (`fedpeft.answering`).
        training: the local recipe.
        device: of the batches of samples.
        smallest: examples in a training batch, at least, if the site sets such a limit.
        site_seed: of the site policy, for the samples whose losses leave; None: that of the job, in the simulator.
    """

    def __init__(
        self,
        site: str,
        data: SiteData,
        collate: Callable[..., Any],
        training: TrainingSettings,
        *,
        device: torch.device,
        smallest: int = 1,
        site_seed: int | None = None,
    ) -> None:
        self.smallest, self._site_seed = smallest, site_seed
        self._site, self._data, self._collate, self._training = site, data, collate, training
        self._device = device
        self._images = KeptImages(training.kept_images_mib)

    @property
    def held_bytes(self) -> int:
        """Bytes of the images in memory: opened ones, and those of computed examples."""
        images = {id(example.image): example.image for split in self._data.splits().values() for example in split}
        return self._images.held_bytes + sum(getattr(image, "nbytes", 0) for image in images.values())

    def draw(
        self,
        examples: Sequence[Example],
        batch_size: int,
        generator: torch.Generator | None = None,
        *,
        smallest: int = 1,
        **drawing: Any,
    ) -> Batches:
        """Return batches of examples, in random order if there is a generator; `drawing` is passed to `Batches`."""
        return Batches(
            examples,
            self._collate,
            batch_size=batch_size,
            smallest=smallest,
            generator=generator,
            workers=self._training.workers,
            open_image=self._images.open,
            **drawing,
        )

    def training(self, seed: int) -> Batches:
        """Return the training split in random order, sampled and augmented as the settings say."""
        generator = torch.Generator().manual_seed(seed)
        training, examples = self._training, self._data.train
        return self.draw(
            examples,
            training.batch_size,
            generator,
            smallest=self.smallest,
            weights=balancing(examples) if training.sampling == BALANCED else (),
            views=VIEWS[training.augmentation],
        )

    def sample(self, count: int, seed: int, *, size: int = 0) -> list[Batch]:
        """Return random training samples on the device, in training batches of a size; 0: in batches of evaluation."""
        order = torch.randperm(len(self._data.train), generator=torch.Generator().manual_seed(seed))
        chosen = [self._data.train[i] for i in order[:count].tolist()]
        smallest, size = (self.smallest, size) if size else (1, self._training.evaluation_batch_size)
        return [batch.to(self._device) for batch in self.draw(chosen, size, smallest=smallest)]

    def largest_step(self, seed: int) -> Batch:
        """Return random training samples on the device, as many as a training step may hold; few ones come again."""
        training, count = self._training, len(self._data.train)
        whole = largest_batch(count, training.batch_size, self.smallest)
        held = min(training.micro_batch or whole, whole) + whole * training.reuse_passes  # those of a whole batch
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).repeat(-(-held // count))
        (batch,) = self.draw([self._data.train[i] for i in order[:held].tolist()], held)
        return batch.to(self._device)

    def lasting_sample(self, count: int) -> list[Batch]:
        """Return random training samples on the device, the same in every round."""
        return self.released_sample(count, "measure", self._site)

    def released_sample(self, count: int, *purpose: str | int) -> list[Batch]:
        """Return random training samples on the device, of which a mean leaves the site; see `probe_size`."""
        seed = self._training.seed
        if self._site_seed is not None:
            seed, count = self._site_seed, probe_size(count, len(self._data.train))
        return self.sample(count, derive(seed, *purpose))

    def validation(self) -> list[Batch]:
        """Return the validation split on the device; refuse an empty one."""
        if not self._data.validation:
            raise FedpeftError(
                f"method.pia.share is 'validation', and site {self._site} has no validation split: set "
                f"data.validation_fraction (of computed data validation_size), or a number as share.",
                setting="method.pia",
            )
        rows = self.draw(self._data.validation, self._training.evaluation_batch_size)
        return [batch.to(self._device) for batch in rows]
