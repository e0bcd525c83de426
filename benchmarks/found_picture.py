# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a federation brings, from the results of real_images.py and `learning.py --study` (`publish.py`).

One panel for each data set of real images, with the jobs' own backbone, and one for each world of the study's runs of
thirty rounds: the mean over the seeds and its 95 % interval. Of the rates with most seeds a row has the one that is
best on validation. A row with fewer seeds than others of its panel is left out: every seed has splits of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import real_images
import study
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpeft.compare.table import interval
from fedpeft.report.palette import COLORS, LIGHT

# row of real_images.py and of the study -> what the legend calls it, color and marker
ROWS = {
    "local": ("each site alone", LIGHT.soft, "D"),
    "fedavg": ("FedAvg", COLORS[1], "s"),
    real_images.ONE_HEAD: ("FedAvg, one head", COLORS[3], "X"),
    study.WEIGHT_SPACE: ("FedPIA, weight space", COLORS[2], "^"),
    study.TWO_BRANCHES: ("FedPIA, two branches", COLORS[4], "v"),
    "ours": ("ours", COLORS[0], "o"),
}
TITLES = {"vqa_rad": "VQA-RAD", "fed_isic2019": "Fed-ISIC2019", "nih_cxr14": "NIH ChestX-ray14"}
WORLDS = {0: "procedural, sites agree", 7: "procedural, disagreeing"}
Figures = dict[str, list[float]]  # row -> percent of each seed


def draw(real: Sequence[Mapping[str, Any]], runs: Sequence[dict[str, Any]]) -> Figure:
    """The panels that have any row."""
    panels = {title: found for title, found in (*_real(real).items(), *_procedural(runs).items()) if found[1]}
    with mpl.rc_context({"font.size": 7.5, "axes.edgecolor": LIGHT.soft}):
        figure = Figure(figsize=(1.75 * len(panels), 2.4), layout="constrained", facecolor=LIGHT.paper)
        for panel, (title, (metric, figures)) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            _panel(panel, title, metric, figures)
        shown = [row for row in ROWS if any(row in figures for _, figures in panels.values())]
        marks = [
            mpl.lines.Line2D([], [], color=color, marker=marker, linestyle="none", label=name)
            for name, color, marker in map(ROWS.__getitem__, shown)
        ]
        figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, labelcolor=LIGHT.ink)
    return figure


def _real(lines: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, Figures]]:
    found = {}
    for task, metric in real_images.TASKS.items():
        own = [one for one in lines if (one["task"], one["backbone"]) == (task, real_images.PRETRAINED)]
        rows = real_images.at_own_rates(own)
        found[TITLES[task]] = (
            metric,
            _enough({row: [study.figure(dict(one)) for one in rows.get(row, ())] for row in ROWS}),
        )
    return found


def _procedural(runs: Sequence[dict[str, Any]]) -> dict[str, tuple[str, Figures]]:
    long = [one for one in runs if study.run_of(one).rounds == study.LONG]
    tuned = study.tuned(long)
    searched = {one["method"] for one in tuned}
    shown = [*tuned, *(one for one in study.alike(long) if one["method"] not in searched)]
    return {
        title: ("accuracy %", _enough({row: _figures(shown, row, world) for row in ROWS}))
        for world, title in WORLDS.items()
    }


def _figures(runs: Sequence[dict[str, Any]], row: str, world: int) -> list[float]:
    return [study.figure(one) for one in runs if (one["method"], one["dialects"]) == (row, world)]


def _enough(figures: Figures) -> Figures:
    most = max(map(len, figures.values()))
    return {row: values for row, values in figures.items() if values and len(values) == most}


def _panel(panel: Axes, title: str, metric: str, figures: Figures) -> None:
    for place, (row, values) in enumerate(figures.items()):
        (mean, half), (_, color, marker) = interval(values), ROWS[row]
        panel.errorbar(place, mean, half, color=color, marker=marker, markersize=5, elinewidth=1.2, capsize=2)
    panel.set_title(f"{title}\n{metric}", loc="left", fontsize=7.5, color=LIGHT.ink)
    panel.set_xticks([])
    panel.set_xlim(-0.7, len(figures) - 0.3)
    panel.tick_params(axis="y", labelcolor=LIGHT.soft)
    panel.grid(axis="y", color=LIGHT.grid)
    panel.spines[["top", "right", "left"]].set_visible(False)
