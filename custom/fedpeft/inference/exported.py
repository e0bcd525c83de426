# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The folder that `fedpeft export` writes: how it is read, and where it may be.

adapter_config.json, adapter_model.safetensors    the trained adapter as PEFT reads it
connector.safetensors                             of the backbone, if one was trained beside the adapter
beside/                                           the same of an adapter that was frozen beside it, if there was one
model/                                            full weights, if they were merged
head.safetensors, answers.json                    what tells the answers apart, and the answers in its order
exchanged.safetensors                             with Ditto, head and private tensors of the exchanged model
model.json                                        what the model is (`fedpeft.site.site_state`)
README.md                                         what the model is, its figures, licenses, and the lines that load it
tokenizer and preparation of images

It may come from a stranger: it may only name the default sources of its backbone, and of the machine it sets only the
threads, on which the last digits of results depend.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedpeft.answering.training_settings import WITH_GLOBAL, TrainingSettings
from fedpeft.backbones import BACKBONES, BackboneSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import check_folder, read_json
from fedpeft.core.keys import only_connector
from fedpeft.core.locks import SERVER
from fedpeft.core.metrics import TITLES, VALIDATION
from fedpeft.core.settings import build
from fedpeft.core.states import State
from fedpeft.core.text import capitalized
from fedpeft.core.workspace import HISTORY, KIT_FILES, MANIFEST
from fedpeft.job.federation import site_backbone
from fedpeft.report.history import as_count, as_mapping, as_sentence, need
from fedpeft.report.status import SIMULATED
from fedpeft.report.wording import caution, percent
from fedpeft.site.site_state import RECORD, ModelRecord, SiteState, record_as_json

HEAD, ANSWERS, BESIDE, WEIGHTS, CARD = "head.safetensors", "answers.json", "beside", "model", "README.md"
EXCHANGED = "exchanged.safetensors"
ADAPTER = "adapter_config.json"
# settings of `training` that an export leaves out
OF_MACHINE = ("device", "features_mib", "compile", "workers", "images_mib")
MAX_VALUES = {
    ("backbone", "image_size"): 4096,
    ("backbone", "text_length"): 4096,
    ("training", "evaluation_batch_size"): 4096,
    ("training", "threads"): 256,
}
HEAD_ALONE = {"name": "classifier", "aggregation": "none"}  # the method of a folder with only merged weights
_WITH_GLOBAL = {one.name for one in fields(TrainingSettings) if WITH_GLOBAL in one.metadata}  # need a global adapter
OWNERSHIP = "It tells what the answers of the site's data are. Handing it over is the site's decision."
SPLITS = ("train", "validation", "test")
COLUMNS = {"overall": "test", "open": "open", "closed": "closed", VALIDATION: "validation", "loss": "training loss"}


def check_own_place(path: Path, *, holds: str) -> None:
    """Refuse a path in a folder of the server; `holds` tells the user what must stay at the site."""
    path = path.resolve()
    for folder in (path, *path.parents):
        if reason := _server_reason(folder):
            raise FedpeftError(f"{path} is in {folder}, {reason}, and {holds}: name a place of the site's own.")


def _server_reason(folder: Path) -> str:
    """Return why a folder is the server's; empty: it is not."""
    if (folder / "startup" / KIT_FILES["server"]).exists():
        return "the server's workspace"
    if folder.name == SERVER or any((folder / name).is_file() for name in (HISTORY, MANIFEST)):
        return "which holds what the server keeps of a run"
    if (folder / SIMULATED).is_dir():
        return "a simulator's workspace, which the next run deletes"
    return ""


def is_exported(folder: Path) -> bool:
    """Return whether a folder is one that `fedpeft export` wrote."""
    return all((folder / name).is_file() for name in (RECORD, HEAD, ANSWERS))


def read(folder: Path, *, backbone: str | None = None, image_backbone: str | None = None) -> SiteState:
    """Read a site's model from an exported folder.

    Args:
        folder: of the export.
        backbone: folder or hub name of its backbone, which the user chose; None: the default one.
        image_backbone: the same of an image encoder beside it.
    """
    try:
        check_folder(folder)
        values = as_mapping(read_json(folder / RECORD), RECORD, "the whole file")
        round = as_count(need(values, "round", RECORD), RECORD, "'round'")
        family = as_sentence(need(values, "family", RECORD), RECORD, "'family'")
        about = as_mapping(need(values, "record", RECORD), RECORD, "'record'")
        record = build(ModelRecord, {**about, "answers": read_json(folder / ANSWERS)}, section=RECORD)
        head = load_file(folder / HEAD)
        exchanged = load_file(folder / EXCHANGED) if (folder / EXCHANGED).is_file() else {}
    except (OSError, ValueError, SafetensorError) as error:
        raise FedpeftError(f"the exported folder {folder} cannot be read ({error}): export it again.") from error
    chosen = {"source": backbone, "image_source": image_backbone}
    own = site_backbone(record.sections.get("backbone"), record.site)
    own |= {name: value for name, value in chosen.items() if value is not None}
    if image_backbone is not None and not BACKBONES.get(own["name"]).image_encoder:
        raise FedpeftError(
            f"--image-backbone is {image_backbone!r:.200}, and the backbone of {folder} has no image encoder of its "
            f"own: leave it out."
        )
    settings = build(BackboneSettings, own, section="backbone")
    if image_backbone is None:
        _check_default(folder, settings, "image_source", "--image-backbone")
    if not (folder / ADAPTER).is_file():
        if backbone is not None:
            raise FedpeftError(f"--backbone is {backbone!r:.200}, and {folder} has weights of its own: leave it out.")
        return state_of_weights(folder, _with_sections(record, own), round, head)
    from fedpeft.methods.adapters import CONNECTOR_FILE, read_config, read_state

    if backbone is None:
        _check_default(folder, settings, "source", "--backbone")
    record = _with_sections(record, own)
    adapter = read_state(folder, read_config(folder), family)
    if settings.trains_connector and not only_connector(adapter):
        raise FedpeftError(f"{folder} lacks {CONNECTOR_FILE}, which trained with its adapter: export the model again.")
    other = folder / BESIDE
    beside = read_state(other, read_config(other), family) if other.is_dir() else {}
    return SiteState(
        round=round, adapter=adapter, beside=beside, head=head, exchanged=exchanged, optimizer={}, record=record
    )


def _check_default(folder: Path, settings: BackboneSettings, name: str, option: str) -> None:
    """Refuse a source of pre-trained weights that a stranger chose."""
    source = getattr(settings, name)
    if source not in (None, getattr(BACKBONES.get(settings.name), f"default_{name}")):
        raise FedpeftError(
            f"{folder} names {source!r:.200} as its {'backbone' if name == 'source' else 'image encoder'}, chosen by "
            f"its exporter: name with {option} a folder or hub name that you trust, this one or your own copy of it."
        )


def state_of_weights(folder: Path, record: ModelRecord, round: int, head: State) -> SiteState:
    """Return a site's model with the full weights of an exported folder; only the head is the site's."""
    own = site_backbone(record.sections.get("backbone"), record.site)
    record = _with_sections(record, {**own, "source": str(folder / WEIGHTS)}, method=HEAD_ALONE)
    training = record.sections.get("training")
    if isinstance(training, Mapping):
        kept = {name: value for name, value in training.items() if name not in _WITH_GLOBAL}
        record = replace(record, sections={**record.sections, "training": kept})
    return SiteState(round=round, adapter={}, head=head, optimizer={}, record=record)


def _with_sections(record: ModelRecord, backbone: Mapping[str, Any], **sections: Any) -> ModelRecord:
    """Return a record with other sections, without settings of the machine that trained."""
    training = record.sections.get("training")
    if isinstance(training, Mapping):
        sections["training"] = {name: value for name, value in training.items() if name not in OF_MACHINE}
    sections = {**record.sections, "backbone": dict(backbone), **sections}
    for (section, name), limit in MAX_VALUES.items():
        value = sections[section].get(name) if isinstance(sections.get(section), Mapping) else None
        if isinstance(value, int | float) and value > limit:
            raise FedpeftError(
                f"the exported model has {section}.{name} = {value!r:.40}, at most {limit:,} is read: get another one."
            )
    return build(ModelRecord, {**record_as_json(record), "sections": sections}, section=RECORD)


def check_place(out: Path, *, force: bool) -> None:
    """Refuse a folder that an export must not be written to; with `force` an earlier export may be replaced."""
    if out.resolve() == Path.cwd():
        raise FedpeftError(f"{str(out)!r} is the current folder, which would be replaced: name a new folder.")
    out = out.resolve()
    check_own_place(out, holds="an export holds the site's head and answers")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not is_exported(out):
        raise FedpeftError(f"{out} is there and is no export, so that nothing in it is replaced: name a new folder.")
    if not force:
        raise FedpeftError(f"{out} is an earlier export: name a new folder, or replace it with --force.")


def card(
    record: ModelRecord,
    round: int,
    differences: Mapping[str, float],
    *,
    adapter: bool,
    beside: bool,
    connector: bool = False,
) -> str:
    """Return the card as Markdown.

    `differences` of logits from the model of the run are by form, `merged` and `onnx`, as far as the folder has it.
    `adapter` says whether PEFT can load an adapter from it, `beside` whether that has a second, frozen one,
    `connector` whether it has a connector of the backbone.
    """
    method, backbone = record.sections["method"], record.sections["backbone"]
    base = (
        " and ".join(one.removeprefix("wheel:") for one in _sources(backbone))
        or f"the default weights of `{backbone['name']}`"
    )
    note = caution(procedural=record.procedural, tiny=record.tiny)
    blocks = [
        f"# {method['name']} for {backbone['name']}, site {record.site}, round {round}",
        f"The model of one site of a federation, as it stood after round {round}: adapter, head and the "
        f"{len(record.answers)} {'labels' if record.labelled else 'answers'} that the head tells apart. {OWNERSHIP}",
        f"**{capitalized(note)}.**" if note else "",
        "Research software, not a medical device.",
        "## Data and figures",
        _data(record),
        _figures(record),
        "## Load it",
        _loading(record, adapter=adapter, beside=beside, connector=connector),
        *_forms(differences, record),
        "## Settings",
        f"```json\n{json.dumps(record.sections, indent=1, sort_keys=True)}\n```",
        "## Licenses",
        f"Code: fedpeft {record.fedpeft}, Apache-2.0. Backbone ({base}): {_license(backbone)}. Adapter and head were "
        f"trained on the site's data, whose terms say who may use them.",
    ]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _data(record: ModelRecord) -> str:
    what = "images with labels" if record.labelled else "questions about images" if record.asks else "images of classes"
    counts = ", ".join(f"{split} {record.samples[split]}" for split in SPLITS if split in record.samples)
    source = f" ({record.source})" if record.source else ""
    return f"Task: {what}{source}. Examples: {counts}. The figures are the {TITLES[record.metric]} in %."


def _figures(record: ModelRecord) -> str:
    names = [name for name in COLUMNS if any(one.get(name) is not None for one in record.rounds)]
    rows = [["round", *(COLUMNS[name] for name in names)], ["---:"] * (1 + len(names))]
    for one in record.rounds:
        cells = [f"{one[name]:.3f}" if name == "loss" else percent(one.get(name)) for name in names]
        rows.append([str(one["round"]), *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _loading(record: ModelRecord, *, adapter: bool, beside: bool, connector: bool) -> str:
    with_report = record.labelled and record.reads_text is not False
    example = '["where is the nodule ?"]' if record.asks else "[report]" if with_report else '[""]'
    settings = {key: value for key, value in record.sections["backbone"].items() if value is not None}
    if not adapter:
        settings["source"] = WEIGHTS
    values = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    lines = [f"backbone = build(BackboneSettings({values}))"]
    lines += ['backbone.load_state_dict(load_file("connector.safetensors"), strict=False)'] * connector
    lines += ['model = PeftModel.from_pretrained(backbone.model, ".")'] * adapter
    if beside:
        share = record.share
        lines += [
            f'model.load_adapter("{BESIDE}", "beside")',
            'model.base_model.set_adapter(["default", "beside"])',
            f'tuning_of(model.peft_config["default"]).mix(model, {{"default": {1 - share!r}, "beside": {share!r}}})',
        ]
    kind = record.sections["training"].get("head", "linear")
    lines += [
        'answers = json.loads(Path("answers.json").read_text())',
        f'head = build_head("{kind}", backbone.hidden_size, len(answers), torch.Generator())',
        'head.load_state_dict(load_file("head.safetensors"))',
        f"batch = backbone.collate([open_image(image)], {example})",
        f"probabilities = head(backbone.eval()(**batch)){'.sigmoid()' if record.labelled else '.softmax(-1)'}",
    ]
    if not record.labelled and record.sections["training"].get("answering", "classification") != "classification":
        return (
            "Its answers are not those of a head, but are ranked or written by the backbone: `fedpeft predict` on this "
            "folder does that."
        )
    imports = [
        "import json",
        "from pathlib import Path",
        "import torch",
        *["from peft import PeftModel"] * adapter,
        "from safetensors.torch import load_file",
        "from fedpeft.backbones import BackboneSettings, build",
        "from fedpeft.answering.classification import build_head",
        "from fedpeft.data.images import open_image",
        *["from fedpeft.methods.adapters import tuning_of"] * beside,
    ]
    given = ['image = "scan.png"', *['report = ""  # its text, where training had one'] * with_report]
    code = "\n".join([*imports, "", *given, *lines])
    training = record.sections["training"]
    names = [name for name in ("precision", "frozen_precision") if training.get(name, "float32") != "float32"]
    precisions = " and ".join(f"`{name}: {training[name]}`" for name in names)
    return "\n\n".join(
        filter(
            None,
            [
                "In this folder, with fedpeft installed, or with `fedpeft predict` on it:",
                f"```python\n{code}\n```",
                f"It was trained and measured with {precisions}, which these lines leave out." if precisions else "",
                f"Images of more than 8 bits were shown through the window {json.dumps(dict(record.window))}."
                if record.window
                else "",
                _thresholds(record),
            ],
        )
    )


def _thresholds(record: ModelRecord) -> str:
    if not record.labelled:
        return ""
    if not record.thresholds:
        return "A label counts as predicted from a probability of 0.5 on."
    pairs = zip(record.answers, record.thresholds, strict=True)
    return (
        "Labels count as predicted from these probabilities on: "
        + ", ".join(f"{record.spellings.get(label, label)} {threshold:.4g}" for label, threshold in pairs)
        + "."
    )


def _forms(differences: Mapping[str, float], record: ModelRecord) -> Iterable[str]:
    if "merged" in differences:
        name = site_backbone(record.sections["backbone"], record.site)["name"]
        yield (
            f"`{WEIGHTS}/` has the full weights, with what was trained in them, for transformers or as "
            f"`backbone.source` of `{name}`. Logits differ by at most {differences['merged']:.1e}."
        )
    if "onnx" in differences:
        yield (
            f"`model.onnx` maps a batch of one example, as `backbone.collate` makes it (without `pixel_mask`), to the "
            f"logits of the answers. They differ by at most {differences['onnx']:.1e} from PyTorch's."
        )


def _license(backbone: Mapping[str, Any]) -> str:
    kind = BACKBONES.get(backbone["name"])
    by_default = kind.license or "see its own page"
    if not (sources := _sources(backbone)):
        return by_default

    def license_of(source: str) -> str:
        if source in (kind.default_source, kind.default_image_source):
            return by_default.partition(" (")[0]
        return "a folder of the site's own" if Path(source).is_absolute() else f"see the page of {source}"

    return ", ".join(map(license_of, sources))


def _sources(backbone: Mapping[str, Any]) -> list[str]:
    """Return the names of all weights where some are not the default ones."""
    kind = BACKBONES.get(backbone["name"])
    defaults = {"source": kind.default_source, "image_source": kind.default_image_source}
    sources = [backbone.get(name) or default for name, default in defaults.items()]
    return [one for one in sources if one] if sources != list(defaults.values()) else []
