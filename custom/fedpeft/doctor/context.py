# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What doctor checks: a job, a participant's start-up kit, or only this machine; and the findings of a check."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedpeft.alignment.settings import FEDAVG
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import BACKBONES
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import suggestion
from fedpeft.core.workspace import MANIFEST, SITE, Kit, listed_classes, read_kit
from fedpeft.data.registry import DATASETS
from fedpeft.data.settings import DataSettings
from fedpeft.job.admission import AdmittedJob, admit_folder
from fedpeft.job.composing import check_sections
from fedpeft.job.federation import site_backbone, site_data
from fedpeft.job.folder import job_folder
from fedpeft.job.settings import CommonSettings, SiteJob
from fedpeft.job.site_policy import FILE, SitePolicy, read_policy
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.job_against_policy import admitted
from fedpeft.report.history_reader import read
from fedpeft.report.status import SIMULATED
from fedpeft.report.wording import not_learning
from fedpeft.server.update_check import MIN_REPLIES

if TYPE_CHECKING:
    from fedpeft.doctor.footprint import Footprint


PASS, WARN, FAIL = "pass", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """A verdict and one sentence; unless the verdict is `pass`, the sentence includes the remedy."""

    verdict: str
    sentence: str


passed = partial(Finding, PASS)  # nothing to do
warned = partial(Finding, WARN)  # a job can run, but not as well or as safely as it should
failed = partial(Finding, FAIL)  # a job cannot run


MAX_RATE_RATIO = 10  # of the job's learning rate to the declared one, or the other way round


def check_job(context: Context) -> Iterator[Finding]:
    """Check the settings, that server and sites have the same ones, and that the kit's site takes part."""
    if context.job is None:
        return
    job = context.job
    if context.kit is None or _all_known(job):
        check_sections(job.sections)
    for site in context.sites:
        context.at(site)
    common = CommonSettings.from_sections(job.sections)
    yield passed(f"{job.folder}: the settings are valid; {len(job.sites)} sites, {common.training.rounds} rounds.")
    yield from _average(job, common.method)
    yield from _rate(job, common)
    yield from _earlier(context, common.training)
    if context.kit and context.kit.role == SITE and context.kit.name not in job.sites:
        yield failed(f"site {context.kit.name} is not in federation.sites: {suggestion(context.kit.name, job.sites)}.")


def _all_known(job: AdmittedJob) -> bool:
    """Return whether the data sets and backbones of all sites are known here: another site may have plugins alone."""
    data = job.site_sections["data"]
    sets = {site_data(data, name).get("dataset", DataSettings.dataset) for name in (*job.sites, *data.get("sites", {}))}
    backbones = {site_backbone(job.site_sections["backbone"], site)["name"] for site in job.sites}
    return sets <= {*DATASETS.names()} and backbones <= {*BACKBONES.names()}


def _average(job: AdmittedJob, method: MethodSettings) -> Iterator[Finding]:
    """Recommend a robust average if the job can have one and has enough sites for it."""
    summed = method.secure_sum or job.sections["federation"].get("sums_at_relays")
    able = method.exchanges and method.rule.averages and not summed
    if len(job.sites) < MIN_REPLIES or not able or not method.robust.weighs:
        return
    share = " and a number as method.pia.share" if method.aligns and method.pia.follows_agreement else ""
    if method.aligns and method.pia.aligns_on_server and method.pia.reference != FEDAVG:
        share += f" and method.pia.reference={FEDAVG}"
    yield warned(
        f"the {len(job.sites)} sites are averaged by their mean, which one can move a little in every round: where "
        f"you do not trust all of them, set method.robust.average=median{share}."
    )


def _rate(job: AdmittedJob, common: CommonSettings) -> Iterator[Finding]:
    """Compare the learning rate with the backbones' declared ones for adapters, which are for AdamW."""
    method, training = common.method, common.training
    if training.optimizer != TrainingSettings.optimizer or not method.exchanges or method.registered.sends_backbone:
        return
    names = [site_backbone(job.site_sections["backbone"], site)["name"] for site in job.sites]
    for name in dict.fromkeys(name for name in names if name in BACKBONES.names()):
        declared, rate = BACKBONES.get(name).learning_rate, training.learning_rate
        if max(rate / declared, declared / rate) > MAX_RATE_RATIO:
            what = "train next to nothing" if rate < declared else "make training diverge"
            yield warned(
                f"training.learning_rate is {rate:g}, and {name} declares {declared:g} for adapters: it may {what}; "
                f"set it to {declared:g}, or leave it out and write the job again with `fedpeft jobs`."
            )


def _earlier(context: Context, training: TrainingSettings) -> Iterator[Finding]:
    """Warn of sites that the last simulated run left below their constant answer, if rate and rounds are unchanged."""
    folder = context.workspace / SIMULATED
    if context.kit or not (folder / MANIFEST).is_file():
        return
    try:
        history = read(folder)
    except FedpeftError as error:
        yield warned(str(error))
        return
    ran_at = history.settings.get("training.learning_rate")
    unchanged = ran_at == str(training.learning_rate) and training.rounds <= len(history.rounds)
    if history.job == context.job.server_sections.get("job") and unchanged:
        yield from (warned(f"the run in {context.workspace}: {sentence}.") for sentence in not_learning(history))


WORKSPACE = Path("simulator_workspace")


class DataFacts(NamedTuple):
    """Whether a site's images have labels, and its metric."""

    labelled: bool
    metric: str


@dataclass(frozen=True, kw_only=True)
class Context:
    """The job, kit, sites and workspace to check."""

    job: AdmittedJob | None = None  # None: only the machine
    kit: Kit | None = None  # None: a simulator on this machine
    sites: tuple[str, ...] = ()  # those of the job that train here
    workspace: Path = WORKSPACE  # unused with a kit
    data: dict[str, DataFacts] = field(default_factory=dict)  # by site, once a check has loaded its data

    @property
    def policy_file(self) -> Path | None:
        """The site policy in its kit, `local/fedpeft.json`; None without a site's kit."""
        return self.kit.folder / "local" / FILE if self.kit and self.kit.role == SITE else None

    @cached_property
    def policy(self) -> SitePolicy | None:
        """The content of the site policy; None in the simulator, where the job's settings apply."""
        return read_policy(self.policy_file) if self.policy_file else None

    @property
    def downloads(self) -> bool:
        """Whether a job may fetch a backbone here."""
        return self.policy is None or self.policy.download

    def at(self, site: str) -> SiteJob:
        """Return the job as a site receives it, before the site's own values replace the job's."""
        return SiteJob.from_sections(self.job.sections, site=site, policy=self.policy)

    def admitted_at(self, site: str) -> SiteJob:
        """Return the job as it runs at a site that allows it."""
        return admitted(self.policy, self.at(site)) if self.policy else self.at(site)

    @cached_property
    def footprint(self) -> Footprint:
        """Memory and disk that the largest site needs; measured once."""
        from fedpeft.doctor.footprint import footprint, largest

        return footprint(self.admitted_at(largest(self)), policy=self.policy, data=self.data)


def open_context(
    job: Path | None = None,
    *,
    overrides: Sequence[str] = (),
    startup_kit: Path | None = None,
    site: str | None = None,
    workspace: Path = WORKSPACE,
) -> Context:
    """Read the job and kit that the command names."""
    kit = read_kit(startup_kit) if startup_kit else None
    read = _read(job, overrides, classes=() if kit else listed_classes(workspace)) if job else None
    if overrides and not job:
        raise FedpeftError(f"--set {overrides[0]} is a setting of a job: name the job too.")
    if site and kit:
        raise FedpeftError(f"--site {site} and --startup-kit exclude each other: the kit says who it is for.")
    if site and not read:
        raise FedpeftError(f"--site {site} names a site of a job: name the job too.")
    names: tuple[str, ...]
    if kit:
        names = (kit.name,) if kit.role == SITE and read and kit.name in read.sites else ()
    elif site:
        if site not in read.sites:
            raise FedpeftError(f"--site {site} is not in federation.sites: {suggestion(site, read.sites)}.")
        names = (site,)
    else:
        names = read.sites if read else ()
    return Context(job=read, kit=kit, sites=names, workspace=workspace)


def _read(job: Path, overrides: Sequence[str], *, classes: Sequence[str]) -> AdmittedJob:
    with tempfile.TemporaryDirectory() as scratch:
        return replace(admit_folder(job_folder(job, overrides, Path(scratch)), classes=classes), folder=job)
