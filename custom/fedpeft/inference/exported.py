# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The folder that `fedpeft export` writes, how it is read, and where such files may lie.

adapter_config.json, adapter_model.safetensors    the trained adapter as PEFT reads it
beside/                                           the same of what was frozen beside it, where there was something
model/                                            full weights, where they were merged
head.safetensors, answers.json                    what tells the answers apart, and the answers in its order
model.json                                        what the model is (`fedpeft.site.site_state`)
README.md, tokenizer and preparation of images

It may come from a stranger: it leads to no other folder or hub name than the backbone's default one, and sets nothing
of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedpeft.backbones import BackboneSettings, default_source
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import check_folder, read_json
from fedpeft.core.locks import SERVER
from fedpeft.core.settings import build
from fedpeft.core.workspace import HISTORY, MANIFEST
from fedpeft.job.federation import site_backbone
from fedpeft.report.history import as_count, as_mapping, as_sentence, need
from fedpeft.report.status.progress import SIMULATED
from fedpeft.site.site_state import RECORD, ModelRecord, SiteState

SERVERS_KIT = Path("startup") / "fed_server.json"


def check_own_place(path: Path, *, holds: str) -> None:
    """Refuse a path in a folder of the server; `holds` says in the error what must stay at the site."""
    path = path.resolve()
    for folder in (path, *path.parents):
        if reason := _servers(folder):
            raise FedpeftError(f"{path} lies in {folder}, {reason}, and {holds}: name a place of the site's own.")


def _servers(folder: Path) -> str:
    """Return why a folder is the server's; empty: it is not."""
    if (folder / SERVERS_KIT).exists():
        return "the server's workspace"
    if folder.name == SERVER or any((folder / name).is_file() for name in (HISTORY, MANIFEST)):
        return "which holds what the server keeps of a run"
    if (folder / SIMULATED).is_dir():
        return "a simulator's workspace, which the next run deletes"
    return ""


HEAD, ANSWERS, BESIDE, WEIGHTS, CARD = "head.safetensors", "answers.json", "beside", "model", "README.md"
ADAPTER = "adapter_config.json"
OF_MACHINE = ("features_mib", "compile", "workers", "images_mib")  # settings of `training` that an export leaves out
MAX = {
    ("backbone", "image_size"): 4096,
    ("backbone", "text_length"): 4096,
    ("training", "evaluation_batch_size"): 4096,
    ("training", "threads"): 256,
}
HEAD_ALONE = {"name": "classifier", "aggregation": "none"}  # the method of a folder with merged weights alone


def is_exported(folder: Path) -> bool:
    """Return whether a folder is one that `fedpeft export` wrote."""
    return all((folder / name).is_file() for name in (RECORD, HEAD, ANSWERS))


def read(folder: Path, *, backbone: str | None = None) -> SiteState:
    """Read a site's model from an exported folder.

    Args:
        folder: of the export.
        backbone: folder or hub name of its backbone, which the user chose; None: the default one.
    """
    try:
        check_folder(folder)
        values = as_mapping(read_json(folder / RECORD), RECORD, "the whole file")
        round = as_count(need(values, "round", RECORD), RECORD, "'round'")
        family = as_sentence(need(values, "family", RECORD), RECORD, "'family'")
        about = as_mapping(need(values, "record", RECORD), RECORD, "'record'")
        record = build(ModelRecord, {**about, "answers": read_json(folder / ANSWERS)}, section=RECORD)
        head = load_file(folder / HEAD)
    except (OSError, ValueError, SafetensorError) as error:
        raise FedpeftError(f"the exported folder {folder} cannot be read ({error}): export it again.") from error
    own = site_backbone(record.sections.get("backbone"), record.site)
    if not (folder / ADAPTER).is_file():
        if backbone is not None:
            raise FedpeftError(f"--backbone is {backbone!r:.200}, and {folder} has weights of its own: leave it out.")
        record = _with(record, {**own, "source": str(folder / WEIGHTS)}, method=HEAD_ALONE)
        return SiteState(round=round, adapter={}, head=head, optimizer={}, record=record)
    from fedpeft.methods.adapters import read_config, read_state

    own |= {} if backbone is None else {"source": backbone}
    settings = build(BackboneSettings, own, section="backbone")
    if backbone is None and settings.source not in (None, default_source(settings.name)):
        raise FedpeftError(
            f"{folder} names {settings.source!r:.200} as its backbone, chosen by its exporter: name with "
            f"--backbone a folder or hub name that you trust, this one or your own copy of it."
        )
    record = _with(record, own)
    adapter = read_state(folder, read_config(folder), family)
    other = folder / BESIDE
    beside = read_state(other, read_config(other), family) if other.is_dir() else {}
    return SiteState(round=round, adapter=adapter, beside=beside, head=head, optimizer={}, record=record)


def _with(record: ModelRecord, backbone: Mapping[str, Any], **sections: Any) -> ModelRecord:
    """Return a record with other sections, without the settings about the machine that trained."""
    training = record.sections.get("training")
    if isinstance(training, Mapping):
        sections["training"] = {name: value for name, value in training.items() if name not in OF_MACHINE}
    sections = {**record.sections, "backbone": dict(backbone), **sections}
    for (section, name), limit in MAX.items():
        value = sections[section].get(name) if isinstance(sections.get(section), Mapping) else None
        if isinstance(value, int | float) and value > limit:
            raise FedpeftError(
                f"the exported model has {section}.{name} = {value!r:.40}, at most {limit:,} is read: get another one."
            )
    return build(ModelRecord, {**vars_of(record), "sections": sections}, section=RECORD)


def vars_of(record: ModelRecord) -> dict[str, Any]:
    """Return the fields of a record by name, without those that are None."""
    return {name: value for name, value in vars(record).items() if value is not None}


def check_place(out: Path, *, force: bool) -> None:
    """Refuse a folder that an export must not be written to; with `force` an earlier export may be replaced."""
    out = out.resolve()
    check_own_place(out, holds="an export holds the site's head and answers")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not is_exported(out):
        raise FedpeftError(f"{out} is there and is no export, so that nothing in it is replaced: name a new folder.")
    if not force:
        raise FedpeftError(f"{out} is an earlier export: name a new folder, or replace it with --force.")
