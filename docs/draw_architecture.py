# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The picture of docs/architecture.md: the packages of fedpeft, and the way of one round through them.

python docs/draw_architecture.py        # writes docs/architecture.svg
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

SERVER, SITE, SHARED, INK, SOFT = "#0072B2", "#D55E00", "#009E73", "#1a1a1a", "#5c5c5c"
FLOORS = [
    ("people", SOFT, ["cli", "serve", "run", "compare"]),
    ("FLARE", SOFT, ["flare"]),
    ("around a run", SOFT, ["inference", "doctor"]),
    ("who works where", SHARED, ["server", "site"]),
    ("what is shown", SOFT, ["report"]),
    ("what travels", SHARED, ["protocol", "job"]),
    ("what is learned", SHARED, ["answering", "data"]),
    ("F3OCUS", SHARED, ["scheduling", "importance"]),
    ("what is tuned", SHARED, ["methods", "backbones"]),
    ("FedPIA", SHARED, ["alignment"]),
    ("for all", SOFT, ["core"]),
]
ROUND = [  # who, what, where
    ("server", "plan: sites, scores, layers", "server/planner"),
    ("server", "send the global adapter", "server/rounds"),
    ("site", "check the order", "site/orders"),
    ("site", "pass it to the process that trains", "site/supervisor, connection"),
    ("site", "align the global adapter, merge", "site/client_round"),
    ("site", "train and evaluate", "site/learner"),
    ("site", "keep the state", "site/site_state"),
    ("site", "let out what may leave", "protocol/outgoing_reply"),
    ("server", "check the reply", "protocol/reply_contract"),
    ("server", "align and integrate", "alignment/integration"),
    ("server", "keep and report", "server/checkpoint, run_recorder"),
]


def main() -> None:
    """Draw both halves beside each other."""
    pyplot.rcParams["svg.hashsalt"] = "fedpeft"
    figure, (packages, way) = pyplot.subplots(1, 2, figsize=(12.5, 7), width_ratios=(1.05, 1))
    draw_packages(packages)
    draw_round(way)
    figure.tight_layout(w_pad=2)
    figure.savefig(Path(__file__).with_suffix("").with_name("architecture.svg"), metadata={"Date": None})


def draw_packages(axes: Axes) -> None:
    """One row for each floor; imports go down."""
    _blank(axes, "The packages: imports go down", len(FLOORS))
    for row, (floor, color, names) in enumerate(FLOORS):
        top = len(FLOORS) - row
        axes.text(0.0, top - 0.5, floor, ha="left", va="center", color=SOFT, fontsize=10)
        width = 0.76 / len(names)
        for column, name in enumerate(names):
            _box(
                axes,
                0.24 + column * width,
                top - 0.78,
                width - 0.012,
                0.56,
                color,
                name,
                size=10 if width > 0.14 else 9,
            )


def draw_round(axes: Axes) -> None:
    """The steps from top to bottom, the server's on the left, a site's on the right."""
    _blank(axes, "One round", len(ROUND))
    axes.text(0.24, len(ROUND) + 0.12, "server", color=SERVER, ha="center", fontsize=11, weight="bold")
    axes.text(0.76, len(ROUND) + 0.12, "each site", color=SITE, ha="center", fontsize=11, weight="bold")
    middles = []
    for number, (who, what, where) in enumerate(ROUND, start=1):
        left, color = (0.0, SERVER) if who == "server" else (0.52, SITE)
        bottom = len(ROUND) - number + 0.1
        _box(axes, left, bottom, 0.48, 0.76, color, f"{number}  {what}", size=10, below=where)
        middles.append((left + 0.24, bottom))
    for (x, bottom), (to, _) in pairwise(middles):
        arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
        if x == to:
            axes.annotate("", (x, bottom - 0.24), (x, bottom), arrowprops=arrow)
        else:
            edge = (0.48, 0.52) if x < to else (0.52, 0.48)
            axes.annotate("", (edge[1], bottom - 0.6), (edge[0], bottom + 0.1), arrowprops=arrow)


def _box(
    axes: Axes, x: float, y: float, width: float, height: float, color: str, text: str, *, size: float, below: str = ""
) -> None:
    style = "round,pad=0,rounding_size=0.012"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=f"{color}18", edgecolor=color))
    middle = x + width / 2
    axes.text(middle, y + height * (0.68 if below else 0.5), text, ha="center", va="center", color=INK, fontsize=size)
    if below:
        axes.text(
            middle, y + height * 0.28, below, ha="center", va="center", color=SOFT, fontsize=8.5, family="monospace"
        )


def _blank(axes: Axes, title: str, height: int) -> None:
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.1, height + 0.55)
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=13, color=INK)


if __name__ == "__main__":
    main()
