# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the server asked a site for: the order of the task at hand, and what the site announced in round 0.

The order lives as long as its task, in FLARE's context. What outlives a task is on disk, in the job's run folder: the
simulator runs every task in a new process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from fedpeft.client.global_cache import apply_delta
from fedpeft.errors import LocalError
from fedpeft.files import replacing, write_json
from fedpeft.flare.messages import Hello, Introduction, ScoreOrder, TrainOrder

FOLDER = "outgoing"
ANNOUNCED, TRAINED, INITIAL = "announced.json", "trained", "initial.safetensors"
Order = Hello | ScoreOrder | TrainOrder


@dataclass(frozen=True, slots=True)
class Announced:
    """What the site announced of itself in round 0; later replies are held to it.

    Args:
        shapes: of every tensor it may send, by wire key.
        dtype: of all of them, as torch names it.
        samples: size of its training split.
    """

    shapes: dict[str, list[int]]
    dtype: str
    samples: int

    @classmethod
    def of(cls, introduction: Introduction) -> Announced:
        """From an introduction that carries the site's first adapter."""
        return cls(
            shapes={key: list(tensor.shape) for key, tensor in introduction.state.items()},
            dtype=introduction.dtype,
            samples=introduction.samples["train"],
        )


class AnnouncementStore:
    """What a job's outgoing filter keeps on the site's disk.

    Args:
        folder: `<run folder>/outgoing`; made where it is missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    @property
    def trained(self) -> bool:
        """Whether this site was ever told to train in this job: from then on its adapter speaks of its data."""
        return (self.folder / TRAINED).exists()

    def note_training(self) -> None:
        """Remember that this site was told to train."""
        (self.folder / TRAINED).touch()

    def save(self, introduction: Introduction) -> None:
        """Keep what an introduction says, and the adapter it carries, which no data have touched yet."""
        announced = Announced.of(introduction)
        with replacing(self.folder / INITIAL) as draft:
            save_file({k: t.contiguous() for k, t in introduction.state.items()}, draft)
        write_json(
            self.folder / ANNOUNCED,
            {"shapes": announced.shapes, "dtype": announced.dtype, "samples": announced.samples},
        )

    def load(self) -> Announced | None:
        """What was kept; None before the site has introduced itself.

        Raises:
            LocalError: it cannot be read.
        """
        file = self.folder / ANNOUNCED
        if not file.exists():
            return None
        try:
            return Announced(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise LocalError(f"what this site announced cannot be read from {file} ({error}).") from error

    def reference(self, order: ScoreOrder | TrainOrder) -> Mapping[str, torch.Tensor]:
        """The global adapter that an order brings, or the site's untrained first one where it brings none.

        Raises:
            FedpeftError: the order builds on a version that is not on disk.
        """
        whole = apply_delta(self.folder, order.state, base=order.base, version=order.version)
        return whole or load_file(self.folder / INITIAL)
