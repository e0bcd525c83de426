# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Round 0: check version, family, keys, shapes and dtype; a site that differs from the others does not take part."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

import torch

from fedpeft.alignment.checks import check_alike
from fedpeft.errors import FedpeftError
from fedpeft.keys import HEAD
from fedpeft.messages.limits import MB, Limit
from fedpeft.messages.types import Introduction, Schema
from fedpeft.methods.settings import MethodSettings

SLACK = 16 * MB  # for fields other than tensors, and FLARE's headers
INTRODUCTION = Limit(SLACK, "an introduction holds names and numbers; look at the log there.")


def limit_of_replies(introductions: Iterable[Introduction], *, most_mb: int, masked: bool) -> Limit:
    """Limit the size of replies by the announced adapters.

    Args:
        introductions: of the sites that take part.
        most_mb: megabytes that no reply may exceed.
        masked: whether tensors are masked for a secure sum: 8 bytes a value then.
    """
    size = max((_bytes(i.schema, 8 if masked else getattr(torch, i.dtype).itemsize) for i in introductions), default=0)
    expected = size + size // 10 + SLACK
    if expected > most_mb * MB:
        return Limit(most_mb * MB, "raise federation.largest_reply_mb if replies are so large.")
    return Limit(expected, "the adapter that was announced is smaller; look at the log there.")


def agree(
    introductions: Mapping[str, Introduction], *, version: str, method: MethodSettings
) -> tuple[dict[str, Introduction], dict[str, str]]:
    """Split the sites into those with the same kind of adapter, and the reasons why others cannot take part.

    The most frequent kind of adapter is used; of two equally frequent ones, that of the first site.

    Args:
        introductions: by site, each checked on its own.
        version: the server's.
        method: whether adapters are exchanged, and whether their widths may differ.
    """
    problems = {
        site: f"site {site} runs fedpeft {introduction.version}, the server {version}: install the same version "
        f"everywhere."
        for site, introduction in introductions.items()
        if introduction.version != version
    }
    if method.secure_sum:
        problems |= {
            site: f"site {site} sent no key for the secure sum: install the same fedpeft version everywhere."
            for site, introduction in introductions.items()
            if not introduction.sum_key and site not in problems
        }
    problems |= {
        site: f"site {site} {'lacks' if method.federates_head else 'announces'} a head, and the job's method.head is "
        f"{method.head!r}: install the same fedpeft version everywhere."
        for site, introduction in introductions.items()
        if site not in problems and method.exchanges
        if any(key.startswith(HEAD) for key in introduction.schema) != method.federates_head
    }
    able = {site: introduction for site, introduction in introductions.items() if site not in problems}
    if not able or not method.exchanges:
        return able, problems
    kinds = {site: _kind(introduction, method) for site, introduction in able.items()}
    common, _ = Counter(kinds.values()).most_common(1)[0]
    first = next(site for site, kind in kinds.items() if kind == common)
    for site, kind in kinds.items():
        try:
            if kind != common:
                raise FedpeftError(_difference(first, able[first], site, able[site]))
            if method.site_settings:
                model, own = (_shapes_only(able[name].schema) for name in (first, site))
                check_alike(own, f"site {site}", model, f"site {first}")
        except FedpeftError as error:
            problems[site] = str(error)
    return {site: introduction for site, introduction in able.items() if site not in problems}, problems


def _kind(introduction: Introduction, method: MethodSettings) -> Hashable:
    """The properties that must be equal at all sites."""
    shapes = introduction.schema.items()
    widths = frozenset((key, None if method.site_settings else tuple(shape)) for key, shape in shapes)
    return introduction.family, frozenset(introduction.slots.items()), introduction.dtype, widths


def _difference(first: str, expected: Introduction, site: str, own: Introduction) -> str:
    if own.family != expected.family:
        return (
            f"site {site} has a backbone of family {own.family}, site {first} of {expected.family}: use one backbone."
        )
    if own.slots != expected.slots:
        return (
            f"the adapters of sites {first} and {site} are in other modules of their backbones: install the same "
            f"transformers version everywhere."
        )
    if own.dtype != expected.dtype:
        return f"site {site} sends tensors of {own.dtype}, site {first} of {expected.dtype}: load the backbone alike."
    if differing := set(own.schema) ^ set(expected.schema):
        return (
            f"the adapters of sites {first} and {site} differ: only one of them has {min(differing)}; "
            f"give both the same method.name and the same backbone."
        )
    key = next(key for key, shape in own.schema.items() if shape != expected.schema[key])
    if key.startswith(HEAD):
        return (
            f"site {site} has {own.classes} answers and site {first} {expected.classes}, and a federated head needs "
            f"the same at all sites: set data.answers."
        )
    return (
        f"{key} has shape {own.schema[key]} at site {site} and {expected.schema[key]} at site {first}: use the "
        f"same backbone and method.settings, or declare the widths in method.site_settings."
    )


def _bytes(schema: Schema, width: int) -> int:
    return width * sum(math.prod(shape) for shape in schema.values())


def _shapes_only(schema: Schema) -> dict[str, torch.Tensor]:
    return {key: torch.empty(shape, device="meta") for key, shape in schema.items()}
