# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Load a complete transformers model from a folder, with transformers' own code and from safetensors only.

An error is one sentence with the source and the remedy. A config.json that would fetch code or fill the memory is
refused. transformers loops over the number of layers before it allocates anything, so the sum of layers over all
entries and lists is bounded. The modules that they make are counted on the meta device (`matrices.without_weights`).
Sizes must be within a bound, so that nothing overflows, and fit the weights' file (`weights.check_size`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedpeft.backbones import weights
from fedpeft.backbones.backbone import UNUSABLE
from fedpeft.backbones.matrices import made_in_bfloat16
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.settings import is_whole

LAYERS = re.compile(r"(layer|depth|block|stage|expert|label|level)")
SIZES = re.compile(r"(size|dim|width|head|channel|embd|model|state)")
MAX_LAYERS, MAX_SIZE, MAX_NUMBER = 4096, 2**20, 2**40
MAX_SIDE = 4096  # pixels of an image
MAX_IN_ALL = 2**15  # layers of all entries, also of lists of their numbers such as mlp_only_layers
MAX_ENTRIES = 200_000
LABEL_TABLES = ("id2label", "label2id")
FETCHING = ("mra", "rwkv", "sam3_video", "yoso")  # they use the package kernels, whatever USE_HUB_KERNELS says
KINDS = ("model_type", "image_processor_type", "feature_extractor_type", "processor_class")
REACHING_OUT = re.compile(r"oneformer|layoutlmv[23]|layoutxlm", re.IGNORECASE)  # processors, see `refuse_kind`
OWN_ATTENTION = (None, "eager", "sdpa")


def check_config(config: Mapping[str, Any], *, timm: bool = False) -> None:
    """Refuse a configuration that makes transformers load other people's code, or whose numbers are absurd.

    With `timm` it may be timm's; the caller reads it itself and never gives it to timm.
    """
    layers = 0
    for count, (name, value) in enumerate(_entries(config)):
        if count > MAX_ENTRIES:
            raise ValueError(f"its config.json has more than {MAX_ENTRIES:,} entries: give the one of its checkpoint")
        if name.endswith("attn_implementation") or name.endswith("experts_implementation"):
            if value not in OWN_ATTENTION:
                raise ValueError(
                    f"its config.json names {value!r:.80} as {name}, which may be code from elsewhere and is never "
                    f"loaded: remove that entry"
                )
        elif name in KINDS and REACHING_OUT.search(str(value)):
            refuse_kind(value)
        elif name == "model_type" and value in FETCHING:
            raise ValueError(
                f"its config.json has model_type = {value!r}, for which transformers may fetch compiled code from the "
                f"hub: give a model of another kind"
            )
        elif not timm and (
            (name == "model_type" and str(value).startswith("timm")) or (name == "use_timm_backbone" and value)
        ):
            raise ValueError(
                f"its config.json has {name} = {value!r:.80}, with which timm would read files that it names: give "
                f"transformers' own model, or timm's folder of a ViT as the source of vit or the image_source of mmbt"
            )
        elif name == "quantization_config":
            raise ValueError("its weights are quantized, which is not read: give a checkpoint in float32 or bfloat16")
        elif is_whole(value):
            maximum = _max_of(name)
            if abs(value) > maximum:
                raise ValueError(
                    f"its config.json has {name} = {value!s:.20}, at most {maximum:,} is read: give a whole checkpoint"
                )
            layers += max(1, abs(value)) if maximum == MAX_LAYERS else 0
            if layers > MAX_IN_ALL:
                raise ValueError(
                    f"the layers, blocks, experts and labels in its config.json add up to more than {MAX_IN_ALL:,}, "
                    f"at {name}: give a whole checkpoint"
                )


def refuse_kind(kind: Any) -> None:
    """Refuse a model or processor whose image processor reads a file or starts a program that its settings name.

    OneFormer's reads any file, or fetches it from the hub, as soon as it is made (`class_info_file`); those of LayoutLM
    (v2, v3) and LayoutXLM start the program tesseract on every image, with arguments of `tesseract_config`.
    """
    if REACHING_OUT.search(str(kind)):
        raise ValueError(
            f"it is of kind {kind!r:.80}, whose image processor reads a file or starts a program that its settings "
            f"name: give a model of another kind"
        )


def check_kinds(content: Any) -> None:
    """Refuse the content of a file that names anywhere a model or processor that `refuse_kind` refuses."""
    for name, value in _entries(content):
        if name in KINDS:
            refuse_kind(value)


def _max_of(name: str) -> int:
    if LAYERS.search(name) and "size" not in name:
        return MAX_LAYERS
    return MAX_SIZE if SIZES.search(name) and "position" not in name else MAX_NUMBER


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every plain value with the name of the entry that it is in."""
    waiting: list[tuple[str, Any]] = [(name, value)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            if name == "quantization_config" and value:
                yield name, value
            waiting += [(str(key), inner) for key, inner in value.items() if key not in LABEL_TABLES]
        elif isinstance(value, list | tuple):
            waiting += [(name, inner) for inner in value]
        else:
            yield name, value


def unusable(sentence: str) -> FedpeftError:
    return FedpeftError(sentence, code=UNUSABLE)


@contextmanager
def reading(source: str, what: str) -> Iterator[None]:
    """Turn every error of this block into one sentence about a source; `what` names what is loaded, such as "ViLT"."""
    try:
        with _quiet():
            yield
    except FedpeftError:
        raise
    except Exception as error:  # safetensors, tokenizers and torch each raise their own kinds
        first = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise LocalError(
            f"{what} cannot be loaded from the folder {source!r} ({first:.600}): download it once where there is a "
            f"network and give that folder (config.json, model.safetensors, tokenizer files) as source.",
            code=UNUSABLE,
        ) from error


def read_config(source: str, *, pickle: str = "", timm: bool = False) -> dict[str, Any]:
    """Return the checked content of a source's config.json; call it within `reading`.

    The caller reads only tensors and plain values of the file `pickle`; any other pickle is refused.
    """
    from transformers.configuration_utils import PreTrainedConfig

    config = PreTrainedConfig.get_config_dict(source)[0]
    check_config(config, timm=timm)
    weights.check_folder(Path(source), config, pickle=pickle)
    return config


def load_model(
    model_class: Any,
    source: str,
    *,
    what: str,
    skeleton: Callable[[], nn.Module],
    may_lack: str = "",
    options: Mapping[str, Any] | None = None,
    half: bool = False,
) -> tuple[nn.Module, list[str]]:
    """Return a model with its weights in float32, and the names of missing ones; call it within `reading`.

    `skeleton` makes it without weights; tensors with the prefix `may_lack` may be missing; `half`: matrices in
    bfloat16.
    """
    weights.check_size(skeleton(), weights.stored(Path(source)))
    with made_in_bfloat16() if half else nullcontext():
        model, report = model_class.from_pretrained(
            source,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **(options or {}),
        )
    lacking = sorted(report["missing_keys"]) + sorted(key for key, *_ in report["mismatched_keys"])
    check_complete([key for key in lacking if not may_lack or not key.startswith(may_lack)], source, what)
    return model, lacking


def check_complete(lacking: list[str], source: str, what: str) -> None:
    if lacking:
        raise unusable(
            f"The weights in {source!r} are not a complete {what} ({len(lacking)} tensors missing or of another shape, "
            f"first {lacking[0]}): give the folder of a whole {what} checkpoint."
        )


def check_vocabulary(tokenizer: Any, size: int, source: str) -> None:
    """Refuse a tokenizer with more tokens than the model has embeddings."""
    if len(tokenizer) > size:
        raise unusable(
            f"The tokenizer in {source!r} has {len(tokenizer)} tokens, the model {size}: give a "
            f"folder whose vocab.txt belongs to its model.safetensors."
        )


def check_text_length(text_length: int, max_length: int, source: str) -> None:
    if text_length > max_length:
        raise FedpeftError(
            f"text_length is {text_length}, {source} reads at most {max_length} tokens: lower it.",
            setting="backbone.text_length",
        )


def check_image_size(size: int, patch: int, source: str) -> None:
    """Refuse images that are too large, or whose sides are not whole patches."""
    if size > MAX_SIDE:
        raise FedpeftError(
            f"image_size is {size:,}, of the job or of {source}, at most {MAX_SIDE:,}: set backbone.image_size.",
            setting="backbone.image_size",
        )
    if size % patch:
        raise FedpeftError(
            f"image_size is {size}, it must be a multiple of the patch size {patch} of {source}.",
            setting="backbone.image_size",
        )


def check_kind(config: Mapping[str, Any], kinds: tuple[str, ...], source: str, what: str) -> None:
    kind = config.get("model_type")
    if kind not in kinds:
        raise unusable(
            f"{source} does not hold a {what} (model_type {kind!r:.80} in its config.json): give another folder or "
            f"name."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' progress bar and its table of keys, whose problems are raised as errors instead."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
