# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""All pictures of a run: light and dark for its page, and as files of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpeft.report.history import History
from fedpeft.report.page_parts import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FORMS = {
    "light": {"dark": False},
    "dark": {"dark": True},
    "narrow": {"dark": False, "narrow": True},
    "narrow_dark": {"dark": True, "narrow": True},
}


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """What the page shows: `sent` only if what was sent was counted, `schedule` only if any round has a schedule,
    `fronts` only if its layers were scored."""

    curves: Picture
    sent: Picture | None = None
    schedule: Picture | None = None
    fronts: Picture | None = None


def draw_pictures(history: History) -> Pictures:
    """Draw all pictures of a run for its page."""
    from fedpeft.report.plots import png

    drawn = {}
    for name, (draw, caption, has_narrow) in _drawings(history).items():
        forms = {
            form: png(draw(history, **look, framed=False), history)
            for form, look in FORMS.items()
            if has_narrow or "narrow" not in look
        }
        drawn[name] = Picture(**forms, caption=caption)
    return Pictures(**drawn)


def picture_files(history: History) -> dict[str, bytes]:
    """Return every picture of a run as a file of its own, with the job's name and the warning, by the page's names."""
    from fedpeft.report.plots import png

    return {name: png(draw(history), history) for name, (draw, _, _) in _drawings(history).items()}


def _drawings(history: History) -> dict[str, tuple[Callable[..., Figure], str, bool]]:
    """Return for each picture of this run what draws it, its caption, and whether it has a form for narrow pages."""
    from fedpeft.report.front_plot import fronts_explained, fronts_figure
    from fedpeft.report.plots import convergence, explained
    from fedpeft.report.schedule_plot import schedule_explained, schedule_figure
    from fedpeft.report.sent_plot import sent_explained, sent_figure, was_counted

    drawings: dict[str, tuple[Callable[..., Figure], str, bool]] = {"curves": (convergence, explained(history), True)}
    if was_counted(history):
        drawings["sent"] = sent_figure, sent_explained(history), True
    if history.scheduled:
        drawings["schedule"] = schedule_figure, schedule_explained(history), False
        if history.scheduled[-1].schedule.scores:
            drawings["fronts"] = fronts_figure, fronts_explained(history), False
    return drawings
