# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A table of what the sites of a job hold on this machine: examples, images, answers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fedpeft.data import SiteData
from fedpeft.data.answer_space import vocabulary_of


def data_summary(sites: Sequence[SiteData]) -> Table:
    """Return one row per site: examples per split, images, answers or labels, and test questions with unseen answers.

    Args:
        sites: data of each site; the table holds counts only.
    """
    table = Table(box=None, header_style="bold")
    table.add_column("site", no_wrap=True)
    for header in ("train", "validation", "test", "images", "answers", "closed in test", "unseen in test"):
        table.add_column(header, justify="right")
    for data in sites:
        vocabulary = vocabulary_of(data, None)
        splits = data.splits()
        images = {example.image_id for examples in splits.values() for example in examples}
        closed = sum(example.closed for example in data.test)
        counts = [*map(len, splits.values()), len(images), len(vocabulary), closed, data.unseen(vocabulary)]
        table.add_row(data.site, *map(str, counts))
    return table
