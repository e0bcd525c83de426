# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A job as checked settings: those that server and sites share, those of its server, and those of one site."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from fedpeft import answering
from fedpeft.alignment.settings import COUNTING, MEAN, PIASettings, RobustSettings
from fedpeft.answering.training_settings import NONE, PERSONALIZATIONS, TrainingSettings
from fedpeft.backbones import BACKBONES, BackboneSettings
from fedpeft.backbones.backbone import FEATURES, LIKELIHOODS
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build, orders_of, single_site_settings
from fedpeft.data import DataSettings
from fedpeft.data.answer_space import shared_answers
from fedpeft.data.registry import DATASETS
from fedpeft.job.federation import (
    BY_SITE,
    FederationSettings,
    check_connector,
    check_joins,
    sections_by_site,
    several_backbones,
    site_backbone,
    site_data,
    unread_at,
)
from fedpeft.job.site_policy import MIN_MEMBERS, SitePolicy, check_plugins
from fedpeft.methods.settings import MethodSettings, check_backbones
from fedpeft.scheduling.settings import FRESH, ScheduleSettings, schedule_of

JOINS = "a site of schedule.joins brings values that no site learned from the global adapter: leave schedule.joins out"
SECTIONS = ("backbone", "method", "training", "data", "schedule")


def check_schemes(method: MethodSettings, training: TrainingSettings, *, joins: Collection[str] = ()) -> None:
    """Refuse what compares a site's adapter with the global one where there is none of the same meaning and shape.

    That is FedProx, SCAFFOLD, MOON, personalization and alignment at the sites. `joins` are the sites that join later,
    from initial values of their own.
    """
    if joins and method.aligns and cast(PIASettings, method.pia).aligns_before_upload:
        raise FedpeftError(
            f"schedule.joins names {', '.join(joins)}, and with method.pia.aligned_at='site' a site that joins has no "
            f"global adapter to align its own to: use aligned_at='server', or leave schedule.joins out.",
            setting="schedule.joins",
        )
    if training.proximal_mu:
        _check_global(method, "proximal_mu", "holds what is trained near the global adapter")
    if training.scaffold:
        _check_scaffold(method, training, joins)
    if training.moon_mu:
        _check_moon(method)
    if training.personalization == NONE:
        return
    chosen = f"is {training.personalization!r} and compares a site's own adapter with the global one"
    _check_global(method, "personalization", chosen)
    reason = f"method.{method.unlearned_change}" if method.unlearned_change else ""
    if joins:
        reason = JOINS
    elif method.aligns and cast(PIASettings, method.pia).client:
        reason = "with client PIA a site keeps its own adapter already: set method.pia.client to false"
    elif method.registered.base:
        reason = f"method.name={method.name!r} keeps tensors of the site's own already: use {method.registered.base!r}"
    elif not method.registered.exchanges:
        reason = f"method.name={method.name!r} exchanges no adapter: use another method"
    if reason:
        raise FedpeftError(
            f"training.personalization is {training.personalization!r}, and {reason}, or leave "
            f"training.personalization out.",
            setting="training.personalization",
        )


def check_validated(training: TrainingSettings, sizes: Collection[int | None]) -> None:
    """Refuse to compare rounds on validation splits where no site has one; the `sizes` are those that a job sets."""
    if training.chooses_a_round and all(size == 0 for size in sizes):
        name = "patience" if training.patience else "keep"
        raise FedpeftError(
            f"training.{name} is {getattr(training, name)!r}, which compares rounds on the validation splits, and "
            f"data.validation_size is 0 at every site: leave one of the two out.",
            setting="data.validation_size",
        )


def _check_scaffold(method: MethodSettings, training: TrainingSettings, joins: Collection[str]) -> None:
    pia = cast(PIASettings, method.pia) if method.aligns else None
    reason = f"method.{method.unlearned_change}" if method.unlearned_change else ""
    if joins:
        reason = JOINS
    elif pia and pia.client:
        reason = "with client PIA a site starts from an adapter of its own: set method.pia.client to false"
    elif pia and pia.output_axis != "fixed":
        reason = f"method.pia.output_axis={pia.output_axis!r} permutes what an adapter adds: use 'fixed'"
    elif method.server_rule.steps:
        reason = (
            f"method.server_optimizer={method.server_optimizer!r} moves the global adapter by more than the sites' "
            f"steps: leave method.server_optimizer out"
        )
    elif method.registered.base:
        reason = f"method.name={method.name!r} trains more than it exchanges: use {method.registered.base!r}"
    elif not method.registered.exchanges:
        reason = f"method.name={method.name!r} exchanges no adapter: use another method"
    elif training.personalization != NONE:
        reason = f"training.personalization={training.personalization!r} starts or trains another model: leave it out"
    if reason:
        raise FedpeftError(
            f"training.scaffold compares a site's steps with the change of the global adapter, and {reason}, or leave "
            f"training.scaffold out.",
            setting="training.scaffold",
        )


def _check_moon(method: MethodSettings) -> None:
    _check_global(method, "moon_mu", "compares features with those of the global adapter")
    reason = ""
    if method.registered.base:
        reason = f"method.name={method.name!r} computes with several adapters: use {method.registered.base!r}"
    elif not method.registered.exchanges:
        reason = f"method.name={method.name!r} leaves the features as they are: use another method"
    elif method.aligns and cast(PIASettings, method.pia).client and cast(PIASettings, method.pia).form.second_branch:
        reason = "a site computes with two adapters: set method.pia.integration to 'weight_space'"
    if reason:
        raise FedpeftError(
            f"training.moon_mu compares a site's models, and {reason}, or leave training.moon_mu out.",
            setting="training.moon_mu",
        )


def _check_global(method: MethodSettings, setting: str, does: str) -> None:
    if not method.exchanges:
        raise _refusal(method, setting, does, "makes no global adapter")
    if method.rule.stacks:
        raise _refusal(method, setting, does, "adds its factors to the frozen weights")


def _refusal(method: MethodSettings, setting: str, does: str, why: str) -> FedpeftError:
    return FedpeftError(
        f"training.{setting} {does}, and method.aggregation={method.aggregation!r} {why}: use 'fedavg' or 'pia', or "
        f"leave training.{setting} out.",
        setting=f"training.{setting}",
    )


def check_drawn(
    method: MethodSettings, training: TrainingSettings, schedule: ScheduleSettings, sites: Collection[str]
) -> None:
    """Refuse what every site needs in certain rounds if sites are drawn by round."""
    if not 0 < schedule.clients_per_round < len(sites):
        return
    reason, setting = "", ""
    if training.first_epochs:
        setting, reason = "training.first_epochs", f"={training.first_epochs} is for the first round of every site"
    elif method.initialization == "own" and method.exchanges:
        setting, reason = "method.initialization", "='own' is for the first round of every site"
    elif method.site_settings and not method.registered.factors:
        setting, reason = "method.site_settings", " gives every site a first adapter of its own width"
    if reason:
        raise FedpeftError(
            f"{setting}{reason}, and schedule.clients_per_round draws some sites for a later round first, which begin "
            f"from the global adapter: set schedule.clients_per_round to 0, or leave {setting} out.",
            setting=setting,
        )
    if not schedule.scored:
        return
    now = {"scoring": FRESH, "every": 1}  # with which no score grows old
    old = {"scoring": schedule.scoring != FRESH, "every": 1 < schedule.every < training.rounds}
    if name := next((name for name, grows_old in old.items() if grows_old), ""):
        raise FedpeftError(
            f"schedule.{name} is {getattr(schedule, name)!r}, and schedule.clients_per_round may draw a site in other "
            f"rounds alone, so its scores would grow old: set schedule.{name} to {now[name]!r}, or "
            f"schedule.clients_per_round to 0.",
            setting=f"schedule.{name}",
        )


def check_attackers(method: MethodSettings, schedule: ScheduleSettings, sites: Collection[str]) -> None:
    """Refuse half or more of a round's sites as attackers, whom no average withstands; the default, 1, passes."""
    robust = cast(RobustSettings, method.robust)
    count = min(schedule.clients_per_round or len(sites), len(sites))
    if robust.average in COUNTING and robust.attackers > 1 and 2 * robust.attackers >= count:
        raise FedpeftError(
            f"method.robust.attackers is {robust.attackers}, and of a round's {count} sites fewer than half may be "
            f"attackers: set it to {max(1, (count - 1) // 2)}.",
            setting="method.robust.attackers",
        )


def check_scores(method: MethodSettings, schedule: ScheduleSettings) -> None:
    """Refuse a score that is 0 in every round because each round begins with new factors."""
    if method.rule.stacks and schedule.scored and schedule.scoring == FRESH and schedule.declares("zero_until_trained"):
        raise FedpeftError(
            f"schedule.score={schedule.score!r} is 0 until a LoRA has trained, and with method.aggregation="
            f"{method.aggregation!r} every round begins with new ones: use another score, schedule.scoring="
            f"'with_reply', or method.aggregation='svd'.",
            setting="schedule.score",
        )


def check_layers(method: MethodSettings, schedule: ScheduleSettings) -> None:
    """Refuse scheduled layers if sites do not all start from a global adapter."""
    if not schedule.active:
        return
    if not method.exchanges:
        raise FedpeftError(
            "schedule.solver chooses among layers that sites exchange, and with method.aggregation='none' they "
            "exchange nothing: set another aggregation, or schedule.solver to 'all' and a method that draws no layers "
            "by itself.",
            setting="schedule.solver",
        )
    if method.initialization == "own":
        raise FedpeftError(
            "method.initialization='own' lets every site start from its own adapter, and where schedule.solver lets "
            "sites train some layers all start from one: set schedule.solver to 'all', or leave "
            "method.initialization out.",
            setting="method.initialization",
        )


class CommonSettings(NamedTuple):
    """What server and sites both receive of a job.

    The method's own settings are left to `MethodSettings.check_settings`, which imports its code: a job is composed
    with it, and a site trains with it, but neither the server nor a site's FLARE process needs it.
    """

    method: MethodSettings
    training: TrainingSettings
    schedule: ScheduleSettings

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any]) -> CommonSettings:
        """Build and check the settings from a job's sections."""
        method = build(MethodSettings, sections.get("method"), section="method")
        training = build(TrainingSettings, sections.get("training"), section="training")
        schedule = schedule_of(sections.get("schedule", {}), method.registered)
        method.check_schedule(active=schedule.active, joins=schedule.joins)
        check_schemes(method, training, joins=schedule.joins)
        return cls(method, training, schedule)


@dataclass(frozen=True, kw_only=True)
class ServerJob:
    """The sections that a job's server receives, as checked settings; `SiteJob` checks data and backbones."""

    federation: FederationSettings
    method: MethodSettings
    training: TrainingSettings
    schedule: ScheduleSettings

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any]) -> ServerJob:
        """Build and check the settings from a job's sections."""
        federation = build(FederationSettings, sections.get("federation"), section="federation")
        method, training, schedule = CommonSettings.from_sections(sections)
        check_secure_sum(method, schedule, federation)
        check_relay_sums(method, training, schedule, federation)
        check_joins(schedule.joins, federation, rounds=training.rounds)
        check_drawn(method, training, schedule, federation.sites)
        if not federation.resume_from:  # whose settings must stay as they were
            check_attackers(method, schedule, federation.sites)
            method.check_first_values(scheduled=schedule.active)
            check_scores(method, schedule)
        check_layers(method, schedule)
        return cls(federation=federation, method=method, training=training, schedule=schedule)


def unread_in(section: str, name: str, sections: Mapping[str, Any]) -> str:
    """Return the remedy for a setting that method, schedule, backbones and data sets do not read; empty: one does."""
    method = build(MethodSettings, sections["method"], section="method")
    sites, resumed = sections["federation"]["sites"], sections["federation"].get("resume_from")
    if section == "schedule":
        schedule = schedule_of(sections[section], method.registered)
        if resumed and schedule.active:
            return ""
        decides = schedule.active and name in ("budget", "budget_range", "memory_margin")
        if decides and set(sites) <= schedule.site_budgets.keys():
            return "leave it out, schedule.site_budgets has a budget for every site"
        return schedule.unread(name)
    if resumed:  # its settings must stay as they were
        return ""
    if section == "method":
        return method.unread(name)
    if section == "training":
        given = sections[section]
        way = answering.get(named := given.get("answering", TrainingSettings.answering))
        named_by = {site_backbone(sections["backbone"], site)["name"] for site in sites}
        labelled = any(FEATURES in BACKBONES.get(one).makes for one in named_by)  # labels have a head in any case
        if name in ("head", "head_learning_rate") and not (way.head or labelled):
            return f"leave it out, training.answering={named!r} has no head"
        if name == "candidates" and way.reads != LIKELIHOODS:
            return f"leave it out, training.answering={named!r} ranks no answers"
        rate = name == "learning_rate" and given.get("head_learning_rate") is not None
        rate = rate and not method.federates_head  # else the check of updates reads both rates
        if (rate or name == "checkpointing") and not method.registered.exchanges:
            own = (
                build(BackboneSettings, site_backbone(sections["backbone"], site), section="backbone") for site in sites
            )
            if not any(backbone.trains_connector for backbone in own):
                return f"leave it out, method {method.registered.label!r} computes no gradients in the backbone"
    return unread_at(section, name, sites, sections) if section in BY_SITE else ""


def check_secure_sum(method: MethodSettings, schedule: ScheduleSettings, federation: FederationSettings) -> None:
    """Refuse a job whose other settings are incompatible with a secure sum."""
    if not method.secure_sum:
        return
    if schedule.active:
        raise FedpeftError(
            "method.secure_sum adds up what all sites send, and a layer that one site trains alone would be "
            "visible: use schedule.solver='all'."
        )
    if schedule.clients_per_round or schedule.joins:
        raise FedpeftError(
            "method.secure_sum needs the same sites in every round, since differences between the sums of two groups "
            "show single sites: set schedule.clients_per_round to 0 and leave schedule.joins out."
        )
    if federation.needed < len(federation.sites):
        raise FedpeftError("method.secure_sum needs every site in every round: set federation.quorum to 0.")
    if len(federation.sites) < MIN_MEMBERS:
        raise FedpeftError(
            f"method.secure_sum needs at least {MIN_MEMBERS} sites, because each of two learns the other's adapter; "
            f"federation.sites has {len(federation.sites)}."
        )


def kept_share(method: MethodSettings, training: TrainingSettings) -> float:
    """Return the largest share of its own exchanged adapter that a site keeps in a round."""
    pia = cast(PIASettings, method.pia).max_kept if method.aligns else 0.0
    return max(pia, float(method.registered.goes_on), PERSONALIZATIONS[training.personalization].max_kept)


def check_relay_sums(
    method: MethodSettings, training: TrainingSettings, schedule: ScheduleSettings, federation: FederationSettings
) -> None:
    """Refuse a job whose other settings need single adapters at the server."""
    if not federation.sums_at_relays:
        return
    robust = cast(RobustSettings, method.robust)
    kept, pia = kept_share(method, training), cast(PIASettings, method.pia)
    capped = pia.weighting == "samples" and robust.max_share < 1 and not method.secure_sum
    reason = ""
    if not method.sums:
        reason = "method.aggregation needs single adapters: use 'fedavg', or 'pia' with method.pia.aligned_at='site'"
    elif robust.average != MEAN:
        reason = "method.robust.average compares sites: leave it out"
    elif method.initialization == "own":
        reason = "adapters must be in one order from the start: use method.initialization='shared'"
    elif schedule.active:
        reason = "sites must send the same layers: use schedule.solver='all'"
    elif method.matched_layers is not None:
        reason = "sites of another depth send other tensors: leave method.matched_layers out"
    elif schedule.joins:
        reason = "a site that joins starts from initial values, which no relay hands out: leave schedule.joins out"
    elif kept and robust.update_factor and not method.secure_sum:
        reason = (
            "the update check needs what each site sent last, which no relay keeps, where sites keep a part of their "
            "own adapter: set method.pia.client to false, or method.robust.update_factor to 0"
        )
    elif method.aligns and pia.follows_agreement and capped:
        reason = "method.pia.share='agreement' needs a site's weight in their mean: set method.robust.max_share to 1"
    if reason:
        raise FedpeftError(
            f"federation.sums_at_relays only lets the server see sums, and {reason}; or leave sums_at_relays out.",
            setting="federation.sums_at_relays",
        )


def digest_of(sections: Mapping[str, Any], *, job: str | None) -> str:
    """SHA-256 of a job as deployed, with `data.sites` and `backbone.sites` of every site: equal at all sites unless the
    server sent them different jobs."""
    chosen = {name: sections.get(name) or {} for name in SECTIONS}
    text = json.dumps({"job": job, "sections": chosen}, sort_keys=True) + orders_of(chosen)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class SiteJob:
    """A job's sections as checked settings, with the site's own entries of `data.sites` and `backbone.sites` applied.

    `ServerJob` checks the section `federation` at the server; a site does not receive it.
    """

    site: str
    backbone: BackboneSettings
    method: MethodSettings
    training: TrainingSettings
    data: DataSettings
    schedule: ScheduleSettings
    pooled: tuple[DataSettings, ...] = ()  # the section `data` of each site whose data this one holds (`data.pool`)
    # names of the settings of the job that name single sites, as far as they are set
    single_sites: tuple[str, ...] = ()
    # what a federated head tells apart at every site; None: each site has its own head
    answers: tuple[str, ...] | None = None

    @property
    def parts(self) -> tuple[DataSettings, ...]:
        """The settings of its data, those of each site that it pools."""
        return self.pooled or (self.data,)

    @property
    def dataset(self) -> str:
        """The name of its data set; of several, a procedural one, since figures of these say less."""
        names = [part.dataset for part in self.parts]
        return next((name for name in names if DATASETS.get(name).procedural), names[0])

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any], *, site: str, policy: SitePolicy | None = None) -> SiteJob:
        """Build and check the settings from a job's sections.

        `policy` is the site policy: no plugin is imported that it does not list; None in the simulator.
        """
        if policy:
            check_plugins(policy, sections)
        method, training, schedule = CommonSettings.from_sections(sections)
        backbone = build(BackboneSettings, site_backbone(sections.get("backbone"), site), section="backbone")
        answering.check_backbone(training.answering, backbone.name)
        if several_backbones(sections["backbone"]):
            check_backbones(method)
        if method.exchanges:
            check_connector(sections["backbone"], backbone)
        own = build(DataSettings, site_data(sections.get("data"), site), section="data")
        beside = sorted(set(sections["data"].get("sites", {}).get(site, {})) - {"pool", "unreadable"})
        if own.pool and beside:
            raise FedpeftError(
                f"data.sites.{site} sets {beside[0]} beside pool, and pooled sites have their own: set it for these.",
                setting=f"data.sites.{site}.{beside[0]}",
            )
        own.check_parts(sections["data"], sections["data"].get("sites", {}))
        parts: dict[str, Any] = {"backbone": backbone, "method": method, "training": training, "data": own}
        parts |= {"schedule": schedule}
        single = (f"{section}.{name}" for section, settings in parts.items() for name in single_site_settings(settings))
        of_pool = {name: sections["data"].get("sites", {}).get(name, {}) for name in own.pool}
        together = ({**site_data(sections["data"], name), "pool": []} for name in own.pool)  # as each loads its own
        pooled = tuple(build(DataSettings, part, section="data") for part in together)
        for part in pooled:
            part.check_parts(sections["data"], of_pool)
        return cls(
            site=site,
            **parts,
            pooled=pooled,
            single_sites=(*sections_by_site(sections), *single),
            answers=shared_answers(own, sections["data"].get("sites", {}), federated=method.federates_head),
        )
