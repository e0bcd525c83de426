# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Find the layers and slots of a model: in the table of `slots.py`, or, for other families, by its own structure.

A stack of layers is a `ModuleList` of one class whose members have an attention: a linear layer with a usual name of
the queries' projection, or of the joint one for queries, keys and values. Cross-attention is left out. From there

    attention         the module of the attention's last projection, with a residual norm if it is inside
    output            the block of the last linear layer that returns to the width of the stream: the feed-forward block
    attention_linear, second_linear, attention_norm, output_norm     the linear layers at their ends, the layer's norms

With several stacks each role has the name of its tower before it: "text_query", "vision_output".

Users name target modules in three forms:

role -> template     {"output": "encoder.layer.{layer}.output"}, the form that the rest of the package uses
PEFT's list          ["attention.output", "output"]: modules whose path is, or ends with, one of these names
PEFT's pattern       ".*[.]output": modules whose whole path matches
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from fedpeft.backbones.slots import ADAPTED_PART, QKV, SLOTS, check_template, chosen, locate, places
from fedpeft.core.errors import FedpeftError

QUERY = ("query", "q_proj", "q_lin", "q", "wq", "to_q", "linear_q", "query_proj")
KEY = ("key", "k_proj", "k_lin", "k", "wk", "to_k", "linear_k", "key_proj")
VALUE = ("value", "v_proj", "v_lin", "v", "wv", "to_v", "linear_v", "value_proj")
JOINT = ("qkv", "qkv_proj", "c_attn", "query_key_value", "Wqkv", "wqkv", "att_proj")
OTHER_ATTENTION = re.compile(r"cross|enc_?dec|encoder_attn", re.IGNORECASE)
TEXT, VISION = "text", "vision"
TOWERS = {TEXT: re.compile(r"text|language"), VISION: re.compile(r"vision|visual|image")}
WRAPPED = "base_layer"  # PEFT's name of the module that an adapter wraps

_ANY_PARENT = r"(?:.*\.)?"
_ANY_NUMBER = r"\d+"


def templates_in(model: nn.Module, roles: Iterable[str], *, joint: bool = False) -> dict[str, str]:
    """Return the module path templates of some roles in a model, whose family need not be in the table."""
    roles = tuple(roles)
    return chosen(model_roles(model, roles), roles, str(family_of(model)), joint=joint)


def model_roles(model: nn.Module, needed: Iterable[str] = ("output",)) -> dict[str, str]:
    """Return every role -> module path template: its family's in the table, else read off the model's structure."""
    return places(str(family_of(model))) or _read_structure(model, needed)


def family_of(model: nn.Module) -> str | None:
    """Return the kind of a model, transformers' `model_type`; None: its configuration names none."""
    return getattr(getattr(model, "config", None), "model_type", None)


def layer_stacks(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Return path -> layers, without adapters, of each stack of layers, or of those of the family's `ADAPTED_PART`."""
    stacks: dict[str, list[nn.Module]] = {}
    part = ADAPTED_PART.get(str(family_of(model)))
    for path, module in _modules(model):
        if not isinstance(module, nn.ModuleList) or not len(module) or any(path.startswith(f"{s}.") for s in stacks):
            continue
        kinds = {type(_unwrapped(layer)) for layer in module}
        attention = next(filter(None, map(_attention, module)), "")
        if part and part not in path.split("."):
            continue
        if len(kinds) == 1 and attention and not re.search(r"\.\d+\..*\.\d+\.", f".0.{attention}."):
            stacks[path] = [_unwrapped(layer) for layer in module]
    return stacks


def stream_width(layers: Sequence[nn.Module]) -> int:
    """Return the width of a stack's residual stream, which its attention or feed-forward block returns."""
    layer = max(filter(_attention, layers), key=lambda layer: len(list(_modules(layer))))
    modules, places = dict(_modules(layer)), _read_layer(layer)
    ends = (places.get("attention_linear"), places.get("second_linear"))
    return next((_width(modules[path]) for path in ends if path), 0)


def _read_structure(model: nn.Module, needed: Iterable[str]) -> dict[str, str]:
    """Return every role -> module path template, from the fullest layer with an attention of each stack."""
    stacks = layer_stacks(model)
    kind = family_of(model) or type(model).__name__
    if not stacks:
        lists = [
            f"{path} ({len(module)} of {type(module[0]).__name__})"
            for path, module in _modules(model)
            if isinstance(module, nn.ModuleList) and len(module)
        ]
        paths = ", ".join(f"{role!r}: 'path.{{layer}}.to.{role}'" for role in needed)
        raise FedpeftError(
            f"the layers of model family {kind!r:.60} are not known and cannot be read: it has "
            f"{', '.join(lists[:4]) or 'no list of modules'}, and no list of layers with an attention whose queries' "
            f"projection is known; name modules with target_modules={{{paths}}}."
        )
    names = _tower_names(list(stacks), kind)
    table: dict[str, str] = {}
    for path, layers in stacks.items():
        prefix = f"{names[path]}_" if len(stacks) > 1 else ""
        fullest = max(filter(_attention, layers), key=lambda layer: len(list(_modules(layer))))
        table |= {f"{prefix}{role}": f"{path}.{{layer}}.{inner}" for role, inner in _read_layer(fullest).items()}
    return table


def _read_layer(layer: nn.Module) -> dict[str, str]:
    """Return every role -> path in a layer; BERT's layers are recognized by the `output` beside their attention."""
    modules = dict(_modules(layer))
    linear = {path: module for path, module in modules.items() if _is_linear(module)}
    block = _attention(layer).rpartition(".")[0]
    found = {role: path for role, path in _projections(linear, block).items() if path}
    # BERT: attention.self makes the values, attention.output has the residual
    outer = block.rpartition(".")[0]
    residual = f"{outer}.output".lstrip(".")
    ends = [path for path in linear if re.fullmatch(rf"{residual}\.(\w+\.)?dense", path)] if "query" in found else []
    if ends:
        block, found["attention"] = outer, ends[-1].rpartition(".")[0]
    else:
        residual, found["attention"] = "", block
        ends = [path for path in linear if _within(path, block) and path not in found.values()]
    if ends:
        found["attention_linear"] = ends[-1]
    width = _width(linear.get(found.get("attention_linear", "")))
    return found | _feed_forward(linear, block, width) | _norms(modules, block, residual)


def _feed_forward(linear: Mapping[str, nn.Module], attention: str, width: int) -> dict[str, str]:
    """Return the block outside the attention whose linear layer is the last to return to the stream's width."""
    outside = {path: layer for path, layer in linear.items() if not _within(path, attention)}
    ends = [path for path, layer in outside.items() if not OTHER_ATTENTION.search(path) and width in (0, _width(layer))]
    if not ends:
        return {}
    parent = ends[-1].rpartition(".")[0]
    while "expert" in parent:
        parent = parent.rpartition(".")[0]
    return {"output": parent or ends[-1], "second_linear": ends[-1]}


def _norms(modules: Mapping[str, nn.Module], attention: str, residual: str) -> dict[str, str]:
    """Return the first and last norm of a layer, those inside the attention left out but for the residual's."""
    norms = [path for path, module in modules.items() if "norm" in type(module).__name__.lower()]
    norms = [path for path in norms if not _within(path, attention) or (residual and _within(path, residual))]
    norms = [path for path in norms if not OTHER_ATTENTION.search(path)]
    return {"attention_norm": norms[0], "output_norm": norms[-1]} if len(norms) > 1 else {}


def _within(path: str, parent: str) -> bool:
    return path.startswith(f"{parent}.")


def _projections(linear: Mapping[str, nn.Module], block: str) -> dict[str, str]:
    """Return query, key, value and qkv -> path in a layer; empty: the attention has none such."""
    kinds = {"query": QUERY, "key": KEY, "value": VALUE, QKV: JOINT}
    return {
        role: next((path for path in linear if path.rpartition(".")[0] == block and path.split(".")[-1] in known), "")
        for role, known in kinds.items()
    }


def _attention(layer: nn.Module) -> str:
    """Return the path of the first projection to queries in a layer; empty: there is none."""
    for path, module in _modules(layer):
        if _is_linear(module) and path.split(".")[-1] in QUERY + JOINT and not OTHER_ATTENTION.search(path):
            return path if "." in path else ""
    return ""


def _tower_names(paths: list[str], kind: str) -> dict[str, str]:
    """Return the path of each stack -> "text", "vision", or the first part of its path."""
    names = {}
    for path in paths:
        known = [tower for tower, words in TOWERS.items() if words.search(path)]
        first = re.sub(r"[^a-z0-9_]", "_", path.split(".")[0].lower()).lstrip("_0123456789") or "tower"
        names[path] = known[0] if len(known) == 1 else first
    if len(set(names.values())) < len(names):
        raise FedpeftError(
            f"model family {kind!r:.60} has the stacks of layers {', '.join(paths[:6])}, whose names do not tell them "
            f"apart: name modules with target_modules={{role: 'path.{{layer}}.to.module'}}."
        )
    return names


def _modules(root: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield path and module of everything in a model, as `named_modules` does, without its adapters."""
    for name, child in root.named_children():
        inner = _unwrapped(child)
        where = f"{path}.{name}" if path else name
        yield where, inner
        yield from _modules(inner, where)


def _unwrapped(module: Any) -> nn.Module:
    while isinstance(getattr(module, WRAPPED, None), nn.Module):
        module = getattr(module, WRAPPED)
    return module


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or hasattr(module, "nf")  # nf: GPT-2's linear layer with its matrix turned


def _width(module: nn.Module | None) -> int:
    return getattr(module, "out_features", None) or getattr(module, "nf", None) or 0


def check_targets(targets: object, method: str) -> None:
    """Refuse `target_modules` in none of the three forms, and templates without `{layer}`."""
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
    number, `blocks.3.mlp.fc1` is `mlp_fc1`.
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
        if outer := next((other for other in templates.values() if template.startswith(f"{other}.")), None):
            raise FedpeftError(
                f"target_modules={targets!r} selects {outer} and {template} in it: name one of them with "
                "target_modules={role: path}."
            )
    if not templates:
        raise FedpeftError(f"target_modules={targets!r} selects no module of the model: check the names.")
    return templates


def pattern_of(templates: Mapping[str, str], layers: Iterable[int] | None = None) -> str:
    """Return a pattern for PEFT that selects the templates' modules; its comments are the roles, see `roles_of`.

    None: in all layers. No group has a name, because PEFT puts the patterns of adapters that it combines
    (`add_weighted_adapter`) side by side in one.

    Raises:
        FedpeftError: no layer is named.
    """
    if layers is not None and not (layers := list(layers)):
        raise FedpeftError("layers_to_transform is empty: name layers, or leave it out for all.")
    groups = (
        f"(?:(?#{role}){re.escape(template.replace('{layer}', '0layer0')).replace('0layer0', _ANY_NUMBER)})"
        for role, template in templates.items()
    )
    among = "" if layers is None else f"(?={_ANY_PARENT}(?:{'|'.join(map(str, layers))})(?:\\.|$))"
    return f"{among}{_ANY_PARENT}(?:{'|'.join(groups)})"


def roles_of(pattern: str) -> dict[str, str]:
    """Return role -> template of a pattern made by `pattern_of`; empty for any other.

    Earlier versions named the groups of a pattern by the roles; those are read as well.
    """
    pattern = re.sub(r"\(\?P<([a-z][a-z0-9_]*)>", r"(?:(?#\1)", _single_pattern(pattern))
    groups = re.findall(r"\(\?:\(\?#([a-z][a-z0-9_]*)\)([^()|]*)\)", pattern)
    templates = {role: re.sub(r"\\(.)", r"\1", text.replace(_ANY_NUMBER, "{layer}")) for role, text in groups}
    return templates if templates and pattern_of(templates, layers_of_pattern(pattern)) == pattern else {}


def layers_of_pattern(pattern: str) -> list[int] | None:
    """Return the layers that a pattern made by `pattern_of` names; None: all."""
    found = re.match(rf"\(\?={re.escape(_ANY_PARENT)}\(\?:((?:\d{{1,6}}\|)*\d{{1,6}})\)", _single_pattern(pattern))
    return [int(number) for number in found[1].split("|")] if found else None


def _single_pattern(pattern: str) -> str:
    """Return p of "(p)|(p)|...", which PEFT writes for combined adapters; any other pattern as it is."""
    for count in range(pattern.count(")|(") + 1, 1, -1):
        size, rest = divmod(len(pattern) + 1, count)
        if not rest and "|".join([pattern[: size - 1]] * count) == pattern:
            return pattern[1 : size - 2]
    return pattern


def name_modules(config: Any, templates: Mapping[str, str], model: nn.Module | None = None) -> None:
    """Write the modules in the layers that a PEFT configuration names into it, as a pattern that PEFT reads.

    PEFT takes `layers_to_transform` only beside names of modules, and finds the layers of few models by itself.

    Raises:
        FedpeftError: no layer is named, or one that the model does not have.
    """
    layers = getattr(config, "layers_to_transform", None)
    layers = [layers] if isinstance(layers, int) else layers
    if layers is None and isinstance(config.target_modules, str):
        layers = layers_of_pattern(config.target_modules)
    if layers is not None:
        there = set(layers) if model is None else _numbers_of_layers(model, templates)
        if missing := sorted(set(layers) - there):
            raise FedpeftError(
                f"layers_to_transform names layer {missing[0]}, but {type(model).__name__} has layers "
                f"{min(there, default=0)} to {max(there, default=0)}: correct it, or leave it out for all."
            )
        config.layers_to_transform = config.layers_pattern = None
    config.target_modules = pattern_of(templates, layers)


def select_layers(targets: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return PEFT settings that select modules by role, in the layers that `settings` names."""
    layers = settings.get("layers_to_transform")
    if layers is None:
        return {"target_modules": pattern_of(targets)}
    names = pattern_of(targets, [layers] if isinstance(layers, int) else layers)
    return {"target_modules": names, "layers_to_transform": None, "layers_pattern": None}


def _numbers_of_layers(model: nn.Module, templates: Mapping[str, str]) -> set[int]:
    return {found[1] for path, _ in model.named_modules() if (found := locate(path, templates))}


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
