# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Figures that the papers print, to stand beside ours: those of methods that `app_configs/` has as a paper does.

FedPIA        Saha et al. 2024, tables 1 to 5, ViLT-B, means of the sites: accuracy of tasks 1 and 2, F1 of the others
F3OCUS        Saha et al. 2025, supplement, table 3, ViLT-B, 1 to 6 layers at a site: accuracy of tasks 1 to 3, else F1
ViT           the federated tuning of vision transformers, table 1, ViT-B/16: balanced accuracy

All in percent. They were reached on the papers' data; figures on procedural data or with a tiny backbone have nothing
in common with them but the task's name. Figures of another metric, or of training on other numbers of
samples, as with another split, cannot be compared either.

FedPIA's task 5 prints F1 of questions without a definition. It is no F1 of the chosen answers: trained alone, the
classifier answers 47.88 % of VQA-RAD right (table 1) and has an F1 of 98.65 % on the same questions (table 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpeft.compare.outcome import Outcome, metrics_of
from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1, TITLES

FEDPIA = ("fedpia_paper", "fedpia", "fedpia_frozen_half")  # the paper's text can be read as each (docs/fedpia.md)
UNDEFINED = "F1 of questions without a definition"
SAME = 0.1  # by how much the number of training samples may differ: some files have become fewer since


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a paper's figures of a task are of.

    Args:
        metric: by which all its clients are measured; `UNDEFINED`: the paper does not say what it computes.
        samples: training samples of all clients.
    """

    metric: str
    samples: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """A paper's table.

    Args:
        title: what it is called.
        tasks: by the names of jobs.
        figures: by method, the figure of each task.
        pooled: whether a figure is of the clients' test images together, not a mean over the clients.
    """

    title: str
    tasks: Mapping[str, Task]
    figures: Mapping[str, tuple[float, ...]]
    pooled: bool = False


TASK_1, TASK_2 = Task(metric=ACCURACY, samples=23_110), Task(metric=ACCURACY, samples=34_026)
OPEN_I, MIMIC = Task(metric=MACRO_F1, samples=2_837), Task(metric=MACRO_F1, samples=73_348)
MIXED = Task(metric=UNDEFINED, samples=34_323)
SOURCES = (
    Source(
        title="FedPIA (Saha et al. 2024), tables 1 to 5, ViLT-B",
        tasks={
            "fedpia_task1": TASK_1,
            "fedpia_task2": TASK_2,
            "fedpia_task3": OPEN_I,
            "fedpia_task4": MIMIC,
            "fedpia_task5": MIXED,
        },
        figures={
            "full": (45.51, 88.99, 68.78, 68.12, 86.71),
            "classifier": (38.47, 78.32, 59.58, 62.04, 84.38),
            "fedavg": (43.04, 82.46, 63.05, 65.68, 85.83),  # Houlsby adapters without any PIA
            "parallel": (42.65, 81.63, 63.49, 65.48, 85.84),
            "compacter": (42.72, 82.59, 63.37, 65.14, 85.84),
            "layernorm": (40.14, 80.95, 61.10, 64.45, 85.51),
            "lora": (35.86, 69.24, 58.37, 62.85, 84.83),
            **dict.fromkeys(FEDPIA, (46.66, 87.97, 68.27, 68.21, 88.52)),
        },
    ),
    Source(
        title="F3OCUS (Saha et al. 2025), supplement, table 3, ViLT",
        tasks={
            "f3ocus_task1": TASK_1,
            "f3ocus_task2": TASK_2,
            "f3ocus_task3": Task(metric=ACCURACY, samples=566_370),
            "f3ocus_task4": OPEN_I,
            "f3ocus_task5": MIMIC,
            "f3ocus_task6": MIXED,
        },
        figures={"pfeiffer+f3ocus_1_6+kernel_of_outputs": (40.23, 83.67, 79.02, 59.58, 65.87, 85.84)},
    ),
    Source(
        title="federated tuning of vision transformers (Alkhunaizi et al. 2024), table 1, ViT-B/16",
        tasks={  # 80 % of 10,015 and of 23,247 images, 50 % of 8,677, 25 % of 8,189
            "vit_ham10000": Task(metric=BALANCED_ACCURACY, samples=8_012),
            "vit_fed_isic2019": Task(metric=BALANCED_ACCURACY, samples=18_597),
            "vit_caltech101": Task(metric=BALANCED_ACCURACY, samples=4_338),
            "vit_flowers102": Task(metric=BALANCED_ACCURACY, samples=2_047),
        },
        figures={
            "full": (79.1, 76.8, 95.6, 97.0),
            "attention_vpt": (81.2, 79.7, 94.6, 94.0),
            "attention": (81.2, 77.2, 95.8, 96.9),
            "sba_vpt": (79.2, 74.6, 94.2, 93.8),
            "sba": (78.2, 73.2, 94.8, 96.2),
            "vpt": (78.9, 69.4, 93.9, 93.9),
            "lora_vit": (77.0, 71.8, 94.9, 96.3),
            "classifier": (71.4, 57.7, 92.4, 92.9),
            "local_full": (67.4, 29.1, 60.7, 45.8),
        },
        pooled=True,
    ),
)
NOT_COMPARABLE = "†"


def source_of(task: str) -> Source | None:
    """Return the table with the figures of a job's task; None: there is none."""
    return next((source for source in SOURCES if _name(task) in source.tasks), None)


def differences(outcomes: Sequence[Outcome]) -> list[str]:
    """Return why figures of these runs and the paper's of their task are of different kinds; empty: they are of one."""
    if (source := source_of(outcomes[0].task)) is None:
        return []
    task = source.tasks[_name(outcomes[0].task)]
    found = []
    if any(one.procedural or one.tiny for one in outcomes):
        found.append("ours are of procedural data or of a tiny backbone")
    own = metrics_of(outcomes)
    if own != [task.metric]:
        ours = " and ".join(TITLES[metric] for metric in own)
        found.append(f"the paper's metric is {TITLES.get(task.metric, task.metric)}, ours {ours}")
    elif source.pooled and not all(one.pooled for one in outcomes):
        found.append("the paper's figures are of all clients' images together, ours the means of the sites")
    counts = [sum(one.samples.values()) if one.samples.keys() == one.metrics.keys() else 0 for one in outcomes]
    if not all(counts):
        found.append("ours do not say on how many samples all sites trained")
    elif other := [count for count in counts if abs(count - task.samples) > SAME * task.samples]:
        found.append(f"the paper trains on {task.samples:,} samples, ours on {other[0]:,}")
    return found


def published(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the papers' figures, in percent, of the rows whose recipe has one."""
    if (source := source_of(outcomes[0].task)) is None:
        return {}
    number = list(source.tasks).index(_name(outcomes[0].task))
    recipes = {one.method: one.recipe for one in outcomes}
    return {name: source.figures[own][number] for name, own in recipes.items() if own in source.figures}


def _name(task: str) -> str:
    """Return the name that a task's jobs have in common: small or as published, with equal or unequal layers."""
    return task.removeprefix("paper/").removesuffix("_unequal")
