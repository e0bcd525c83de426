# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the sites of a job hold on this machine: tables of their examples and of images that they have in common.

The picture of how often each label, class or answer occurs at each site is like the papers' figures of partitions. It
shows counts of a site's labels, which no message carries: it is for one person who holds all the data.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from fedpeft.core.console import cell
from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1, TITLES
from fedpeft.core.text import one_line
from fedpeft.data import SiteData
from fedpeft.data.answer_space import vocabulary_of
from fedpeft.data.duplicates import Duplicate, Fingerprint, duplicates
from fedpeft.data.remarks import baseline, remarks_on_variety
from fedpeft.data.schema import Example
from fedpeft.report.palette import COLORS, DPI, LIGHT, Frame, drawn, png, shorten, text_width
from fedpeft.report.wording import NOTHING_MEDICAL, percent

AT_HOME = "Counts of labels must not leave a site: this picture is for one person who holds all the data."
NO_LABEL = "no label"
MAX_LABELS = 24  # further ones are one row
MAX_NUMBERS = 12  # sites with which the counts are written beside the circles
MIN_AREA = 3.0  # square points: one example still shows
# inches
ROW, COLUMN, MIN_COLUMN, MIN_WIDTH = 0.24, 0.62, 0.12, 4.6
TOP, BOTTOM, LINE, EDGE = 0.5, 0.14, 0.15, 0.2
SIZE = 7  # points
MAX_LENGTH = 30  # letters of a label
FREQUENT, EVERY_LABEL = "the most frequent answer of training", "every label"
CONSTANT = {ACCURACY: FREQUENT, BALANCED_ACCURACY: "any one class", MACRO_F1: FREQUENT}
HEADS = ("train", "validation", "test", "images", "answers", "closed", "unseen", "baseline %")
UNUSED = "unused"
TEST = "test"
NO_OVERLAP = "No image is in two sites or two splits."
TOTAL = "total"
MAX_NAMED = 20  # images of one site that a remedy names
OVERLAP_HEADS = ("in", "and in", "images", "equal pixels", "test images known")


def label_counts(sites: Sequence[SiteData]) -> dict[str, np.ndarray]:
    """Return, by label, how many examples of each site have it, (n,), in all splits; the most frequent first.

    An image without any label counts as "no label", a question by its answer.
    """
    counts = []
    for data in sites:
        own: Counter[str] = Counter()
        for examples in data.splits().values():
            for example in examples:
                own.update(counted_as(example))
        counts.append(own)
    table = {label: np.array([own[label] for own in counts]) for own in counts for label in own}
    return dict(sorted(table.items(), key=lambda item: (-int(item[1].sum()), item[0])))


def counted_as(example: Example) -> Sequence[str]:
    """Return an example's labels, "no label" where it has none, or its answer."""
    return [example.answer] if example.labels is None else example.labels or [NO_LABEL]


def label_picture(title: str, sites: Sequence[SiteData], *, procedural: bool) -> bytes:
    """Return the picture as PNG: a circle for each label and site, its area in proportion to the count."""
    figure = drawn(lambda: _figure(title, sites, procedural=procedural))
    return png(figure, f"{title}: examples with each label at each site. {AT_HOME}")


def _figure(title: str, sites: Sequence[SiteData], *, procedural: bool) -> Figure:
    counts = _limit_labels(label_counts(sites))
    names = [shorten(data.site, MAX_LENGTH) for data in sites]
    labels = [shorten(label, MAX_LENGTH) for label in counts]
    wide = len(sites) * max(MIN_COLUMN, min(COLUMN, 9 / len(sites)))
    high = len(labels) * ROW
    left = EDGE + max(text_width(label, SIZE) for label in labels)
    names_high = EDGE + max(text_width(name, SIZE) for name in names)
    width = max(left + wide + EDGE, MIN_WIDTH)
    lines = _wrapped(f"Procedural data: {NOTHING_MEDICAL}.", width) if procedural else []
    head = [(line, "warning", "bold") for line in lines]
    foot = _wrapped(f"Examples of all splits; the area of a circle is their number. {AT_HOME}", width)
    top, bottom = TOP + LINE * len(head), BOTTOM + LINE * len(foot) + names_high
    total = top + high + bottom
    figure = Figure(figsize=(width, total), dpi=DPI, facecolor=LIGHT.paper)
    axes = figure.add_axes((left / width, bottom / total, wide / width, high / total))
    _circles(axes, np.array(list(counts.values())), wide / len(sites))
    axes.set_yticks(range(len(labels)), labels, fontsize=SIZE)
    step = -(-len(names) // max(1, int(wide / MIN_COLUMN)))
    axes.set_xticks(range(0, len(names), step), names[::step], fontsize=SIZE, rotation=90)
    Frame(title=title, head=head, foot=foot).write(figure)
    return figure


def _circles(axes: Axes, table: np.ndarray, column: float) -> None:
    """Draw a circle for each cell of a table, (labels, sites); `column` is the width of a column in inches."""
    largest = 72 * min(ROW, column) * 0.95
    y, x = np.nonzero(table)
    sizes = np.maximum((largest**2) * table[y, x] / table.max(), MIN_AREA)
    axes.scatter(x, y, s=sizes, color=COLORS[0], linewidth=0, zorder=3)
    numbers = table.shape[1] <= MAX_NUMBERS
    if numbers:
        behind = {"facecolor": LIGHT.paper, "edgecolor": "none", "pad": 0.8}
        for row, place in zip(y.tolist(), x.tolist(), strict=True):
            text, right = f"{table[row, place]:,}", place + 0.66
            axes.text(right, row, text, fontsize=SIZE - 1, color=LIGHT.soft, ha="right", va="center", bbox=behind)
    edge = 0.3 if numbers else 0.5
    axes.set_xlim(-edge, table.shape[1] - edge)
    axes.set_ylim(table.shape[0] - 0.5, -0.5)
    axes.grid(color=LIGHT.grid, linewidth=0.4)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _limit_labels(counts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Put labels beyond the most frequent ones into one row."""
    if len(counts) <= MAX_LABELS:
        return counts
    names = list(counts)
    others = names[MAX_LABELS - 1 :]
    shown = {name: counts[name] for name in names[: MAX_LABELS - 1]}
    return shown | {f"{len(others):,} others": np.sum([counts[name] for name in others], axis=0)}


def _wrapped(text: str, width: float) -> list[str]:
    return textwrap.wrap(text, int((width - 0.24) * 20))


def data_summary(sites: Sequence[SiteData]) -> Table:
    """Return one row per site.

    Its cells: examples by split, images, answers or labels, closed test questions and those with unseen answers, what
    a constant answer reaches, and, if a site has any, samples of the files in no split.
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
    """Yield a sentence on each metric, on what was left out and on what is unusual; sites with the same share one."""
    for metric, labelled in dict.fromkeys((data.metric, bool(data.labels)) for data in sites):
        yield f"Measured by {TITLES[metric]}; the baseline is {EVERY_LABEL if labelled else CONSTANT[metric]}."
    counts: dict[str, dict[str, int]] = {}
    of_sites: dict[str, list[str]] = {}
    for data in sites:
        for why, count in data.left_out:
            counts.setdefault(why, {})[data.site] = count
        for remark in (*data.notes, *remarks_on_variety(data)):
            of_sites.setdefault(remark, []).append(data.site)
    for why, by_site in counts.items():
        yield f"Left out, {why}: {_list_counts(by_site, everywhere=len(by_site) == len(sites) > 1)}."
    for remark, names in of_sites.items():
        yield f"{', '.join(names) if len(names) < len(sites) or len(names) == 1 else 'all sites'}: {remark}"


def _list_counts(by_site: Mapping[str, int], *, everywhere: bool) -> str:
    if everywhere and len(set(by_site.values())) == 1:
        return f"{next(iter(by_site.values())):,} at each site"
    return ", ".join(f"{site} {count:,}" for site, count in by_site.items())


class Overlap:
    """What splits and sites have in common, by the fingerprints of all sites."""

    def __init__(self, marks: Sequence[Fingerprint]) -> None:
        self.common = duplicates(marks)  # images in more than one split or site
        self._leaking = [one for one in self.common if 0 < sum(map(_is_test, one.places)) < len(one.places)]
        # test images that are in a training or validation split as well, of any site
        self.known = [place for one in self._leaking for place in one.places if _is_test(place)]
        self.tested = sum(map(_is_test, marks))  # number of test images

    def table(self) -> Table:
        """Return a row for each pair of splits with common images, and a row of all."""
        table = Table(box=None, header_style="bold", pad_edge=False)
        for number, head in enumerate(OVERLAP_HEADS):
            table.add_column(head, justify="left" if number < 2 else "right", overflow="fold")
        pairs: dict[tuple[str, str], list[Duplicate]] = {}
        for one in self.common:
            for pair in combinations(sorted({_split(place) for place in one.places}), 2):
                pairs.setdefault(pair, []).append(one)
        for pair, images in sorted(pairs.items()):
            known = 0
            if sum(name.endswith(f"/{TEST}") for name in pair) == 1:
                known = sum(_is_test(place) and _split(place) in pair for one in images for place in one.places)
            table.add_row(*map(cell, (*pair, *_counts(images), known)))
        table.add_row(*map(cell, (TOTAL, "", *_counts(self.common), len(self.known))), style="bold")
        return table

    def remarks(self) -> Iterator[str]:
        """Yield what the table means and how to leave such images out; nothing if training knows no test image."""
        if not self.known:
            return
        yield (
            f"{len(self.known):,} of {self.tested:,} test images are in a training or validation split as well, which "
            f"flatters the figures: leave them out there with data.exclude (at a hospital exclude in its site policy)."
        )
        for site, names in self._exclusions().items():
            more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
            yield f"data.sites.{site}.exclude: [{', '.join(names[:MAX_NAMED])}]{more}"
        if within := sorted({place.site for one in self._leaking for place in one.places if _is_in_test(place, one)}):
            yield f"An image that is in two splits of {', '.join(within)} itself: set data.split=image_disjoint there."

    def _exclusions(self) -> dict[str, list[str]]:
        """Return by site the images to leave out, so that the test splits stay."""
        chosen: dict[str, dict[str, None]] = {}
        for one in self._leaking:
            for place in one.places:
                if not _is_test(place) and not _is_in_test(place, one):
                    chosen.setdefault(place.site, {})[place.image_id] = None
        return {site: list(names) for site, names in sorted(chosen.items())}


def _is_test(place: Fingerprint) -> bool:
    return place.split == TEST


def _is_in_test(place: Fingerprint, one: Duplicate) -> bool:
    """Return whether an image of training is also in the site's own test split under the same id."""
    here = (place.site, place.image_id)
    return not _is_test(place) and any(_is_test(other) and (other.site, other.image_id) == here for other in one.places)


def _split(place: Fingerprint) -> str:
    return f"{place.site}/{place.split}"


def _counts(images: Sequence[Duplicate]) -> tuple[str, str]:
    return f"{len(images):,}", f"{sum(one.same_content for one in images):,}"
