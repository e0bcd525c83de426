# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site should know of its own data before it trains: what was left out, what is unusual, what does not vary."""

from __future__ import annotations

from collections.abc import Iterator

from fedpeft.backbones import BACKBONES
from fedpeft.data.baseline import baseline
from fedpeft.data.schema import SiteData


def remarks(data: SiteData) -> Iterator[str]:
    """Yield a sentence on each of these, for people at the site; nothing of it is sent.

    Args:
        data: of the site.
    """
    for why, count in data.left_out:
        yield f"{count:,} left out: {why}."
    yield from data.notes
    yield from without_variety(data)


def unread_questions(data: SiteData, backbone: str) -> Iterator[str]:
    """Yield a sentence where the data ask more than one question and the backbone reads none of them.

    Args:
        data: of the site.
        backbone: a registered name.
    """
    asked = {example.question for examples in data.splits().values() for example in examples if not data.labels}
    if len(asked) > 1 and not BACKBONES.get(backbone).reads_questions:
        yield (
            f"The data ask {len(asked):,} different questions and backbone {backbone!r} reads none of them, so that "
            f"every question about an image gets the same answer: choose another backbone.name (`fedpeft backbones`)."
        )


def without_variety(data: SiteData) -> Iterator[str]:
    """Yield a sentence for each way in which a site has nothing to learn from, or nothing to be measured by.

    Args:
        data: of the site; no sentence names an answer or a label.
    """
    if not data.labels:
        if data.answers_in_training == 1:
            yield "Training has one answer alone: the site trains, and its figure is that of the baseline."
        return
    absent = len(data.labels) - data.answers_in_training
    if absent == len(data.labels):
        yield "No image of training has a label: the site trains, and learns to predict none."
    elif absent:
        yield f"{absent} of {len(data.labels)} labels are on no image of training."
    if baseline(data) is None:
        yield "No image of the test split has a label: the site trains, and its figure is not measured."
