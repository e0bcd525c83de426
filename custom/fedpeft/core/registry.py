# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Registries of objects by name: the package's own, one registration line each, and those of installed plugins.

A plugin is a Python package that declares entry points; the groups are listed in docs/own_method.md:

    [project.entry-points."fedpeft.scores"]
    my_score = "my_package.my_score:my_score"

Every process that looks up a name finds the plugins, the training process included. A job can name a plugin that is
installed at a site; it cannot bring one. The processes of a site in a consortium know only the plugins that the site
policy lists (`only_plugins`), so that no loop over all names imports another one.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import suggestion

T = TypeVar("T")
_listed: Mapping[str, Collection[str]] | None = None  # by group of entry points; None: all that are installed


def only_plugins(listed: Mapping[str, Collection[str]] | None) -> None:
    """From now on let this process look up only these plugins, without importing them; None: all."""
    global _listed
    _listed = listed


class Registry(Generic[T]):
    """Names of one kind and the object of each, imported when it is first used.

    Args:
        kind: what the names stand for, as in error messages.
        group: entry points of this group are registered as well.
        form: the class of the objects, which a plugin's must have.
    """

    def __init__(self, kind: str, group: str, form: Any = object) -> None:
        self.kind, self.group, self.form = kind, group, form
        self._own: dict[str, str | T] = {}
        self._skipped: set[str] = set()

    def register(self, name: str, home: str | T) -> None:
        """Register an object of this package or of a notebook.

        Args:
            name: as settings write it.
            home: the object, or its import path "package.module:object", which is imported when it is first used.

        Raises:
            FedpeftError: the name is taken, or the object is of another kind.
        """
        if not isinstance(home, str | self.form):
            raise FedpeftError(
                f"{self.kind} {name!r} is of type {type(home).__name__}, not {self.form.__name__}: "
                f"register another object."
            )
        if name in self._own or name in self._plugins:
            raise self._taken(name, self.place(name), _described(home))
        self._own[name] = home

    def names(self) -> tuple[str, ...]:
        """Return the package's own names, in the order of their registration, then those of listed plugins."""
        return (*self._own, *filter(self._is_listed, self._plugins))

    def own_names(self) -> tuple[str, ...]:
        """Return the names that come with the package, without those of plugins."""
        return tuple(self._own)

    def usable(self) -> Iterator[tuple[str, T]]:
        """Yield each name with its object; plugins that cannot be imported are left out and logged once."""
        for name in self.names():
            try:
                usable = self.get(name)
            except FedpeftError as error:
                self.skip(name, error)
                continue
            yield name, usable

    def skip(self, name: str, error: Exception) -> None:
        """Log once that a plugin is left out; raise an error of the package's own."""
        if not self.is_plugin(name):
            raise error
        if name not in self._skipped:
            self._skipped.add(name)
            logging.getLogger(__name__).warning("%s", error)

    def is_plugin(self, name: str) -> bool:
        """Return whether a name is that of an installed plugin, listed or not."""
        return name in self._plugins

    def place(self, name: str) -> str:
        """Return where the object of a name is defined, for messages and lists."""
        point = self._plugins.get(name)
        return _described(self._own[name]) if point is None else f"{_package(point)} ({point.value})"

    def get(self, name: str) -> T:
        """Return the object of a name.

        Raises:
            FedpeftError: the name is unknown or not listed, or the plugin that has it cannot be imported or is of
                another kind.
        """
        if name in self._own:
            home = self._own[name]
            return imported(home) if isinstance(home, str) else home
        if name not in self._plugins or not self._is_listed(name):
            raise FedpeftError(f"{self.kind} {name!r} is unknown: {suggestion(name, self.names())}.")
        point = self._plugins[name]
        try:
            loaded = point.load()
            if not isinstance(loaded, self.form):
                raise TypeError(f"it is of type {type(loaded).__name__}, not {self.form.__name__}")
            return cast(T, loaded)
        except Exception as error:
            raise FedpeftError(
                f"{self.kind} {name!r} cannot be used from {_package(point)} ({type(error).__name__}: {error}): "
                f"update or uninstall that package.",
                code="plugin-unusable",
            ) from error

    def _is_listed(self, plugin: str) -> bool:
        return _listed is None or plugin in _listed.get(self.group, ())

    @cached_property
    def _plugins(self) -> dict[str, EntryPoint]:
        points: dict[str, EntryPoint] = {}
        for point in sorted(entry_points(group=self.group), key=lambda point: (point.name, point.value)):
            if point.name in self._own:
                raise self._taken(point.name, _described(self._own[point.name]), _package(point))
            if point.name in points and points[point.name].value != point.value:
                raise self._taken(point.name, _package(points[point.name]), _package(point))
            points[point.name] = point
        return points

    def _taken(self, name: str, first: str, second: str) -> FedpeftError:
        return FedpeftError(
            f"{self.kind} {name!r} is registered by {first} and by {second}: rename or uninstall one of them."
        )


def imported(home: str) -> Any:
    """Import and return the object at "package.module:object"."""
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)


def _described(home: object) -> str:
    return home if isinstance(home, str) else str(getattr(home, "__module__", type(home).__module__))


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name} {point.dist.version}" if point.dist else point.module


def lazy_module(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__` (PEP 562), which import each public name from its module.

    Args:
        package: the package's `__name__`.
        homes: the module of each public name: one of the package's own, or a whole path that begins with `fedpeft.`.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        return getattr(import_module(home if home.startswith("fedpeft.") else f"{package}.{home}"), name)

    return find, lambda: sorted({*vars(sys.modules[package]), *homes})
