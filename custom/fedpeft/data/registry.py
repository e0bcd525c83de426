# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which data sets there are: a name, the module that loads it (imported on first use), and whether it is procedural."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from fedpeft.data.errors import DataError

if TYPE_CHECKING:
    from fedpeft.data.schema import DataSettings, SiteData


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    module: str
    procedural: bool


_ENTRIES: dict[str, _Entry] = {}


def register(name: str, module: str, *, procedural: bool = False) -> None:
    """Make `DataSettings(dataset=name)` load through `module.load(settings)`.

    Args:
        name: the data set's name in settings.
        module: dotted name of a module with `load(settings: DataSettings) -> SiteData`.
        procedural: the data are computed, not measured; every table and picture made from them says so.

    Raises:
        DataError: the name is taken.
    """
    if name in _ENTRIES:
        raise DataError(f"Data set {name!r} is already registered by {_ENTRIES[name].module}; choose another name.")
    _ENTRIES[name] = _Entry(module=module, procedural=procedural)


def names() -> tuple[str, ...]:
    """Names of all registered data sets, in the order of their registration."""
    return tuple(_ENTRIES)


def require_known(name: object) -> None:
    """Refuse a data set name that is not registered; the error lists the known ones."""
    if not isinstance(name, str) or name not in _ENTRIES:
        raise DataError(
            f"dataset={name!r} is not a known data set; choose one of {', '.join(_ENTRIES)}.", setting="dataset"
        )


def is_procedural(name: str) -> bool:
    """True where the data set is computed (phantom), false where it was measured on people."""
    require_known(name)
    return _ENTRIES[name].procedural


def load(settings: DataSettings) -> SiteData:
    """One site's train, validation and test examples; image files are checked for existence, not decoded.

    Raises:
        DataError: the data are missing, incomplete or empty; one sentence says which file and what to do.
    """
    data = import_module(_ENTRIES[settings.dataset].module).load(settings)
    if settings.exclude:
        data = data.without_images(settings.exclude)
    if not data.validation and settings.validation_fraction > 0 and settings.validation_size != 0:
        raise DataError(
            f"Site {data.site!r} has no validation example; give it some, or set validation_fraction=0 to do without."
        )
    return data
