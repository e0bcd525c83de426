# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What `--methods` may name, and the sections of a job with it.

fedavg, fedpia, local, ...     a file of app_configs/methods/
pfeiffer+f3ocus                with a file of app_configs/schedules/, or with several
compacter, lora, vpt, ...      a method of `fedpeft methods`, its parts averaged (FedAvg)
NAME: METHOD SETTING=VALUE     any of these with settings, called NAME
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import suggestion
from fedpeft.job.composing import PACKAGED, compose_parts, parts_of
from fedpeft.methods import names as method_names

AVERAGED = "fedavg"
METHODS, SCHEDULES = "methods", "schedules"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A row of the comparison: its name, the method, and settings as `section.name=value`."""

    name: str
    method: str
    settings: tuple[str, ...] = ()


def variants(texts: Sequence[str]) -> list[Variant]:
    """Read what the command line says.

    Raises:
        FedpeftError: an empty one, or two of one name.
    """
    found = [_variant(text) for text in texts]
    names = [one.name for one in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise FedpeftError(f"two methods are called {twice[0]!r}: give one another name, as in 'NAME: METHOD'.")
    return found


def sections_of(configs: Path, task: str, variant: Variant, overrides: Sequence[str]) -> dict[str, Any]:
    """Compose the task's job with another method.

    Args:
        configs: the `app_configs` folder.
        task: a job in `jobs.yml`; its method and schedule are replaced, everything else stays.
        variant: the method.
        overrides: settings of all methods of the comparison, `section.name=value`; the variant's own win.

    Raises:
        FedpeftError: an unknown task or method, or a setting that is not allowed.
    """
    method, *schedules = variant.method.split("+")
    own = [f"{METHODS}/{method}"] if _exists(configs, METHODS, method) else [f"{METHODS}/{AVERAGED}"]
    named = [] if _exists(configs, METHODS, method) else [f"method.name={_known(configs, method)}"]
    for schedule in schedules:
        if not _exists(configs, SCHEDULES, schedule):
            raise FedpeftError(
                f"{variant.method!r}: {schedule!r} is no schedule: {suggestion(schedule, _files(configs, SCHEDULES))}."
            )
        own.append(f"{SCHEDULES}/{schedule}")
    parts = parts_of(configs, task)
    replaced = [number for number, part in enumerate(parts) if part.partition("/")[0] in (METHODS, SCHEDULES)]
    first = min(replaced, default=len(parts))
    kept = [part for number, part in enumerate(parts) if number not in replaced]
    return compose_parts(configs, [*kept[:first], *own, *kept[first:]], [*named, *overrides, *variant.settings])


def _variant(text: str) -> Variant:
    name, colon, rest = text.partition(":")
    words = (rest if colon else text).split()
    if not words or not name.strip():
        raise FedpeftError(f"{text!r:.80} names no method: write METHOD, or NAME: METHOD SETTING=VALUE.")
    return Variant(name=name.strip() if colon else words[0], method=words[0], settings=tuple(words[1:]))


def _known(configs: Path, method: str) -> str:
    if method not in method_names():
        known = dict.fromkeys([*_files(configs, METHODS), *method_names()])
        raise FedpeftError(f"{method!r} is no method: {suggestion(method, known)}.")
    return method


def _exists(configs: Path, folder: str, name: str) -> bool:
    return name in _files(configs, folder)


def _files(configs: Path, folder: str) -> list[str]:
    return sorted({file.stem for root in (configs, PACKAGED) for file in (root / folder).glob("*.yml")})
