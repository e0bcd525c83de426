# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check the backbone's files: in a folder, in the package, or in the hub's cache on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedpeft.backbones import BACKBONES, BackboneSettings, usual_source, weights
from fedpeft.backbones.config_file import check_config
from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed, warned
from fedpeft.settings import build

CONFIG, WEIGHTS = "config.json", (weights.WEIGHTS, weights.INDEX)
TOKENIZER = ("tokenizer.json", "vocab.txt")
FILES = ((CONFIG,), WEIGHTS, TOKENIZER)


def check(context: Context) -> Iterator[Finding]:
    """Check that the job's backbone can be loaded without a network."""
    if not context.sites:
        return
    settings = build(BackboneSettings, context.job.sections["backbone"], section="backbone")
    source = settings.source or usual_source(settings.name)
    pretrained = BACKBONES.get(settings.name)
    needed = FILES if pretrained.tokenizer else FILES[:-1]
    if not Path(source).is_dir():
        yield cached(source, needed)
        return
    yield folder(Path(source), needed, pickle=pretrained.pickle)


def folder(path: Path, needed: Sequence[tuple[str, ...]] = FILES, *, pickle: str = "") -> Finding:
    """Check a local folder in the hub's layout.

    Args:
        path: of the folder.
        needed: kinds of files; of each kind one of the names must be there.
        pickle: name of the file that may be there instead of safetensors.
    """
    present = [file.name for file in path.iterdir()]
    try:
        config = json.loads((path / CONFIG).read_text()) if CONFIG in present else {"model_type": None}
        kind = config.get("model_type") or config.get("architecture") or config["model_type"]  # timm's have the second
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return failed(f"{path / CONFIG} names no model_type ({error!r}): copy the file again.")
    try:
        check_config(config)
        weights.check_folder(path, config, pickle=pickle)
    except ValueError as error:
        return failed(f"{path} cannot be used: {error}.")
    present += list(WEIGHTS) if pickle in present else []
    if missing := [kinds[0] for kinds in needed if not set(kinds) & set(present)]:
        return failed(f"{path} lacks {', '.join(missing)}: copy the whole folder of the checkpoint.")
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return passed(f"{path}: {kind}, {size / 1e6:.0f} MB.")


def cached(name: str, needed: Sequence[tuple[str, ...]] = FILES) -> Finding:
    """Check that a hub name's files are in the cache.

    Args:
        name: of the repository.
        needed: as for `folder`.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    def there(files: tuple[str, ...]) -> bool:
        return any(isinstance(try_to_load_from_cache(name, file), str) for file in files)

    try:
        missing = [kinds[0] for kinds in needed if not there(kinds)]
    except HFValidationError:
        return failed(f"backbone.source is {name!r}, neither a folder here nor a hub name: correct it.")
    if not missing:
        return passed(f"{name} is in the hub's cache ({constants.HF_HUB_CACHE}).")
    remedy = f"download it once where there is a network (hf download {name}) and give that folder as backbone.source"
    if constants.HF_HUB_OFFLINE:
        return failed(f"{name} is not in {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set: {remedy}.")
    return warned(f"{name} is not in the hub's cache, so that the job begins with a download: or {remedy}.")
