# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The three forms in which a user names target modules, and conversions between them.

role -> template     {"output": "encoder.layer.{layer}.output"}, the form that the rest of the package uses
PEFT's list          ["attention.output", "output"]: modules whose path is, or ends with, one of these names
PEFT's pattern       ".*[.]output": modules whose whole path matches
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedpeft.backbones.slots import SLOTS, check_template
from fedpeft.backbones.structure import family_of, model_roles
from fedpeft.core.errors import FedpeftError

if TYPE_CHECKING:
    from torch import nn

_PARENT = r"(?:.*\.)?"
_NUMBER = r"\d+"


def check_targets(targets: object, method: str) -> None:
    """Refuse `target_modules` in none of the three forms, and templates without ``{layer}``.

    Raises:
        FedpeftError: naming the value and the forms.
    """
    if isinstance(targets, Mapping) and targets:
        for role, template in targets.items():
            check_template(role, template)
        return
    names = isinstance(targets, list | tuple | set) and bool(targets) and all(isinstance(name, str) for name in targets)
    if not names and not (isinstance(targets, str) and targets and targets != "all-linear"):
        raise FedpeftError(
            f"{method}: target_modules={targets!r} must map roles to module paths, for instance "
            "{'output': 'encoder.layer.{layer}.output'}, list names of modules, or be a pattern of their paths."
        )
    if isinstance(targets, str):
        try:
            re.compile(targets)
        except re.error as error:
            raise FedpeftError(f"{method}: target_modules={targets!r} is not a valid pattern ({error}).") from error


def templates_of(targets: str | Sequence[str], model: nn.Module) -> dict[str, str]:
    """Return role -> template of the modules that PEFT's pattern or list selects.

    The number in a path is its layer. A place with a role gets its name; any other is named after what follows the
    number, ``blocks.3.mlp.fc1`` is ``mlp_fc1``.

    Args:
        targets: as PEFT takes them.
        model: whose modules they select.

    Raises:
        FedpeftError: no module is selected, one whose path has no number or several, or two towers.
    """
    templates: dict[str, str] = {}
    known = known_roles(model)
    for path in filter(lambda path: _selected(path, targets), (path for path, _ in model.named_modules())):
        parts = path.split(".")
        numbers = [index for index, part in enumerate(parts) if part.isdigit()]
        if len(numbers) != 1:
            raise FedpeftError(
                f"target_modules={targets!r} selects {path}, which has {len(numbers)} numbers, not one for "
                "the layer: write target_modules={'role': 'path.{layer}.to.module'}."
            )
        index = numbers[0]
        template = ".".join([*parts[:index], "{layer}", *parts[index + 1 :]])
        role = _role(template, "_".join(parts[index + 1 :]), known)
        if templates.setdefault(role, template) != template:
            raise FedpeftError(
                f"target_modules={targets!r} selects {templates[role]} and {template}, which would both be called "
                f"{role!r}: write target_modules={{role: path}} with a role for each."
            )
    if not templates:
        raise FedpeftError(f"target_modules={targets!r} selects no module of the model: check the names.")
    return templates


def pattern_of(templates: Mapping[str, str]) -> str:
    """Return a pattern for PEFT that selects the templates' modules; its groups are the roles, see ``roles_of``."""
    groups = (
        f"(?P<{role}>{re.escape(template.replace('{layer}', '0layer0')).replace('0layer0', _NUMBER)})"
        for role, template in templates.items()
    )
    return f"{_PARENT}(?:{'|'.join(groups)})"


def roles_of(pattern: str) -> dict[str, str]:
    """Return role -> template of a pattern made by ``pattern_of``; empty for any other."""
    groups = re.findall(r"\(\?P<([a-z][a-z0-9_]*)>([^()|]*)\)", pattern)
    templates = {role: re.sub(r"\\(.)", r"\1", text.replace(_NUMBER, "{layer}")) for role, text in groups}
    return templates if templates and pattern_of(templates) == pattern else {}


def _selected(path: str, targets: str | Sequence[str]) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, path) is not None
    return any(path == name or path.endswith(f".{name}") for name in targets)


def known_roles(model: nn.Module) -> dict[str, str]:
    """Return the roles of a model's slots -> path; none if its layers cannot be read."""
    family = family_of(model)
    if family in SLOTS:
        return SLOTS[family]
    try:
        return model_roles(model)
    except FedpeftError:
        return {}


def _role(template: str, tail: str, known: Mapping[str, str]) -> str:
    for role, path in known.items():
        if template == path or template.endswith(f".{path}"):
            return role
    return re.sub(r"[^a-z0-9_]", "_", tail.lower()).lstrip("_0123456789") or "output"
