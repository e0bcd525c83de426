# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the sites of a job hold on this machine: examples, images, answers, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from fedpeft.data import SiteData
from fedpeft.data.answer_space import vocabulary_of
from fedpeft.data.baseline import baseline
from fedpeft.data.remarks import remarks as remarks_on
from fedpeft.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1, TITLES
from fedpeft.report.wording import percent

CONSTANT = {
    ACCURACY: "the most frequent answer of training",
    BALANCED_ACCURACY: "any one class",
    MACRO_F1: "every label",
}
HEADS = (
    "train",
    "validation",
    "test",
    "images",
    "answers",
    "closed",
    "unseen",
    "baseline %",
)


def data_summary(sites: Sequence[SiteData]) -> Table:
    """Return one row per site.

    Its cells: examples per split, images, answers or labels, closed test questions and those with unseen answers,
    and what the best constant answer reaches.

    Args:
        sites: data of each site; the table holds counts only.
    """
    table = Table(box=None, header_style="bold", collapse_padding=True, pad_edge=False)
    table.add_column("site", no_wrap=True)
    for header in HEADS:
        table.add_column(header, justify="right", min_width=max(map(len, header.split())))
    for data in sites:
        splits, answers = data.splits(), vocabulary_of(data, None)
        images = {example.image_id for examples in splits.values() for example in examples}
        closed = sum(example.closed for example in data.test)
        counts = [*map(len, splits.values()), len(images), len(answers), closed, data.unseen(answers)]
        table.add_row(data.site, *map(str, counts), percent(baseline(data)))
    return table


def remarks(sites: Sequence[SiteData]) -> Iterator[str]:
    """Yield a sentence on each metric, and with the site on what was left out and on what is unusual.

    Args:
        sites: data of each site.
    """
    for metric in dict.fromkeys(data.metric for data in sites):
        yield f"Measured by {TITLES[metric]}; the baseline is {CONSTANT[metric]}."
    for data in sites:
        for remark in remarks_on(data):
            yield f"{data.site}: {remark}"
