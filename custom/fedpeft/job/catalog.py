# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The catalog of what a job can choose: methods with their parameters and abilities, and the papers' tasks.

The names of tasks are in `app_configs/papers.yml`; all else follows from their jobs and what the data sets declare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpeft import answering, data
from fedpeft.backbones.backbone import Backbone
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import PRIVATE, belongs, layer_of, layers_of
from fedpeft.core.settings import build
from fedpeft.data.registry import DATASETS, Origin
from fedpeft.data.settings import DIRICHLET, NATURAL, DataSettings
from fedpeft.job.composing import PACKAGED, compose, known_jobs, read_yaml
from fedpeft.job.federation import site_data
from fedpeft.methods.method import METHODS, TuningMethod
from fedpeft.methods.settings import MethodSettings
from fedpeft.methods.trainable import parameter_counts

Settings = Mapping[str, Mapping[str, Any]]
NO_SETTINGS: Settings = {}
PAPERS = "papers.yml"
RECIPE = "paper/"  # jobs of the published recipes


@dataclass(frozen=True, kw_only=True)
class MethodEntry:
    """A method in a backbone."""

    name: str
    method: TuningMethod
    trained: int | None  # parameters, without the head; None: it does not fit the backbone
    exchanged: int | None  # the largest number of these that a site sends in a round
    min_exchanged: int | None = None  # the smallest, if layers that the method's own schedule draws differ in size
    misfit: str = ""  # why it does not fit

    @property
    def sent(self) -> str:
        """What a site sends in a round, as tables print it: a number, or the smallest to the largest."""
        return " to ".join(
            f"{count:,}" for count in dict.fromkeys((self.min_exchanged, self.exchanged)) if count is not None
        )

    @property
    def abilities(self) -> list[str]:
        """What a federation can do with the method."""
        method = self.method
        can = {
            "PIA": bool(method.neurons),
            "PIA by activations": method.activations,
            "PIA in two branches": method.companion,
            "unequal widths": method.unequal_widths,
            "unequal backbones": method.unequal_backbones and method.exchanges,
            "SVD of products": method.products and not method.stackable,
            "SVD or stack of products": method.products and method.stackable,
            "layer schedule": method.exchanges and method.layers and not method.schedule,
        }
        return [ability for ability, able in can.items() if able]


def entries(backbone: Backbone, settings: Settings = NO_SETTINGS) -> Iterator[MethodEntry]:
    """Yield every method that can be used here, in the order of registration.

    Settings by method are those of `method.settings`; a composed job has those that its backbone declares
    (`Pretrained.method_settings`). What they leave out is the method's default.
    """
    for name, method in METHODS.usable():
        yield _entry(backbone, name, method, settings)


def entry(backbone: Backbone, name: str, settings: Settings = NO_SETTINGS, *, way: str = "") -> MethodEntry:
    """Return one method in a backbone, for a way to answer; empty: the backbone's only way, or any."""
    return _entry(backbone, name, METHODS.get(name), settings, way)


def _entry(backbone: Backbone, name: str, method: TuningMethod, settings: Settings, way: str = "") -> MethodEntry:
    way = way or getattr(backbone, "answering", "")
    try:
        own = MethodSettings(name=name, settings=settings).settings_of("")
        counts = parameter_counts(backbone, method.tuning(), own)
        if not counts and way and not answering.get(way).head:
            raise FedpeftError(without_head(name, way), setting="method.name")
    except FedpeftError as error:
        return MethodEntry(name=name, method=method, trained=None, exchanged=None, misfit=str(error))
    min_sent, max_sent = _sent_in_a_round(method, counts)
    return MethodEntry(
        name=name, method=method, trained=sum(counts.values()), exchanged=max_sent, min_exchanged=min_sent
    )


def without_head(name: str, way: str) -> str:
    """Return why a method that only trains the head does not fit a way to answer without one."""
    return (
        f"name is {name!r}, which trains the head alone, and with training.answering={way!r} there is none: choose "
        f"another method.name."
    )


def _sent_in_a_round(method: TuningMethod, counts: Mapping[str, int]) -> tuple[int, int]:
    """Return the smallest and the largest number of parameters that a site sends in a round.

    It sends all that are not private, or those of as many layers as the method's own schedule assigns.
    """
    sent = {key: count for key, count in counts.items() if not key.startswith(PRIVATE)}
    budget = method.schedule.get("budget")
    if budget is None:
        return sum(sent.values()), sum(sent.values())
    layers = layers_of(sent)
    sizes = {layer: sum(count for key, count in sent.items() if layer_of(key) == layer) for layer in layers}
    ordered = sorted(layers, key=sizes.__getitem__)
    min_sent, max_sent = (
        sum(count for key, count in sent.items() if belongs(key, drawn))
        for drawn in (ordered[:budget], ordered[-budget:])
    )
    return min_sent, max_sent


@dataclass(frozen=True, kw_only=True)
class PaperTask:
    """One task of the papers."""

    title: str  # as the paper numbers it
    sites: tuple[str, ...]
    datasets: tuple[str, ...]  # of all clients, each once
    partition: str  # how clients share a data set; empty: they have it as it is
    metrics: tuple[str, ...]
    embedded: str  # the job that runs it anywhere; empty: there is none
    recipe: str  # the job with the published recipe

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The source of its data."""
        found = (DATASETS.get(name).origin for name in self.datasets)
        return tuple(dict.fromkeys(origin for origin in found if origin))


def paper_tasks(configs: Path) -> Iterator[PaperTask]:
    """Yield the tasks in the order of the papers."""
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
