# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Reports without pictures: drawing takes most of a small run, and few tests look at them."""

from importlib import import_module

UNDRAWN = "FEDPEFT_TESTS_UNDRAWN"  # environment variable: what the warm server starts draws nothing
FIGURES = {
    "convergence": "plots",
    "sent_figure": "plots",
    "losses_figure": "loss_plot",
    "schedule_figure": "schedule_plot",
    "fronts_figure": "schedule_plot",
}


def leave_pictures_out(replace=setattr) -> None:
    """Let every picture of a report be the same few bytes.

    Args:
        replace: called with module, name and what stands there instead; pytest's `monkeypatch.setattr`, or for good.
    """
    for figure, part in FIGURES.items():
        replace(import_module(f"fedpeft.report.{part}"), figure, lambda history, **look: None)
    replace(import_module("fedpeft.report.plots"), "svg", lambda figure, description: b"a picture")
