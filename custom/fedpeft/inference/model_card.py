# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The README of an exported folder: what the model is, its figures, its licenses, and the lines that load it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedpeft.backbones import BACKBONES
from fedpeft.core.metrics import TITLES, VALIDATION
from fedpeft.inference.exported import BESIDE, WEIGHTS
from fedpeft.report.wording import caution, percent
from fedpeft.site.site_state import ModelRecord

OWNERSHIP = "It tells what the answers of the site's data are. Handing it over is the site's decision."
SPLITS = ("train", "validation", "test")
COLUMNS = {"overall": "test", "open": "open", "closed": "closed", VALIDATION: "validation", "loss": "training loss"}


def card(record: ModelRecord, round: int, differences: Mapping[str, float], *, adapter: bool, beside: bool) -> str:
    """Return the card as Markdown.

    `differences` of logits from the model of the run are those of the forms `merged` and `onnx` that the folder has.
    `adapter` says whether PEFT can load an adapter from it, `beside` whether a second, frozen one belongs to that.
    """
    method, backbone = record.sections["method"], record.sections["backbone"]
    base = backbone.get("source") or f"the default weights of `{backbone['name']}`"
    note = caution(procedural=record.procedural, tiny=record.tiny)
    blocks = [
        f"# {method['name']} for {backbone['name']}, site {record.site}, round {round}",
        f"The model of one site of a federation, as it stood after round {round}: adapter, head and the "
        f"{len(record.answers)} {'labels' if record.labelled else 'answers'} that the head tells apart. {OWNERSHIP}",
        f"**{note[0].upper()}{note[1:]}.**" if note else "",
        "Research software, not a medical device.",
        "## Data and figures",
        _data(record),
        _figures(record),
        "## Load it",
        _loading(record, adapter=adapter, beside=beside),
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


def _loading(record: ModelRecord, *, adapter: bool, beside: bool) -> str:
    example = '["where is the nodule ?"]' if record.asks else '[""]'
    settings = {key: value for key, value in record.sections["backbone"].items() if value is not None}
    if not adapter:
        settings["source"] = WEIGHTS
    values = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    lines = [f"backbone = build(BackboneSettings({values}))"]
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
    code = "\n".join([*imports, "", 'image = "scan.png"', *lines])
    precision = record.sections["training"].get("precision", "float32")
    return "\n\n".join(
        filter(
            None,
            [
                "In this folder, with fedpeft installed, or with `fedpeft predict` on it:",
                f"```python\n{code}\n```",
                f"It was trained and measured with `precision: {precision}`, which these lines leave out."
                if precision != "float32"
                else "",
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
        name = record.sections["backbone"]["name"]
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
    source = backbone.get("source")
    if source in (None, kind.default_source):
        return kind.license or "see its own page"
    return "a folder of the site's own" if Path(source).is_absolute() else f"see the page of {source}"
