# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Find a data set's folder under FEDPEFT_DATA, and files in it at any depth that the archives unpack to.

A `Listing` says what a folder holds: names down to a few levels, and the first images of each folder.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from itertools import dropwhile, takewhile
from pathlib import Path, PurePosixPath

from fedpeft.core.errors import DataError
from fedpeft.core.text import shortened
from fedpeft.core.workspace import DATA_VARIABLE
from fedpeft.data.answers import clean_text
from fedpeft.data.registry import DATASETS
from fedpeft.data.settings import DataSettings

# of all formats that `fedpeft.data.images` reads
IMAGE_SUFFIXES = frozenset(
    {
        *(".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"),
        *(".j2c", ".j2k", ".jp2", ".jpc", ".jpf", ".jpx"),
        *(".pbm", ".pgm", ".pnm", ".ppm"),
    }
)
MAX_FOLDERS = 1_000_000  # below one; links to each other make more
_DEPTH = 4

DEPTH = 5
MAX_SEEN = 2_000  # folders that are opened, the shallowest first, spread over the folders around them
MAX_IMAGES = 20  # that are kept for each folder
_SHOWN, _SHOWN_INSIDE = 8, 3


def dataset_folder(settings: DataSettings, known_as: tuple[str, ...] = ()) -> Path:
    """Return a data set's folder: `settings.root`, else the first of its known names that FEDPEFT_DATA has."""
    known_as = known_as or DATASETS.get(settings.dataset).folders_of(settings.site)
    if settings.root is not None:
        root = Path(settings.root)
        if not _is_folder(root):
            raise DataError(
                f"The data folder {root} of {settings.dataset!r} does not exist; correct root, or leave it out and set "
                f"{DATA_VARIABLE} to the folder that holds {known_as[0]!r}."
            )
        return root
    base = os.environ.get(DATA_VARIABLE, "")
    if not base:
        raise DataError(
            f"No data folder for {settings.dataset!r}: set the environment variable {DATA_VARIABLE} to the folder that "
            f"holds {known_as[0]!r}, or give root."
        )
    if not _is_folder(Path(base)):
        raise DataError(f"{DATA_VARIABLE}={base} is not a folder; correct the environment variable.")
    for name in known_as:
        folder = Path(base, name)
        if _is_folder(folder):
            return folder
    raise DataError(
        f"{DATA_VARIABLE}={base} holds no folder for {settings.dataset!r}: put the unpacked data there as "
        f"{' or '.join(map(repr, known_as))}, or correct the variable."
    )


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise unreadable_folder(error, path) from error


def unreadable_folder(error: OSError, path: Path) -> DataError:
    """Return the error for a folder that this user may not enter, or a file below it."""
    why = error.strerror or error
    return DataError(f"{error.filename or path} cannot be read ({why}); check the folder and its permissions.")


def either(root: Path, first: str, second: str, *, remedy: str) -> Path:
    """Return the first of two files that a folder has."""
    for name in (first, second):
        if (file := root / name).is_file():
            return file
    raise DataError(f"{root} holds neither {first!r} nor {second!r}; {remedy}.")


def find(root: Path, name: str, *, folder: bool = False) -> Path:
    """Return the one file (or folder) of a name, at most four folders below `root`, ignoring case.

    The owners' archives unpack with or without a folder of their own, at times twice nested, and one of them writes
    `QA_Pairs` where the next writes `QA_pairs`. The shallowest match counts.
    """
    matches = _search(root, name, folder=folder)
    if not matches:
        kind = "folder" if folder else "file"
        raise DataError(f"The {kind} {name!r} is missing under {root}; unpack the data set's archives there.")
    if len(matches) > 1:
        raise DataError(f"Both {matches[0]} and {matches[1]} are there; keep one of them.")
    return matches[0]


def contains(root: Path, name: str, *, folder: bool = False) -> bool:
    """Return whether `find` has a match."""
    return bool(_search(root, name, folder=folder))


def images_below(folder: Path) -> dict[str, Path]:
    """Return all image files below a folder by name without extension, for publishers that list ids."""
    images: dict[str, Path] = {}
    for path in filter(is_image, files_below(folder)):
        name = clean_text(path.stem)
        if name in images:
            raise DataError(f"Both {images[name]} and {path} are there; keep one of them.")
        images[name] = path
    if not images:
        raise DataError(f"The folder {folder} holds no image; unpack the data set's images there.")
    return images


def files_below(folder: Path, *, whole: bool = True) -> list[Path]:
    """Return all files below a folder, at any depth, in the order of their paths.

    Links are followed, also those to folders, but not back into a folder around them or around `folder`. Hidden files
    and folders are left out, and what macOS adds to archives. An image that is a link to nothing is an error, or left
    out where the files need not be `whole`.
    """
    files: list[Path] = []
    waiting = [(str(folder), _places(folder))]
    opened = 0
    while waiting:
        current, around = waiting.pop()
        try:
            stat = os.stat(current)
            if (place := (stat.st_dev, stat.st_ino)) in around:
                continue
            if (opened := opened + 1) > MAX_FOLDERS:
                raise DataError(f"{folder} has more than {MAX_FOLDERS:,} folders below it: remove links to folders.")
            with os.scandir(current) as entries:
                for entry in entries:
                    if is_hidden(entry.name):
                        continue
                    if entry.is_dir():
                        waiting.append((entry.path, around | {place}))
                    elif entry.is_file():
                        file = Path(entry.path)
                        files.append(check_name(file) if is_image(file) else file)
                    elif whole and entry.is_symlink() and is_image(Path(entry.name)):
                        raise DataError(
                            f"{entry.path} is a link to a file that is not there: fetch it, as with git annex get or "
                            f"dvc pull, or remove the link."
                        )
        except OSError as error:
            raise DataError(f"{current} cannot be read ({error.strerror}); check its permissions.") from error
    return sorted(files)


def check_name(file: Path) -> Path:
    """Return an image's path; refuse one that is not UTF-8, which neither a table nor a digest can hold."""
    try:
        str(file).encode()
    except UnicodeEncodeError as error:
        name = os.fsencode(file).decode(errors="backslashreplace")
        raise DataError(f"{name} has a name that is not UTF-8: rename it, as convmv does for whole folders.") from error
    return file


def _places(folder: Path) -> frozenset[tuple[int, int]]:
    """Return the places on the disk of all folders around a folder, both by its path and with links resolved."""
    parents = [parent for path in (folder.absolute(), folder.resolve()) for parent in path.parents]
    try:
        return frozenset((stat.st_dev, stat.st_ino) for stat in map(os.stat, parents))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}); check that it is there.") from error


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is hidden, or is what macOS adds to archives and Linux to disks."""
    return name.startswith((".", "__MACOSX")) or name == "lost+found"


def inside(root: Path, name: str, *, where: str) -> str:
    """Return the name of an image that a row gives, relative to the data's folder and with slashes."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or (path.parts[:1] and path.parts[0].endswith(":")):
        shown = shortened(str(path), max_start=300, max_end=60)
        raise DataError(f"{where}: the image {shown} is not inside {root}; give a path relative to that folder.")
    return str(path)


def is_image(file: Path) -> bool:
    """Return whether a file's name is that of an image; what macOS puts beside one begins with a dot."""
    return file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")


def image_file(folder: Path, name: str, *, where: str) -> Path:
    """Return the path of an image that a row names, which must exist."""
    path = folder / name
    if not os.path.isfile(path) and (path := _find_in_other_form(folder, name) or path) == folder / name:
        raise missing_image(path, where=where)
    return path


def missing_image(path: Path, *, where: str) -> DataError:
    """Return the error for an image that is named but missing."""
    name = shortened(str(path), max_start=300, max_end=60)
    return DataError(f"The image {name}, named in {where}, is missing; restore the file or remove the row.")


def listed_image(known: Mapping[str, Path], folder: Path, name: str, *, where: str) -> Path:
    """Return the image that a row names by its id, with or without .jpg; `known` is the result of `images_below`."""
    name = name.removesuffix(".jpg")
    if name not in known:
        raise missing_image(folder / f"{name}.jpg", where=where)
    return known[name]


def _find_in_other_form(folder: Path, name: str) -> Path | None:
    """Return the file whose name is the same text in another Unicode form: macOS decomposes names, tables compose."""
    path = folder
    for part in PurePosixPath(name).parts:
        try:
            changed = path.stat().st_mtime_ns
            path = path / _names_by_text(path, changed)[clean_text(part)]
        except (OSError, KeyError):
            return None
    return path if path.is_file() else None


@lru_cache(maxsize=16)
def _names_by_text(folder: Path, changed: int) -> dict[str, str]:
    return {clean_text(name): name for name in os.listdir(folder)}


def _search(root: Path, name: str, *, folder: bool) -> list[Path]:
    """Return the files (or folders) of a name in the shallowest level that has any."""
    level = [root]
    for _ in range(_DEPTH):
        deeper: list[Path] = []
        matches: list[Path] = []
        for parent in level:
            for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
                if is_hidden(entry.name):
                    continue
                is_folder = entry.is_dir()
                if entry.name.lower() == name.lower() and is_folder == folder:
                    matches.append(Path(entry.path))
                if is_folder:
                    deeper.append(Path(entry.path))
        if matches:
            return matches
        level = deeper
    return []


@dataclass(frozen=True)
class Listing:
    """Names in a folder."""

    root: Path
    names: tuple[str, ...]  # paths below it, each with a slash before it, and one after it where it is a folder
    images: tuple[str, ...]  # paths of images below it, in the same form

    def has(self, *patterns: str) -> bool:
        """Return whether each pattern matches a name, whatever its case; `*` also stands for any folders."""
        return all(any(fnmatchcase(name, pattern.lower()) for name in self._lower) for pattern in patterns)

    @cached_property
    def folders(self) -> dict[str, Listing]:
        """The listing of each folder directly in this one, by name."""
        inside: dict[str, tuple[list[str], list[str]]] = {
            name[1:-1]: ([], []) for name in self.names if name.count("/") == 2 and name.endswith("/")
        }
        for place, paths in enumerate((self.names, self.images)):
            for path in paths:
                top, slash, rest = path[1:].partition("/")
                if slash and rest:
                    inside[top][place].append(f"/{rest}")
        return {top: Listing(self.root / top, tuple(names), tuple(images)) for top, (names, images) in inside.items()}

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


Recognized = Callable[[Listing], bool]


def list_folder(root: Path) -> Listing:
    """List a folder without hidden files, files that macOS adds, and unreadable folders inside."""
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
        for folder in _spread(level, MAX_SEEN - opened):
            opened += 1
            own, shown = _entries(root, folder)
            names += own
            images += shown
            folders += [name[:-1] for name in own if name.endswith("/")]
        level = folders
    return Listing(root.resolve(), tuple(names), tuple(images))


def _spread(folders: Sequence[str], count: int) -> Sequence[str]:
    """Return `count` folders in their order, spread evenly over all folders around them.

    Otherwise the first class, or the first site, could be all of them.
    """
    if len(folders) <= count:
        return folders
    inside: dict[str, dict[str, int]] = {}
    turns = []
    for number, folder in enumerate(folders):
        parts = folder.split("/")[1:]
        around = ["/".join(parts[:depth]) for depth in range(len(parts))]
        places = [inside.setdefault(outer, {}) for outer in around]
        turns.append(([place.setdefault(part, len(place)) for place, part in zip(places, parts, strict=True)], number))
    chosen = sorted(turns, key=lambda turn: turn[0][::-1])[:count]
    return [folders[number] for number in sorted(number for _, number in chosen)]


def matches(*alternatives: str | tuple[str, ...]) -> Recognized:
    """Return a function that recognizes a folder by the names in it: `/name` directly in it, `*/name` anywhere below.

    All alternatives of a tuple must match, and must not match a single folder inside: that would be the data set's own.
    """
    wanted = [(each,) if isinstance(each, str) else each for each in alternatives]

    def recognized(seen: Listing) -> bool:
        return any(
            seen.has(*patterns) and not any(inner.has(*patterns) for inner in seen.folders.values())
            for patterns in wanted
        )

    return recognized


def tree(text: str | None) -> str:
    """Return the expected files of a data set: the first indented lines of the docstring of its module or loader."""
    lines = inspect.cleandoc(text or "").splitlines()  # Python leaves docstrings out with -OO
    indented = dropwhile(lambda line: not line.startswith("    "), lines)
    return "\n".join(takewhile(str.strip, indented))


def _entries(root: Path, folder: str) -> tuple[list[str], list[str]]:
    """Return the names in a folder and its first images, sorted; nothing if it cannot be read."""
    names: list[str] = []
    images: list[str] = []
    try:
        with os.scandir(f"{root}{folder}") as entries:
            for entry in entries:
                if is_hidden(entry.name):
                    continue
                inside = entry.is_dir()
                kept = images if not inside and is_image(Path(entry.name)) else names
                kept.append(f"{folder}/{entry.name}/" if inside else f"{folder}/{entry.name}")
    except OSError:
        return [], []
    return sorted(names), sorted(images)[:MAX_IMAGES]
