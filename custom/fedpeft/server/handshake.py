# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Round 0: check version, family, keys, shapes and dtype; a site that differs from the others does not take part.

The widths or ranks that sites announce must be those that the job's settings give them. Where sites may differ in them
(`method.site_settings`), comparing shapes does not limit one site's: the global adapter would become as wide as the
widest, for the server that aligns it and for every site that receives it.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace

import torch

from fedpeft.alignment.neurons import Neurons, check_alike, neurons_of
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import CONNECTOR, HEAD, group_by_place, layer_of, layers_of, one_layer
from fedpeft.methods.setting_limits import MAX_WIDTH
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.fields import MB, MIN_TENSOR, Limit
from fedpeft.protocol.reply_contract import RESTART
from fedpeft.protocol.types import Introduction, Schema

NO_MAJORITY = " No kind is that of more than half of the sites, so that none of them takes part."
_log = logging.getLogger(__name__)


def majority(values: Iterable[Hashable]) -> Hashable | None:
    """Return the value that occurs more often than all others together; None: there is none."""
    counts = Counter(values)
    value, count = next(iter(counts.most_common(1)), (None, 0))
    return value if 2 * count > counts.total() else None


def refused_widths(schemas: Mapping[str, Schema], method: MethodSettings) -> dict[str, str]:
    """Return by site why a width is refused: it is another than the site's settings give, or above `MAX_WIDTH`.

    `MAX_WIDTH` is for methods whose code does not say how wide their settings make an adapter. For backbones of
    different depth the schemas have one layer (`core.keys`).
    """
    refused = {}
    for site, schema in schemas.items():
        try:
            _check_widths(site, schema, method)
        except FedpeftError as error:
            refused[site] = str(error)
        except Exception as error:  # a schema that nobody thought of costs its site the job, and no other
            _log.exception("the announced shapes of site %s cannot be checked", site)
            refused[site] = f"site {site} announces an adapter that raised {type(error).__name__}: {RESTART}."
    return refused


def unlike_equals(schemas: Mapping[str, Schema], method: MethodSettings) -> dict[str, str]:
    """Return by site why it differs from most sites with equal settings; without a majority all of them are refused.

    The schemas have the same keys.
    """
    groups: dict[str, dict[str, frozenset[tuple[str, tuple[int, ...]]]]] = {}
    for site, schema in schemas.items():
        settings = json.dumps(method.settings_of(site), sort_keys=True, default=str)
        groups.setdefault(settings, {})[site] = frozenset((key, tuple(shape)) for key, shape in schema.items())
    refused = {}
    for group in groups.values():
        common = majority(group.values())
        for site, shapes in group.items():
            if shapes == common:
                continue
            other = next(one for one, own in group.items() if own == common or (common is None and own != shapes))
            key = min(key for key, _ in shapes ^ group[other])
            refused[site] = (
                f"site {site} has {key} with shape {schemas[site].get(key)} and site {other} with "
                f"{schemas[other].get(key)}, and method.site_settings gives both the same settings: use the same "
                f"backbone, or declare their widths there." + NO_MAJORITY * (common is None)
            )
    return refused


def open_shapes(schema: Schema) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes with None at the axes of hidden neurons, in which sites may differ."""
    shapes: dict[str, tuple[int | None, ...]] = {}
    for names in group_by_place(schema).values():
        kind = neurons_of(names)
        axes = {**kind.incoming, **kind.outgoing} if kind else {}
        for name, key in names.items():
            shapes[key] = tuple(None if axis == axes.get(name) else size for axis, size in enumerate(schema[key]))
    return shapes


def _check_widths(site: str, schema: Schema, method: MethodSettings) -> None:
    """Refuse an adapter whose tensors differ in their number of neurons, or whose width its settings do not give."""
    shapes = {key: torch.empty(shape, device="meta") for key, shape in schema.items()}
    check_alike(shapes, f"site {site}", shapes, f"site {site}")
    for names in group_by_place(schema).values():
        if (kind := neurons_of(names)) is None:
            continue
        tensors = {name: shapes[key] for name, key in names.items()} | {key: shapes[key] for key in kind.shared}
        first, stream = _first_incoming(kind, tensors)
        key, own = names[first], kind.width(tensors)
        given = _given_widths(site, method, layer_of(key) or 0, stream)
        if own not in given if given else own > MAX_WIDTH:
            expected = " or ".join(map(str, sorted(given))) or f"at most {MAX_WIDTH}"
            raise FedpeftError(
                f"site {site} announces {own} neurons in {key} of shape {list(schema[key])!r:.60}, method.settings and "
                f"method.site_settings give it {expected}: {RESTART}."
            )


def _given_widths(site: str, method: MethodSettings, layer: int, stream: int) -> frozenset[int]:
    """Return the widths that a site may have in a layer, or in any matched layer; empty: the code does not say."""
    width = getattr(method.registered.tuning(), "width", None)
    layers = [layer] if method.matched_layers is None else range(method.matched_layers)
    try:
        given = {width(method.settings_of(site), number, stream) if width else None for number in layers}
    except FedpeftError as error:
        raise FedpeftError(f"site {site} announces layers of width {stream}, for which {error}") from error
    return frozenset() if None in given else frozenset(given)


def _first_incoming(kind: Neurons, tensors: Mapping[str, torch.Tensor]) -> tuple[str, int]:
    """Return the name of the first tensor of incoming weights, and the width of the stream that it reads."""
    name, axis = next((name, axis) for name, axis in kind.incoming.items() if name in tensors)
    others = [size for place, size in enumerate(tensors[name].shape) if place != axis]
    return name, others[-1] if others else 0


SLACK = 16 * MB  # for fields other than tensors, and FLARE's headers
INTRODUCTION = Limit(SLACK, "an introduction holds names and numbers; look at the log there.")


def limit_of_replies(introductions: Iterable[Introduction], *, max_mb: int, masked: bool) -> Limit:
    """Return the size limit of replies from the announced adapters, at most `max_mb`.

    Without exchanged adapters there are no introductions. A value that is masked for a secure sum has 8 bytes.
    """
    size = max((_bytes(i.schema, 8 if masked else getattr(torch, i.dtype).itemsize) for i in introductions), default=0)
    expected = size + size // 10 + SLACK
    if expected > max_mb * MB:
        return Limit(max_mb * MB, "raise federation.largest_reply_mb if replies are so large.")
    return Limit(expected, "the adapter that was announced is smaller; look at the log there.")


def agree(
    introductions: Mapping[str, Introduction], *, version: str, method: MethodSettings
) -> tuple[dict[str, Introduction], dict[str, str]]:
    """Split the sites into those with the same kind of adapter, and the reasons why others cannot take part.

    The kind of adapter of more than half of the sites is used. If there is none, only sites with the widths and ranks
    of the job's settings count. If more than half of these do not agree either, no site takes part: the server does not
    know which backbone is right. Where sites may differ in widths, each must have the width of its own settings. Each
    introduction was checked on its own before; `version` is the server's.
    """
    found = {site: _own_problem(site, own, version=version, method=method) for site, own in introductions.items()}
    problems = {site: problem for site, problem in found.items() if problem}
    able = {site: introduction for site, introduction in introductions.items() if site not in problems}
    if not able or not method.exchanges:
        return able, problems
    compared, unmatched = _comparable(able, method)
    problems |= unmatched
    if method.site_settings:
        problems |= refused_widths(_schemas(compared), method)
        compared = {site: introduction for site, introduction in compared.items() if site not in problems}
    problems |= _unlike_most(compared, method)
    if method.site_settings:
        alike = {site: introduction for site, introduction in compared.items() if site not in problems}
        problems |= unlike_equals(_schemas(alike), method)
    return {site: introduction for site, introduction in able.items() if site not in problems}, problems


def _own_problem(site: str, introduction: Introduction, *, version: str, method: MethodSettings) -> str:
    """Return why a site cannot take part, whatever the others are; empty: it can."""
    if introduction.version != version:
        return (
            f"site {site} runs fedpeft {introduction.version}, the server {version}: install the same version "
            f"everywhere."
        )
    if method.secure_sum and not introduction.sum_key:
        return f"site {site} sent no key for the secure sum: install the same fedpeft version everywhere."
    has_head = any(key.startswith(HEAD) for key in introduction.schema)
    if method.exchanges and has_head != method.federates_head:
        return (
            f"site {site} {'lacks' if method.federates_head else 'announces'} a head, and the job's method.head is "
            f"{method.head!r}: install the same fedpeft version everywhere."
        )
    return ""


def _unlike_most(compared: Mapping[str, Introduction], method: MethodSettings) -> dict[str, str]:
    """Return by site why its adapter is not of the kind that is used; see `agree`."""
    kinds = {site: _kind_of(introduction, method) for site, introduction in compared.items()}
    common, problems = majority(kinds.values()), {}
    if common is None:  # the job's settings, which the server knows, contradict some
        wrong = refused_widths(_schemas(compared), method)
        common = majority(kind for site, kind in kinds.items() if site not in wrong)
        if common is not None:
            problems = wrong
    for site, kind in kinds.items():
        if kind != common and site not in problems:
            other = next(one for one, own in kinds.items() if own == common or (common is None and own != kind))
            problems[site] = _difference(other, compared[other], site, compared[site], method)
            problems[site] += NO_MAJORITY * (common is None)
    return problems


def _comparable(
    introductions: Mapping[str, Introduction], method: MethodSettings
) -> tuple[Mapping[str, Introduction], dict[str, str]]:
    """Return what to compare, a single layer for backbones of different depth, and why some cannot be matched."""
    deepest = method.matched_layers
    if deepest is None:
        return introductions, {}
    compared, problems = {}, {}
    for site, introduction in introductions.items():
        try:
            schema = one_layer(introduction.schema, deepest, owner=f"site {site}")
        except FedpeftError as error:
            problems[site] = str(error)
        else:
            compared[site] = replace(introduction, schema=schema)
    return compared, problems


def _kind_of(introduction: Introduction, method: MethodSettings) -> Hashable:
    """Return the properties that must be equal at all sites."""
    shapes = frozenset(_shapes(introduction.schema, method).items())
    slots = frozenset(introduction.slots.items())
    return introduction.family, slots, introduction.dtype, introduction.width, shapes


def _schemas(introductions: Mapping[str, Introduction]) -> dict[str, Schema]:
    return {site: introduction.schema for site, introduction in introductions.items()}


def _shapes(schema: Schema, method: MethodSettings) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes, with None where sites may differ."""
    return open_shapes(schema) if method.site_settings else {key: tuple(shape) for key, shape in schema.items()}


def _difference(first: str, expected: Introduction, site: str, own: Introduction, method: MethodSettings) -> str:
    if own.family != expected.family:
        return (
            f"site {site} has a backbone of family {own.family}, site {first} of {expected.family}: use backbones of "
            f"one family."
        )
    if own.slots != expected.slots:
        return (
            f"the adapters of sites {first} and {site} are in other modules of their backbones: install the same "
            f"transformers version everywhere."
        )
    if own.dtype != expected.dtype:
        return f"site {site} sends tensors of {own.dtype}, site {first} of {expected.dtype}: load the backbone alike."
    if method.matched_layers is None and _differ_in_layers(own.schema, expected.schema):
        return (
            f"sites {first} and {site} have {_depth(expected)} and {_depth(own)} layers: use one backbone, or set "
            f"method.matched_layers to the layers of the deepest."
        )
    if differing := set(own.schema) ^ set(expected.schema):
        return (
            f"the adapters of sites {first} and {site} differ: only one of them has {min(differing)}; "
            f"give both the same method.name and the same backbone."
        )
    common = _shapes(expected.schema, method)
    key = next((key for key, shape in _shapes(own.schema, method).items() if shape != common[key]), "")
    if not key:
        return (
            f"site {site} has a backbone of width {own.width} and site {first} one of width {expected.width}, in which "
            f"equal tensors mean something else: use the same backbone, or in backbone.sites equally wide ones."
        )
    if key.startswith(HEAD):
        return (
            f"site {site} has {own.classes} answers and site {first} {expected.classes}, and a federated head needs "
            f"the same at all sites: set data.answers."
        )
    if key.startswith(CONNECTOR):
        return (
            f"{key} has shape {own.schema[key]} at site {site} and {expected.schema[key]} at site {first}: give all "
            f"sites the same backbone.source and backbone.image_source, between which it maps."
        )
    if method.site_settings:
        return (
            f"site {site} has {key} with shape {own.schema[key]}, site {first} has it with {expected.schema[key]}: "
            f"nothing but an adapter's number of neurons may differ."
        )
    if method.matched_layers is not None:
        return (
            f"{key.replace('layer.0.', '')} has shape {own.schema[key]} in the layers of site {site} and "
            f"{expected.schema[key]} in those of site {first}: layers can be matched only if the backbones in "
            f"backbone.sites are equally wide and method.settings make equal adapters in them."
        )
    return (
        f"{key} has shape {own.schema[key]} at site {site} and {expected.schema[key]} at site {first}: use the "
        f"same backbone and method.settings, or declare the widths in method.site_settings."
    )


def _differ_in_layers(own: Schema, expected: Schema) -> bool:
    """Return whether two adapters differ only in their number of layers."""
    tensors = [{key.split(".", 2)[-1] if key.startswith("layer.") else key for key in s} for s in (own, expected)]
    return tensors[0] == tensors[1] and layers_of(own) != layers_of(expected)


def _depth(introduction: Introduction) -> int:
    return len(layers_of(introduction.schema))


def _bytes(schema: Schema, width: int) -> int:
    return sum(max(width * math.prod(shape), MIN_TENSOR) for shape in schema.values())
