# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The weights in a checkpoint folder: safetensors only, because a pickle can run code when it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from fedpeft.core import bounded_files

if TYPE_CHECKING:
    from torch import nn

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
MOST_TIMES, SLACK = 2, 10_000_000  # a pooler or head that the checkpoint lacks; matrices that are stored once
REMEDY = (
    f"take a checkpoint with {WEIGHTS}, or convert it once where you trust its author: "
    "AutoModel.from_pretrained(folder, use_safetensors=False).save_pretrained(folder)"
)


def check_folder(folder: Path, config: Mapping[str, Any], *, pickle: str = "") -> None:
    """Refuse a folder from which transformers would read a pickle, or a file that is not beside its config.json.

    Args:
        folder: of the checkpoint.
        config: the content of its config.json.
        pickle: name of a file that transformers does not read; it may be there.

    Raises:
        ValueError: names the file and the remedy.
    """
    try:
        bounded_files.check_folder(folder, deep=False)
    except OSError as error:
        raise ValueError(f"its {Path(error.filename).name} cannot be read: {error.strerror}") from error
    if (folder / ADAPTER).exists():
        raise ValueError(
            f"it has an {ADAPTER}, whose adapter transformers would load as well; give the folder of the model alone"
        )
    if (named := config.get("transformers_weights")) is not None:  # it may be any file, and goes before the others
        raise ValueError(f"its config.json names {named!r:.80} as transformers_weights: remove that entry; {REMEDY}")
    if (folder / WEIGHTS).is_file():
        return
    if (folder / INDEX).is_file():
        check_index(folder / INDEX)
        return
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLED and file.name != pickle)
    if pickles:
        raise ValueError(
            f"its weights are a pickle, {pickles[0]}, which can run code and is never read (use_safetensors=True); "
            f"{REMEDY}"
        )


def check_index(index: Path) -> None:
    """Refuse an index of weights that names anything but safetensors files beside it: transformers would read it.

    Raises:
        ValueError: names the file and the remedy.
    """
    for part in _parts(index):
        if not isinstance(part, str) or PurePosixPath(part).name != part or not part.endswith(".safetensors"):
            raise ValueError(f"its {INDEX} names {part!r:.80}, which is not a safetensors file beside it; {REMEDY}")


def stored(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every tensor in a folder's weights; none of them is read.

    Raises:
        ValueError, OSError, SafetensorError: the files are missing or damaged.
    """
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in files(folder):
        with safe_open(file, "pt") as tensors:
            shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    return shapes


def files(folder: Path) -> list[Path]:
    """Return a folder's safetensors files.

    Raises:
        ValueError: there are none.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise ValueError(f"it has no {WEIGHTS}; {REMEDY}")
    return [folder / part for part in sorted(map(str, _parts(folder / INDEX)))]


def check_size(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a model that is far larger than its weights, before memory is taken for it.

    Args:
        model: as its configuration describes it, on the meta device.
        shapes: of the stored tensors.

    Raises:
        ValueError: with both numbers of parameters.
    """
    described = sum(parameter.numel() for parameter in model.parameters())
    held = sum(math.prod(shape) for shape in shapes.values())
    if described > MOST_TIMES * held + SLACK:
        raise ValueError(
            f"its config.json describes a model of {described:,} parameters, its weights have {held:,}: give a folder "
            f"whose two files belong together"
        )


def _parts(index: Path) -> set[Any]:
    try:
        return set(bounded_files.read_json(index)["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its {INDEX} cannot be read ({type(error).__name__}); copy it again") from error
