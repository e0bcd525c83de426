# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which settings of an adapter a job may set at a site, and in what form and bounds.

No text of a job is used as a pattern: one can take hours to match. How many parameters all of it makes is limited by
`most_trained_parameters` of the site's file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

MOST_WIDTH, MOST_BLOCKS, MOST_SCALE, MOST_LAYERS = 4096, 64, 1024, 1024
MOST_ENTRIES, LONGEST = 128, 256  # of a list or mapping; characters of a name in it
Check = Callable[[Any], bool]


def adapter_refusals(adapter: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Why a site refuses settings of an adapter, one sentence part each; nothing is built or imported for it.

    Args:
        adapter: its name; of one that has no line in `CHECKS` a job may set nothing.
        settings: by name, as the job has them.
    """
    checks = CHECKS.get(adapter, {})
    for name, value in settings.items():
        if name not in checks or not (value is None or checks[name](value)):
            yield f"has {name:.60}={value!r:.80} for {adapter:.60}, which no job may set at a site"


def _whole(most: int, *, least: int = 1) -> Check:
    return lambda value: type(value) is int and least <= value <= most


def _number(least: float, most: float) -> Check:
    return lambda value: type(value) in (int, float) and least <= value <= most


def _one_of(*choices: str) -> Check:
    return lambda value: isinstance(value, str) and value in choices


def _flag(value: Any) -> bool:
    return type(value) is bool


def _name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list | tuple) and len(value) <= MOST_ENTRIES and all(map(check, value))


def _mapping_to(check: Check) -> Check:
    def fits(value: Any) -> bool:
        entries = isinstance(value, Mapping) and len(value) <= MOST_ENTRIES
        return entries and all(map(_name, value)) and all(map(check, value.values()))

    return fits


_LAYERS = _list_of(_whole(MOST_LAYERS, least=0))
_NAMES, _PATHS = _list_of(_name), _mapping_to(_name)


def _modules(value: Any) -> bool:
    return _NAMES(value) or _PATHS(value)


BOTTLENECK: dict[str, Check] = {
    "target_modules": _modules,
    "layers": _LAYERS,
    "reduction_factor": _number(1, MOST_WIDTH),
    "layer_widths": _mapping_to(_whole(MOST_WIDTH)),
    "activation": _one_of("relu", "swish", "gelu"),
}
CHECKS: dict[str, dict[str, Check]] = {
    "houlsby": BOTTLENECK,
    "pfeiffer": BOTTLENECK,
    "parallel": BOTTLENECK | {"scaling": _number(-MOST_SCALE, MOST_SCALE)},
    "compacter": BOTTLENECK
    | {"blocks": _whole(MOST_BLOCKS), "rank": _whole(MOST_WIDTH), "rule_std": _number(0, MOST_SCALE)},
    "lora": {
        "r": _whole(MOST_WIDTH),
        "lora_alpha": _number(0, MOST_SCALE * MOST_WIDTH),
        "lora_dropout": _number(0, 1),
        "target_modules": _modules,
        "layers_to_transform": _LAYERS,
        "bias": _one_of("none"),
        "use_rslora": _flag,
        "init_lora_weights": _flag,
    },
}
