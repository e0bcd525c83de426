# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A hub name becomes a folder, once: what is checked there is what is read, and nothing is fetched afterwards."""

from __future__ import annotations

import re
from pathlib import Path

from fedpeft.core.errors import LocalError

UNUSABLE = "backbone-unusable"
DESCRIPTION = (
    "config.json",
    "model.safetensors.index.json",
    "adapter_config.json",  # where there is one, the source is refused
)
INPUTS = (
    "preprocessor_config.json",
    "processor_config.json",
    "audio_tokenizer_config.json",  # as adapter_config.json
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.json",
    "chat_template.jinja",
)
FILES = (*DESCRIPTION, *INPUTS, "model.safetensors", "model-*-of-*.safetensors", "generation_config.json")
_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_NAME = re.compile(rf"((?:{_PART}/)?{_PART})(?:@({_PART}))?")


class NotInCacheError(LocalError): ...


def folder(source: str, *, download: bool = True, weights: bool = True, inputs: bool = True) -> str:
    """Return the folder of a source: itself, or the snapshot of one commit in the hub's cache.

    Args:
        source: a folder, or a hub name, which may end with @ and a commit or tag.
        download: whether files that the cache lacks are fetched; otherwise the network is not used.
        inputs: whether tokenizer and image processor are needed, without weights; otherwise the description alone.
    """
    if Path(source).is_dir():
        return source
    name, revision = _parts(source)
    from huggingface_hub import constants, snapshot_download

    fetch = f"hf download {name}" + f" --revision {revision}" * bool(revision)
    here_alone = not reachable(download=download)
    try:
        return snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(FILES if weights else (*DESCRIPTION, *INPUTS * inputs)),
            local_files_only=here_alone,
        )
    except Exception as error:  # the hub raises a kind of its own for every cause
        if here_alone:
            why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "download is false in local/fedpeft.json"
            raise NotInCacheError(
                f"{source} is not in the hub's cache ({constants.HF_HUB_CACHE}), or only a part of it, and {why}: "
                f"download it once where there is a network ({fetch}), and give that folder or copy the cache.",
                code=UNUSABLE,
            ) from error
        first = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise LocalError(
            f"{source} cannot be downloaded from the hub ({first:.600}): correct the name, or download it once where "
            f"there is a network ({fetch}) and give that folder.",
            code=UNUSABLE,
        ) from error


def reachable(*, download: bool) -> bool:
    """Return whether files may be fetched: where they are allowed to be, and HF_HUB_OFFLINE is not set."""
    from huggingface_hub import constants

    return download and not constants.HF_HUB_OFFLINE


def _parts(source: str) -> tuple[str, str | None]:
    if not (match := _NAME.fullmatch(source)):
        raise LocalError(
            f"backbone.source is {source!r:.300}, neither a folder here nor a hub name: give a folder with config.json "
            f"and model.safetensors, a name as in owner/model, or owner/model@commit.",
            code=UNUSABLE,
        )
    return match[1], match[2]
