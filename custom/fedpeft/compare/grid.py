# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Several values of settings of a job: a rate search runs all their combinations, a sweep those of one setting.

`training.learning_rate=1e-3,3e-3` names a setting and its values, which are read as YAML: lists and objects keep their
commas. A whole number of `federation.sites` is that many sites.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import is_number
from fedpeft.data.settings import NATURAL, DataSettings
from fedpeft.job.admission import MAX_SITES
from fedpeft.job.composing import check_sections, check_used
from fedpeft.job.yaml_values import parse_argument

SITES = "federation.sites"
SINGLE_SITE_SETTINGS = (
    ("backbone", "sites"),
    ("data", "sites"),
    ("method", "site_settings"),
    ("schedule", "joins"),
    ("schedule", "site_budgets"),
)
MAX_POINTS = 1000


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A setting, `section.name`, and its values."""

    setting: str
    values: tuple[Any, ...]

    @property
    def numbers(self) -> bool:
        """Whether all values are numbers."""
        return all(map(is_number, self.values))


@dataclass(frozen=True, kw_only=True)
class Point:
    """A value for each setting of a grid."""

    values: tuple[tuple[str, Any], ...]

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings as `section.name=value`, without a number of sites."""
        varied = ((name, value) for name, value in self.values if not _is_site_count(name, value))
        return tuple(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in varied)

    @property
    def label(self) -> str:
        """The settings as a table names them, without their sections."""
        return ", ".join(f"{name.rpartition('.')[2]}={shown(value)}" for name, value in self.values)

    def sections(self, compose: Callable[[Sequence[str]], dict[str, Any]], *, job: str = "") -> dict[str, Any]:
        """Return the checked sections of a job with these values, which `compose` sets as `section.name=value`.

        Where a `job` is named, it must read all of them.
        """
        sections = compose(self.overrides)
        if job:
            check_used(self.overrides, sections, job=job)
        for name, value in self.values:
            if _is_site_count(name, value):
                sections = _set_site_count(sections, value)
                check_sections(sections)
        return sections


def axis_of(text: str, *, option: str) -> Axis:
    """Read `section.name=value,value`; `option` is that of the command line, for messages."""
    setting, equals, listed = (part.strip() for part in text.partition("="))
    if not equals or not all(setting.split(".")) or "." not in setting:
        raise FedpeftError(
            f"{option} {text!r:.80} is not of the form section.name=value,value, e.g. training.batch_size=8,16."
        )
    try:
        values = parse_argument(f"[{listed}\n]")
    except ValueError as error:
        raise FedpeftError(f"{option} {text!r:.80} has a value that cannot be used ({error}): correct it.") from error
    texts = [shown(value) for value in values]
    if twice := [text for text in texts if texts.count(text) > 1]:
        raise FedpeftError(f"{option} {setting} has the value {twice[0]} twice: name each once.")
    if len(values) < 2:
        raise FedpeftError(f"{option} {setting} has {len(values)} value: name two or more, e.g. {setting}=A,B.")
    return Axis(setting=setting, values=tuple(values))


def points(axes: Sequence[Axis]) -> dict[str, Point]:
    """Return all combinations by their label, the last setting changing fastest."""
    names = [axis.setting for axis in axes]
    if twice := [name for name in names if names.count(name) > 1]:
        raise FedpeftError(f"{twice[0]} is named twice: give all its values at once, separated by commas.")
    combinations = list(itertools.product(*(axis.values for axis in axes)))
    if len(combinations) > MAX_POINTS:
        raise FedpeftError(
            f"the grid has {len(combinations):,} combinations: at most {MAX_POINTS:,}, name fewer values."
        )
    every = [Point(values=tuple(zip(names, values, strict=True))) for values in combinations]
    return {point.label: point for point in every}


def check_not_varied(axes: Iterable[Axis], given: Iterable[str]) -> None:
    """Refuse settings, as `section.name=value`, that a grid sets too."""
    names = {axis.setting for axis in axes}
    if twice := [text for text in given if text.partition("=")[0].strip() in names]:
        raise FedpeftError(f"{twice[0]!r:.80} sets what the grid varies: leave it out.")


MAX_SHORT = 2**63  # beyond it a whole number may be none of Python's floats


def shown(value: Any) -> str:
    """Return a value as a table shows it."""
    if isinstance(value, str):
        return value
    if not is_number(value) or (isinstance(value, int) and abs(value) > MAX_SHORT):
        return json.dumps(value)
    return short if float(short := f"{value:g}") == value else repr(value)


def _is_site_count(setting: str, value: Any) -> bool:
    return setting == SITES and is_number(value)


def _set_site_count(sections: Mapping[str, Any], count: Any) -> dict[str, Any]:
    """Return a job with `count` sites: the first ones, or that many sharing one data set (`data.partition`)."""
    federation, data = sections["federation"], sections["data"]
    sites = list(federation["sites"])
    if not isinstance(count, int) or count < 1:
        raise FedpeftError(f"{SITES}={count!r:.20} is no number of sites: name whole numbers from 1 on.")
    shared = data.get("partition", DataSettings.partition) != NATURAL
    if shared and count > MAX_SITES:
        raise FedpeftError(f"{SITES}={count!r:.20}, and a job has at most {MAX_SITES:,} sites: name fewer.")
    if shared:
        stem = sites[0].rstrip("0123456789")
        sites = [f"{stem}{number}" for number in range(1, count + 1)]
        data = {**data, "parts": count}
    elif count > len(sites):
        raise FedpeftError(f"{SITES}={count!r:.20}, and the job has {len(sites)} sites: name at most {len(sites)}.")
    result = {**sections, "data": data, "federation": {**federation, "sites": sites[:count]}}
    for section, name in SINGLE_SITE_SETTINGS:
        own = result.get(section, {}).get(name)
        if isinstance(own, Mapping):
            kept = {site: value for site, value in own.items() if site in sites[:count]}
            result[section] = {**result[section], name: kept}
    return result
