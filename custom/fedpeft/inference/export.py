# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Write a site's model as a folder; its layout is in `fedpeft.inference.exported`."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedpeft.answering.answering import Answering
from fedpeft.answering.training_settings import BFLOAT16, NF4
from fedpeft.backbones import BackboneSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import follow_umask, replacing
from fedpeft.core.seeds import derive
from fedpeft.core.settings import build
from fedpeft.data.schema import Example
from fedpeft.inference.exported import (
    ADAPTER,
    ANSWERS,
    BESIDE,
    CARD,
    EXCHANGED,
    HEAD,
    MAX_VALUES,
    OF_MACHINE,
    WEIGHTS,
    card,
    check_place,
    state_of_weights,
)
from fedpeft.inference.kept_model import KeptModel
from fedpeft.inference.predictor import model_of
from fedpeft.job.federation import site_backbone
from fedpeft.methods.adapters import CONNECTOR_FILE
from fedpeft.methods.settings import MethodSettings
from fedpeft.site.quantized import quantized_layers
from fedpeft.site.site_model import SiteModel
from fedpeft.site.site_state import RECORD, ModelRecord, SiteState, record_as_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = 1e-2  # of the largest logit; bfloat16 keeps two digits
PROBES = ("why ?", "where is the nodule in this image ?", "is there a nodule ?")
ONNX_FILE, LOGITS = "model.onnx", "logits"
PADDING = "pixel_mask"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
ONNX_TOLERANCE = 1e-3  # of a logit
INSTALL = "pip install 'flare-fedpeft[onnx]'"


def exported_sections(record: ModelRecord) -> dict[str, Any]:
    """Return the sections of an exported folder."""
    sections = record.sections
    method = build(MethodSettings, sections["method"], section="method")
    own = site_backbone(sections["backbone"], record.site)
    backbone = build(BackboneSettings, own, section="backbone")
    kept = {name: value for name, value in sections["method"].items() if name not in ("settings", "site_settings")}
    return {
        "backbone": {"name": backbone.name, **own},
        "method": {**kept, "name": method.name, "settings": {method.name: method.settings_of(record.site)}},
        "training": {name: _readable(name, v) for name, v in sections["training"].items() if name not in OF_MACHINE},
        "schedule": {},
    }


def _readable(name: str, value: Any) -> Any:
    """Return a setting of `training`, at most as large as it is read: the function does not depend on it."""
    limit = MAX_VALUES.get(("training", name))
    return value if limit is None else min(value, limit)


def export(
    kept: KeptModel, out: Path, *, force: bool = False, merged: bool = False, onnx: bool = False
) -> dict[str, float]:
    """Write a site's model into a folder that appears when everything in it is written.

    `merged` also writes full weights with what was trained in them, `onnx` a model for ONNX. Return for each of these
    forms the largest difference of a logit from those of the run.
    """
    check_place(out, force=force)
    if kept.exported and not (kept.folder / ADAPTER).is_file():
        raise FedpeftError(f"{kept.folder} is an export of full weights without an adapter: export the run again.")
    model, record = model_of(kept), replace(kept.record, sections=exported_sections(kept.record))
    config = model.trainable.peft_config() if model.products is None else None
    if config is None and not merged:
        raise FedpeftError(_no_folder_reason(kept, stacks=model.products is not None))
    if (merged or onnx) and any(quantized_layers(model.backbone.model)):
        raise FedpeftError(
            f"the frozen layers of this model are in four bits (training.frozen_precision {NF4!r}), which neither full "
            f"weights nor ONNX can hold: leave --merged and --onnx out."
        )
    if onnx and model.training.precision == BFLOAT16:
        raise FedpeftError(
            f"this model computes in bfloat16 (training.precision {BFLOAT16!r}), which onnxruntime does not on a CPU: "
            f"leave --onnx out."
        )
    if merged:
        _check_mergeable(model)
    done: dict[str, float] = {}
    with replacing(out) as draft:
        draft.mkdir(mode=0o700)
        if config is not None:
            _write_adapters(draft, model, kept.state, config)
        values = {key: value for key, value in record_as_json(record).items() if key != "answers"}
        _write(draft / RECORD, {"round": kept.state.round, "family": model.backbone.family, "record": values})
        _write(draft / ANSWERS, list(record.answers))
        save_file({key: tensor.contiguous() for key, tensor in kept.state.head.items()}, draft / HEAD)
        if kept.state.exchanged and config is not None:
            save_file({key: tensor.contiguous() for key, tensor in kept.state.exchanged.items()}, draft / EXCHANGED)
        _write_inputs(draft, model)
        if onnx:
            done["onnx"] = write_onnx(draft, model, probes(model))
        if merged:
            before = _write_merged(draft / WEIGHTS, model)
            del model  # another one takes as much memory
            done["merged"] = _difference(draft, record, kept, before)
        text = card(
            record,
            kept.state.round,
            done,
            adapter=config is not None,
            beside=bool(kept.state.beside) and config is not None,
            connector=(draft / CONNECTOR_FILE).exists(),
        )
        (draft / CARD).write_text(text, encoding="utf-8")
        for file in draft.rglob("*.safetensors"):  # whoever gets a copy of the folder can read all of it, or nothing
            follow_umask(file)
    return done


def probes(model: SiteModel) -> list[dict[str, Tensor]]:
    """Return inputs of a model to compare its forms with: images of noise and questions of several lengths."""
    size, answer = model.backbone.image_size or 32, model.vocabulary.answers[0]
    batches = []
    for number, question in enumerate(PROBES):
        image = np.random.default_rng(derive(0, "probe", number)).integers(0, 256, (size, size, 3), dtype=np.uint8)
        example = Example(image, question, answer, closed=False, image_id="")
        batches.append(model.answering.collate([image], [example]).to(model.device).inputs)
    return batches


@torch.no_grad()
def _logits(model: SiteModel) -> list[Tensor]:
    return [model.answering.eval()(inputs).cpu() for inputs in probes(model)]


def _write_adapters(folder: Path, model: SiteModel, state: SiteState, config: Any) -> None:
    from fedpeft.methods.adapters import save_adapter

    family, config = model.backbone.family, copy.deepcopy(config)
    config.base_model_name_or_path = None  # PEFT has the folder on this machine there; model.json names the backbone
    save_adapter(folder, state.trained or state.adapter, config, family)
    if state.beside:
        save_adapter(folder / BESIDE, state.beside, config, family)


def _write_inputs(folder: Path, model: SiteModel) -> None:
    if save := getattr(model.backbone, "save_inputs", None):
        save(folder)


def _check_mergeable(model: SiteModel) -> None:
    """Refuse full weights that nothing could read, before anything is written."""
    backbone = model.backbone
    if getattr(backbone, "own_layout", False):
        raise FedpeftError(
            f"a source of a backbone of family {backbone.family!r} has tensors by other names than full weights would "
            f"have: leave --merged out."
        )
    if not hasattr(backbone.model, "save_pretrained"):
        raise FedpeftError(
            f"a backbone of family {backbone.family!r} is not one of transformers', which could read merged weights: "
            f"leave --merged out."
        )


def _write_merged(folder: Path, model: SiteModel) -> list[Tensor]:
    """Write full weights, and return the logits from before the merge."""
    before = _logits(model)
    try:
        model.trainable.merge()
    except FedpeftError as error:
        raise FedpeftError(f"{str(error).partition(':')[0]}: leave --merged out.") from error
    with _hide_progress_bars():
        cast("PreTrainedModel", model.backbone.model).save_pretrained(folder)
    _write_inputs(folder, model)
    return before


def _largest_difference(before: Iterable[Tensor], after: Iterable[Tensor]) -> float:
    """Return the largest difference of a logit, NaN if any is; Python's `max` passes over one that is not the first."""
    return torch.stack([(one - other).abs().max() for one, other in zip(before, after, strict=True)]).max().item()


def _difference(folder: Path, record: ModelRecord, kept: KeptModel, before: Sequence[Tensor]) -> float:
    """Read full weights as `fedpeft predict` does, and return the largest difference of a logit from `before`."""
    state = state_of_weights(folder, record, kept.state.round, kept.state.head)
    assert state.record
    try:
        after = _logits(model_of(KeptModel(folder=folder, state=state, record=state.record, exported=True)))
    except FedpeftError as error:
        reason = str(error).partition(":")[0].replace(str(folder / WEIGHTS), WEIGHTS)
        raise FedpeftError(f"the merged weights could not be read again ({reason}): leave --merged out.") from error
    difference = _largest_difference(before, after)
    largest = TOLERANCE * max(1.0, *(logits.abs().max().item() for logits in before))
    if not difference <= largest:
        raise FedpeftError(
            f"the logits of the merged weights differ by {difference:.1e}, more than {largest:.1e}: leave --merged out."
        )
    return difference


@contextlib.contextmanager
def _hide_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bar of the files that it writes."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _write(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _no_folder_reason(kept: KeptModel, *, stacks: bool) -> str:
    name = kept.record.sections["method"].get("name", "houlsby")
    if stacks:
        return (
            "the frozen weights of this site hold the products of all rounds' factors, which a PEFT folder does not: "
            "export full weights with --merged."
        )
    return (
        f"what method {name!r} trains is no adapter that PEFT loads: use what the site kept with fedpeft predict, or "
        f"try --merged."
    )


class _Logits(nn.Module):
    """A model whose inputs have an order instead of names."""

    def __init__(self, answering: Answering, names: Sequence[str]) -> None:
        super().__init__()
        self.answering, self.names = answering, tuple(names)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the logits (1, C)."""
        return self.answering(dict(zip(self.names, inputs, strict=True)))


def check_installed() -> None:
    """Refuse --onnx if a package is missing, before anything is computed."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(name)
        except ImportError as error:
            raise FedpeftError(f"--onnx needs {name}, which is not installed: {INSTALL}.") from error


@torch.no_grad()
def write_onnx(folder: Path, model: SiteModel, probes: Sequence[dict[str, Tensor]]) -> float:
    """Write `model.onnx` and return the largest difference of a logit from PyTorch's.

    The probes are at least two examples, whose questions have different lengths.
    """
    answering, names = model.answering.eval(), _input_names(probes)
    expected = [answering(inputs) for inputs in probes]
    if any(logits.dim() != 2 for logits in expected):
        raise FedpeftError(
            "--onnx writes one pass of a model, and answers that are ranked or written take several: leave it out."
        )
    differing = [any(other[name].shape != probes[0][name].shape for other in probes) for name in names]
    shapes = tuple({1: torch.export.Dim.DYNAMIC} if differs else None for differs in differing)
    arguments = tuple(probes[-1][name] for name in names)
    try:
        with _hide_output():
            program: Any = torch.onnx.export(
                _Logits(answering, names),
                arguments,
                input_names=names,
                output_names=[LOGITS],
                dynamic_shapes={"inputs": shapes},
                dynamo=True,
                verbose=False,
            )
            program.save(folder / ONNX_FILE)
    except Exception as error:  # of many kinds, from torch.export to onnxscript
        raise FedpeftError(f"torch's exporter refuses this model ({_reason(error):.200}): leave --onnx out.") from error
    written = map(torch.from_numpy, _onnx_logits(folder / ONNX_FILE, names, probes))
    difference = _largest_difference([logits.cpu() for logits in expected], written)
    if not difference <= ONNX_TOLERANCE:
        raise FedpeftError(
            f"the logits of the ONNX file differ by {difference:.1e} from PyTorch's, more than {ONNX_TOLERANCE:g}: "
            f"leave --onnx out."
        )
    return difference


def _input_names(probes: Sequence[dict[str, Tensor]]) -> list[str]:
    """Return the names of the inputs, without a mask of padded pixels that no probe needs."""
    padded = any(not bool(inputs[PADDING].all()) for inputs in probes if PADDING in inputs)
    return [name for name in probes[0] if name != PADDING or padded]


def _onnx_logits(file: Path, names: Sequence[str], probes: Sequence[dict[str, Tensor]]) -> list[Any]:
    import onnxruntime

    given = [{name: inputs[name].cpu().numpy() for name in names} for inputs in probes]
    try:
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        return [session.run(None, values)[0] for values in given]
    except Exception as error:  # of many kinds, with Exception as their only common base
        raise FedpeftError(
            f"onnxruntime cannot compute the ONNX file of this model ({_reason(error):.200}): leave --onnx out."
        ) from error


def _reason(error: Exception) -> str:
    """Return the first line of the cause of the exporter's error, whose own text is a list of next steps."""
    cause = error.__cause__ or error
    lines = [line for line in ANSI.sub("", str(cause)).splitlines() if line.strip()]
    return (lines or [type(cause).__name__])[0].strip().rstrip(".")


@contextlib.contextmanager
def _hide_output() -> Iterator[None]:
    """Hide what the exporter prints and logs about its own steps."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            yield
    finally:
        logging.disable(before)
