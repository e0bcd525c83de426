# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The section `backbone` of a job."""

from __future__ import annotations

from dataclasses import dataclass

from fedpeft.backbones.registry import BACKBONES
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import one_of

LONGEST_PROMPT = 400


@dataclass(frozen=True, kw_only=True)
class BackboneSettings:
    """Which pre-trained model reads image and question.

    Args:
        name: registered name (`fedpeft.backbones.names()`).
        source: a local folder or a hub name in the same layout, which may end with @ and a commit or tag; None: the
            backbone's default weights, which `transformers` does not have.
        image_size: pixels: both sides for the tiny backbones and vit (images are squeezed to a square), the shortest
            side for vilt (the aspect ratio stays), the size in its image processor for transformers; None: what the
            weights were trained with.
        text_length: longest question in tokens, the rest is cut; `fedpeft doctor` and the site's log say of how many.
        prompt: what a model reads in whose text the image stands as tokens, with `{image}` and `{question}` in it;
            None: for llava and blip2 that of their papers, for others the image and then the question.

    Raises:
        FedpeftError: names the argument, its value and what is allowed.
    """

    name: str = "tiny-vilt"
    source: str | None = None
    image_size: int | None = None
    text_length: int = 40
    prompt: str | None = None

    def __post_init__(self) -> None:
        one_of("name", self.name, BACKBONES.names())
        if self.source is not None and (not isinstance(self.source, str) or not self.source.strip()):
            raise FedpeftError(
                f"source is {self.source!r}: give a folder or a hub name, or leave it out.", setting="source"
            )
        if self.source is None and not BACKBONES.get(self.name).usual:
            raise FedpeftError(
                f"backbone {self.name!r} has no weights of its own: give a folder or a hub name as source.",
                setting="source",
            )
        if self.image_size is not None and not _positive(self.image_size):
            raise FedpeftError(
                f"image_size is {self.image_size!r}, it must be a whole number of pixels, 1 or more.",
                setting="image_size",
            )
        if self.prompt is not None and not BACKBONES.get(self.name).prompts:
            raise FedpeftError(
                f"prompt is {self.prompt!r:.200}, and backbone {self.name!r} reads image and question apart: leave it "
                f"out.",
                setting="prompt",
            )
        places = ("{image}", "{question}")
        if self.prompt is not None and (
            len(str(self.prompt)) > LONGEST_PROMPT or not all(str(self.prompt).count(place) == 1 for place in places)
        ):
            raise FedpeftError(
                f"prompt is {self.prompt!r:.200}, it must have {places[0]} and {places[1]} in it, once each, and at "
                f"most {LONGEST_PROMPT} characters.",
                setting="prompt",
            )
        if not _positive(self.text_length) or self.text_length < 3:
            raise FedpeftError(
                f"text_length is {self.text_length!r}, it must be a whole number of tokens, 3 or more.",
                setting="text_length",
            )


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
