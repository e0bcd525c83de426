# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Build settings dataclasses from JSON and refuse unknown names, wrong types and wrong values."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

from fedpeft.core.errors import FedpeftError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
JOB = "the job's configuration"
MAX_SECONDS = 10_000_000  # of any wait that a job sets
MAX_ROUNDS = 10_000  # what a report reads; names of checkpoints have five digits
BY_SITE = types.MappingProxyType({"by_site": True})  # metadata of a field that names single sites
OWNER = "settings_of"  # metadata of a field: the field whose value these are settings of
READ_WITH = "read_with"  # metadata: by other field, the values with which this one is read; None: any but the default
BOUNDS, MAX_BY, MIN_BY = "bounds", "max_by", "min_by"  # metadata that `within` declares
WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number", Path: "a text"}


def is_whole(value: Any) -> TypeGuard[int]:
    """Return whether a value is an integer, and neither true nor false."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is an integer or float, and neither true nor false."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number, and neither true nor false."""
    return is_number(value) and math.isfinite(value)


@functools.cache  # the types are written as strings, which take longer to read than a section
def hints_of(declared: Any) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields, or of a function's arguments."""
    return types.MappingProxyType(typing.get_type_hints(declared))


def build(cls: type[T], values: Mapping[str, Any] | None, *, section: str, source: str = JOB) -> T:
    """Build the dataclass `cls` from a JSON object; check names, types and values.

    None means that FLARE handed over no object; errors begin with the section, such as `training`.
    """
    values = check_types(cls, values, section=section, source=source)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = hints_of(cls)
    try:
        return cls(**{name: _convert(value, hints[name]) for name, value in values.items()})
    except FedpeftError as error:
        if error.setting.startswith(f"{section}."):  # of a nested section, which names the whole path
            raise
        where = f"{section}.{error.setting}" if error.setting else section
        raise type(error)(f"{section}: {error}", setting=where, code=error._code) from error
    except OverflowError as error:
        raise FedpeftError(f"{section} has a number that is too large: correct {source}.", setting=section) from error
    except TypeError as error:
        missing = [n for n, f in fields.items() if n not in values and _required(f)]
        if not missing:  # a value of a type that the class does not check
            raise FedpeftError(f"{section} has a wrong value ({error}): correct {source}.", setting=section) from error
        raise FedpeftError(
            f"{section} lacks {', '.join(missing)}: add it to {source}.", setting=f"{section}.{missing[0]}"
        ) from error


def check_types(cls: type, values: Mapping[str, Any] | None, *, section: str, source: str = JOB) -> Mapping[str, Any]:
    """Return the JSON object of a dataclass; refuse unknown names, None and wrong types; see `build`."""
    if values is None:
        raise _undefined(section, source)
    if not isinstance(values, Mapping):
        raise FedpeftError(
            f"{section} must be an object of settings, not {values!r}: correct {source}.",
            setting=section,
        )
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = hints_of(cls)
    for name, value in values.items():
        where = f"{section}.{name}"
        if name not in fields:
            raise FedpeftError(f"{where} is not a setting: {suggestion(name, fields)}.", setting=where)
        if value is None:
            raise _undefined(where, source)
        if not fits(value, hints[name]):
            raise FedpeftError(
                f"{where} is {value!r:.200}, it must be {expected(hints[name])}: correct {source}.", setting=where
            )
    return values


def nested(cls: type[T], value: T | Mapping[str, Any], *, section: str) -> T:
    """Build a section within a section from a JSON object; one that is built already is returned as it is."""
    return value if isinstance(value, cls) else build(cls, cast(Mapping[str, Any], value), section=section)


@contextmanager
def about(setting: str, *, where: str = "") -> Iterator[None]:
    """Add a setting's name to errors in this block that name none, and put `where`, if any, before their sentence."""
    try:
        yield
    except FedpeftError as error:
        error.setting = error.setting or setting
        if where:
            raise type(error)(f"{where}: {error}", setting=error.setting, code=error.code) from error
        raise


def within(
    minimum: float, maximum: float = math.inf, *, exclusive: bool = False, max_by: str = "", min_by: str = ""
) -> Mapping[str, Any]:
    """Return the metadata of a field that holds a number, for `check_ranges`; the range is that of `between`.

    `max_by` and `min_by` name the settings of the site policy that bound it at that site.
    """
    return {BOUNDS: (minimum, maximum, exclusive), MAX_BY: max_by, MIN_BY: min_by}


SECONDS = within(1, MAX_SECONDS)


def check_ranges(settings: DataclassInstance) -> None:
    """Refuse numbers out of the range that their field declares, and any that is not finite; None is no number."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise FedpeftError(f"{field.name} is {value!r}, it must be a finite number.", setting=field.name)
        if BOUNDS in field.metadata and value is not None:
            minimum, maximum, exclusive = field.metadata[BOUNDS]
            between(field.name, value, minimum, maximum, exclusive=exclusive)


def one_of(name: str, value: Any, allowed: typing.Iterable[Any]) -> None:
    """Refuse a value outside a closed set; the error names argument, value, all allowed values and the closest."""
    allowed = tuple(allowed)
    if value not in allowed:
        close = difflib.get_close_matches(str(value), map(str, allowed), n=1)
        meant = f"; did you mean {close[0]!r}?" if close else "."
        raise FedpeftError(f"{name} is {value!r}, allowed are {', '.join(map(str, allowed))}{meant}", setting=name)


def at_least(name: str, value: float, minimum: float, *, exclusive: bool = False) -> None:
    """Refuse a number below `minimum` (or equal to it, if `exclusive`), NaN, infinity, and anything but a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise FedpeftError(f"{name} is {value!r:.200}, it must be a number.", setting=name)
    if not (value > minimum if exclusive else value >= minimum):
        raise FedpeftError(
            f"{name} is {value!r}, it must be {'above' if exclusive else 'at least'} {minimum}.", setting=name
        )
    if value == math.inf:
        raise FedpeftError(f"{name} is {value!r}, it must be a finite number.", setting=name)


def between(name: str, value: float, minimum: float, maximum: float, *, exclusive: bool = False) -> None:
    """Refuse a number as `at_least` does, and one above `maximum`: a job must not set unlimited times or amounts."""
    at_least(name, value, minimum, exclusive=exclusive)
    if value > maximum:
        raise FedpeftError(f"{name} is {value!r:.80}, it must be at most {maximum:,}.", setting=name)


def single_site_settings(settings: DataclassInstance) -> Iterator[str]:
    """Yield the names of all settings of a section, and of sections in it, that are set and name single sites."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.metadata.get("by_site") and value:
            yield field.name
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from (f"{field.name}.{name}" for name in single_site_settings(value))


def drop_former_settings(
    cls: type[DataclassInstance], values: Mapping[str, Any], chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a section's values without settings that belong to a replaced value, such as another score."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    former = {
        name
        for name, field in fields.items()
        if (owner := field.metadata.get(OWNER)) in chosen and chosen[owner] != values.get(owner, fields[owner].default)
    }
    return {name: value for name, value in values.items() if name not in former}


def unread(cls: type[DataclassInstance], values: Mapping[str, Any], name: str) -> str | None:
    """Return what a section must also set for one of its settings to be read; None: it is read, or is the default."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    return None if name not in fields or values.get(name) == fields[name].default else unmet(cls, values, name)


def unmet(cls: type[DataclassInstance], values: Mapping[str, Any], name: str) -> str | None:
    """Return what a section must also set for one of its settings to be read, also if that is the default."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    read_with = fields[name].metadata.get(READ_WITH, {})
    for other, needed in read_with.items():
        value, default = values.get(other, fields[other].default), fields[other].default
        if value == default if needed is None else value not in needed:
            return other if needed is None else f"{other}={' or '.join(str(one).lower() for one in needed)}"
    return None


def no_settings(owner: str, values: Mapping[str, Any] | None) -> None:
    """Refuse any settings for something that has none."""
    if values:
        raise FedpeftError(f"{owner} has no setting {next(iter(values))!r}: leave it out, {owner} has none.")


def suggestion(name: str, known: typing.Iterable[str]) -> str:
    """Return what to write instead of an unknown name: the closest known one, or all of them."""
    if not (known := sorted(known)):
        return "leave it out, there are none"
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {close[0]!r}" if close else f"known are {', '.join(known)}"


def _undefined(where: str, source: str) -> FedpeftError:
    return FedpeftError(f"{where} is None: give it a value in {source}, or leave it out.", setting=where)


def _required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(value: Any, hint: Any) -> Any:
    if isinstance(value, list) and _origin_is(hint, tuple):
        return tuple(value)
    return float(value) if hint is float else value


def expected(hint: Any) -> str:
    """Describe what a setting of a declared type must be; None is left out, as no job may write it."""
    words = (_describe(part) for part in _alternatives(hint) if part is not types.NoneType)
    return " or ".join(dict.fromkeys(words))


def _describe(hint: Any) -> str:
    kind = typing.get_origin(hint) or hint
    items = [part for part in typing.get_args(hint) if part is not Ellipsis]
    if dataclasses.is_dataclass(kind) or (kind in (Mapping, dict) and items[-1:] in ([], [typing.Any])):
        return "an object of settings"
    if kind is Mapping:
        return f"an object of {expected(items[-1]).removeprefix('a ')}s"
    if kind is typing.Literal:
        return expected(type(items[0]))
    if kind in (tuple, list):
        return f"a list of {expected(items[0]).removeprefix('a ')}s" if items else "a list"
    return WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def _origin_is(hint: Any, kind: type) -> bool:
    return any(part is kind or typing.get_origin(part) is kind for part in _alternatives(hint))


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a JSON value has a declared type, its items too.

    An int passes as float, a list as tuple, a bool as no number.
    """
    return any(_fits_one(value, part) for part in _alternatives(hint))


def _fits_one(value: Any, hint: Any) -> bool:
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is typing.Any:
        return True
    if kind is typing.Literal:
        return type(value) in map(type, inner)
    if kind in (int, float):
        return is_whole(value) if kind is int else is_number(value)
    if kind in (tuple, list):
        return isinstance(value, (list, tuple)) and all(fits(item, inner[0]) for item in value if inner)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(fits(item, inner[1]) for item in value.values() if inner)
    return isinstance(kind, type) and isinstance(value, kind)


def differing(stored: Mapping[str, Any], now: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Return the names, as in `training.rounds`, of the settings that differ from those stored as JSON.

    A setting that an earlier version did not know, and so did not store, had its default.
    """
    before, today, known = (_flat(json.loads(json.dumps(settings))) for settings in (stored, now, defaults))
    names = sorted(before.keys() | today.keys())
    return [name for name in names if before.get(name, known.get(name)) != today.get(name)]


PATTERNS = "_pattern"  # PEFT's settings with this end are patterns of names, of which the first that matches counts


def orders_of(settings: Mapping[str, Any]) -> str:
    """Return the patterns in some settings, at any depth, in their order."""
    every = sorted(settings.items(), key=lambda one: str(one[0]))
    found = [f"{name}: {list(value)}" for name, value in every if _is_ordered(name, value)]
    return "".join([*found, *(orders_of(value) for _, value in every if isinstance(value, Mapping))])


def _is_ordered(name: str, value: Any) -> bool:
    return str(name).endswith(PATTERNS) and isinstance(value, Mapping) and bool(value)


def value_at(settings: Mapping[str, Any], name: str) -> Any:
    """Return the value of a setting by its name from `differing`; None: there is none."""
    return _flat(settings).get(name)


def _flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(settings, Mapping) or not settings:
        return {prefix: settings}
    flat: dict[str, Any] = {prefix: list(settings)} if _is_ordered(prefix, settings) else {}
    for name, value in settings.items():
        flat |= _flat(value, f"{prefix}.{name}" if prefix else name)
    return flat
