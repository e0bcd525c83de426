# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Settings of a method that single sites have instead of the common ones: merge them, and refuse others.

Refuse settings of a method that do not go with different backbones in one federation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from fedpeft import methods
from fedpeft.core.errors import FedpeftError
from fedpeft.core.layer_matching import SETTING
from fedpeft.methods.aggregations import AGGREGATIONS
from fedpeft.methods.setting_limits import MAX_LAYERS

if TYPE_CHECKING:
    from fedpeft.alignment.settings import PIASettings
    from fedpeft.methods.settings import MethodSettings


SITE_SETTINGS = "site_settings"


def replaced(settings: Iterable[Mapping[str, Any]], parts: Collection[str] = ()) -> dict[str, Any]:
    """Return settings of which later ones replace earlier ones, those below the names of `parts` one by one."""
    result: dict[str, Any] = {}
    for special in settings:
        for name, value in special.items():
            both = name in parts and isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
            result[name] = replaced((result[name], value)) if both else value
    return result


def check_site_settings(method: MethodSettings) -> None:
    """Refuse sites whose tensors would differ in a way that the aggregation cannot average."""
    if not method.site_settings:
        return
    if not method.method.factors:
        _check_widths(method)
    elif method.exchanges:
        _check_ranks(method)
        _check_parts(method)


def _check_ranks(method: MethodSettings) -> None:
    if not method.rule.unequal_ranks:
        fitting = {name: rule for name, rule in AGGREGATIONS.items() if rule.fits(method.method)}
        able = " or ".join(repr(name) for name, rule in fitting.items() if rule.unequal_ranks)
        raise FedpeftError(
            f"aggregation={method.aggregation!r} averages factors of one shape: sites of unequal rank "
            f'(site_settings) need aggregation={able}; --set "method.site_settings={{}}" makes all equal.',
            setting=SITE_SETTINGS,
        )
    scales = {site: method.method.product_scale(method.settings_of(site)) for site in ("", *method.site_settings)}
    for site, scale in scales.items():
        if scale is not None and scale != (usual := scales[""]):
            raise FedpeftError(
                f"products of {site} count {scale:g} times and those of the others {usual:g} times (lora_alpha / "
                f"r): set lora_alpha in site_settings so that the ratio is the same.",
                setting=SITE_SETTINGS,
            )


def _check_parts(method: MethodSettings) -> None:
    """Refuse other settings of a part whose tensors have one shape at all sites."""
    for site, own in method.site_settings.items():
        for part in method.method.parts:
            if own.get(part) and not methods.get(part).factors:
                raise FedpeftError(
                    f"unequal widths are not supported for the part {part!r} of name={method.name!r}: leave "
                    f"method.site_settings.{site}.{part} out.",
                    setting=SITE_SETTINGS,
                )


def _check_widths(method: MethodSettings) -> None:
    pia = cast("PIASettings", method.pia)
    if not method.method.unequal_widths:
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


def check_backbones(method: MethodSettings) -> None:
    """Refuse several backbones where what is averaged means something else in another one."""
    if method.exchanges and not method.method.unequal_backbones:
        able = ", ".join(name for name in methods.METHODS.own_names() if methods.get(name).unequal_backbones)
        raise FedpeftError(
            f"method.name is {method.name!r}, which exchanges values that belong to one backbone: use the same at all "
            f"sites, or one of {able}.",
            setting="method.name",
        )


def check_depths(method: MethodSettings) -> None:
    """Refuse backbones of different depth where layers cannot be matched."""
    deepest = method.matched_layers
    if deepest is None:
        return
    if not 1 <= deepest <= MAX_LAYERS:
        raise FedpeftError(
            f"matched_layers is {deepest}, it must be from 1 to {MAX_LAYERS}: give those of the deepest backbone.",
            setting=SETTING,
        )
    if not method.exchanges:
        return
    check_backbones(method)
    remedy = "leave out one of them"
    if not method.method.layers:
        reason = f"name={method.name!r} trains nothing layer by layer"
    elif method.secure_sum:
        reason = "secure_sum adds up the same tensors of all sites"
    elif method.initialization == "own":
        reason = "all sites start from the adapter of one that has all layers, not with initialization='own'"
    elif method.aligns and method.pia.follows_agreement:
        reason, remedy = "pia.share='agreement' compares whole adapters", "give a number as pia.share (the paper: 0.5)"
    else:
        return
    raise FedpeftError(f"matched_layers is {deepest}, and {reason}: {remedy}.", setting=SETTING)
