# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What lies in a folder, at a glance: names down to a few levels, and of the many images of a folder the first."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import dropwhile, takewhile
from pathlib import Path

from fedpeft.data.errors import DataError
from fedpeft.data.folders import is_image

DEPTH = 5
MOST_FOLDERS = 2_000  # that are opened, from the shallowest on
MOST_IMAGES = 20  # of one folder that are remembered
_SHOWN, _SHOWN_INSIDE = 8, 3


@dataclass(frozen=True)
class Glance:
    """Names in a folder.

    Args:
        root: the folder.
        names: paths below it, each with a slash before it, and one behind it where it is a folder.
        images: paths of images below it, alike.
    """

    root: Path
    names: tuple[str, ...]
    images: tuple[str, ...]

    def has(self, *patterns: str) -> bool:
        """Return whether each of the patterns is that of a name, whatever its case; `*` stands for any folders too."""
        return all(any(fnmatchcase(name, pattern.lower()) for name in self._lower) for pattern in patterns)

    @cached_property
    def folders(self) -> dict[str, Glance]:
        """What lies in each folder directly in this one, by name."""
        inside: dict[str, tuple[list[str], list[str]]] = {
            name[1:-1]: ([], []) for name in self.names if name.count("/") == 2 and name.endswith("/")
        }
        for place, paths in enumerate((self.names, self.images)):
            for path in paths:
                top, slash, rest = path[1:].partition("/")
                if slash and rest:
                    inside[top][place].append(f"/{rest}")
        return {top: Glance(self.root / top, tuple(names), tuple(images)) for top, (names, images) in inside.items()}

    def described(self) -> str:
        """Return the first names as text: "manifest.csv, scans/ (1.png, 2.png, ...)"."""
        direct = sorted(path[1:] for path in (*self.names, *self.images) if path[1:-1].count("/") == 0)
        shown = []
        for name in direct[:_SHOWN]:
            inside = self.folders[name[:-1]] if name.endswith("/") else None
            listed = sorted(p[1:] for p in (*inside.names, *inside.images) if p[1:-1].count("/") == 0) if inside else []
            more = ["..."] * (len(listed) > _SHOWN_INSIDE)
            shown.append(f"{name} ({', '.join([*listed[:_SHOWN_INSIDE], *more])})" if listed else name)
        return ", ".join([*shown, *["..."] * (len(direct) > _SHOWN)]) or "nothing"

    @cached_property
    def _lower(self) -> tuple[str, ...]:
        return tuple(map(str.lower, self.names))


Recognized = Callable[[Glance], bool]


def glance(root: Path) -> Glance:
    """Look at a folder; hidden files and what macOS adds are left out, and folders inside that cannot be read.

    Raises:
        DataError: it is no folder, or cannot be read.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; correct the path.")
    try:
        os.scandir(root).close()
    except OSError as error:
        raise DataError(f"{root} cannot be read ({error.strerror}); check its permissions.") from error
    names: list[str] = []
    images: list[str] = []
    level, opened = [""], 0
    for _ in range(DEPTH):
        folders: list[str] = []
        for folder in level[: MOST_FOLDERS - opened]:
            opened += 1
            own, shown = _entries(root, folder)
            names += own
            images += shown
            folders += [name[:-1] for name in own if name.endswith("/")]
        level = folders
    return Glance(root.resolve(), tuple(names), tuple(images))


def holds(*alternatives: str | tuple[str, ...]) -> Recognized:
    """Return a function that recognizes a folder by its files.

    Args:
        alternatives: patterns of names: `/name` directly in it, `*/name` anywhere below it; of several in a tuple it
            must have each. No folder inside it must have them as well, which would be the data set's own then.
    """
    wanted = [(each,) if isinstance(each, str) else each for each in alternatives]

    def recognized(seen: Glance) -> bool:
        return any(
            seen.has(*patterns) and not any(inner.has(*patterns) for inner in seen.folders.values())
            for patterns in wanted
        )

    return recognized


def tree(text: str | None) -> str:
    """Return the expected files of a data set: the first indented lines of its module's docstring."""
    lines = (text or "").splitlines()  # Python leaves docstrings out with -OO
    indented = dropwhile(lambda line: not line.startswith("    "), lines)
    return "\n".join(takewhile(str.strip, indented))


def _entries(root: Path, folder: str) -> tuple[list[str], list[str]]:
    """Return the names in a folder, and the first of its images, sorted; none if it cannot be read."""
    names: list[str] = []
    images: list[str] = []
    try:
        with os.scandir(f"{root}{folder}") as entries:
            for entry in entries:
                if entry.name.startswith((".", "__MACOSX")):
                    continue
                inside = entry.is_dir()
                kept = images if not inside and is_image(Path(entry.name)) else names
                kept.append(f"{folder}/{entry.name}/" if inside else f"{folder}/{entry.name}")
    except OSError:
        return [], []
    return sorted(names), sorted(images)[:MOST_IMAGES]
