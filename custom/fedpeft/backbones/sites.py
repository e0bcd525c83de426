# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Where the layers of each model family are: the one table that names modules of other people's models.

A family is the transformers ``model_type``. A role is what the field calls the place ("attention": behind the
self-attention block, "output": behind the feed-forward block, "query", "value": those projections). A template is a
module path with ``{layer}`` for the layer number, counted from 0. Another family is one more entry.
"""

import re
from collections.abc import Iterable, Mapping

from fedpeft.errors import FedpeftError

SITES: dict[str, dict[str, str]] = {
    "vilt": {
        "attention": "encoder.layer.{layer}.attention.output",
        "output": "encoder.layer.{layer}.output",
        "query": "encoder.layer.{layer}.attention.attention.query",
        "value": "encoder.layer.{layer}.attention.attention.value",
    },
}


def site_templates(family: str, roles: Iterable[str]) -> dict[str, str]:
    """Module path templates of some roles of a model family.

    Args:
        family: transformers ``model_type``, a key of ``SITES``.
        roles: names of sites, for instance ``("attention", "output")``.

    Returns:
        role -> template, in the order of ``roles``.

    Raises:
        FedpeftError: the family or the role is not in the table.
    """
    if family not in SITES:
        raise FedpeftError(
            f"the sites of model family {family!r} are not known (known: {', '.join(sorted(SITES))}): "
            f"name them with target_modules={{'output': 'path.{{layer}}.to.module'}}"
        )
    missing = [role for role in roles if role not in SITES[family]]
    if missing:
        raise FedpeftError(
            f"model family {family!r} has no site {missing[0]!r} (it has: {', '.join(SITES[family])}): "
            "choose another adapter or add the site to SITES"
        )
    return {role: SITES[family][role] for role in roles}


def check_template(role: str, template: str) -> None:
    """Refuse a template that does not say where the layer number stands, or a role that a wire key cannot carry."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", str(role)) or role == "shared":
        raise FedpeftError(f"role {role!r} in target_modules must be a word of a-z, 0-9 and _, other than 'shared'")
    if not isinstance(template, str) or template.count("{layer}") != 1 or "{layer}" not in template.split("."):
        raise FedpeftError(
            f"target_modules[{role!r}]={template!r} must be a module path with '{{layer}}' as one of its parts, "
            "for instance 'encoder.layer.{layer}.output'"
        )


def module_path(template: str, layer: int) -> str:
    """Module path of one layer: ``encoder.layer.{layer}.output``, 3 -> ``encoder.layer.3.output``."""
    return template.replace("{layer}", str(layer))


def locate(path: str, templates: Mapping[str, str]) -> tuple[str, int, str] | None:
    """Find the role and layer of a module path; the inverse of ``module_path``.

    A model that wraps the family's encoder (``vilt.encoder.layer.3.output`` in a ViltForQuestionAnswering) is the same
    family: any parent path may stand before the template.

    Returns:
        (role, layer, parent path with its final dot or ""), or None where the path is no site.
    """
    for role, template in templates.items():
        before, after = template.split("{layer}")
        match = re.fullmatch(rf"((?:.*\.)?){re.escape(before)}(\d+){re.escape(after)}", path)
        if match:
            return role, int(match[2]), match[1]
    return None
