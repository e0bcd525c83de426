# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Where the layers and slots of each model family are: the one table of module paths.

A family is the transformers `model_type`. A role is a slot's name ("attention": after the self-attention block,
"output": after the feed-forward block, "query", "value": those projections). A family with two towers has a role for
each, "text_attention" and "vision_attention", and a method with the role "attention" gets both. A template is a module
path with `{layer}` for the layer number, counted from 0. Another family is one more entry.
"""

import re
from collections.abc import Iterable, Mapping

from fedpeft.core.errors import FedpeftError

QKV, IN_QKV = "qkv", ("query", "key", "value")  # the role of a joint projection, and the roles that it stands for

# the places of one layer: first the slots, then what PEFT's tuners of single matrices and norms need besides, which are
# the projection to keys, or the joint one to query, key and value; the linear layers at the end of the attention and of
# the feed-forward block; the norms of both
_BERT = {
    "attention": "attention.output",
    "output": "output",
    "query": "attention.self.query",
    "value": "attention.self.value",
    "key": "attention.self.key",
    "attention_linear": "attention.output.dense",
    "second_linear": "output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "output_norm": "output.LayerNorm",
}
_VILT = _BERT | {
    "query": "attention.attention.query",
    "value": "attention.attention.value",
    "key": "attention.attention.key",
    "attention_norm": "layernorm_before",
    "output_norm": "layernorm_after",
}
_ALBEF = _BERT | {  # of the self-attention: there is no slot in the cross-attention
    "attention": "attention.output.inner",
    "output": "output.inner",
    "attention_linear": "attention.output.inner.dense",
    "second_linear": "output.inner.dense",
}
_VIT = {
    "attention": "attention",
    "output": "mlp",
    "query": "attention.q_proj",
    "value": "attention.v_proj",
    "key": "attention.k_proj",
    "attention_linear": "attention.o_proj",
    "second_linear": "mlp.fc2",
    "attention_norm": "layernorm_before",
    "output_norm": "layernorm_after",
}
_CLIP = {
    "attention": "self_attn",
    "output": "mlp",
    "query": "self_attn.q_proj",
    "value": "self_attn.v_proj",
    "key": "self_attn.k_proj",
    "attention_linear": "self_attn.out_proj",
    "second_linear": "mlp.fc2",
    "attention_norm": "layer_norm1",
    "output_norm": "layer_norm2",
}
_LLAMA = _CLIP | {
    "attention_linear": "self_attn.o_proj",
    "second_linear": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "output_norm": "post_attention_layernorm",
}
_GPT2 = {  # one matrix makes query, key and value: there is no separate place for query or value
    "attention": "attn",
    "output": "mlp",
    QKV: "attn.c_attn",
    "attention_linear": "attn.c_proj",
    "second_linear": "mlp.c_proj",
    "attention_norm": "ln_1",
    "output_norm": "ln_2",
}
_SLOT_ROLES = ("attention", "output", "query", "value")
_ALBEF_TOWERS = {
    "vision": ("visual_encoder.layers.{layer}", _VIT),
    "text": ("text_encoder.encoder.layer.{layer}", _ALBEF),
}
# family -> tower, empty where it has one stack -> its layers and their places
_FAMILIES: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "vilt": {"": ("encoder.layer.{layer}", _VILT)},
    "bert": {"": ("encoder.layer.{layer}", _BERT)},
    "roberta": {"": ("encoder.layer.{layer}", _BERT)},
    "vit": {"": ("layers.{layer}", _VIT)},
    "dinov2": {"": ("encoder.layer.{layer}", _VIT | {"attention_norm": "norm1", "output_norm": "norm2"})},
    "gpt2": {"": ("h.{layer}", _GPT2)},
    "llama": {"": ("layers.{layer}", _LLAMA)},
    "clip": {tower: (f"{tower}_model.encoder.layers.{{layer}}", _CLIP) for tower in ("text", "vision")},
    "clip_text_model": {"": ("encoder.layers.{layer}", _CLIP)},
    "clip_vision_model": {"": ("encoder.layers.{layer}", _CLIP)},
    "albef": _ALBEF_TOWERS,
    "albef_decoder": _ALBEF_TOWERS | {"decoder": ("decoder.encoder.layer.{layer}", _ALBEF)},
}

# families outside the table that are adapted in one part only, as in their papers
ADAPTED_PART = {"llava": "language_model", "blip-2": "language_model"}


def _roles(towers: Mapping[str, tuple[str, dict[str, str]]], *, slots: bool) -> dict[str, str]:
    return {
        f"{tower}_{role}" if tower else role: f"{layer}.{path}"
        for tower, (layer, places) in towers.items()
        for role, path in places.items()
        if (role in _SLOT_ROLES) == slots
    }


SLOTS = {family: _roles(towers, slots=True) for family, towers in _FAMILIES.items()}
INNER = {family: _roles(towers, slots=False) for family, towers in _FAMILIES.items()}


# in a layer, whatever its family
SECOND_LINEARS = frozenset(place["second_linear"] for towers in _FAMILIES.values() for _, place in towers.values())


def places(family: str) -> dict[str, str]:
    """Return role -> module path template of all places that the table has for a family; empty for any other."""
    return SLOTS.get(family, {}) | INNER.get(family, {})


def slot_templates(family: str, roles: Iterable[str], *, joint: bool = False) -> dict[str, str]:
    """Return role -> module path template of some roles of a model family, a key of `SLOTS`; see `chosen`."""
    roles = tuple(roles)
    if family not in SLOTS:
        paths = ", ".join(f"{role!r}: 'path.{{layer}}.to.{role}'" for role in roles)
        raise FedpeftError(
            f"the modules of model family {family!r} are not known (known: {', '.join(sorted(SLOTS))}): "
            f"name them with target_modules={{{paths}}}."
        )
    return chosen(places(family), roles, family, joint=joint)


def chosen(table: Mapping[str, str], roles: tuple[str, ...], family: str, *, joint: bool = False) -> dict[str, str]:
    """Return the templates of some roles, with or without a tower's name before them.

    Without it they are those of every tower that has all of them: one that lacks a role is left out whole. With
    `joint`, a tower's `qkv`, its one projection to query, key and value, replaces those of them that it lacks.
    """

    def entry(tower: str, role: str) -> str:
        name = role if role in table else f"{tower}{role}"
        return f"{tower}{QKV}" if joint and role in IN_QKV and name not in table else name

    possible = (*roles, QKV) if joint else roles
    towers = dict.fromkeys(n.removesuffix(r) for n in table for r in possible if n == r or n.endswith(f"_{r}"))
    whole = [tower for tower in towers if all(entry(tower, role) in table for role in roles)]
    if not whole:
        missing = [role for role in roles if not any(entry(tower, role) in table for tower in towers)]
        slots = [name for name in table if name not in INNER.get(family, {})]
        lack = f"no role {' or '.join(map(repr, missing))}" if missing else f"no tower with all of {', '.join(roles)}"
        raise FedpeftError(
            f"model family {family!r} has {lack} (it has: {', '.join(slots)}): "
            f"choose another adapter, or name modules with target_modules={{role: path}}."
        )
    return {entry(tower, role): table[entry(tower, role)] for role in roles for tower in whole}


def two_towers(templates: Iterable[str]) -> bool:
    """Return whether templates are in different stacks of layers, which may differ in number and width."""
    return len({template.split("{layer}")[0] for template in templates}) > 1


def check_template(role: str, template: str) -> None:
    """Refuse a template without `{layer}`, or a role that cannot be part of a key."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", str(role)) or role == "shared":
        raise FedpeftError(f"role {role!r} in target_modules must be a word of a-z, 0-9 and _, other than 'shared'.")
    if not isinstance(template, str) or template.count("{layer}") != 1 or "{layer}" not in template.split("."):
        raise FedpeftError(
            f"target_modules[{role!r}]={template!r} must be a module path with '{{layer}}' as one of its parts, "
            "for instance 'encoder.layer.{layer}.output'."
        )


def module_path(template: str, layer: int) -> str:
    return template.replace("{layer}", str(layer))


def locate(path: str, templates: Mapping[str, str]) -> tuple[str, int, str] | None:
    """Return role, layer and parent path of a module path, the inverse of `module_path`; None: it is no slot.

    A model that wraps the family's encoder (`vilt.encoder.layer.3.output` in a ViltForQuestionAnswering) is the same
    family: any parent path, with its final dot, may come before the template.
    """
    for role, template in templates.items():
        before, after = template.split("{layer}")
        match = re.fullmatch(rf"((?:.*\.)?){re.escape(before)}(\d{{1,5}}){re.escape(after)}", path)
        if match:
            return role, int(match[2]), match[1]
    return None
