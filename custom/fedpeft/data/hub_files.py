# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Find and read the files of a Hugging Face `datasets` folder: Parquet as on the hub, Arrow as `save_to_disk` writes.

Rows are read in small batches. The bytes of an image stay in the file until the image is opened: then one row group of
a Parquet file is read (a hundred rows, as `datasets` writes them), or the image's place in an Arrow file, which is
memory-mapped. So images that a site does not look at need no memory.

A stranger's file of a few kilobytes can unpack to any size: a dictionary holds a text once for all rows, and zeros and
missing values take next to nothing. So the number of rows, the unpacked size of a column in a row group, and the size
of a batch are limited. Compressed Arrow, which `datasets` does not write, is refused before it is unpacked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from fedpeft.core.errors import DataError
from fedpeft.data.answers import clean_values
from fedpeft.data.folders import files_below, inside
from fedpeft.data.partition import SPELLINGS
from fedpeft.data.records import read_text

_BATCH = 64
MAX_ROWS = 5 * 10**6
MAX_UNPACKED = 2**29  # bytes of one column in one row group
_MAX_IN_BATCH = 2**28  # bytes of a column in a batch, if every row were as long as the whole column
# Arrow's types in which several rows may share one value, as the text of a type names them
_REPEATS = re.compile(r"\b(?:dictionary|run_end_encoded|dense_union|\w+_view)<|\b(?:string|binary)_view\b")
_EARLY_COMPRESSION = b"ARROW:experimental_compression"  # in a message of 2020
_MAGIC = b"ARROW1\0\0"  # before the messages of a file that is no stream
# of Arrow's messages, which are flatbuffers: numbers of the fields that are read
_HEADER_TYPE, _HEADER, _DICTIONARY_DATA, _COMPRESSION = 1, 2, 1, 3
_DICTIONARY, _BATCH_OF_ROWS = 2, 3  # header types
ONE_READER = Lock()  # pyarrow does not say that threads may share an open file; and each finds what another has read
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)(?:-[0-9a-f]+)?")  # until 2023 `push_to_hub` added a digest
_WORDS = re.compile(r"[a-z]+")
_SAVED = "dataset_dict.json"
# endings of files that may hold a split in another form, or of an unfinished download
_OTHER_TABLES = frozenset(
    {
        *(".csv", ".tsv", ".json", ".jsonl", ".arrow", ".feather", ".pq", ".tar", ".zip", ".gz", ".zst", ".xz", ".7z"),
        *(".part", ".incomplete", ".crdownload"),
    }
)


class SeveralSetsError(DataError):
    """A folder holds several data sets; name the folder of one."""


class Shard(NamedTuple):
    """One file with rows, and the name of its split as the folder has it; empty: it names none."""

    file: Path
    split: str


def shards(root: Path) -> list[Shard]:
    """Return the files with rows below a folder, in the order of their paths."""
    below = files_below(root)
    parquet = [path for path in below if _is_parquet(path)]
    states = [path for path in below if path.name == "state.json"]
    if parquet and states:
        raise SeveralSetsError(
            f"Both {parquet[0]} and {states[0]} are there; let root be the folder of one of the two."
        )
    if not parquet and not states:
        raise DataError(f"{root} is no folder of Hugging Face datasets; let root be the folder of one.")
    return _saved_shards(below, states, root) if states else _parquet_shards(below, parquet, root)


def _saved_shards(below: Sequence[Path], states: Sequence[Path], root: Path) -> list[Shard]:
    """Return the files of what `save_to_disk` wrote."""
    saved = sorted({state.parent if state.parent == root else state.parent.parent for state in states})
    if len(saved) > 1:
        raise SeveralSetsError(
            f"Both {saved[0]} and {saved[1]} hold saved data; let root be the folder of one of them."
        )
    _check_saved(path for path in below if path.name == _SAVED)
    return [shard for state in states for shard in _saved(state, root)]


def _parquet_shards(below: Sequence[Path], parquet: Sequence[Path], root: Path) -> list[Shard]:
    """Return the Parquet files of one configuration."""
    named = [(path, *_split_of(path, root)) for path in parquet]
    homes = sorted({home for _, _, home in named})
    if len(homes) > 1:
        raise SeveralSetsError(
            f"Both {homes[0]} and {homes[1]} hold Parquet files; let root be the folder of one of them."
        )
    if any(split for _, split, _ in named) and (unnamed := [path for path, split, _ in named if not split]):
        raise DataError(
            f"{unnamed[0]} names no split, and other files do: name it like one, as train-00000-of-00001.parquet, or "
            f"let root hold the files of one data set alone."
        )
    _check_numbers(parquet)
    _check_others(below, {SPELLINGS.get(split, split) for _, split, _ in named})
    return [Shard(path, split) for path, split, _ in named]


def _check_numbers(parquet: Sequence[Path]) -> None:
    """Refuse a split if some of its numbered files are missing."""
    there: dict[tuple[Path, str, int], set[int]] = {}
    for path in parquet:
        if shard := _SHARD.fullmatch(path.stem):
            there.setdefault((path.parent, shard[1], int(shard[3])), set()).add(int(shard[2]))
    for (folder, name, count), numbers in there.items():
        if len(numbers) < count:
            raise DataError(
                f"{folder} has {len(numbers)} of {count} files {name}-...-of-{count:05d}: download the others, or, to "
                f"train without them, name those that are there like {name}-1.parquet."
            )


def _check_others(below: Sequence[Path], splits: Collection[str]) -> None:
    """Refuse a file in another form that is named like a split that no Parquet file has."""
    for path in below:
        if path.suffix.lower() in _OTHER_TABLES:
            words = {SPELLINGS[word] for word in _WORDS.findall(path.name.lower()) if word in SPELLINGS}
            if len(words) == 1 and not words & set(splits):
                raise DataError(
                    f"{path} is named like the split {words.pop()}, which no Parquet file here has: save it as "
                    f"Parquet, or give it another name."
                )


def _check_saved(files: Iterable[Path]) -> None:
    """Refuse what `save_to_disk` wrote, if a split that it lists is not there."""
    for file in files:
        try:
            splits = [str(split) for split in json.loads(read_text(file))["splits"]]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise DataError(f"{file} is not what save_to_disk writes; save the data set again.") from error
        if missing := [
            split
            for split in splits
            if not (file.parent / inside(file.parent, split, where=str(file)) / "state.json").is_file()
        ]:
            raise DataError(f"{file} lists the split {missing[0]!r:.80}, which is not there; copy the whole folder.")


def columns_of(file: Path) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Return the names of a file's columns, and the classes of columns with numbers of classes."""
    schema = _parquet(file).schema_arrow if _is_parquet(file) else _arrow(file).schema
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        features = {}
    named = {name: _class_names(feature) for name, feature in features.items()} if isinstance(features, dict) else {}
    return tuple(schema.names), {name: names for name, names in named.items() if names}


def _class_names(feature: Any) -> list[str]:
    """Return the names of a column's classes, also where a cell is a list of them; empty: it has no classes."""
    if isinstance(feature, list):
        feature = feature[0] if len(feature) == 1 else None
    if isinstance(feature, dict) and isinstance(feature.get("feature"), dict):
        feature = feature["feature"]
    names = feature.get("names") if isinstance(feature, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else []


def rows(file: Path, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of some columns, row by row."""
    chosen = list(dict.fromkeys(columns))
    largest = _largest_column(file, chosen) if _is_parquet(file) else _largest_repeating(_arrow(file), chosen)
    size = max(1, min(_BATCH, _MAX_IN_BATCH // max(1, largest)))
    try:
        if _is_parquet(file):
            batches = _parquet(file).iter_batches(size, columns=chosen, use_threads=False)
        else:
            for name in chosen:
                _arrow_column(file, _stamp(file), name)
            batches = _arrow(file).select(chosen).to_batches(max_chunksize=size)
        for batch in batches:
            yield from zip(*(map(clean_values, batch.column(name).to_pylist()) for name in columns), strict=True)
    except (OSError, ValueError) as error:
        raise _broken(file) from error
    except MemoryError as error:
        raise _unpacks(file, "more than this process has memory for") from error


def image_bytes(file: Path, column: str, row: int) -> bytes:
    """Return the encoded image of one row."""
    try:
        if not _is_parquet(file):
            return _content(_arrow_column(file, _stamp(file), column)[row].as_py())
        metadata = _parquet(file).metadata
        for group in range(metadata.num_row_groups):
            if row < (count := metadata.row_group(group).num_rows):
                with ONE_READER:
                    images = _images(file, _stamp(file), column, group)
                return _content(images[row].as_py())
            row -= count
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise _broken(file) from error
    except MemoryError as error:
        raise _unpacks(file, "more than this process has memory for") from error
    raise _broken(file)


def encoded(cell: Any) -> bytes | str | None:
    """Return what an image column has in one row: the bytes of the file, its path, or None.

    A cell is `{"bytes": ..., "path": ...}`, bytes, a path, or a list with one of these.
    """
    if isinstance(cell, list):
        cell = cell[0] if len(cell) == 1 else None
    if isinstance(cell, dict):
        cell = cell.get("bytes") or cell.get("path")
    return cell if isinstance(cell, bytes | str) and cell else None


def _content(cell: Any) -> bytes:
    image = encoded(cell)
    return image if isinstance(image, bytes) else b""


def _split_of(file: Path, root: Path) -> tuple[str, Path]:
    """Return the split in the name of a Parquet file or its folder, and the folder of the configuration."""
    if shard := _SHARD.fullmatch(file.stem):
        return shard[1].lower(), file.parent
    if split := _split_in(file.stem, file):
        return split, file.parent
    if file.parent == root:
        return "", file.parent
    if file.stem.isdigit():
        return file.parent.name.lower().removeprefix("partial-"), file.parent.parent
    split = _split_in(file.parent.name, file)
    return split, file.parent.parent if split else file.parent


def _split_in(name: str, file: Path) -> str:
    """Return the split that a word of a name is, as the hub finds it; empty: none."""
    splits = {SPELLINGS[word] for word in _WORDS.findall(name.lower()) if word in SPELLINGS}
    if len(splits) > 1:
        raise DataError(f"{file} is named like {' and '.join(sorted(splits))}; name it like one split.")
    return splits.pop() if splits else ""


def _saved(state: Path, root: Path) -> list[Shard]:
    """Return the files that a state.json lists, with their split."""
    together = state.parent != root and (state.parent.parent / _SAVED).is_file()
    try:
        values = json.loads(read_text(state))
        names = [entry["filename"] for entry in values["_data_files"]]
        # of several that were saved together, the folder counts: both halves of a split training set are called train
        named = "" if together else str(values.get("_split") or "")
        split = named.partition("[")[0].lower() or state.parent.name.lower()
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{state} is not what save_to_disk writes; save the data set again.") from error
    files = [state.parent / inside(state.parent, str(name), where=str(state)) for name in names]
    if missing := [file for file in files if not file.is_file()]:
        raise DataError(f"The file {missing[0]}, named in {state}, is missing; copy the whole folder.")
    if not named and split not in SPELLINGS and not together:
        split = ""
    return [Shard(file, split) for file in files]


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() == ".parquet"


def _stamp(file: Path) -> tuple[int, int]:
    """Return time and size of a file, so that a rewritten file is opened again."""
    try:
        stat = file.stat()
    except OSError as error:
        raise _broken(file) from error
    return stat.st_mtime_ns, stat.st_size


def _parquet(file: Path) -> Any:
    return _open_parquet(file, _stamp(file))


def _arrow(file: Path) -> Any:
    return _open_arrow(file, _stamp(file))


@lru_cache(maxsize=64)
def _open_parquet(file: Path, stamp: tuple[int, int]) -> Any:
    parquet = _pyarrow("parquet")
    try:
        opened = parquet.ParquetFile(file, memory_map=True, pre_buffer=False)
    except (OSError, ValueError) as error:
        raise _broken(file) from error
    _check_rows(file, opened.metadata.num_rows)
    return opened


def _check_rows(file: Path, count: int) -> None:
    if count > MAX_ROWS:
        raise _unpacks(file, f"{count:,} rows, allowed are {MAX_ROWS:,}")


def _largest_column(file: Path, chosen: Sequence[str]) -> int:
    """Return the bytes that the largest of some columns unpacks to in one row group."""
    metadata, schema = _parquet(file).metadata, _parquet(file).schema
    leaves = [number for number in range(metadata.num_columns) if schema.column(number).path.split(".")[0] in chosen]
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    largest = max((group.column(leaf).total_uncompressed_size for group in groups for leaf in leaves), default=0)
    if largest > MAX_UNPACKED:
        raise _unpacks(file, f"a row group of {largest >> 20:,} MiB in one column, allowed are {MAX_UNPACKED >> 20:,}")
    return largest


def _largest_repeating(table: Any, chosen: Sequence[str]) -> int:
    """Return the bytes of the largest of some columns of an Arrow file in which rows may share one value."""
    columns = [table.column(name) for name in chosen if _REPEATS.search(str(table.schema.field(name).type))]
    return max((column.get_total_buffer_size() for column in columns), default=0)


@lru_cache(maxsize=2)
def _images(file: Path, stamp: tuple[int, int], column: str, group: int) -> Any:
    return _open_parquet(file, stamp).read_row_group(group, columns=[column], use_threads=False).column(column)


@lru_cache(maxsize=64)
def _open_arrow(file: Path, stamp: tuple[int, int]) -> Any:
    """Return the table of an Arrow file; its buffers are the file's own pages."""
    ipc = _pyarrow("ipc")
    import pyarrow

    try:
        mapped = pyarrow.memory_map(str(file))
        start = len(_MAGIC) if mapped.read(len(_MAGIC)) == _MAGIC else 0
        mapped.seek(start)
        compressed = any(map(_is_compressed, ipc.MessageReader.open_stream(mapped)))
        mapped.seek(start)
        if not compressed:
            table = ipc.open_stream(mapped).read_all()
    except (OSError, ValueError, IndexError) as error:
        raise _broken(file) from error
    except MemoryError as error:
        raise _unpacks(file, "more than this process has memory for") from error
    if compressed:
        raise DataError(
            f"{file} is a compressed Arrow file, which is not read: save it with save_to_disk, or as Parquet."
        )
    _check_rows(file, table.num_rows)
    return table


@lru_cache(maxsize=64)
def _arrow_column(file: Path, stamp: tuple[int, int], name: str) -> Any:
    """Return a column whose offsets lie inside of the file."""
    column = _open_arrow(file, stamp).column(name)
    column.validate(full=True)
    return column


def _is_compressed(message: Any) -> bool:
    """Return whether the buffers of an Arrow message are compressed, from its metadata, a flatbuffer."""
    data = message.metadata.to_pybytes()

    def field(table: int, number: int) -> int:
        """Return the place of a field of a table; 0: it is not there."""
        fields = table - int.from_bytes(data[table : table + 4], "little", signed=True)
        size = int.from_bytes(data[fields : fields + 2], "little")
        entry = fields + 4 + 2 * number
        offset = int.from_bytes(data[entry : entry + 2], "little") if 4 + 2 * number < size else 0
        return table + offset if offset else 0

    def inner(place: int) -> int:
        return place + int.from_bytes(data[place : place + 4], "little")

    if _EARLY_COMPRESSION in data:
        return True
    root = inner(0)
    kind, header = field(root, _HEADER_TYPE), field(root, _HEADER)
    if not kind or not header or data[kind] not in (_DICTIONARY, _BATCH_OF_ROWS):
        return False
    batch = inner(header)
    if data[kind] == _DICTIONARY:
        batch = inner(field(batch, _DICTIONARY_DATA))
    return bool(field(batch, _COMPRESSION))


def _pyarrow(module: str) -> Any:
    try:
        from importlib import import_module

        return import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise DataError(
            "Parquet and Arrow files need pyarrow, which is not installed: pip install 'flare-fedpeft[parquet]'."
        ) from error


def _unpacks(file: Path, what: str) -> DataError:
    return DataError(f"{file} unpacks to {what}: check where it comes from, or save it in smaller parts.")


def _broken(file: Path) -> DataError:
    return DataError(f"{file} cannot be read; copy or download it again.")
