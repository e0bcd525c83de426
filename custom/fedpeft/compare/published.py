# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Figures that the papers print, to stand beside ours: those of methods that `app_configs/` has in the paper's form.

FedPIA        Saha et al. 2024, tables 1 to 5, ViLT-B, means of the sites: accuracy of tasks 1 and 2, F1 of the others
F3OCUS        Saha et al. 2025, supplement, table 3, ViLT-B, 1 to 6 layers at a site: accuracy of tasks 1 to 3, else F1
ViT           the federated tuning of vision transformers, table 1, ViT-B/16: balanced accuracy

All in percent. They were reached on the papers' data; figures on procedural data or with a tiny backbone have nothing
in common with them but the task's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpeft.compare.outcome import Outcome


@dataclass(frozen=True, kw_only=True)
class Source:
    """A paper's table: what it is called, its tasks by the names of jobs, and by method the figure of each task."""

    title: str
    tasks: tuple[str, ...]
    figures: Mapping[str, tuple[float, ...]]


SOURCES = (
    Source(
        title="FedPIA (Saha et al. 2024), tables 1 to 5, ViLT-B",
        tasks=("fedpia_task1", "fedpia_task2", "fedpia_task3", "fedpia_task4", "fedpia_task5"),
        figures={
            "full": (45.51, 88.99, 68.78, 68.12, 86.71),
            "classifier": (38.47, 78.32, 59.58, 62.04, 84.38),
            "fedavg": (43.04, 82.46, 63.05, 65.68, 85.83),  # Houlsby adapters without any PIA
            "parallel": (42.65, 81.63, 63.49, 65.48, 85.84),
            "compacter": (42.72, 82.59, 63.37, 65.14, 85.84),
            "layernorm": (40.14, 80.95, 61.10, 64.45, 85.51),
            "lora": (35.86, 69.24, 58.37, 62.85, 84.83),
            "fedpia_paper": (46.66, 87.97, 68.27, 68.21, 88.52),
        },
    ),
    Source(
        title="F3OCUS (Saha et al. 2025), supplement, table 3, ViLT",
        tasks=("f3ocus_task1", "f3ocus_task2", "f3ocus_task3", "f3ocus_task4", "f3ocus_task5", "f3ocus_task6"),
        figures={"pfeiffer+f3ocus_1_6+kernel_of_outputs": (40.23, 83.67, 79.02, 59.58, 65.87, 85.84)},
    ),
    Source(
        title="federated tuning of vision transformers (Alkhunaizi et al. 2024), table 1, ViT-B/16",
        tasks=("vit_ham10000", "vit_fed_isic2019", "vit_caltech101", "vit_flowers102"),
        figures={"lora_vit": (77.0, 71.8, 94.9, 96.3)},
    ),
)
NOT_COMPARABLE = "†"
CAUTION = f"{NOT_COMPARABLE} not comparable: ours are of procedural data or of a tiny backbone"


def source_of(task: str) -> Source | None:
    """Return the table with the figures of a job's task; None: there is none.

    Args:
        task: the job's name.
    """
    return next((source for source in SOURCES if _name(task) in source.tasks), None)


def comparable(outcomes: Sequence[Outcome]) -> bool:
    """Return whether these runs are of real data and a backbone of usual size."""
    return not any(one.procedural or one.tiny for one in outcomes)


def published(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the papers' figures, in percent, of the rows whose recipe has one."""
    if (source := source_of(outcomes[0].task)) is None:
        return {}
    number = source.tasks.index(_name(outcomes[0].task))
    recipes = {one.method: one.recipe for one in outcomes}
    return {name: source.figures[own][number] for name, own in recipes.items() if own in source.figures}


def _name(task: str) -> str:
    """Return the name that a task's jobs have in common: small or as published, with equal or unequal layers."""
    return task.removeprefix("paper/").removesuffix("_unequal")
