# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Colors and line styles of the picture, light and dark."""

from __future__ import annotations

from dataclasses import dataclass

# Okabe and Ito's set for color-blind readers (https://jfly.uni-koeln.de/color/) but its black, which is the mean's,
# and yellow, which does not show on white
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)))
BRIDGE = (0, (0.8, 2))  # over rounds without a figure
DISTINCT = len(COLORS) * len(DASHES)


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colors of paper, text, secondary text, grid and the warning line."""

    paper: str
    ink: str
    soft: str
    grid: str
    warning: str


LIGHT = Theme(paper="#ffffff", ink="#1a1a1a", soft="#5c5c5c", grid="#e4e4e4", warning="#9c3d00")
DARK = Theme(paper="#16181c", ink="#f2f2f2", soft="#a8abb2", grid="#30343b", warning="#ffb070")


def line_style(index: int, count: int, theme: Theme) -> dict:
    """Return the style of a site's line: six colors, then the same dashed and dotted; beyond that all are alike.

    Args:
        index: number of the site, from 0.
        count: number of sites; above ``DISTINCT`` styles do not distinguish them.
        theme: light or dark.
    """
    if count > DISTINCT:
        return {"color": theme.soft, "linestyle": "solid", "linewidth": 0.6, "alpha": 0.45}
    return {"color": COLORS[index % len(COLORS)], "linestyle": DASHES[index // len(COLORS)], "linewidth": 1.3}
