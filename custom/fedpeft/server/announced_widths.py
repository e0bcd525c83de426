# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Hold the widths or ranks that sites announce against those that the job's settings give them.

Where sites may differ in them (`method.site_settings`), no comparison of shapes bounds one site's: the global adapter
would become as wide as the widest, for the server that aligns it and for every site that receives it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

import torch

from fedpeft.alignment.checks import check_alike
from fedpeft.alignment.neurons import Neurons, neurons_of
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import by_place, layer_of
from fedpeft.methods.setting_limits import MOST_WIDTH
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.reply_contract import RESTART
from fedpeft.protocol.types import Schema

NO_MAJORITY = " No kind is that of more than half of the sites, so that none of them takes part."


def majority(values: Iterable[Hashable]) -> Hashable | None:
    """Return the value that more than half have, None if there is none."""
    counts = Counter(values)
    value, count = counts.most_common(1)[0]
    return value if 2 * count > counts.total() else None


def refused_widths(schemas: Mapping[str, Schema], method: MethodSettings) -> dict[str, str]:
    """Return, by site, why it announces another width than its settings give; sites that are right are not in it.

    A method whose code does not say how wide its settings make an adapter is held to `MOST_WIDTH`.

    Args:
        schemas: by site, what it announced; of backbones of different depth with one layer (`layer_matching`).
        method: of the job.
    """
    refused = {}
    for site, schema in schemas.items():
        try:
            _check_widths(site, schema, method)
        except FedpeftError as error:
            refused[site] = str(error)
    return refused


def unlike_equals(schemas: Mapping[str, Schema], method: MethodSettings) -> dict[str, str]:
    """Return, by site, why it differs from most sites of equal settings; without a majority all of them are refused.

    Args:
        schemas: by site, of the same keys.
        method: of the job.
    """
    groups: dict[str, dict[str, frozenset[tuple[str, tuple[int, ...]]]]] = {}
    for site, schema in schemas.items():
        settings = json.dumps(method.settings_of(site), sort_keys=True, default=str)
        groups.setdefault(settings, {})[site] = frozenset((key, tuple(shape)) for key, shape in schema.items())
    refused = {}
    for group in groups.values():
        usual = majority(group.values())
        for site, shapes in group.items():
            if shapes == usual:
                continue
            other = next(one for one, own in group.items() if own == usual or (usual is None and own != shapes))
            key = min(key for key, _ in shapes ^ group[other])
            refused[site] = (
                f"site {site} has {key} with shape {schemas[site][key]} and site {other} with {schemas[other][key]}, "
                f"and method.site_settings gives both the same settings: use the same backbone, or declare their "
                f"widths there." + NO_MAJORITY * (usual is None)
            )
    return refused


def open_shapes(schema: Schema) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes with None at the axes in which sites may differ, those of the hidden neurons."""
    shapes: dict[str, tuple[int | None, ...]] = {}
    for names in by_place(schema).values():
        kind = neurons_of(names)
        axes = {**kind.incoming, **kind.outgoing} if kind else {}
        for name, key in names.items():
            shapes[key] = tuple(None if axis == axes.get(name) else size for axis, size in enumerate(schema[key]))
    return shapes


def _check_widths(site: str, schema: Schema, method: MethodSettings) -> None:
    """Refuse an adapter whose tensors differ in the number of neurons, or of another width than its settings give."""
    shapes = {key: torch.empty(shape, device="meta") for key, shape in schema.items()}
    check_alike(shapes, f"site {site}", shapes, f"site {site}")
    for names in by_place(schema).values():
        if (kind := neurons_of(names)) is None:
            continue
        tensors = {name: shapes[key] for name, key in names.items()} | {key: shapes[key] for key in kind.shared}
        first, stream = _incoming(kind, tensors)
        key, own = names[first], kind.width(tensors)
        given = _given(site, method, layer_of(key) or 0, stream)
        if own not in given if given else own > MOST_WIDTH:
            expected = " or ".join(map(str, sorted(given))) or f"at most {MOST_WIDTH}"
            raise FedpeftError(
                f"site {site} announces {own} neurons in {key} of shape {list(schema[key])!r:.60}, method.settings and "
                f"method.site_settings give it {expected}: {RESTART}."
            )


def _given(site: str, method: MethodSettings, layer: int, stream: int) -> frozenset[int]:
    """Return the widths that a site may have in a layer, where layers are matched in any; empty: the code says none."""
    width = getattr(method.method.tuning(), "width", None)
    layers = [layer] if method.matched_layers is None else range(method.matched_layers)
    try:
        given = {width(method.settings_of(site), number, stream) if width else None for number in layers}
    except FedpeftError as error:
        raise FedpeftError(f"site {site} announces layers of width {stream}, for which {error}") from error
    return frozenset() if None in given else frozenset(given)


def _incoming(kind: Neurons, tensors: Mapping[str, torch.Tensor]) -> tuple[str, int]:
    """Return the first tensor that holds incoming weights, and the width of the stream that they read."""
    name, axis = next((name, axis) for name, axis in kind.incoming.items() if name in tensors)
    others = [size for place, size in enumerate(tensors[name].shape) if place != axis]
    return name, others[-1] if others else 0
