# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Bounds on settings of a method: those that a job may set at a site, which a method declares as its `limits`, and
those in a stranger's folder of an adapter.

No text of a job is used as a pattern: one can take hours to match. `max_trained_parameters` of the site policy limits
the number of parameters. Other work of a step is bounded by the size of the adapted matrices (FourierFT, OFT and HRA
compute matrices of that size), not by a setting of the file.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from fedpeft.core.errors import FedpeftError

MAX_WIDTH, MAX_BLOCKS, MAX_SCALE, MAX_LAYERS = 4096, 64, 64, 1024
MIN_REDUCTION = 0.01  # a hundred times as many neurons as the hidden width
MAX_FREQUENCIES = 2**20  # of a matrix
MIN_FOURIER_SCALE, MAX_FOURIER_SCALE = 1e-3, 1000  # PEFT recommends 100 to 300
MAX_ENTRIES, MAX_LENGTH = 128, 256  # of a list or mapping; characters of a name in it
RANK = 4  # of LoRA, if a job sets none
Check = Callable[[Any], bool]
Limits = Mapping[str, Check]


def refused_settings(settings: Mapping[str, Any], limits: Limits) -> Iterator[str]:
    """Yield each setting that has no check or is out of bounds, without building or importing anything."""
    for name, value in settings.items():
        if name not in limits or not (value is None or limits[name](value)):
            yield f"has {name:.60}={value!r:.80}"
    alpha, rank = settings.get("lora_alpha"), settings.get("r", RANK)
    if type(alpha) in (int, float) and type(rank) is int and rank > 0:
        root = "the root of " if settings.get("use_rslora") else ""
        if alpha > MAX_SCALE * (math.sqrt(rank) if root else rank):  # the product is scaled by their ratio
            yield f"has lora_alpha={alpha!r:.80}, more than {MAX_SCALE} times {root}r={rank},"


def whole(maximum: int, *, minimum: int = 1) -> Check:
    return lambda value: type(value) is int and minimum <= value <= maximum


def number(minimum: float, maximum: float) -> Check:
    return lambda value: type(value) in (int, float) and minimum <= value <= maximum


def nonzero(minimum: float, maximum: float) -> Check:
    """Return a check for a factor: with 0 an adapter adds nothing and never trains."""
    return lambda value: number(minimum, maximum)(value) and value != 0


def dropout(value: Any) -> bool:
    return number(0, 1)(value) and value < 1


def choice(*allowed: str) -> Check:
    return lambda value: isinstance(value, str) and value in allowed


def one_of(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def flag(value: Any) -> bool:
    return type(value) is bool


def name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_LENGTH


def list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list | tuple) and len(value) <= MAX_ENTRIES and all(map(check, value))


def mapping_to(check: Check) -> Check:
    def fits(value: Any) -> bool:
        entries = isinstance(value, Mapping) and len(value) <= MAX_ENTRIES
        return entries and all(map(name, value)) and all(map(check, value.values()))

    return fits


def each(limits: Limits) -> Check:
    """Return a check for the settings of a method within those of another."""
    return lambda value: isinstance(value, Mapping) and not any(True for _ in refused_settings(value, limits))


def layers(value: Any) -> bool:
    return list_of(whole(MAX_LAYERS, minimum=0))(value) and len(value) > 0


SOME_LAYERS = one_of(layers, whole(MAX_LAYERS, minimum=0))
SEED = whole(2**31 - 1, minimum=0)


def modules(value: Any) -> bool:
    """Check `target_modules`: a list of names, or role -> path; no pattern."""
    return list_of(name)(value) or mapping_to(name)(value)


BOTTLENECK: dict[str, Check] = {
    "target_modules": modules,
    "layers": layers,
    "reduction_factor": number(1, MAX_WIDTH),
    "layer_widths": mapping_to(whole(MAX_WIDTH)),
    "activation": choice("relu", "swish", "gelu"),
}
PFEIFFER: Limits = BOTTLENECK | {"layer_norm": flag}
PARALLEL: Limits = BOTTLENECK | {"scaling": nonzero(-MAX_SCALE, MAX_SCALE)}
COMPACTER: Limits = BOTTLENECK | {"blocks": whole(MAX_BLOCKS), "rank": whole(MAX_WIDTH), "rule_std": nonzero(0, 1)}
FIRST_VALUE_SETTINGS = frozenset({"start_std", "init_lora_weights"})  # read only when an adapter is drawn
LORA: Limits = {
    "r": whole(MAX_WIDTH),
    "lora_alpha": nonzero(0, MAX_SCALE * MAX_WIDTH),  # and at most MAX_SCALE times r
    "lora_dropout": dropout,
    "target_modules": modules,
    "layers_to_transform": SOME_LAYERS,
    "bias": choice("none"),
    "use_rslora": flag,
    "init_lora_weights": flag,
    "start_std": one_of(number(1e-4, 1), choice("xavier")),
}
MODULES: dict[str, Check] = {"target_modules": modules}
RANKED: dict[str, Check] = MODULES | {
    "r": whole(MAX_WIDTH),
    "layers_to_transform": SOME_LAYERS,
}
OFT: Limits = RANKED | {"r": whole(MAX_WIDTH, minimum=0), "oft_block_size": whole(MAX_WIDTH, minimum=0)}
VERA: Limits = RANKED | {"d_initial": nonzero(0, MAX_SCALE), "projection_prng_key": SEED, "vera_dropout": dropout}
FOURIERFT: Limits = MODULES | {
    "n_frequency": whole(MAX_FREQUENCIES),
    "scaling": number(MIN_FOURIER_SCALE, MAX_FOURIER_SCALE),
    "random_loc_seed": SEED,
    "layers_to_transform": SOME_LAYERS,
}
MISS: Limits = RANKED | {"miss_dropout": dropout}
PROMPTS: dict[str, Check] = {"tokens": whole(MAX_WIDTH)}
FACTORED_PROMPTS: Limits = PROMPTS | {"rank": whole(MAX_WIDTH), "decomposition": choice("per_block", "concatenated")}


def goes_with_others(settings: Mapping[str, Any], limits: Limits) -> bool:
    """Return whether settings are there of which some values exclude each other, as OFT's rank and size of blocks."""
    of_oft = "oft_block_size" in limits and not settings.keys().isdisjoint({"r", "oft_block_size"})
    return of_oft or settings.keys() >= FIRST_VALUE_SETTINGS


REFUSED = {
    "megatron_config": "for which PEFT imports the module that the file names",
    "layer_replication": "with which PEFT gives the model other layers",
}
# what PEFT matches as regular expressions: texts, entries of lists, and keys of mappings called `..._pattern`
TEXT_PATTERNS = ("target_modules", "exclude_modules", "feedforward_modules")
LISTED_PATTERNS = ("layers_pattern", "modules_to_save")
SCALE_PATTERNS = ("rank_pattern", "alpha_pattern")  # a merge matches them with any name in a file of tensors
MAX_PATTERNS, MAX_OWN_PATTERN = 500, 2**14
MAX_GROUPS, MAX_ALTERNATIVES = 4, 16  # of one pattern
MAX_REPEATS, MAX_SCALE_REPEATS = 3, 1  # of one pattern: each is a loop over a name
# of patterns that take little time: letters, points and classes, which may be repeated; groups, which may not
_PIECE = re.compile(
    r"""(?P<repeat>(?:[\w.-]|\\[^0-9]|\[[^\[\]]*\])(?:[*+?]|\{\d{0,3},?\d{0,3}\})\??)
    |(?P<group>\((?:\?[:=!])?)|\)(?![*+?{])|(?P<alternative>\|)|[\w.^$-]|\\[^0-9]|\[[^\[\]]*\]""",
    re.VERBOSE,
)


def check_strangers_settings(settings: Mapping[str, Any], where: str, *, names: Collection[str] | None = None) -> None:
    """Refuse settings by which PEFT would import code, change the model's layers, or match a pattern for hours.

    Args:
        settings: of an adapter's configuration, or of a method that trains several.
        where: they stand, for the error.
        names: of the settings with patterns that PEFT is about to match; None: all.
    """
    for name, why in REFUSED.items():
        if settings.get(name):
            raise FedpeftError(f"{where} has {name}, {why}: leave it out.")
    for name, value in settings.items():
        patterns = _patterns(name, value) if names is None or name in names else ()
        if len(patterns) > MAX_PATTERNS:
            raise FedpeftError(f"{where} has {len(patterns):,} entries in {name}, allowed are {MAX_PATTERNS:,}.")
        for text in patterns:
            if not (_is_quick(text, name) or (name in TEXT_PATTERNS and _is_own(text))):
                raise FedpeftError(
                    f"{where} has {text!r:.80} in {name}, which is no regular expression, or one that can take "
                    f"hours to match: write the names of modules."
                )
        if isinstance(value, Mapping):
            check_strangers_settings(value, where, names=names)


def _patterns(name: Any, value: Any) -> Collection[Any]:
    """Return the regular expressions of a setting, or of an entry of one, as a layer's width."""
    if isinstance(name, str) and name.endswith("_pattern") and isinstance(value, Mapping):
        return value
    if isinstance(value, str):
        return (value,) if name in (*TEXT_PATTERNS, *LISTED_PATTERNS) else ()
    return value if name in LISTED_PATTERNS and isinstance(value, list | tuple | set) else ()


def _is_quick(text: Any, name: str) -> bool:
    """Return whether a pattern has few pieces that take time, and no repeat within another."""
    if not isinstance(text, str) or len(text) > MAX_LENGTH:
        return False
    place, counts = 0, Counter[str]()
    while place < len(text):
        if (piece := _PIECE.match(text, place)) is None:
            return False
        counts[piece.lastgroup or ""] += 1
        place = piece.end()
    repeats = MAX_SCALE_REPEATS if name in SCALE_PATTERNS else MAX_REPEATS
    if counts["repeat"] > repeats or counts["group"] > MAX_GROUPS or counts["alternative"] > MAX_ALTERNATIVES:
        return False
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def _is_own(text: Any) -> bool:
    """Return whether fedpeft made a pattern, which matches in little time."""
    from fedpeft.backbones.structure import roles_of

    return isinstance(text, str) and len(text) <= MAX_OWN_PATTERN and bool(roles_of(text))
