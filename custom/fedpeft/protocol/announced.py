# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site announced in round 0, stored in the job's run folder for the checks of its later replies.

It is on disk because the simulator runs every task in a new process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file

from fedpeft.core.errors import LocalError
from fedpeft.core.files import replacing, write_json
from fedpeft.core.states import State
from fedpeft.protocol.types import Introduction

FOLDER = "outgoing"
ANNOUNCED, TRAINED, INITIAL = "announced.json", "trained", "initial.safetensors"


@dataclass(frozen=True, slots=True)
class Announced:
    """Shapes, dtype and sample count that the site announced; later replies must agree with them.

    Args:
        shapes: of every tensor that it may send, by wire key.
        dtype: of all tensors, by torch's name.
        samples: size of its training split.
    """

    shapes: dict[str, list[int]]
    dtype: str
    samples: int

    @classmethod
    def of(cls, introduction: Introduction) -> Announced:
        """Read it from an introduction that carries the site's initial adapter."""
        return cls(
            shapes={key: list(tensor.shape) for key, tensor in introduction.state.items()},
            dtype=introduction.dtype,
            samples=introduction.samples["train"],
        )


class AnnouncementStore:
    """The announcement of a site on its disk, with its initial adapter and whether it has trained since.

    Args:
        folder: `<run folder>/outgoing`; created if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    @property
    def trained(self) -> bool:
        """Whether this site has had an order to train or score in this job; its adapter then depends on its data."""
        return (self.folder / TRAINED).exists()

    def note_training(self) -> None:
        """Record that this site had an order to train or score."""
        (self.folder / TRAINED).touch()

    def save(self, introduction: Introduction) -> None:
        """Store an introduction's announcement and its initial adapter, which does not depend on data yet."""
        announced = Announced.of(introduction)
        with replacing(self.folder / INITIAL) as draft:
            save_file({k: t.contiguous() for k, t in introduction.state.items()}, draft)
        write_json(
            self.folder / ANNOUNCED,
            {"shapes": announced.shapes, "dtype": announced.dtype, "samples": announced.samples},
        )

    def load(self) -> Announced | None:
        """Load the announcement; None before the introduction.

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

    def first_adapter(self) -> State:
        """The adapter that the site started from, which no data have touched."""
        return load_file(self.folder / INITIAL)
