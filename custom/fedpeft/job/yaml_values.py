# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read and write YAML that holds only what JSON can hold: plain values, no aliases, no deep nesting."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import yaml

from fedpeft.core.registry import Registry

MAX_LEVELS = 20
KEPT_TEXTS = 64  # a command reads the same few files again and again


class _Loader(yaml.SafeLoader):
    """Reads 1e-4 as a number (YAML 1.1 requires 1.0e-4), and refuses aliases and deep nesting."""

    level = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("aliases (*name) are not allowed, write the value again")
        self.level += 1
        if self.level > MAX_LEVELS:
            raise ValueError(f"it is nested more than {MAX_LEVELS} levels deep")
        node = super().compose_node(parent, index)
        self.level -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """Puts texts that `_Loader` reads as numbers in quotes, and writes a value again where it occurs twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for reader_or_writer in (_Loader, _Dumper):
    reader_or_writer.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )


def parse(text: str) -> Any:
    """Return the value of a YAML text: None, text, numbers, lists and objects whose names are text."""
    return copy.deepcopy(_parsed(text))


@lru_cache(maxsize=KEPT_TEXTS)
def _parsed(text: str) -> Any:
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not readable"
        mark = getattr(error, "problem_mark", None)
        raise ValueError(problem + (f", line {mark.line + 1}, column {mark.column + 1}" if mark else "")) from error
    _check(value)
    return value


def write(value: Any, *, flow: bool | None = False) -> str:
    """Return the YAML of a value, from which `parse` makes it again; flow None: the innermost lists on one line."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=flow)
    if parse(text) != value:
        raise ValueError("it would be read as something else")
    return text


def _check(value: Any) -> None:
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"the name {name!r:.40} is not text, put it in quotes")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    elif not isinstance(value, (list, str, int, float, type(None))):
        raise ValueError(f"{value!s:.40} is of the kind {type(value).__name__}, which JSON lacks; put it in quotes")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check(inner)


TASKS: Registry[Mapping[str, Any]] = Registry("task", "fedpeft.tasks", Mapping)
