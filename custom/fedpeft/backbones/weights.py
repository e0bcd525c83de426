# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check that a checkpoint folder holds safetensors only: a pickle can run code when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
REMEDY = (
    f"take a checkpoint with {WEIGHTS}, or convert it once where you trust its author: "
    "AutoModel.from_pretrained(folder, use_safetensors=False).save_pretrained(folder)"
)


def check_folder(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a folder from which transformers would read a pickle, or a file outside the folder.

    Args:
        folder: of the checkpoint.
        config: the content of its config.json.

    Raises:
        ValueError: names the file and the remedy.
    """
    named = config.get("transformers_weights")
    if named is not None and named not in (WEIGHTS, INDEX):
        raise ValueError(f"its config.json names {named!r:.80} as weights, which is not read; {REMEDY}")
    if (folder / WEIGHTS).is_file():
        return
    if (folder / INDEX).is_file():
        for part in _parts(folder / INDEX):
            if not isinstance(part, str) or PurePosixPath(part).name != part or not part.endswith(".safetensors"):
                raise ValueError(f"its {INDEX} names {part!r:.80}, which is not a safetensors file beside it; {REMEDY}")
        return
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLED)
    if pickles:
        raise ValueError(
            f"its weights are a pickle, {pickles[0]}, which can run code and is never read (use_safetensors=True); "
            f"{REMEDY}"
        )


def _parts(index: Path) -> set[Any]:
    try:
        return set(json.loads(index.read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"its {INDEX} cannot be read ({type(error).__name__}); copy it again") from error
