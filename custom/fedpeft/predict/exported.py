# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The folder that `fedpeft export` writes, and how a site's model is read from it.

adapter_config.json, adapter_model.safetensors    the trained adapter as PEFT reads it
beside/                                           the same of what was frozen beside it, where there was something
model/                                            full weights, where they were merged
head.safetensors, answers.json                    what tells the answers apart, and the answers in its order
model.json                                        what the model is (`fedpeft.client.model_record`)
README.md, tokenizer and preparation of images
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedpeft.client.model_record import ModelRecord
from fedpeft.client.site_state import RECORD, SiteState
from fedpeft.errors import FedpeftError
from fedpeft.settings import build

HEAD, ANSWERS, BESIDE, WEIGHTS, CARD = "head.safetensors", "answers.json", "beside", "model", "README.md"
ADAPTER = "adapter_config.json"
HEAD_ALONE = {"name": "classifier", "aggregation": "none"}  # the method of a folder with merged weights alone


def is_exported(folder: Path) -> bool:
    """Return whether a folder is one that `fedpeft export` wrote."""
    return all((folder / name).is_file() for name in (RECORD, HEAD, ANSWERS))


def read(folder: Path) -> SiteState:
    """Read a site's model from an exported folder.

    Raises:
        FedpeftError: a file is missing or damaged.
    """
    try:
        values = json.loads((folder / RECORD).read_text())
        round, family, record = values["round"], values["family"], values["record"]
        record = build(ModelRecord, {**record, "answers": json.loads((folder / ANSWERS).read_text())}, section=RECORD)
        head = load_file(folder / HEAD)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise FedpeftError(f"the exported folder {folder} cannot be read ({error}): export it again.") from error
    if not (folder / ADAPTER).is_file():
        return SiteState(round=round, adapter={}, head=head, optimizer={}, record=_of_weights(record, folder))
    from fedpeft.methods.adapter_folder import read_config, read_state

    adapter = read_state(folder, read_config(folder), family)
    other = folder / BESIDE
    beside = read_state(other, read_config(other), family) if other.is_dir() else {}
    return SiteState(round=round, adapter=adapter, beside=beside, head=head, optimizer={}, record=record)


def _of_weights(record: ModelRecord, folder: Path) -> ModelRecord:
    backbone: dict[str, Any] = {**record.sections["backbone"], "source": str(folder / WEIGHTS)}
    return build(
        ModelRecord,
        {**vars_of(record), "sections": {**record.sections, "backbone": backbone, "method": HEAD_ALONE}},
        section=RECORD,
    )


def vars_of(record: ModelRecord) -> dict[str, Any]:
    """Return the fields of a record by name, without those that are None."""
    return {name: value for name, value in vars(record).items() if value is not None}
