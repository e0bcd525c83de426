# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The tasks of the papers: who takes part, by what they are measured, with which data, and which jobs run them.

What a task is called stands in `app_configs/papers.yml`; all else follows from its job and from what the data sets
declare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedpeft import data
from fedpeft.core.settings import build
from fedpeft.data.registry import DATASETS, Origin
from fedpeft.data.settings import DIRICHLET, NATURAL, DataSettings
from fedpeft.job.composing import PACKAGED, compose, known_jobs, read_yaml
from fedpeft.job.federation import site_data

PAPERS = "papers.yml"
RECIPE = "paper/"  # jobs of the published recipes


@dataclass(frozen=True, kw_only=True)
class PaperTask:
    """One task.

    Args:
        title: as the paper numbers it.
        sites: its clients.
        datasets: of all clients, each once.
        partition: how clients share a data set; empty: they have it as it is.
        metrics: by which clients are measured, each once.
        embedded: the job that runs it anywhere; empty: there is none.
        recipe: the job with the published recipe.
    """

    title: str
    sites: tuple[str, ...]
    datasets: tuple[str, ...]
    partition: str
    metrics: tuple[str, ...]
    embedded: str
    recipe: str

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Where its data are had."""
        found = (DATASETS.get(name).origin for name in self.datasets)
        return tuple(dict.fromkeys(origin for origin in found if origin))


def paper_tasks(configs: Path) -> Iterator[PaperTask]:
    """Yield the tasks in the order of the papers.

    Args:
        configs: the `app_configs` folder; what it lacks is taken from the one of the package.
    """
    own = configs / PAPERS
    jobs = known_jobs(configs)
    for name, title in read_yaml(own if own.exists() else PACKAGED / PAPERS).items():
        sections = compose(configs, RECIPE + name)
        sites = tuple(sections["federation"]["sites"])
        settings = [build(data.DataSettings, site_data(sections["data"], site), section="data") for site in sites]
        datasets = tuple(dict.fromkeys(one.dataset for one in settings))
        yield PaperTask(
            title=title,
            sites=sites,
            datasets=datasets,
            partition=_partition(settings[0]),
            metrics=tuple(dict.fromkeys(one.metric or DATASETS.get(one.dataset).metric for one in settings)),
            embedded=name if name in jobs else "",
            recipe=RECIPE + name,
        )


def _partition(settings: DataSettings) -> str:
    """Return how the clients share a data set, from the settings of one of them."""
    if settings.partition == NATURAL:
        return ""
    return f"{settings.partition} {settings.alpha:g}" if settings.partition == DIRICHLET else settings.partition
