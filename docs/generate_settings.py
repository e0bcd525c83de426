# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The tables of settings in these pages, from the dataclasses' own docstrings.

    python docs/generate_settings.py            # print every table
    python docs/generate_settings.py --write    # replace what stands between `<!-- table: name -->` and `<!-- end -->`

A test compares pages and docstrings, so that a setting is described in one place: at its dataclass.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedpeft import adapters, backbones, methods
from fedpeft.backbones import BACKBONES
from fedpeft.core.settings import hints_of
from fedpeft.data.registry import DATASETS
from fedpeft.importance.registry import SCORES
from fedpeft.job.catalog import entries
from fedpeft.job.composing import PACKAGED, read_yaml
from fedpeft.job.site_policy import SitePolicy
from fedpeft.job.strict_files import setting_classes
from fedpeft.methods.aggregations import default_aggregation
from fedpeft.methods.bottleneck.config import BottleneckConfig
from fedpeft.methods.combined import CombinedTuning
from fedpeft.methods.method import METHODS
from fedpeft.methods.peft_tuners import PeftTuning
from fedpeft.methods.prompts import PromptTuning
from fedpeft.methods.slot_tuning import SlotTuning
from fedpeft.protocol import PrivacySettings
from fedpeft.protocol.fields import CODES
from fedpeft.protocol.types import TASKS
from fedpeft.scheduling.solvers import SOLVERS

DOCS = Path(__file__).parent
PAGES = (*sorted(DOCS.glob("*.md")), DOCS.parent / "tests" / "docs" / "messages.md")
SECTIONS: dict[str, type] = {**setting_classes(), "privacy": PrivacySettings, "site": SitePolicy}
ADAPTERS = tuple(name for name in methods.names() if methods.get(name).peft_tuner)
VILT_B32 = {"family": "vilt", "num_layers": 12, "hidden_size": 768}
KINDS = {
    str: "text",
    Path: "text",
    bool: "true, false",
    int: "whole number",
    float: "number",
    tuple: "list",
    list: "list",
    dict: "mapping",
    Mapping: "mapping",
    typing.Literal: "text",
}
# PEFT's own settings that a site lets a job set
OF_PEFT = {
    "r": "rank of the product `B A`; of `vera` that of its frozen matrices; of `hra` the number of reflections; of "
    "`oft` the number of blocks, 0: it follows from `oft_block_size`; of `miss` the trained numbers of each output of "
    "a matrix.",
    "lora_alpha": "the product counts `lora_alpha / r` times; not set: 2 r.",
    "lora_dropout": "share of a layer's inputs that training leaves out.",
    "layers_to_transform": "transformer layers that get an adapter, counted from 0; not set: all.",
    "bias": "`none` alone: a job trains nothing beside the adapter's own tensors.",
    "use_rslora": "the product counts `lora_alpha / sqrt(r)` times.",
    "init_lora_weights": "PEFT's way to draw the first values; a site takes true (B is 0) and false.",
    "start_std": "standard deviation of the normal distribution of A's first values; `xavier`: sqrt(2 / (r + d)); not "
    "set: uniform, as PEFT has it.",
    "oft_block_size": "width of a block, which must divide that of the layer's input if it is set; the default is the "
    "nearest width that does. 0: it follows from `r`.",
    "d_initial": "first value of the trained vector of `r` numbers.",
    "projection_prng_key": "seed of the frozen matrices, the same at all sites.",
    "vera_dropout": "share of a layer's inputs that training leaves out.",
    "n_frequency": "trained Fourier coefficients of each matrix.",
    "scaling": "the update, whose inverse transform divides by the matrix's entries, counts so many times.",
    "random_loc_seed": "seed of the places of the coefficients, the same at all sites.",
    "miss_dropout": "share of a layer's inputs that training leaves out.",
}
ENTRY = re.compile(r" {4}(\w+(?:, \w+)*): (.*)")
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> dict[str, str]:
    """Every table by name: one for each section of a job, `adapters`, `methods`, `orders`, `replies` and others."""
    return {
        **{section: settings_table(cls) for section, cls in SECTIONS.items()},
        "settings": _by_owner("method", {name: method_settings(name) for name in _with_own_settings()}),
        "composed": _composed(),
        "solvers": _by_owner("solver", {name: _dataclass_settings(cls) for name, cls in solver_classes().items()}),
        "scores": _by_owner("score", {name: _dataclass_settings(cls) for name, cls in score_classes().items()}),
        "adapters": _adapters(),
        "methods": _methods(),
        "backbones": _backbones(),
        "parts": _parts(),
        "orders": _messages([task.order for task in TASKS.values()]),
        "replies": _messages([task.reply for task in TASKS.values()]),
        "terms": _terms(),
        "problems": markdown(("code", "what the server prints"), [(f"`{c}`", text) for c, text in CODES.items()]),
    }


def settings_table(cls: type) -> str:
    """Name, kind, default and meaning of every field of a settings dataclass."""
    hints, meanings = typing.get_type_hints(cls), argument_texts(cls)
    rows = [
        (f"`{f.name}`", kind_of(hints[f.name]), default_of(f), meanings.get(f.name, ""))
        for f in dataclasses.fields(cls)
    ]
    heads = ("setting", "kind", "default", "meaning")
    columns = 4 if meanings else 3
    return markdown(heads[:columns], [row[:columns] for row in rows])


def argument_texts(cls: type) -> dict[str, str]:
    """Field name -> what the docstring's `Args` say about it; names that share an entry get the same text."""
    texts: dict[str, str] = {}
    _, _, arguments = (inspect.getdoc(cls) or "").partition("Args:\n")
    names: Sequence[str] = ()
    for line in arguments.split("\n\n")[0].splitlines():
        if entry := ENTRY.fullmatch(line):
            names = entry[1].split(", ")
            texts |= dict.fromkeys(names, entry[2])
        else:
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return texts


def kind_of(hint: Any) -> str:
    """What a job file may hold there; null is not among it, so `| None` is left out."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    parts = [part for part in (typing.get_args(hint) if union else (hint,)) if part is not type(None)]
    kinds = ("mapping" if dataclasses.is_dataclass(part) else KINDS[typing.get_origin(part) or part] for part in parts)
    return ", ".join(dict.fromkeys(kinds))


def default_of(field: dataclasses.Field) -> str:
    """The default as a job file would write it."""
    if field.default_factory is not dataclasses.MISSING:
        return f"`{field.default_factory()!r}`"
    if field.default is dataclasses.MISSING:
        return "required"
    if field.default is None or field.default == ():
        return "none"
    if isinstance(field.default, tuple):
        return f"`[{', '.join(map(str, field.default))}]`"
    value = str(field.default).lower() if isinstance(field.default, bool) else field.default
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


class Setting(NamedTuple):
    """A setting of a method, solver or score, as a table shows it."""

    name: str
    kind: str
    meaning: str
    default: str


def method_settings(name: str) -> list[Setting]:
    """Return the settings that a method has of its own; none where it takes those of other methods."""
    method = METHODS.get(name)
    code = None if method.base else method.tuning()
    if isinstance(code, PromptTuning):
        return _dataclass_settings(code.settings_cls)
    if not isinstance(code, SlotTuning):
        return []
    roles = ", ".join(f"`{role}`" for role in getattr(code.config_cls, "roles", None) or _roles_of_peft(code))
    targets = next(setting for setting in _dataclass_settings(BottleneckConfig) if setting.name == "target_modules")
    own = [targets._replace(default=roles)]
    if issubclass(code.config_cls, BottleneckConfig):
        return own + [setting for setting in _dataclass_settings(code.config_cls) if setting.name != "target_modules"]
    return own + [_peft_setting(code, setting) for setting in method.limits if setting != "target_modules"]


def _roles_of_peft(code: SlotTuning) -> Sequence[str]:
    return code.roles if isinstance(code, PeftTuning) else sorted(code.config({}).target_modules)


def _peft_setting(code: SlotTuning, name: str) -> Setting:
    default = getattr(code.config({}), name, None)
    field = dataclasses.field(default=default)
    own = {"lora_alpha": float, "start_std": float | str}
    hint = own.get(name) or typing.get_type_hints(code.config_cls)[name]
    return Setting(name, kind_of(hint), OF_PEFT[name], default_of(field))


def _dataclass_settings(cls: type) -> list[Setting]:
    """Return the settings of a dataclass, with what the docstrings of its bases say about those that it inherits."""
    hints, meanings = typing.get_type_hints(cls), {}
    for base in reversed(cls.__mro__):
        meanings |= argument_texts(base) if dataclasses.is_dataclass(base) else {}
    return [
        Setting(f.name, kind_of(hints[f.name]), meanings[f.name].replace("``", "`"), default_of(f))
        for f in dataclasses.fields(cls)
        if f.name in meanings  # PEFT's configurations have more fields
    ]


def _with_own_settings() -> list[str]:
    return [name for name in METHODS.own_names() if method_settings(name)]


def solver_classes() -> dict[str, type]:
    """Return the settings dataclass of each solver."""
    return {name: hints_of(SOLVERS.get(name))["settings"] for name in SOLVERS.own_names()}


def score_classes() -> dict[str, type]:
    """Return the settings dataclass of each score that has one."""
    found = {name: hints_of(SCORES.get(name)).get("settings") for name in SCORES.own_names()}
    return {name: cls for name, cls in found.items() if cls}


def _by_owner(kind: str, settings: Mapping[str, Sequence[Setting]]) -> str:
    """A row for every setting; methods, solvers or scores that share it share the row."""
    defaults: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for owner, own in settings.items():
        for setting in own:
            defaults.setdefault(setting[:3], {}).setdefault(setting.default, []).append(f"`{owner}`")
    rows = []
    for (name, types_, meaning), owners in defaults.items():
        everyone = ", ".join(owner for some in owners.values() for owner in some)
        default = "; ".join(f"{value} ({', '.join(some)})" for value, some in owners.items())
        rows.append((f"`{name}`", everyone, types_, next(iter(owners)) if len(owners) == 1 else default, meaning))
    return markdown(("setting", kind, "kind", "default", "meaning"), rows)


def _composed() -> str:
    rows: dict[str, list[str]] = {}
    for name in METHODS.own_names():
        if not method_settings(name):
            rows.setdefault(_settings_from(name), []).append(f"`{name}`")
    return markdown(("method", "settings"), [(", ".join(names), text) for text, names in rows.items()])


def _settings_from(name: str) -> str:
    method = METHODS.get(name)
    if method.base:
        return f"those of `{methods.with_bases(name)[0]}`, under that name"
    if isinstance(code := method.tuning(), CombinedTuning):
        parts = [part for part in code.homes if part in method.limits]
        return " and ".join(f"under `{part}` those of `{part}`" for part in parts)
    return "none"


def _adapters() -> str:
    rows = []
    for name in ADAPTERS:
        config = adapters.config(name)
        count = sum(math.prod(shape) for shape in adapters.schema(config, **VILT_B32).values())
        slots = ", ".join(f"`{role}`" for role in config.roles)
        rows.append((f"`{name}`", slots, config.activation, f"{config.reduction_factor:g}", f"{count:,}"))
    return markdown(("adapter", "slots in each layer", "activation", "reduction", "trainable on ViLT-B/32"), rows)


def _methods() -> str:
    rows = [
        (
            f"`{entry.name}`",
            f"{entry.trained:,}",
            entry.sent,
            f"`{default_aggregation(entry.method)}`",
            ", ".join(entry.abilities),
            entry.method.source,
        )
        for entry in entries(backbones.skeleton("vilt"))
        if not METHODS.is_plugin(entry.name)
    ]
    heads = ("method", "trained on ViLT-B/32", "exchanged", "aggregation", "can do", "source")
    return markdown(heads, rows)


def _backbones() -> str:
    rows = []
    for name, pretrained in backbones.BACKBONES.usable():
        if BACKBONES.is_plugin(name):
            continue
        if not pretrained.default_source and not pretrained.sized:
            rows.append(
                (f"`{name}`", "any of transformers", "", "", "", "none: a job names a source", pretrained.source)
            )
            continue
        model = pretrained.without_weights()
        count = f"{sum(parameter.numel() for parameter in model.parameters()):,}"
        default = f"`{pretrained.default_source}`" if pretrained.default_source else "none: a job names a folder"
        weights = "with the package" if pretrained.tiny else default
        sizes = str(model.num_layers), str(model.hidden_size), count
        rows.append((f"`{name}`", f"`{model.family}`", *sizes, weights, pretrained.source))
    return markdown(("backbone", "family", "layers", "width", "parameters", "default weights", "paper"), rows)


def _parts() -> str:
    rows = []
    for file in sorted(PACKAGED.glob("backbones/*.yml")):
        sections = read_yaml(file)
        backbone = dict(sections["backbone"])
        name, source = backbone.pop("name"), backbone.pop("source", "")
        chosen = [*backbone.items(), *sections.get("training", {}).items()]
        values = ", ".join(f"`{key}` {str(value).lower()}" for key, value in chosen)
        source = source or ("" if backbones.is_tiny(name) else backbones.default_source(name))
        rows.append((f"`{file.stem}`", f"`{name}`", f"`{source}`" if source else "with the package", values))
    return markdown(("part", "backbone", "weights", "other settings"), rows)


def _messages(kinds: Iterable[type]) -> str:
    """A row for each field; messages in which it is the same share one."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for cls in kinds:
        hints, meanings = typing.get_type_hints(cls), argument_texts(cls)
        for name in (field.name for field in dataclasses.fields(cls)):
            said = (row for row, names in rows.items() if meanings[name] == f"as in {names[0]}." and row[0] == name)
            row = next(said, (name, kind_of(hints[name]), meanings[name]))
            rows.setdefault(row, []).append(cls.__name__)
    heads = ("message", "field", "kind", "what it is")
    return markdown(heads, [(", ".join(names), f"`{name}`", *rest) for (name, *rest), names in rows.items()])


def _terms() -> str:
    origins = dict.fromkeys(DATASETS.get(name).origin for name in DATASETS.own_names())
    rows = [(origin.title, origin.address, origin.terms) for origin in origins if origin]
    return markdown(("data", "from", "terms"), rows)


def filled(page: str, contents: Mapping[str, str]) -> str:
    """A page with every marked table replaced by the generated one."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{contents[found[2]]}\n\n{found[3]}", page)


def main() -> None:
    """Print the tables, or write them into the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace the tables in the pages")
    contents = tables()
    if not parser.parse_args().write:
        for name, table in contents.items():
            print(f"{name}\n\n{table}\n")
        return
    for page in PAGES:
        page.write_text(filled(page.read_text(), contents))


if __name__ == "__main__":
    main()
