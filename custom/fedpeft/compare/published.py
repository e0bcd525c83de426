# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Figures that the papers print, for comparison with ours: of methods that `app_configs/` has as a paper does.

FedPIA        Saha et al. 2024, tables 1 to 5, ViLT-B and ALBEF, means of the sites: accuracy of tasks 1 and 2, else F1
F3OCUS        Saha et al. 2025, supplement, tables 3 and 4, ViLT-B and BLIP-2, 1 to 6 or 1 to 12 layers at a site:
              accuracy of tasks 1 to 3, else F1
ViT           the federated tuning of vision transformers, tables 1 and 2, ViT-B/16: balanced accuracy

A figure is None if the paper prints none for that task, or none that is clear. FedPIA's PromptFL says its number
of tokens in task 1 only; in the others ours has 50. Its table 1 has two more rows, in lines that are
broken in our copy. One, of mean 42.70, has two names on top of each other; it is AdapterFusion's if Houlsby's is the
43.04 of table 5. The other, of mean 41.27, may be that of Bias or of PromptFL with 5 tokens. The text prompts of the
paper on vision transformers are another method than `promptfl`, and it does not describe the start of LoRA that it
calls ImageNet. Table 2 of the latter has 82.6 for settings that have 77.0 in table 1.

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

UNDEFINED = "F1 of questions without a definition"
MAX_DIFFERENCE = 0.1  # by how much the number of training samples may differ: some files have become fewer since


@dataclass(frozen=True, kw_only=True)
class Task:
    """The metric and the number of samples of a paper's figures of a task.

    Args:
        metric: of all its clients; `UNDEFINED`: the paper does not say what it computes.
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
        figures: by method, as `fedpeft compare --variant` takes it after a name, the figure of each task.
        pooled: whether a figure is of the clients' test images together, not a mean over the clients.
    """

    title: str
    tasks: Mapping[str, Task]
    figures: Mapping[str, tuple[float | None, ...]]
    pooled: bool = False


READINGS = ("fedpia_paper", "fedpia", "fedpia_frozen_half")  # the paper's text can be read as each (docs/fedpia.md)
TASK_1, TASK_2 = Task(metric=ACCURACY, samples=23_110), Task(metric=ACCURACY, samples=34_026)
OPEN_I, MIMIC = Task(metric=MACRO_F1, samples=2_837), Task(metric=MACRO_F1, samples=73_348)
MIXED = Task(metric=UNDEFINED, samples=34_323)
FEDPIA_TASKS = {
    "fedpia_task1": TASK_1,
    "fedpia_task2": TASK_2,
    "fedpia_task3": OPEN_I,
    "fedpia_task4": MIMIC,
    "fedpia_task5": MIXED,
}
F3OCUS_TASKS = {
    "f3ocus_task1": TASK_1,
    "f3ocus_task2": TASK_2,
    "f3ocus_task3": Task(metric=ACCURACY, samples=566_370),
    "f3ocus_task4": OPEN_I,
    "f3ocus_task5": MIMIC,
    "f3ocus_task6": MIXED,
}
CENTERS = {  # 80 % of 10,015 and of 23,247 images, 50 % of 8,677, 25 % of 8,189
    "vit_ham10000": Task(metric=BALANCED_ACCURACY, samples=8_012),
    "vit_fed_isic2019": Task(metric=BALANCED_ACCURACY, samples=18_597),
    "vit_caltech101": Task(metric=BALANCED_ACCURACY, samples=4_338),
    "vit_flowers102": Task(metric=BALANCED_ACCURACY, samples=2_047),
}
PARTS = "[client-1,client-2,client-3,client-4,client-5,client-6]"
ISIC = "[bcn,vidir-molemax,vidir-modern,rosendahl,mskcc,vienna-dias]"


SCHEDULE = "pfeiffer+f3ocus_1_6"
KERNEL = f"{SCHEDULE}+kernel_of_outputs"
START = "method.settings.lora.start_std"


def _readings(*changes: str, figures: tuple[float | None, ...]) -> dict[str, tuple[float | None, ...]]:
    """Return FedPIA's figures of a row for each reading of its text; `changes` are settings."""
    return dict.fromkeys((" ".join((reading, *changes)) for reading in READINGS), figures)


def _ablations(
    neither: tuple[float, ...], client: tuple[float, ...], server: tuple[float, ...], weights: tuple[float, ...]
) -> dict[str, tuple[float | None, ...]]:
    """Return FedPIA's table 5: without any alignment, only at clients, only at the server, by weights."""
    return {
        "fedavg": neither,
        **_readings("method.pia.server=false", figures=client),
        **_readings("method.pia.client=false", figures=server),
        **_readings("method.pia.support=weights", figures=weights),
    }


def _scores(layers: int, figures: Mapping[str, tuple[float, ...]]) -> dict[str, tuple[float | None, ...]]:
    """Return a table of F3OCUS with 1 to `layers` layers at a site: each site's best by a score, and F3OCUS."""
    drawn = () if layers == 6 else (f"schedule.budget_range=[1,{layers}]",)  # 6 are those of the part
    own = "schedule.solver=own"
    of_the_paper = {"lntk": (KERNEL, own), "f3ocus": (KERNEL,)}  # others are scores of `fedpeft.importance`
    recipes = {name: of_the_paper.get(name, (SCHEDULE, own, f"schedule.score={name}")) for name in figures}
    return {" ".join((*recipes[name], *drawn)): row for name, row in figures.items()}


def _centralized(method: str, *figures: float) -> dict[str, tuple[float | None, ...]]:
    """Return the figures of one site with the images of all, for HAM10000, Fed-ISIC2019, Caltech101 and Flowers102."""
    skin, centers, objects, flowers = figures
    pooled = f"{method} federation.sites=[center] data.pool="
    return {pooled + PARTS: (skin, None, objects, flowers), pooled + ISIC: (None, centers, None, None)}


def _lora(recipe: str, skin: tuple[float, ...], centers: tuple[float, ...]) -> dict[str, tuple[float | None, ...]]:
    """Return the figures of one start of LoRA on HAM10000 and Fed-ISIC2019: ranks 4 and 8 at scale 2, then at 0.5."""
    settings = ((rank, round(scale * rank)) for scale in (2, 0.5) for rank in (4, 8))
    recipes = (f"{recipe} method.settings.lora.r={r} method.settings.lora.lora_alpha={a}" for r, a in settings)
    return {of: (*figures, None, None) for of, *figures in zip(recipes, skin, centers, strict=True)}


SOURCES = (
    Source(
        title="FedPIA (Saha et al. 2024), tables 1 to 5, ViLT-B",
        tasks=FEDPIA_TASKS,
        figures={
            "full": (45.51, 88.99, 68.78, 68.12, 86.71),
            "classifier": (38.47, 78.32, 59.58, 62.04, 84.38),
            "adapterfusion": (None, 82.40, 63.70, 65.49, 85.95),
            "parallel": (42.65, 81.63, 63.49, 65.48, 85.84),
            "compacter": (42.72, 82.59, 63.37, 65.14, 85.84),
            "layernorm": (40.14, 80.95, 61.10, 64.45, 85.51),
            "lora": (35.86, 69.24, 58.37, 62.85, 84.83),
            "bias": (None, 81.19, 61.47, 64.12, 85.32),
            "promptfl method.settings.promptfl.tokens=10": (38.85, None, None, None, None),
            "promptfl method.settings.promptfl.tokens=20": (38.87, None, None, None, None),
            "promptfl method.settings.promptfl.tokens=50": (38.72, None, None, None, None),
            "promptfl": (None, 79.96, 60.96, 63.19, 84.56),
            "feddat_adapterfusion": (43.08, 82.37, 62.86, 65.29, 85.73),
            "feddat_houlsby": (42.54, 81.55, 63.71, 65.20, 85.56),
            "feddat_parallel": (42.56, 82.61, 62.30, 65.12, 85.96),
            "feddat_compacter": (42.86, 82.01, 64.02, 64.80, 85.79),
            **_readings(figures=(46.66, 87.97, 68.27, 68.21, 88.52)),
            **_readings("method.name=parallel", figures=(46.29, 86.82, 68.28, 67.41, 87.61)),
            **_readings("method.name=compacter", figures=(46.66, 86.93, 68.51, 67.69, 88.13)),
            **_ablations(
                (43.04, 82.46, 63.05, 65.68, 85.83),
                (45.35, 85.59, 66.47, 67.40, 87.24),
                (44.47, 85.02, 65.58, 66.28, 86.97),
                (46.02, 87.13, 67.62, 67.87, 87.93),
            ),
        },
    ),
    Source(
        title="FedPIA (Saha et al. 2024), tables 1 and 5, ALBEF",
        tasks={f"{task}_albef": what for task, what in FEDPIA_TASKS.items()},
        figures={
            "full": (46.92, None, None, None, None),
            **_readings(figures=(48.24, 89.05, 68.78, 69.46, 84.49)),
            **_ablations(
                (43.17, 83.37, 62.76, 65.43, 80.28),
                (46.58, 86.44, 65.92, 67.88, 83.16),
                (45.20, 85.29, 64.87, 66.38, 82.00),
                (47.75, 88.38, 68.09, 68.65, 83.99),
            ),
        },
    ),
    Source(
        title="F3OCUS (Saha et al. 2025), supplement, tables 3 and 4, ViLT-B",
        tasks=F3OCUS_TASKS,
        figures={
            **_scores(
                6,
                {
                    "fd": (32.65, 73.22, 71.85, 49.63, 56.82, 76.54),
                    "last_k": (33.38, 72.46, 71.69, 54.59, 58.66, 77.72),
                    "magnitude": (31.17, 70.79, 70.86, 52.78, 57.36, 77.39),
                    "fishmask": (34.94, 75.18, 74.07, 54.30, 60.78, 79.35),
                    "gradflow": (34.12, 75.39, 74.36, 54.20, 61.01, 80.39),
                    "grasp": (34.73, 76.22, 73.48, 53.29, 60.77, 79.59),
                    "snip": (30.84, 75.11, 73.57, 52.08, 61.10, 77.59),
                    "rgn": (32.49, 75.98, 72.77, 53.82, 58.63, 77.48),
                    "synflow": (34.53, 76.28, 74.11, 54.90, 60.69, 78.36),
                    "fedselect": (34.68, 74.76, 73.01, 53.87, 59.79, 78.83),
                    "spt": (34.10, 75.58, 73.77, 54.15, 61.13, 78.93),
                    "lntk": (36.84, 78.35, 76.37, 56.39, 63.71, 83.17),
                    "f3ocus": (40.23, 83.67, 79.02, 59.58, 65.87, 85.84),
                },
            ),
            **_scores(
                12,
                {
                    "fd": (33.48, 75.46, 73.52, 51.25, 58.10, 80.22),
                    "last_k": (34.76, 78.02, 73.62, 52.10, 59.71, 80.85),
                    "magnitude": (33.10, 73.32, 72.22, 53.02, 59.14, 79.53),
                    "fishmask": (36.40, 78.75, 74.47, 54.55, 61.34, 81.53),
                    "gradflow": (35.81, 78.38, 74.92, 53.94, 61.52, 81.69),
                    "grasp": (36.26, 76.16, 74.13, 53.49, 61.22, 82.22),
                    "snip": (31.28, 75.38, 75.56, 53.03, 62.88, 80.70),
                    "rgn": (33.99, 77.78, 74.24, 53.63, 61.04, 78.76),
                    "synflow": (35.30, 77.66, 74.33, 53.58, 62.13, 83.02),
                    "fedselect": (36.94, 79.58, 74.60, 53.25, 60.27, 79.99),
                    "spt": (33.94, 77.19, 75.11, 54.86, 61.93, 81.84),
                    "lntk": (38.47, 82.55, 77.27, 56.82, 64.98, 84.79),
                    "f3ocus": (41.88, 86.63, 80.64, 61.77, 66.44, 87.76),
                },
            ),
        },
    ),
    Source(
        title="F3OCUS (Saha et al. 2025), supplement, tables 3 and 4, BLIP-2",
        tasks={f"{task}_blip2": what for task, what in F3OCUS_TASKS.items()},
        figures={
            **_scores(
                6,
                {
                    "fd": (33.27, 69.08, 69.69, 57.70, 68.22, 82.53),
                    "last_k": (34.30, 67.97, 68.90, 57.31, 65.73, 81.52),
                    "magnitude": (30.70, 69.50, 71.37, 58.04, 66.47, 82.27),
                    "fishmask": (36.19, 73.17, 73.85, 62.21, 72.69, 82.54),
                    "gradflow": (36.93, 72.34, 74.49, 61.74, 71.92, 81.84),
                    "grasp": (36.22, 71.69, 73.85, 61.44, 71.16, 83.15),
                    "snip": (34.83, 70.43, 71.75, 58.38, 69.01, 81.54),
                    "rgn": (35.97, 70.84, 71.44, 61.39, 70.28, 81.01),
                    "synflow": (37.48, 71.58, 73.36, 61.98, 72.02, 82.22),
                    "fedselect": (36.31, 70.04, 72.52, 60.79, 71.84, 82.94),
                    "spt": (36.57, 73.23, 74.23, 62.16, 72.89, 82.54),
                    "lntk": (39.02, 75.89, 76.29, 65.63, 74.83, 85.96),
                    "f3ocus": (42.12, 79.63, 78.22, 69.03, 78.18, 89.12),
                },
            ),
            **_scores(
                12,
                {
                    "fd": (34.39, 70.62, 70.24, 57.72, 68.29, 84.88),
                    "last_k": (34.78, 68.01, 69.28, 57.71, 67.20, 81.93),
                    "magnitude": (30.77, 70.63, 70.43, 58.24, 66.97, 83.34),
                    "fishmask": (36.55, 74.11, 75.37, 63.17, 72.97, 83.66),
                    "gradflow": (36.84, 73.60, 73.48, 63.24, 72.02, 83.45),
                    "grasp": (36.16, 73.97, 73.85, 61.47, 71.93, 84.81),
                    "snip": (35.85, 73.57, 72.86, 59.27, 70.26, 83.58),
                    "rgn": (35.28, 75.03, 72.43, 63.30, 73.00, 82.22),
                    "synflow": (36.60, 75.59, 74.99, 61.80, 72.92, 83.60),
                    "fedselect": (36.73, 74.68, 72.78, 62.55, 72.78, 84.31),
                    "spt": (36.88, 74.93, 73.39, 62.34, 72.63, 84.06),
                    "lntk": (39.02, 78.71, 76.85, 65.78, 76.31, 88.67),
                    "f3ocus": (41.70, 81.28, 79.11, 69.47, 80.15, 90.67),
                },
            ),
        },
    ),
    Source(
        title="federated tuning of vision transformers (Alkhunaizi et al. 2024), tables 1 and 2, ViT-B/16",
        tasks=CENTERS,
        figures={
            **_centralized("full", 80.5, 78.6, 96.4, 96.6),
            **_centralized("vpt", 78.1, 74.6, 94.4, 96.6),
            "full": (79.1, 76.8, 95.6, 97.0),
            "attention_vpt": (81.2, 79.7, 94.6, 94.0),
            "attention": (81.2, 77.2, 95.8, 96.9),
            "sba_vpt": (79.2, 74.6, 94.2, 93.8),
            "sba": (78.2, 73.2, 94.8, 96.2),
            "lora_vit method.name=lora_vpt": (78.4, 72.9, 93.7, 94.7),
            "vpt": (78.9, 69.4, 93.9, 93.9),
            "lora_vit method.name=lora_dvpt": (77.2, 72.4, 94.0, 94.6),
            "lora_vit": (77.0, 71.8, 94.9, 96.3),
            "classifier": (71.4, 57.7, 92.4, 92.9),
            "local_full": (67.4, 29.1, 60.7, 45.8),
            **_lora(f"lora_vit {START}=xavier", (81.6, 81.6, 80.3, 84.2), (75.4, 77.7, 75.8, 76.4)),
            **_lora("lora_svd", (81.0, 79.8, 78.0, 81.1), (76.5, 78.5, 72.3, 73.0)),  # Kaiming's
            **_lora(f"lora_vit {START}=0.5", (64.6, 53.6, 78.0, 80.6), (49.5, 57.2, 74.8, 65.1)),
            **_lora("lora_vit", (82.6, 80.1, 81.2, 83.1), (75.7, 78.6, 74.6, 74.2)),
        },
        pooled=True,
    ),
)
NOT_COMPARABLE = "†"
NOT_SAID = {  # by metric, or by row
    MACRO_F1: "The paper does not say how its F1 is averaged over labels; ours is macro-F1.",
    "promptfl": "The paper does not say how many tokens PromptFL has; ours has 50.",
}


def source_of(task: str) -> Source | None:
    """Return the table with the figures of a job's task; None: there is none."""
    return next((source for source in SOURCES if _task_name(task) in source.tasks), None)


def methods_of(task: str) -> list[str]:
    """Return the methods, as `fedpeft compare --variant` takes them, that have a figure of a job's task."""
    if (source := source_of(task)) is None:
        return []
    number = list(source.tasks).index(_task_name(task))
    return [method for method, figures in source.figures.items() if figures[number] is not None]


def differences(outcomes: Sequence[Outcome]) -> list[str]:
    """Return why figures of these runs cannot be compared with the paper's; empty: they can."""
    if (source := source_of(outcomes[0].task)) is None:
        return []
    task = source.tasks[_task_name(outcomes[0].task)]
    found = []
    if any(run.procedural or run.tiny for run in outcomes):
        found.append("ours are of procedural data or of a tiny backbone")
    own = metrics_of(outcomes)
    if own != [task.metric]:
        ours = " and ".join(TITLES[metric] for metric in own)
        found.append(f"the paper's metric is {TITLES.get(task.metric, task.metric)}, ours {ours}")
    elif source.pooled and not all(run.pooled for run in outcomes):
        found.append("the paper's figures are of all clients' images together, ours the means of the sites")
    counts = [sum(run.samples.values()) if run.samples.keys() == run.metrics.keys() else 0 for run in outcomes]
    if not all(counts):
        found.append("ours do not say on how many samples all sites trained")
    elif other := [count for count in counts if abs(count - task.samples) > MAX_DIFFERENCE * task.samples]:
        found.append(f"the paper trains on {task.samples:,} samples, ours on {other[0]:,}")
    return found


def not_said(outcomes: Sequence[Outcome]) -> str:
    """Return what the paper leaves open about its figures of the runs' task and rows; empty: nothing."""
    if (source := source_of(outcomes[0].task)) is None:
        return ""
    figures = published(outcomes)
    open_points = [
        source.tasks[_task_name(outcomes[0].task)].metric,
        *(run.recipe for run in outcomes if run.method in figures),
    ]
    return " ".join(NOT_SAID[one] for one in dict.fromkeys(open_points) if one in NOT_SAID)


def published(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the papers' figures, in percent, of the rows whose recipe has one."""
    if (source := source_of(outcomes[0].task)) is None:
        return {}
    number = list(source.tasks).index(_task_name(outcomes[0].task))
    # settings in any order
    figures = {frozenset(method.split()): row[number] for method, row in source.figures.items()}
    found = {run.method: figures.get(frozenset(run.recipe.split())) for run in outcomes}
    return {name: figure for name, figure in found.items() if figure is not None}


def _task_name(task: str) -> str:
    """Return the name that a task's jobs have in common: small or as published, with equal or unequal layers."""
    return task.removeprefix("paper/").removesuffix("_unequal")
