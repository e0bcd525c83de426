# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The pictures of a run: accuracy by round and against what was sent, with training loss and transport distance.

The schedule's pictures are in `fedpeft.report.schedule_plot`, that of the losses in `fedpeft.report.loss_plot`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedpeft.core.text import counted, sites_in_words
from fedpeft.protocol.fields import MB
from fedpeft.report import loss_plot, schedule_plot
from fedpeft.report.history import History
from fedpeft.report.page_parts import Picture
from fedpeft.report.palette import (
    BRIDGE,
    DISTINCT,
    DPI,
    LIGHT,
    SIDE_BY_SIDE,
    Drawing,
    Frame,
    drawn,
    line_style,
    set_apart,
    shorten,
    spread,
    svg,
    text_width,
)
from fedpeft.report.wording import caption, mean_lines, means, percent, plot_title, series

MEAN_DASHES = ("-", (0, (6, 2)), (0, (4, 1, 1, 1)))  # of a mean for each metric
MANY_ROUNDS = 12  # with more of them markers would hide the lines
# inches
MAIN_WIDTH, SENT_WIDTH, SIDE_WIDTH, MIN_HEIGHT = 3.6, 5.04, 2.2, 2.9
LEFT, RIGHT, BETWEEN = 0.5, 0.15, 0.5
GAP = 0.155  # between the middles of two labels
LEADER = 0.3  # from the axes to the labels
SIZE = 7.5  # points of a label
MAX_LENGTH = 26  # letters of a site's name
SIDE_TITLES = {"loss": "Training loss", "alignment": "Transport distance (alignment)"}
COUNTED = "Adapters only, without FLARE's own messages."
LESS = "Dotted to the right: other sites sent more."
REFUSED = "Missing or refused replies are not counted."


def pictures(history: History) -> dict[str, Picture]:
    """Draw all pictures of a run for its page, by name: `curves`, and those that the run has figures for."""
    found = {}
    for one in drawings(history):
        file = svg(one.draw(history, framed=False), caption(history))
        found[one.name] = Picture(file, one.explained, one.section, one.described)
    return found


def picture_files(history: History) -> dict[str, bytes]:
    """Return every picture of a run as a file of its own, with the job's name and the warning, by the page's names."""
    return {one.name: svg(one.draw(history), caption(history)) for one in drawings(history)}


def drawings(history: History) -> Iterator[Drawing]:
    """Yield the curves of a run, and the other pictures that it has figures for."""
    sites = ", ".join(history.sites)
    described = (
        f"Curves of {history.measured_by}, training loss and transport distance over "
        f"{counted(len(history.rounds), 'round')} for {sites}; the figures stand in the tables below."
    )
    yield Drawing("curves", "Convergence", convergence, explained(history), described)
    if was_counted(history):
        described = (
            f"Curves of {history.measured_by} against the MB of adapters that a site had sent, for {sites} and their "
            f"mean; a table below has what each sent in each round."
        )
        yield Drawing("sent", "Communication", sent_figure, sent_explained(history), described)
    yield from loss_plot.drawings(history)
    yield from schedule_plot.drawings(history)


def convergence(history: History, *, framed: bool = True) -> Figure:
    """Draw a run: the sites' metric in percent with a label beside every line, training loss, transport distance.

    The last two are there if the run reports them. A dotted bridge spans rounds without a figure. Pictures on a page
    are not framed, because the page has already what is around the panels.
    """
    return drawn(lambda: _convergence(history, framed=framed))


def _convergence(history: History, *, framed: bool) -> Figure:
    side = [name for name in SIDE_TITLES if any(mean.value is not None for mean in means(history, name))]
    beside = BETWEEN + SIDE_WIDTH if side else 0
    figure, main = _main_panel(history, None, MAIN_WIDTH, beside, explained(history) if framed else None)
    axes, box = [main], main.get_position()
    width, total = figure.get_size_inches()
    each = (box.height * total - BETWEEN * (len(side) - 1)) / max(len(side), 1)
    for index, name in enumerate(side):
        low = box.y0 + (len(side) - 1 - index) * (each + BETWEEN) / total
        left = (width - RIGHT - SIDE_WIDTH) / width
        axes.append(figure.add_axes((left, low, SIDE_WIDTH / width, each / total)))
        draw(axes[-1], history, name, SIDE_TITLES[name])
    for one in {axes[0], axes[-1]}:
        one.set_xlabel("round", labelpad=2)
    return figure


def sent_figure(history: History, *, framed: bool = True) -> Figure:
    """Draw every site's metric, and their mean, against what a site had sent; for a run for which `was_counted`."""
    return drawn(lambda: _sent(history, framed=framed))


def _sent(history: History, *, framed: bool) -> Figure:
    explains = sent_explained(history) if framed else None
    figure, axes = _main_panel(history, sent_so_far(history), SENT_WIDTH, 0, explains)
    axes.set_xlabel("MB that a site had sent", labelpad=2)
    return figure


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the figures of each site are from left to right in each round."""

    sites: Mapping[str, np.ndarray]
    sent: frozenset[str]  # the sites that ever sent

    def mean_of(self, sites: Sequence[str]) -> np.ndarray:
        """Return the places of the mean of some sites: the mean of what those that ever sent had sent."""
        return np.mean([self.sites[site] for site in sites if site in self.sent or not self.sent & {*sites}], axis=0)


def _main_panel(
    history: History, places: Places | None, wide: float, beside: float, explains: str | None
) -> tuple[Figure, Axes]:
    """Return a figure with the panel of the sites' metric, and `beside` it inches for other panels."""
    labels = end_labels(history, places)
    width = LEFT + wide + label_width(labels) + beside + RIGHT
    height = max(MIN_HEIGHT, GAP * len(labels))
    frame = Frame() if explains is None else Frame.of(history, width, explains)
    total = frame.top + height + frame.bottom
    figure = Figure(figsize=(width, total), dpi=DPI, facecolor=LIGHT.paper)
    axes = figure.add_axes((LEFT / width, frame.bottom / total, wide / width, height / total))
    draw(axes, history, "overall", plot_title(history), scale=100, places=places)
    write_labels(axes, labels)
    frame.write(figure)
    return figure, axes


def was_counted(history: History) -> bool:
    """Return whether all that was sent in the run was counted, and something was sent."""
    results = [site for one in history.rounds for site in one.sites.values()]
    return all(site.sent is not None for site in results) and any(site.sent for site in results)


def sent_so_far(history: History) -> Places:
    """Return the MB that every site had sent after each round."""
    lines = series(history, "sent")
    sums = {site: np.cumsum([value or 0 for value in line]) / MB for site, line in lines.items()}
    return Places(sites=sums, sent=frozenset(s for s, line in lines.items() if any(v is not None for v in line)))


def sent_explained(history: History) -> str:
    """Return what the picture counts, and what its dots mean."""
    less = LESS if len({line[-1] for line in sent_so_far(history).sites.values()}) > 1 else ""
    refused = REFUSED if any(one.rejected for one in history.rounds) else ""
    return " ".join(filter(None, (COUNTED, refused, less, explained(history))))


def explained(history: History) -> str:
    """Return the meaning of dotted bridges and open circles, and that lines do not cover each other."""
    parts = []
    lines = series(history, "overall").values()
    if any(None in line and any(value is not None for value in line) for line in lines):
        parts.append("Dotted: no figure in these rounds.")
    if any(mean.value is not None and not mean.complete for one, _ in mean_lines(history).values() for mean in one):
        parts.append("Open circle: mean over fewer sites.")
    if 1 < len(lines) <= DISTINCT:
        parts.append(SIDE_BY_SIDE)
    return " ".join(parts)


def draw(
    axes: Axes, history: History, quantity: str, title: str, *, scale: float = 1, places: Places | None = None
) -> None:
    """Draw one of QUANTITIES into axes; a scale of 100 makes percent, which stay within 0 and 100."""
    rounds = np.array([one.round for one in history.rounds])
    places_of = places.sites if places else {}
    lines = series(history, quantity)
    sparse = len(rounds) <= MANY_ROUNDS
    curves = []
    for index, (site, line) in enumerate(lines.items()):
        style, size = line_style(index, len(lines)), 3.2 if sparse and len(lines) <= DISTINCT else 0
        curves.append(_line(axes, places_of.get(site, rounds), scale * np.array(line, dtype=float), style, size))
    for (average, sites), dashes in zip(mean_lines(history, quantity).values(), MEAN_DASHES, strict=False):
        values = scale * np.array([mean.value for mean in average], dtype=float)
        where = places.mean_of(sites) if places else rounds
        look = {"color": LIGHT.ink, "linewidth": 2.2, "zorder": 4, "linestyle": dashes}
        curves.append(_line(axes, where, values, look, 4.4 if sparse else 0))
        fewer = np.array([not mean.complete for mean in average])
        hollow: dict[str, Any] = {"mfc": LIGHT.paper, "mec": LIGHT.ink, "mew": 1.1, "ms": 4.4, "zorder": 5}
        curves[-1] += axes.plot(where[fewer], values[fewer], linestyle="none", marker="o", **hollow)
    axes.set_title(title, loc="left", fontsize=8.5, fontweight="bold", pad=6)
    axes.grid(axis="y", color=LIGHT.grid, linewidth=0.6)
    _fit_height(axes, scale)
    if len(lines) <= DISTINCT:
        set_apart(axes, curves)
    if places:
        axes.set_xlim(0, 1.03 * max(line[-1] for line in places.sites.values()))
    else:
        _fit_rounds(axes, rounds)


def _line(axes: Axes, places: np.ndarray, values: np.ndarray, style: dict, size: float) -> list[Line2D]:
    """Draw a line, dotted bridges over values that are NaN, and markers of a size in points.

    With size 0 only values without a neighbor have one.
    """
    lines = axes.plot(places, values, **style)
    known = np.isfinite(values)
    for left, right in pairwise(np.flatnonzero(known)):
        if right - left > 1:
            ends = [left, right]
            lines += axes.plot(places[ends], values[ends], **{**style, "linestyle": BRIDGE, "linewidth": 0.9})
    padded = np.pad(known, 1)
    marked = known if size else known & ~padded[:-2] & ~padded[2:]
    look = {key: style[key] for key in ("color", "alpha", "zorder", "rasterized") if key in style}
    lines += axes.plot(
        places[marked], values[marked], linestyle="none", marker="o", markersize=size or 2.5, mew=0, **look
    )
    return lines


def _fit_height(axes: Axes, scale: float) -> None:
    """Fit the height to the figures: a single figure in the middle, percent never outside 0 to 100."""
    values = np.concatenate([line.get_ydata() for line in axes.lines])
    values = values[np.isfinite(values)]
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    pad = 0.07 * (high - low)
    if low == high:
        pad = 10 if scale == 100 else 0.5 * abs(high) or 1
    floor, ceiling = (-1, 101) if scale == 100 else (-np.inf, np.inf)
    axes.set_ylim(max(low - pad, floor), min(high + pad, ceiling))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7 if scale == 100 else 5, steps=[1, 2, 2.5, 5, 10]))


def _fit_rounds(axes: Axes, rounds: np.ndarray) -> None:
    """Fit the width to the rounds, which are whole."""
    margin = 0.03 * (rounds[-1] - rounds[0]) or 0.5
    axes.set_xlim(rounds[0] - margin, rounds[-1] + margin)
    if len(rounds) <= 6:
        axes.set_xticks(rounds)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))


class Label(NamedTuple):
    """The label of a line's last figure."""

    place: float  # its round, or another place from left to right
    late: bool  # the run or other lines continue after it
    value: float  # in percent
    text: str
    color: str
    weight: str = "normal"


def end_labels(history: History, places: Places | None = None) -> list[Label]:
    """Return a label for every site's last figure and the mean's; with more sites than styles best, worst and mean."""
    lines = series(history, "overall")
    rounds = np.array([one.round for one in history.rounds])
    farthest = max(line[-1] for line in places.sites.values()) if places else rounds[-1]
    labels: list[Label] = []

    def add(name: str, line: Sequence[float | None], at: np.ndarray, color: str, weight: str = "normal") -> None:
        known = [index for index, value in enumerate(line) if value is not None]
        if not known:
            return
        last = known[-1]
        ended = "" if last == len(rounds) - 1 else f" (round {rounds[last]})"
        text = f"{name}  {percent(line[last])}{ended}"
        labels.append(Label(at[last], bool(ended) or at[last] < farthest, 100 * line[last], text, color, weight))

    for index, (site, line) in enumerate(lines.items()):
        at = places.sites[site] if places else rounds
        add(shorten(site, MAX_LENGTH), line, at, line_style(index, len(lines))["color"])
    if len(lines) > DISTINCT:
        ranked = sorted(labels, key=lambda label: label.value)
        labels = [ranked[-1], ranked[0]] if len(ranked) > 1 else ranked
    for name, (average, sites) in mean_lines(history).items():
        count = next((mean.count for mean in reversed(average) if mean.count), 0)
        many = f" of {sites_in_words(count, len(sites))}" * (len(lines) > DISTINCT)
        values = [mean.value for mean in average]
        add(name + many, values, places.mean_of(sites) if places else rounds, LIGHT.ink, "bold")
    return labels


def label_width(labels: Sequence[Label]) -> float:
    """Return the width of the labels beside the axes in inches, leaders included."""
    return LEADER + max(text_width(label.text, SIZE) for label in labels) if labels else 0.0


def write_labels(axes: Axes, labels: Sequence[Label]) -> None:
    """Write the labels to the right of the axes, whose size and limits are set, each connected to its line's end."""
    (low, high), (first, last) = axes.get_ylim(), axes.get_xlim()
    across = (last - first) / (axes.bbox.width / axes.figure.dpi)  # rounds per inch
    gap = GAP * (high - low) / (axes.bbox.height / axes.figure.dpi)
    places = spread([label.value for label in labels], gap=gap, low=low, high=high)
    for label, place in zip(labels, places, strict=True):
        # dotted where the site has no figure in the last round, since a solid leader there would read as one
        leader: dict[str, Any] = {"color": label.color, "linewidth": 0.7, "clip_on": False, "zorder": 1}
        leader |= {"linestyle": BRIDGE} if label.late else {}
        bend, end = last + 0.04 * across, last + (LEADER - 0.05) * across
        axes.plot([label.place, bend, end], [label.value, label.value, place], **leader)
        look: dict[str, Any] = {"color": LIGHT.ink, "fontsize": SIZE, "fontweight": label.weight}
        axes.text(last + LEADER * across, place, label.text, va="center_baseline", **look)
