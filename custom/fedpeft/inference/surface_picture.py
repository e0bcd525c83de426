# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The picture of the loss around two sites' adapters and the global one, and the table of losses and barriers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rich.table
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich import box

from fedpeft.core.console import cell
from fedpeft.core.files import replacing
from fedpeft.inference.surface import OF_ALL, Panel, Surface
from fedpeft.report.palette import LIGHT, drawn, shorten, svg
from fedpeft.report.wording import caution

FILE = "surface.svg"
LEVELS = 14
WIDTH, HEIGHT, LETTERS = 7.6, 3.3, 18  # inches; of a site's name
POINT, STAR = ("o", 5), ("*", 9)  # of a site and of the global adapter: marker and size


def title(surface: Surface) -> str:
    """Return between which sites the picture is."""
    return f"Loss between {' and '.join(surface.kept)}"


def remarks(surface: Surface) -> tuple[str, ...]:
    """Return the lines below table and picture."""
    records = [one.record for one in surface.kept.values()]
    rounds = ", ".join(f"{site} after round {one.state.round}" for site, one in surface.kept.items())
    note = caution(procedural=any(r.procedural for r in records), tiny=any(r.tiny for r in records))
    equal = "" if surface.moved else ": the sites are in the global order, and both panels are equal"
    flat = [form for form, panel in surface.panels.items() if panel.plane.random]
    return (
        f"adapters {rounds}; mean loss of both sites on their probe samples, each with its own head",
        f"moved    {surface.moved} of {surface.places} places{equal}",
        *(f"plane    {form}: all three are on one line, and up is a random direction" for form in flat),
        *((f"note     {note}",) if note else ()),
    )


def report_lines(surface: Surface) -> Iterator[Any]:
    """Yield what the terminal shows: a table of losses and barriers, and lines below it."""
    shown = rich.table.Table(title=title(surface), title_justify="left", box=box.SIMPLE_HEAD)
    for number, head in enumerate(("", *surface.panels)):
        shown.add_column(head, justify="right" if number else "left")
    panels = list(surface.panels.values())
    for name in panels[0].at_points:
        shown.add_row(cell(f"loss at {name}"), *(f"{panel.at_points[name]:.3f}" for panel in panels))
    for a, b in panels[0].barriers:
        row = (f"{panel.barriers[a, b]:.3f}" for panel in panels)
        shown.add_row(cell(f"barrier from {a} to {b}"), *row)
    yield shown
    yield from remarks(surface)


def write_picture(surface: Surface, folder: Path) -> Path:
    """Draw both panels into a folder, and return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    content = svg(drawn(lambda: _figure(surface)), "\n".join((title(surface), *remarks(surface))))
    with replacing(folder / FILE) as draft:
        draft.write_bytes(content)
    return folder / FILE


def _figure(surface: Surface) -> Figure:
    figure = Figure(figsize=(WIDTH, HEIGHT), facecolor=LIGHT.paper, layout="constrained")
    panels = figure.subplots(1, len(surface.panels), squeeze=False)[0]
    known = np.concatenate([one.losses[np.isfinite(one.losses)] for one in surface.panels.values()])
    levels = np.asarray(MaxNLocator(LEVELS).tick_values(known.min(), max(np.quantile(known, 0.9), known.min() + 1e-6)))
    for axes, (name, panel) in zip(panels, surface.panels.items(), strict=True):
        shown = _draw(axes, panel, levels)
        axes.set_title(name, loc="left", fontsize=8.5, fontweight="bold", pad=6)
    figure.colorbar(shown, ax=list(panels), label="loss", shrink=0.9)
    figure.suptitle(title(surface), x=0.01, ha="left", fontsize=9.5, fontweight="bold", color=LIGHT.ink)
    return figure


def _draw(axes: Axes, panel: Panel, levels: np.ndarray) -> Any:
    losses = np.ma.masked_invalid(panel.losses)
    shown = axes.contourf(panel.x, panel.y, losses, levels=levels, cmap="viridis_r", extend="both")
    axes.contour(panel.x, panel.y, losses, levels=levels, colors=LIGHT.ink, linewidths=0.3)
    look: dict[str, Any] = {"mfc": LIGHT.paper, "mec": LIGHT.ink, "mew": 0.8}
    behind = {"facecolor": LIGHT.paper, "edgecolor": "none", "alpha": 0.8, "pad": 1.2}
    label: dict[str, Any] = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center", "fontsize": 6.5}
    for name, (x, y) in panel.plane.places.items():
        marker, size = STAR if name == OF_ALL else POINT
        axes.plot(x, y, marker=marker, markersize=size, **look)
        text = f"{shorten(name, LETTERS)} {panel.at_points[name]:.2f}"
        axes.annotate(text, (x, y), color=LIGHT.ink, bbox=behind, **label)
    axes.set_xlabel("distance from the global adapter", labelpad=2)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    return shown
