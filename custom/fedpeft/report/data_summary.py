# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the sites of a job hold on this machine: examples, images, answers, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1, TITLES
from fedpeft.core.printable import one_line
from fedpeft.data import SiteData
from fedpeft.data.answer_space import vocabulary_of
from fedpeft.data.baseline import baseline
from fedpeft.data.remarks import without_variety
from fedpeft.report.wording import percent

FREQUENT, EVERY_LABEL = "the most frequent answer of training", "every label"
CONSTANT = {ACCURACY: FREQUENT, BALANCED_ACCURACY: "any one class", MACRO_F1: FREQUENT}
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
UNUSED = "unused"


def data_summary(sites: Sequence[SiteData]) -> Table:
    """Return one row per site.

    Its cells: examples per split, images, answers or labels, closed test questions and those with unseen answers,
    what the best constant answer reaches, and, if there are any at any site, samples of the files in no split.

    Args:
        sites: data of each site; the table holds counts only.
    """
    table = Table(box=None, header_style="bold", collapse_padding=True, pad_edge=False)
    table.add_column("site", no_wrap=True)
    unused = [f"{sum(count for _, count in data.left_out):,}" for data in sites]
    heads = HEADS if set(unused) == {"0"} else (*HEADS, UNUSED)
    for header in heads:
        table.add_column(header, justify="right", min_width=max(map(len, header.split())))
    for data, gone in zip(sites, unused, strict=True):
        splits, answers = data.splits(), vocabulary_of(data, None)
        images = {example.image_id for examples in splits.values() for example in examples}
        closed = sum(example.closed for example in data.test)
        counts = [*map(len, splits.values()), len(images), len(answers), closed, data.unseen(answers)]
        cells = [*map(str, counts), percent(baseline(data)), gone]
        table.add_row(escape(one_line(data.site)), *cells[: len(heads)])
    return table


def remarks(sites: Sequence[SiteData]) -> Iterator[str]:
    """Yield a sentence on each metric, on what was left out and on what is unusual; one for all sites alike.

    Args:
        sites: data of each site.
    """
    for metric, labelled in dict.fromkeys((data.metric, bool(data.labels)) for data in sites):
        yield f"Measured by {TITLES[metric]}; the baseline is {EVERY_LABEL if labelled else CONSTANT[metric]}."
    counts: dict[str, dict[str, int]] = {}
    of_sites: dict[str, list[str]] = {}
    for data in sites:
        for why, count in data.left_out:
            counts.setdefault(why, {})[data.site] = count
        for remark in (*data.notes, *without_variety(data)):
            of_sites.setdefault(remark, []).append(data.site)
    for why, by_site in counts.items():
        yield f"Left out, {why}: {_listed(by_site, everywhere=len(by_site) == len(sites) > 1)}."
    for remark, names in of_sites.items():
        yield f"{', '.join(names) if len(names) < len(sites) or len(names) == 1 else 'all sites'}: {remark}"


def _listed(by_site: Mapping[str, int], *, everywhere: bool) -> str:
    if everywhere and len(set(by_site.values())) == 1:
        return f"{next(iter(by_site.values())):,} at each site"
    return ", ".join(f"{site} {count:,}" for site, count in by_site.items())
