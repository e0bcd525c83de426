# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read a job folder as strictly as server and sites do, and check its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import BACKBONES, BackboneSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build, suggestion
from fedpeft.doctor.finding import Finding, failed, passed, warned
from fedpeft.doctor.kit import SITE
from fedpeft.job.admission.job import admit_folder
from fedpeft.job.composing import CONTROLLER, EXECUTOR, SECTIONS, FlareSettings
from fedpeft.job.composing import check as check_sections
from fedpeft.job.federation import site_backbone
from fedpeft.methods.settings import MethodSettings
from fedpeft.server.update_check import MIN_REPLIES

MAX_RATE_RATIO = 10  # of the learning rate to the declared one, or the other way round

if TYPE_CHECKING:
    from fedpeft.doctor.context import Context


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job folder as FLARE will read it.

    Args:
        folder: where it lies.
        server: arguments of the controller, by section.
        client: arguments of the executor, by section.
        flare: FLARE's own intervals and timeouts.
        classes: the classes that the job loads.
    """

    folder: Path
    server: Mapping[str, Any]
    client: Mapping[str, Any]
    flare: Mapping[str, Any]
    classes: tuple[str, ...]

    @property
    def sections(self) -> dict[str, Any]:
        """All sections; those of the site where server and site both have one."""
        both = {**self.server, **self.client, "flare": self.flare}
        return {name: both[name] for name in SECTIONS if name in both}

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that take part."""
        federation = self.server.get("federation")
        sites = federation.get("sites") if isinstance(federation, Mapping) else None
        return tuple(site for site in sites if isinstance(site, str)) if isinstance(sites, list | tuple) else ()


def read_job(folder: Path, *, classes: Sequence[str] = ()) -> Job:
    """Read a job folder, as strictly as server and sites do.

    Args:
        folder: the job's.
        classes: additional classes of the simulator's allow-list.

    Raises:
        FedpeftError: it is not a job folder, or server and sites would not admit it.
    """
    admitted = admit_folder(folder, classes=classes)
    server, client = admitted.server, admitted.client
    try:
        flare = {"task_request_interval": server["server"]["task_request_interval"]}
        flare |= {field.name: server[field.name] for field in fields(FlareSettings) if field.name in server}
        return Job(
            folder=folder,
            server=_arguments(server["workflows"], CONTROLLER),
            client=_arguments([entry["executor"] for entry in client["executors"]], EXECUTOR),
            flare=flare,
            classes=tuple(sorted({*_paths(server), *_paths(client)})),
        )
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise FedpeftError(
            f"{folder} is not a job of fedpeft ({error!r}): write it again with `fedpeft jobs`."
        ) from error


def check(context: Context) -> Iterator[Finding]:
    """Check the settings, that server and sites have the same ones, and that the kit's site takes part."""
    if context.job is None:
        return
    job = context.job
    check_sections(job.sections)
    rounds = job.client["training"]["rounds"]
    yield passed(f"{job.folder}: the settings are valid; {len(job.sites)} sites, {rounds} rounds.")
    shared = [name for name in SECTIONS if name in job.server and name in job.client]
    differing = [name for name in shared if job.server[name] != job.client[name]]
    if differing:
        yield failed(f"{differing[0]} differs between server and sites: write the job again with `fedpeft jobs`.")
    yield from _average(job)
    yield from _rate(job)
    if context.kit and context.kit.role == SITE and context.kit.name not in job.sites:
        yield failed(f"site {context.kit.name} is not in federation.sites: {suggestion(context.kit.name, job.sites)}.")


def _average(job: Job) -> Iterator[Finding]:
    """Recommend a robust average where there are enough sites for it, and the job can have one."""
    method = build(MethodSettings, job.server.get("method"), section="method")
    able = method.exchanges and method.rule.averages and not method.secure_sum
    if len(job.sites) < MIN_REPLIES or not able or not method.robust.weighs:
        return
    share = " and a number as method.pia.share" if method.aligns and method.pia.follows_agreement else ""
    yield warned(
        f"the {len(job.sites)} sites are averaged by their mean, which one can move a little in every round: where "
        f"you do not trust all of them, set method.robust.average=median{share}."
    )


def _rate(job: Job) -> Iterator[Finding]:
    """Compare the learning rate with those that the backbones declare for adapters, which hold for AdamW."""
    method = build(MethodSettings, job.server.get("method"), section="method")
    training = build(TrainingSettings, job.client.get("training"), section="training")
    if training.optimizer != TrainingSettings.optimizer or not method.exchanges or method.method.sends_backbone:
        return
    names = [site_backbone(job.client["backbone"], site).get("name", BackboneSettings.name) for site in job.sites]
    for name in dict.fromkeys(names):
        declared, rate = BACKBONES.get(name).learning_rate, training.learning_rate
        if max(rate / declared, declared / rate) > MAX_RATE_RATIO:
            what = "train next to nothing" if rate < declared else "make training diverge"
            yield warned(
                f"training.learning_rate is {rate:g}, and {name} declares {declared:g} for adapters: it may {what}; "
                f"set it to {declared:g}, or leave it out and write the job again with `fedpeft jobs`."
            )


def _arguments(components: list[Mapping[str, Any]], path: str) -> Mapping[str, Any]:
    return next(component["args"] for component in components if component["path"] == path)


def _paths(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(value.get("path"), str):
            yield value["path"]
        for inner in value.values():
            yield from _paths(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner)
