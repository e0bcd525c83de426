# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The values of `method.aggregation` and of `method.server_optimizer`, and the settings that each admits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import READ_WITH, one_of, orders_of
from fedpeft.methods.method import METHODS, TuningMethod

if TYPE_CHECKING:
    from fedpeft.alignment.settings import PIASettings
    from fedpeft.methods.settings import MethodSettings

SITE_SETTINGS = "site_settings"


_STEP = ("server_learning_rate", "server_momentum")


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    """How the change of the global adapter over a round becomes a step."""

    label: str = ""  # in tables; empty: the aggregated adapter is the global one
    home: str = ""  # the server's function, "package.module:object" (`fedpeft.server.optimizers`)
    learning_rate: float = 1.0  # the default
    reads: tuple[str, ...] = _STEP  # settings of `method`

    @property
    def steps(self) -> bool:
        return bool(self.home)


_HOME = "fedpeft.server.optimizers"
SERVER_OPTIMIZERS: dict[str, ServerOptimizer] = {
    "none": ServerOptimizer(reads=()),
    "momentum": ServerOptimizer(label="server momentum", home=f"{_HOME}:momentum"),
    "adagrad": ServerOptimizer(
        label="server Adagrad", home=f"{_HOME}:adagrad", learning_rate=0.01, reads=(*_STEP, "server_tau")
    ),
    "adam": ServerOptimizer(
        label="server Adam", home=f"{_HOME}:adam", learning_rate=0.01, reads=(*_STEP, "server_decay", "server_tau")
    ),
    "yogi": ServerOptimizer(
        label="server Yogi", home=f"{_HOME}:yogi", learning_rate=0.01, reads=(*_STEP, "server_decay", "server_tau")
    ),
}


def read_by_server(setting: str) -> dict[str, Any]:
    """Return the field metadata of a setting that only some server optimizers read."""
    return {READ_WITH: {"server_optimizer": tuple(name for name, o in SERVER_OPTIMIZERS.items() if setting in o.reads)}}


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """How the server makes the global tensors from those of the sites."""

    label: str  # in tables
    # the server's function, "package.module:object", with the arguments of `fedpeft.alignment.integrate`; empty:
    # nothing is exchanged
    home: str = ""
    aligns: bool = False  # it is FedPIA, with all settings of `method.pia`
    adds_up: bool = False  # the server needs only the weighted sum of what the sites send
    averages: bool = True  # another average can replace the mean (`method.robust`)
    unequal_ranks: bool = False  # sites may differ in the rank of LoRA's factors
    # the result has the factors of all sites side by side and grows from round to round; a site adds it to its frozen
    # weights
    stacks: bool = False
    needs: str = ""  # the field of `TuningMethod` that a method must declare; empty: none
    reason: str = ""  # what the aggregation does with it, for the error

    @property
    def exchanges(self) -> bool:
        return bool(self.home)

    def fits(self, method: TuningMethod) -> bool:
        """Return whether a method declares what this aggregation needs."""
        return not self.needs or bool(getattr(method, self.needs))

    def admits(self, method: TuningMethod, *, head: bool) -> bool:
        """Return whether a method can be aggregated in this way, with or without its head."""
        if not self.exchanges:
            return not head
        return self.fits(method) if method.exchanges else head and not self.needs


AGGREGATIONS: dict[str, Aggregation] = {
    "pia": Aggregation(
        label="FedPIA",
        home="fedpeft.alignment.integration:integrate",
        aligns=True,
        needs="neurons",
        reason="aligns neurons",
    ),
    "fedavg": Aggregation(label="FedAvg", home="fedpeft.alignment.integration:integrate", adds_up=True),
    "svd": Aggregation(
        label="SVD",
        home="fedpeft.alignment.low_rank:integrate_products",
        averages=False,
        unequal_ranks=True,
        needs="products",
        reason="averages products of two factors",
    ),
    "stack": Aggregation(
        label="FLoRA",
        home="fedpeft.alignment.low_rank:stack_products",
        averages=False,
        unequal_ranks=True,
        stacks=True,
        needs="stackable",
        reason="puts the factors of all products side by side",
    ),
    "none": Aggregation(label="local"),
}
DEFAULTS = ("pia", "fedavg", "none")  # in order of preference, where a job names none


def chosen(wanted: str | Sequence[str], method: TuningMethod, *, name: str, head: bool) -> str:
    """Return the aggregation of a job: the one that it names, or the first of a list that the method admits.

    Whether the method admits a single one is left to `fedpeft.methods.settings`, which says what it lacks.
    """
    for one in (wanted,) if isinstance(wanted, str) else wanted:
        one_of("aggregation", one, AGGREGATIONS)
    if isinstance(wanted, str):
        return wanted
    able = admitted(method, head=head)
    if taken := next((name for name in wanted if name in able), ""):
        return taken
    federated = "with" if head else "without"
    raise FedpeftError(
        f"aggregation is {list(wanted)!r:.200}, and name={name!r} {federated} a federated head admits none of these: "
        f"use {' or '.join(map(repr, able))}.",
        setting="aggregation",
    )


def admitted(method: TuningMethod, *, head: bool) -> list[str]:
    """Return the names of the aggregations that a method admits; see `Aggregation.admits`."""
    return [name for name, rule in AGGREGATIONS.items() if rule.admits(method, head=head)]


def default_aggregation(method: TuningMethod) -> str:
    """Return the aggregation of a method if a job names none and the head stays at the site."""
    return next(name for name in DEFAULTS if AGGREGATIONS[name].admits(method, head=False))


def check_site_settings(method: MethodSettings) -> None:
    """Refuse settings of single sites whose tensors the aggregation cannot average."""
    if not method.site_settings:
        return
    for site, own in method.site_settings.items():
        common = method.settings_of("")
        differing = (*_named(own, "target_modules", common), *_differing(method.registered, own, common))
        if method.exchanges and (other := next(iter(differing), "")):
            raise FedpeftError(
                f"method.site_settings.{site} has {other}, with which the same tensors compute something else there: "
                f"set it for all sites in method.settings, or leave it out.",
                setting=SITE_SETTINGS,
            )
    if not method.registered.factors:
        _check_widths(method)
    elif method.exchanges:
        _check_ranks(method)
        _check_parts(method)


def _check_ranks(method: MethodSettings) -> None:
    """Refuse unequal ranks or scales that the aggregation cannot average."""
    if not method.rule.unequal_ranks:
        fitting = {name: rule for name, rule in AGGREGATIONS.items() if rule.fits(method.registered)}
        able = " or ".join(repr(name) for name, rule in fitting.items() if rule.unequal_ranks)
        raise FedpeftError(
            f"aggregation={method.aggregation!r} averages factors of one shape: sites of unequal rank "
            f'(site_settings) need aggregation={able}; --set "method.site_settings={{}}" makes all equal.',
            setting=SITE_SETTINGS,
        )
    scales = {site: method.registered.product_scale(method.settings_of(site)) for site in ("", *method.site_settings)}
    for site, scale in scales.items():
        if None not in (scale, default := scales[""]) and scale != default:
            raise FedpeftError(
                f"products of {site} count {scale:g} times and those of the others {default:g} times (lora_alpha / "
                f"r): set lora_alpha in site_settings so that the ratio is the same.",
                setting=SITE_SETTINGS,
            )


def _check_parts(method: MethodSettings) -> None:
    """Refuse settings of single sites for a part whose tensors have one shape at all sites."""
    for site, own in method.site_settings.items():
        for part in method.registered.parts:
            if own.get(part) and not METHODS.get(part).factors:
                raise FedpeftError(
                    f"unequal widths are not supported for the part {part!r} of name={method.name!r}: leave "
                    f"method.site_settings.{site}.{part} out.",
                    setting=SITE_SETTINGS,
                )


def _check_widths(method: MethodSettings) -> None:
    """Refuse unequal widths unless server and sites align, and all else allows them."""
    pia = cast("PIASettings", method.pia)
    if not method.registered.unequal_widths:
        raise FedpeftError(
            f"unequal widths are not supported for name={method.name!r}: leave method.site_settings out, or add --set "
            f'"method.site_settings={{}}".',
            setting=SITE_SETTINGS,
        )
    if not method.aligns or not (pia.aligns_on_server and pia.client) or pia.solver == "identity":
        raise FedpeftError("unequal widths (site_settings) need alignment both at the server and at the sites.")
    if pia.accept:
        raise FedpeftError(
            "pia.accept compares with moving no neuron, which unequal widths (site_settings) cannot: set "
            "pia.accept=false, and a number as pia.share."
        )
    if pia.follows_agreement:
        raise FedpeftError(
            "pia.share='agreement' compares adapters of one width, which unequal widths (site_settings) are not: "
            "give a number as share."
        )

    for name, start in (("server_optimizer", "none"), ("matched_layers", None)):
        if getattr(method, name) != start:
            raise FedpeftError(
                f"{name} is {getattr(method, name)!r} and lets all sites start from one adapter, which with unequal "
                f"widths (site_settings) they cannot: leave one of them out.",
                setting=SITE_SETTINGS,
            )


def check_factors(method: MethodSettings) -> None:
    """Refuse ranks or scales of single modules if the aggregation decides the ranks of products."""
    if not (method.registered.factors and (method.rule.stacks or (method.rule.unequal_ranks and method.site_settings))):
        return
    if other := next(_differing(method.registered, method.settings_of("")), ""):
        raise FedpeftError(
            f"method.settings has {other}, and with aggregation={method.aggregation!r} the ranks of all modules "
            f"follow from what the sites train: leave it out.",
            setting="settings",
        )


def _named(settings: Mapping[str, Any], name: str, common: Any) -> Iterator[str]:
    """Yield a setting with another value than the common one, by its path: of the method, or of one of its parts."""
    for key, value in settings.items():
        theirs = common.get(key) if isinstance(common, Mapping) else None
        if key == name and value != theirs:
            yield key
        elif key != name and isinstance(value, Mapping):
            yield from (f"{key}.{path}" for path in _named(value, name, theirs))


def _differing(method: TuningMethod, settings: Mapping[str, Any], common: Any = None) -> Iterator[str]:
    """Yield the settings of a site, and of its parts, with which equal tensors compute something else there."""
    common = common if isinstance(common, Mapping) else {}
    for name in method.same_at_all_sites:
        own, theirs = settings.get(name), common.get(name)
        if own not in (None, {}) and (own != theirs or orders_of({name: own}) != orders_of({name: theirs})):
            yield name
    for part in method.parts:
        own = settings.get(part)
        parts = _differing(METHODS.get(part), own if isinstance(own, Mapping) else {}, common.get(part))
        yield from (f"{part}.{name}" for name in parts)
