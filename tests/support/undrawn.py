# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Reports without pictures, or with one form of each: drawing takes most of a small run, and few tests look at them."""

from importlib import import_module

UNDRAWN = "FEDPEFT_TESTS_UNDRAWN"  # environment variable: what the warm server starts draws nothing
FIGURES = {
    "convergence": "plots",
    "sent_figure": "pictures",
    "schedule_figure": "schedule_plot",
    "fronts_figure": "pictures",
}


def leave_pictures_out(replace=setattr) -> None:
    """Let every picture of a report be the same few bytes.

    Args:
        replace: called with module, name and what stands there instead; pytest's `monkeypatch.setattr`, or for good.
    """
    for figure, part in FIGURES.items():
        replace(import_module(f"fedpeft.report.{part}"), figure, lambda history, **look: None)
    replace(import_module("fedpeft.report.plots"), "png", lambda figure, history: b"a picture")


def in_one_form(draw, description, caption=""):
    """Stand for `fedpeft.report.plots.in_all_forms` where a test needs a real picture: it draws the narrow one."""
    from fedpeft.report.page_parts import Picture
    from fedpeft.report.plots import described_png, under_style

    file = described_png(under_style(lambda theme: draw(theme, True), dark=False), description)
    return Picture(light=file, dark=file, caption=caption)
