# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The `method` section of a job: what is trained, and how the server combines it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from fedpeft import methods
from fedpeft.alignment.settings import FEDAVG, WEIGHT_SPACE, PIASettings, RobustSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import MATCHED_LAYERS
from fedpeft.core.settings import BY_SITE, about, check_ranges, nested, one_of, suggestion, unread, within
from fedpeft.methods.aggregations import (
    AGGREGATIONS,
    DEFAULTS,
    SERVER_OPTIMIZERS,
    Aggregation,
    ServerOptimizer,
    admitted,
    check_factors,
    check_site_settings,
    chosen,
    read_by_server,
)
from fedpeft.methods.setting_limits import FIRST_VALUE_SETTINGS, MAX_LAYERS

PRIVATE, FEDERATED = "private", "federated"
MAX_SERVER_RATE = 1000
NESTED = ("pia", "robust")  # settings that are sections themselves
PROBE_SAMPLES = within(1, 1_000_000, max_by="max_probe_samples", min_by="min_probe_samples")


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """What is trained, and how the server combines it.

    Args:
        name: one of `fedpeft.methods.names()`: an adapter, `classifier` (the papers' lower bound) or `full`
            (fine-tuning of the whole backbone).
        settings: by method, settings that replace its defaults, e.g. `{"houlsby": {"reduction_factor": 8}}`. Those of
            `houlsby` apply to `feddat_houlsby` as well.
        site_settings: by site, settings of the job's method that replace those, one by one (sites of unequal width or
            rank); none with which equal tensors compute something else, as `target_modules`.
        aggregation: `pia` (align, then integrate), `fedavg` (weighted mean), `svd` (for LoRA and `dvpt`: the weighted
            mean of the products of the factors, factored again), `stack`, or `none` (every site alone). `stack` is for
            LoRA, not with `dvpt`: it puts the factors side by side, without error. Every site adds their product to its
            frozen weights and starts with fresh factors. From a list the first one that the method admits is taken: by
            default `pia` if it has neurons to align, `none` if nothing is exchanged, else `fedavg`.
        pia: settings of `fedpeft.alignment.PIASettings`; `fedavg` uses only their `weighting`. If the method has no
            activations or no companion, `support` is `weights` and `integration` is `weight_space` unless they are set.
        robust: settings of `fedpeft.alignment.RobustSettings`: what the server does against sites that send wrong
            updates.
        probe_samples: m, the random training samples whose activations align the global adapter at a site.
            `training.measure: start` and `fedpeft report --surface` read the same number of samples.
        head: `private` (it never leaves its site) or `federated` (it is sent and averaged with the adapter). All sites
            then have the same answers, see `data.answers`, and each must allow it in its site policy.
        matched_layers: layers of the deepest backbone, if sites have backbones of one family and of different depth
            (`backbone.sites`): a layer is averaged with those at the same relative depth. None: all sites have the same
            layers.
        initialization: `shared` (every site starts from one adapter) or `own` (from a seed of its own).
        secure_sum: the sites mask what they send, so that the server learns the weighted mean of all sites and no
            single adapter; every site must answer in every round. Needs an aggregation that only adds up: `fedavg`, or
            `pia` with `aligned_at: site` or `server: false`.
        server_optimizer: how the server applies the change of the global adapter over a round, after alignment and the
            check of updates: `none` (as it is), or a step of `momentum` (FedAvgM), `adagrad`, `adam` or
            `yogi` (FedOpt). It needs tensors that mean the same in every round: not `svd` or `stack`.
        server_learning_rate: of that step; None: 1 for `momentum`, 0.01 for the others.
        server_momentum: b1 of that step, from 0 to below 1.
        server_decay: b2, of the mean of squared changes, from 0 to below 1; `momentum` has none.
        server_tau: added to the root of that mean; the larger, the less a number's own size of change counts.
    """

    name: str = "houlsby"
    settings: Mapping[str, Any] = field(default_factory=dict)
    site_settings: Mapping[str, Any] = field(default_factory=dict, metadata=BY_SITE)
    aggregation: str | tuple[str, ...] = DEFAULTS
    pia: PIASettings | Mapping[str, Any] = field(default_factory=dict)
    robust: RobustSettings | Mapping[str, Any] = field(default_factory=dict)
    probe_samples: int = field(default=64, metadata=PROBE_SAMPLES)
    head: str = PRIVATE
    matched_layers: int | None = None
    initialization: str = "shared"
    secure_sum: bool = False
    server_optimizer: str = "none"
    server_learning_rate: float | None = field(
        default=None, metadata={**within(0, MAX_SERVER_RATE, exclusive=True), **read_by_server("server_learning_rate")}
    )
    server_momentum: float = field(default=0.9, metadata={**within(0, 1), **read_by_server("server_momentum")})
    server_decay: float = field(default=0.99, metadata={**within(0, 1), **read_by_server("server_decay")})
    server_tau: float = field(default=1e-3, metadata={**within(0, exclusive=True), **read_by_server("server_tau")})

    def __post_init__(self) -> None:
        one_of("name", self.name, methods.names())
        one_of("head", self.head, (PRIVATE, FEDERATED))
        taken = chosen(self.aggregation, self.registered, name=self.name, head=self.federates_head)
        object.__setattr__(self, "aggregation", taken)
        check_ranges(self)
        one_of("initialization", self.initialization, ("shared", "own"))
        for name in self.settings:
            if name not in methods.names():
                raise FedpeftError(
                    f"settings has {name!r:.200}, which is no method: write the settings of a method below its name, "
                    f"as in method.settings={{{self.name}: {{...}}}}; {suggestion(name, methods.names())}.",
                    setting="settings",
                )
        for name, settings in (*self.settings.items(), *self.site_settings.items()):
            if not isinstance(settings, Mapping) or {"init_seed", "modules_to_save"} & set(settings):
                raise FedpeftError(
                    f"the settings of {name!r} are {settings!r}, not an object without init_seed and modules_to_save."
                )
        pia = self.pia if isinstance(self.pia, PIASettings) else {**self._pia_defaults(), **self.pia}
        object.__setattr__(self, "pia", nested(PIASettings, pia, section="method.pia"))
        object.__setattr__(self, "robust", nested(RobustSettings, self.robust, section="method.robust"))
        self._check_method()
        self._check_server_optimizer()
        if self.secure_sum:
            self._check_secure_sum()
        check_depths(self)

    @property
    def rule(self) -> Aggregation:
        return AGGREGATIONS[cast(str, self.aggregation)]  # `__post_init__` has chosen one of a list

    @property
    def aligns(self) -> bool:
        return self.rule.aligns

    @property
    def sums(self) -> bool:
        """Whether the server needs only the weighted sum of what the sites send."""
        return self.exchanges and (not self.pia.aligns_on_server if self.aligns else self.rule.adds_up)

    @property
    def server_rule(self) -> ServerOptimizer:
        return SERVER_OPTIMIZERS[self.server_optimizer]

    @property
    def registered(self) -> methods.TuningMethod:
        return methods.get(self.name)

    def starts_from_one(self, *, scheduled: bool) -> bool:
        """Return whether all start from one site's adapter: the server needs tensors that other sites may not send."""
        needed = scheduled or self.matched_layers is not None or self.secure_sum or self.server_rule.steps
        return self.exchanges and needed

    def _pia_defaults(self) -> dict[str, str]:
        method = self.registered
        return {
            **({} if method.activations else {"support": "weights"}),
            **({} if method.companion else {"integration": WEIGHT_SPACE}),
            **({"weighting": "uniform"} if method.uniform else {}),
        }

    def _check_method(self) -> None:
        """Refuse settings that the method does not support by its declaration."""
        method, name, pia = self.registered, self.name, self.pia
        if not method.exchanges and not self.federates_head and self.aggregation != "none":
            raise FedpeftError(
                f"a head that is private never leaves its site, so name={name!r} needs aggregation='none', not "
                f"{self.aggregation!r}, or head='federated'."
            )
        if self.federates_head and not self.exchanges:
            raise FedpeftError(
                "head='federated' is averaged over the sites, and aggregation='none' sends nothing: set method.head to "
                "'private', or another method.aggregation.",
                setting="head",
            )
        check_site_settings(self)
        check_factors(self)
        if not self.rule.fits(method):
            able = " or ".join(map(repr, admitted(method, head=self.federates_head)))
            raise FedpeftError(
                f"aggregation={self.aggregation!r} {self.rule.reason}, which name={name!r} does not declare: use "
                f"aggregation={able}.",
                setting="aggregation",
            )
        if not self.rule.averages and not self.robust.weighs:
            raise FedpeftError(
                f"aggregation={self.aggregation!r} takes means only, not robust.average={self.robust.average!r}: use "
                f"aggregation='fedavg', or leave out method.robust.average."
            )
        if not self.aligns:
            return
        if pia.follows_agreement and not self.robust.weighs:
            raise FedpeftError(
                f"pia.share='agreement' takes a site's own part off the mean, which "
                f"robust.average={self.robust.average!r} is not: give a number as share, or leave robust.average out."
            )
        if pia.aligns_on_server and pia.reference != FEDAVG and not self.robust.weighs:
            raise FedpeftError(
                f"pia.reference={pia.reference!r} can follow one site, whatever it sends, against which "
                f"robust.average={self.robust.average!r} is set: use reference={FEDAVG!r}, or leave robust.average out."
            )
        if pia.client and pia.support != "weights" and not method.activations:
            raise FedpeftError(
                f"name={name!r} has no hidden activations to align by: leave method.pia.support out, or set it to "
                f"'weights'."
            )
        if pia.client and pia.form.second_branch and not method.companion:
            raise FedpeftError(
                f"name={name!r} has no second branch beside it: leave method.pia.integration out, or set it to "
                f"{WEIGHT_SPACE!r}."
            )

    @property
    def unlearned_change(self) -> str:
        """Why the change of the global adapter is not what the sites learned, and the remedy; empty: it is."""
        if not self.exchanges:
            return "aggregation='none' makes no global adapter: use 'fedavg' or 'pia'"
        if not self.rule.averages:
            return f"aggregation={self.aggregation!r} makes new factors in every round: use 'fedavg' or 'pia'"
        if self.aligns and self.pia.aligns_on_server and self.pia.reference != FEDAVG:
            return f"pia.reference={self.pia.reference!r} may reorder the global neurons: use {FEDAVG!r}"
        if self.aligns and self.pia.aligns_on_server and not self.pia.normalize and self.pia.gamma:
            return "pia.normalize=false with gamma above 0 makes the global adapter smaller: set pia.normalize to true"
        if self.initialization == "own":
            return "initialization='own' has no global adapter to step from: use 'shared'"
        return ""

    def _check_server_optimizer(self) -> None:
        """Refuse a step along a change over the round that is not what the sites learned."""
        one_of("server_optimizer", self.server_optimizer, SERVER_OPTIMIZERS)
        for name in ("server_momentum", "server_decay"):
            if getattr(self, name) == 1:
                raise FedpeftError(f"{name} is 1, it must be below 1: nothing new would count.", setting=name)
        if not self.server_rule.steps:
            return
        reason = self.unlearned_change
        if self.aligns and self.pia.follows_agreement:
            reason = "with pia.share='agreement' sites tell from it what the others learned: give a number as pia.share"
        if reason:
            raise FedpeftError(
                f"server_optimizer={self.server_optimizer!r} steps along the change of the global adapter, and "
                f"{reason}, or leave server_optimizer out.",
                setting="server_optimizer",
            )

    def _check_secure_sum(self) -> None:
        """Refuse a secure sum if the server needs single adapters."""
        if not self.exchanges:
            raise FedpeftError(
                "secure_sum hides what sites send, but with aggregation='none' they send nothing: leave secure_sum out."
            )
        if self.aligns and self.pia.aligns_on_server:
            raise FedpeftError(
                "secure_sum hides the adapters that server PIA must see: set method.pia.aligned_at to 'site'."
            )
        if not self.aligns and not self.rule.adds_up:
            raise FedpeftError(
                f"secure_sum hides the adapters that aggregation={self.aggregation!r} must see: use 'fedavg'."
            )
        if self.robust != RobustSettings():
            raise FedpeftError(
                "secure_sum hides the adapters that robust averages, max_share and update_factor must see: leave out "
                "method.robust."
            )
        if self.initialization == "own":
            raise FedpeftError("secure_sum needs adapters in one order from the start: use initialization='shared'.")

    def check_schedule(self, *, active: bool, joins: Collection[str]) -> None:
        """Refuse settings that do not work if layers are scheduled (`active`) or sites join later."""
        if joins and self.rule.stacks:
            raise FedpeftError(
                f"schedule.joins names {', '.join(joins)}, and with aggregation={self.aggregation!r} every site needs "
                f"all products since round 1: use aggregation='svd', or leave schedule.joins out.",
                setting="method.aggregation",
            )
        if joins and self.server_rule.steps:
            raise FedpeftError(
                f"method.server_optimizer={self.server_optimizer!r} steps along what the sites learned, and a site of "
                f"schedule.joins ({', '.join(joins)}) brings other values: leave one of the two out.",
                setting="method.server_optimizer",
            )
        if not active and (own := self.registered.schedule.get("solver")):
            raise FedpeftError(
                f"method.name={self.name!r} has its layers chosen by schedule.solver={own!r}, and none is scheduled: "
                f"give the learner that schedule, or use Learner.from_sections.",
                setting="schedule.solver",
            )
        if active and not self.registered.layers:
            raise FedpeftError(
                f"schedule.solver lets sites train some layers, and method.name={self.name!r} trains nothing layer by "
                f"layer: add --set schedule.solver=all, or use another method.",
                setting="schedule.solver",
            )
        if active and self.aligns and self.pia.follows_agreement:
            raise FedpeftError(
                "method.pia.share='agreement' compares whole adapters, and schedule.solver lets sites train some "
                "layers: give a number as share, or set schedule.solver to 'all'.",
                setting="method.pia.share",
            )
        if active and self.site_settings and not self.registered.factors:
            raise FedpeftError(
                "method.site_settings gives sites unequal widths, and where schedule.solver lets sites train some "
                "layers all start from one adapter: leave it out, or set schedule.solver to 'all'.",
                setting="method.site_settings",
            )
        if active and self.exchanges and self.matched_layers is not None:
            raise FedpeftError(
                f"method.matched_layers is {self.matched_layers}, and schedule.solver chooses among layers that all "
                f"sites have: leave one of them out.",
                setting="method.matched_layers",
            )

    def check_first_values(self, *, scheduled: bool) -> None:
        """Refuse a site's own settings of first values if all sites start from one adapter and nobody reads them."""
        if not self.starts_from_one(scheduled=scheduled) or self.rule.stacks:
            return
        common = self.settings.get(self.name, {})
        for site, own in self.site_settings.items():
            parts = [(own, common), *((part, common.get(name)) for name, part in own.items())]
            given = {
                name: value
                for part, of_all in parts
                if isinstance(part, Mapping)
                for name, value in part.items()
                if name in FIRST_VALUE_SETTINGS and value != (of_all or {}).get(name)
            }
            for name, value in sorted(given.items()):
                raise FedpeftError(
                    f"method.site_settings.{site} sets {name}={value!r:.40}, how first values are drawn, and in this "
                    f"job all sites start from one adapter: set it for all under method.settings, or leave it out.",
                    setting="method.site_settings",
                )

    def unread(self, name: str) -> str:
        """Return what to do with a setting such as `pia.gamma` that changes nothing; empty: it acts."""
        part, _, name = name.rpartition(".")
        section = getattr(self, part) if part else self
        if part and getattr(section, name) == getattr(type(section)(), name):  # as if it were left out
            return ""
        if not self.exchanges and (part or name == "matched_layers"):
            return "leave it out, the sites exchange nothing"
        if part == "pia" and not self.aligns and name != "weighting":
            return f"leave it out, method.aggregation={self.aggregation!r} aligns nothing"
        if part == "pia" and not self.robust.weighs and name in ("gamma", "normalize", "weighting"):
            return f"leave it out, method.robust.average={self.robust.average!r} weighs all sites alike"
        # the server may follow the site with the most samples, after `max_share` has cut them
        leading = self.aligns and self.pia.aligns_on_server and self.pia.solver != "identity"
        leading = leading and not self.pia.finds_fixed_point
        if (part, name) == ("robust", "max_share") and self.pia.weighting == "uniform" and not leading:
            return f"leave it out, method.pia.weighting={self.pia.weighting!r} weighs all sites alike"
        needed = unread(type(section), vars(section), name) if part else None
        return f"set method.{part}.{needed} as well" if needed else ""

    def check_settings(self) -> None:
        for name, settings in self.settings.items():
            with about("settings"):
                methods.get(name).check_settings(settings)
        for site in self.site_settings:
            with about("site_settings", where=f"method.site_settings.{site}"):
                self.registered.check_settings(self.settings_of(site))

    def settings_of(self, site: str) -> dict[str, Any]:
        """Return the settings of the method at one site: those of its bases, its common ones, and the site's own.

        If several methods train together, each setting of a part is replaced separately.
        """
        common = [self.settings.get(name, {}) for name in methods.with_bases(self.name)]
        return replaced((*common, self.site_settings.get(site, {})), self.registered.parts)

    @property
    def label(self) -> str:
        if not self.registered.exchanges and not self.federates_head:
            return self.registered.label
        rule = self.rule.label + (f" ({self.pia.label})" if self.aligns else "")
        steps = f", {self.server_rule.label}" * self.server_rule.steps
        return f"{rule}, {self.registered.label}{steps}" + ", federated head" * self.federates_head

    @property
    def federates_head(self) -> bool:
        return self.head == FEDERATED

    @property
    def exported(self) -> str:
        """The name of the method for saving the global tensors in PEFT's format; empty: there is none."""
        return next((name for name in methods.with_bases(self.name) if methods.get(name).exports), "")

    @property
    def exchanges(self) -> bool:
        return self.rule.exchanges


def replaced(settings: Iterable[Mapping[str, Any]], parts: Collection[str] = ()) -> dict[str, Any]:
    """Merge settings, later ones over earlier ones; those of each of `parts` are merged separately."""
    result: dict[str, Any] = {}
    for special in settings:
        for name, value in special.items():
            both = name in parts and isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
            result[name] = replaced((result[name], value)) if both else value
    return result


def check_backbones(method: MethodSettings) -> None:
    """Refuse several backbones if the averaged tensors mean something else in another one."""
    if method.exchanges and not method.registered.unequal_backbones:
        able = ", ".join(name for name in methods.METHODS.own_names() if methods.get(name).unequal_backbones)
        raise FedpeftError(
            f"method.name is {method.name!r}, which exchanges values that belong to one backbone: use the same at all "
            f"sites, or one of {able}.",
            setting="method.name",
        )


def check_depths(method: MethodSettings) -> None:
    """Refuse backbones of different depth if layers cannot be matched."""
    deepest = method.matched_layers
    if deepest is None:
        return
    if not 1 <= deepest <= MAX_LAYERS:
        raise FedpeftError(
            f"matched_layers is {deepest}, it must be from 1 to {MAX_LAYERS}: give those of the deepest backbone.",
            setting=MATCHED_LAYERS,
        )
    if not method.exchanges:
        return
    check_backbones(method)
    remedy = "leave out one of them"
    if not method.registered.layers:
        reason = f"name={method.name!r} trains nothing layer by layer"
    elif method.secure_sum:
        reason = "secure_sum adds up the same tensors of all sites"
    elif method.initialization == "own":
        reason = "all sites start from the adapter of one that has all layers, not with initialization='own'"
    elif method.aligns and method.pia.follows_agreement:
        reason, remedy = "pia.share='agreement' compares whole adapters", "give a number as pia.share (the paper: 0.5)"
    else:
        return
    raise FedpeftError(f"matched_layers is {deepest}, and {reason}: {remedy}.", setting=MATCHED_LAYERS)
