# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read and write YAML that holds only what JSON can hold: plain values, no aliases, no deep nesting."""

from __future__ import annotations

import copy
import math
import re
from functools import lru_cache
from typing import Any

import yaml

MAX_LEVELS = 20
KEPT_TEXTS = 64  # a command reads the same few files again and again
# decimal numbers, as in YAML 1.2, but without leading zeros; whole ones are tried first
WHOLE = r"(0|[1-9][0-9]*)"
NUMBERS = {
    "tag:yaml.org,2002:int": rf"[-+]?{WHOLE}",
    "tag:yaml.org,2002:float": rf"[-+]?(({WHOLE}(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|\.(inf|Inf|INF|nan|NaN|NAN))",
}
OF_OLD_YAML = (*NUMBERS, "tag:yaml.org,2002:timestamp")


class _Loader(yaml.SafeLoader):
    """Reads only decimal numbers as numbers, 1e-4 too, and refuses aliases and deep nesting.

    What else YAML 1.1 takes for a number or a date is text, as it is written: 010 (there 8), 1:30 (90), 0x10, 1_000 and
    2024-01-31. So a site may have such a name, and a setting that must be a number is refused with it.
    """

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

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            return super().construct_mapping(node, deep=deep)  # which refuses it
        names = [name.value for name, _ in node.value if isinstance(name, yaml.ScalarNode)]
        if twice := next((name for number, name in enumerate(names) if name in names[:number]), None):
            raise ValueError(f"the name {twice!r:.40} is there twice, from line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """Puts texts that `_Loader` or YAML 1.1 reads as numbers in quotes, and writes a value again where it is twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in OF_OLD_YAML]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for reader_or_writer in (_Loader, _Dumper):
    for number, form in NUMBERS.items():
        reader_or_writer.add_implicit_resolver(number, re.compile(f"^({form})$"), list("-+.0123456789"))


def parse(text: str) -> Any:
    """Return the value of a YAML text: None, text, numbers, lists and objects whose names are text."""
    return copy.deepcopy(_parsed(text))


def parse_argument(text: str) -> Any:
    """Return the value of a command's argument; refuse what would be a comment."""
    value, held = parse(text), bytearray(len(text))
    for token in yaml.scan(text, Loader=_Loader):
        held[token.start_mark.index : token.end_mark.index] = b"1" * (token.end_mark.index - token.start_mark.index)
    if any(character == "#" and not inside for character, inside in zip(text, held, strict=True)):
        raise ValueError("what follows # would be left out as a comment, put the value in quotes")
    return value


@lru_cache(maxsize=KEPT_TEXTS)
def _parsed(text: str) -> Any:
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not readable"
        mark = getattr(error, "problem_mark", None)
        raise ValueError(problem + (f", line {mark.line + 1}, column {mark.column + 1}" if mark else "")) from error
    except (KeyError, IndexError, AttributeError, TypeError) as error:
        raise ValueError("a tag (!!...) does not fit its value") from error
    _check(value)
    return value


def write(value: Any, *, flow: bool | None = False) -> str:
    """Return the YAML of a value, which `parse` reads back; flow None: the innermost lists on one line."""
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
