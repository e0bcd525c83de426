# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Compare what tensors compute in two places, by the configurations of their adapters and the frozen models.

`fedpeft merge` compares two adapters, `fedpeft predict --adapter` an adapter and the model that it goes into.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.backbones import BACKBONES, BackboneSettings
from fedpeft.backbones.registry import FROZEN
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import read_json
from fedpeft.methods.adapters import tuning_of
from fedpeft.site.site_state import RECORD

if TYPE_CHECKING:
    from peft import PeftConfig

PATTERNS = ("rank_pattern", "alpha_pattern")
SCALE = "lora_alpha / r"
ELSEWHERE = ".../"


def difference(
    one: PeftConfig, other: PeftConfig, *, family: str | None = None, scaled: bool = False
) -> tuple[str, Any, Any] | None:
    """Return the first setting that makes the functions of two configurations differ, and its values; None: none does.

    What only concerns training may differ: dropout, and first values that leave the frozen weights as they are. So may
    sizes, which the tensors show; `scaled`: products include their scale. `family` of their model gives its defaults.
    """
    tuning, one, other = tuning_of(other), copy.deepcopy(one), copy.deepcopy(other)
    for config in (one, other) if family else ():
        tuning.settle(config, family)
    names = [field.name for field in dataclasses.fields(other) if field.name not in tuning.may_differ]
    names = [name for name in names if "dropout" not in name and not name.startswith("init")]
    names += sorted(tuning.starts(one) | tuning.starts(other))
    if not scaled:
        names += [name for name in PATTERNS if hasattr(other, name)]
    for name in names:
        theirs, ours = getattr(one, name, None), getattr(other, name)
        if theirs != ours:
            return name, theirs, ours
    for theirs, ours in () if scaled else zip(_scales(one), _scales(other), strict=True):
        if not math.isclose(theirs, ours):
            return SCALE, theirs, ours
    return None


@contextmanager
def reading_scales(file: Path) -> Iterator[None]:
    """Refuse a configuration whose ranks or scales are no numbers.

    PEFT reads values of any type from `file`, and only a computation with them fails.
    """
    try:
        yield
    except FedpeftError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise FedpeftError(f"{file} has a rank or scale that is no number: save the adapter again.") from error


def _scales(config: PeftConfig) -> Iterator[float]:
    """Yield the scales of products: that of most modules, then by name those of modules that a pattern names."""
    tuning, ranks = tuning_of(config), getattr(config, "rank_pattern", None) or {}
    for path in ("", *sorted(ranks), *sorted(getattr(config, "alpha_pattern", None) or {})):
        yield tuning.scale(config, path, max(ranks.get(path, getattr(config, "r", 1)), 1))


def frozen_model_of(folder: Path) -> str:
    """Return the frozen model of an exported folder in words; see `frozen_model`."""
    try:
        about = read_json(folder / RECORD)
        return frozen_model(about["family"], about["record"]["sections"]["backbone"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FedpeftError(f"{folder / RECORD} cannot be read ({error!r:.120}): export the model again.") from error


def frozen_model(family: str, backbone: Mapping[str, Any]) -> str:
    """Return the frozen model of a section `backbone` in words; see `alike`.

    Default settings are left out, and those that change no weight: sizes of images and texts.
    """
    name = backbone.get("name", BackboneSettings.name)
    registered = BACKBONES.get(name) if name in BACKBONES.names() else None
    words = [family, name]
    for field in dataclasses.fields(BackboneSettings):
        value, frozen = backbone.get(field.name), field.metadata.get(FROZEN)
        if isinstance(frozen, str):
            words.append(last_part(value or getattr(registered, frozen, "")))
        elif frozen and value not in (None, field.default):
            words.append(f"{field.name}={value}")
    return " ".join(str(word) for word in words if word)


def last_part(source: Any) -> str:
    """Return the last part of a path, since other machines have other folders, or a hub name without its commit."""
    if not isinstance(source, str) or not source:
        return ""
    return f"{ELSEWHERE}{Path(source).name}" if Path(source).is_absolute() else source.partition("@")[0]


def one_model(one: str, other: str) -> bool:
    """Return whether two frozen models can be one; PEFT names only the source, which an export has behind two words."""
    words, source = sorted((one, other), key=lambda base: " " not in base)
    if (" " in one) == (" " in other):
        return alike(one, other)
    return any(alike(word, source) for word in words.split(" ")[2:])


def alike(one: str, other: str) -> bool:
    """Return whether the words of two frozen models are equal; of a folder and a hub name, their last parts."""
    pairs = list(itertools.zip_longest(one.split(" "), other.split(" "), fillvalue=""))
    local = [ELSEWHERE in "".join(pair) for pair in pairs]
    return all(a == b or (path and Path(a).name == Path(b).name) for (a, b), path in zip(pairs, local, strict=True))
