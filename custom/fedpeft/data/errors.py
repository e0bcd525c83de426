# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The errors for wrong data or data settings of a site."""

from __future__ import annotations

from fedpeft.core.errors import LocalError


class DataError(LocalError):
    """A folder, file, row or setting is wrong; the message names it and the remedy, never a question or an answer."""

    usual_code = "data-unusable"


class UnreadableImage(DataError):
    """An image of which the model can be shown no pixels, or not those that were meant.

    Args:
        sentence: see `FedpeftError`.
        image: its path or place.
        why: follows its name in a sentence.
        remedy: what to do.
    """

    def __init__(self, sentence: str = "", *, image: str = "", why: str = "", remedy: str = "") -> None:
        super().__init__(sentence)
        self.image, self.why, self.remedy = image, why, remedy

    @classmethod
    def of(cls, image: object, why: str, remedy: str) -> UnreadableImage:
        """Return the error whose sentence is made of an image's name, a reason and what to do."""
        return cls(f"The image {image} {why}; {remedy}.", image=str(image), why=why, remedy=remedy)
