# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""All pictures of a run's page, light and dark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedpeft.report.history import History
from fedpeft.report.page_parts import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """What the page shows: `sent` only if what was sent was counted, `schedule` only if any round has a schedule,
    `fronts` only if its layers were scored."""

    curves: Picture
    sent: Picture | None = None
    schedule: Picture | None = None
    fronts: Picture | None = None


def draw_pictures(history: History) -> Pictures:
    """Draw all pictures of a run."""
    from fedpeft.report.front_plot import fronts_figure
    from fedpeft.report.plots import convergence, png
    from fedpeft.report.schedule_plot import schedule_figure
    from fedpeft.report.sent_plot import sent_figure, was_counted

    def both(draw: Callable[..., Figure], **layout: bool) -> Picture:
        light, dark = (png(draw(history, dark=dark, **layout), history) for dark in (False, True))
        return Picture(light=light, dark=dark)

    def with_narrow(draw: Callable[..., Figure]) -> Picture:
        narrow = both(draw, narrow=True)
        return replace(both(draw), narrow=narrow.light, narrow_dark=narrow.dark)

    scored = history.scheduled and history.scheduled[-1].schedule.scores
    return Pictures(
        curves=with_narrow(convergence),
        sent=with_narrow(sent_figure) if was_counted(history) else None,
        schedule=both(schedule_figure) if history.scheduled else None,
        fronts=both(fronts_figure) if scored else None,
    )
