# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Figures that the papers print, to stand beside ours: FedPIA (Saha et al. 2024), tables 1 to 5, ViLT, means of sites.

Accuracy in percent for tasks 1 and 2, F1 for the others. They were reached with ViLT-B on the papers' data; figures on
procedural data or with a tiny backbone have nothing in common with them but the task's name.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedpeft.compare.outcome import Outcome

_TASKS = ("fedpia_task1", "fedpia_task2", "fedpia_task3", "fedpia_task4", "fedpia_task5")
_FIGURES = {  # method -> tasks 1 to 5
    "full": (45.51, 88.99, 68.78, 68.12, 86.71),
    "classifier": (38.47, 78.32, 59.58, 62.04, 84.38),
    "fedavg": (43.04, 82.46, 63.05, 65.68, 85.83),  # Houlsby adapters without any PIA
    "parallel": (42.65, 81.63, 63.49, 65.48, 85.84),
    "compacter": (42.72, 82.59, 63.37, 65.14, 85.84),
    "layernorm": (40.14, 80.95, 61.10, 64.45, 85.51),
    "lora": (35.86, 69.24, 58.37, 62.85, 84.83),
    "fedpia_paper": (46.66, 87.97, 68.27, 68.21, 88.52),
}
NOT_COMPARABLE = "†"
SOURCE = "published: FedPIA (Saha et al. 2024), tables 1 to 5, ViLT-B"
CAUTION = f"{NOT_COMPARABLE} not comparable: ours are of procedural data or of a tiny backbone"


def published(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return the papers' figures of the rows whose recipe has one, as text, marked where ours cannot be compared."""
    task = outcomes[0].task.removeprefix("paper/")
    if task not in _TASKS:
        return {}
    mark = NOT_COMPARABLE if any(one.procedural or one.tiny for one in outcomes) else ""
    number = _TASKS.index(task)
    recipes = {one.method: one.recipe for one in outcomes}
    return {name: f"{_FIGURES[own][number]:.1f}{mark}" for name, own in recipes.items() if own in _FIGURES}
