# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A checkpoint's config.json, which others wrote: read it, and refuse what would fetch code or fill the memory.

The number of layers is what transformers loops over before it allocates anything; so their sum is bounded, over all
entries and lists. What they make together is counted on the meta device (`skeletons.without_weights`). Sizes are held
against what the weights' file has (`weights.check_size`), and before that against a bound, so that nothing overflows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

LAYERS = re.compile(r"(layer|depth|block|stage|expert|label|level)")
SIZES = re.compile(r"(size|dim|width|head|channel|embd|model|state)")
MOST_LAYERS, LARGEST_SIZE, LARGEST_NUMBER = 4096, 2**20, 2**40
MOST_IN_ALL = 2**15  # lists of layers' indices are among the entries, as mlp_only_layers
MOST_ENTRIES = 200_000
ANSWERS = ("id2label", "label2id")
FETCHING = ("mra", "rwkv", "sam3_video", "yoso")  # with the package kernels, whatever USE_HUB_KERNELS says
KINDS = ("model_type", "image_processor_type", "feature_extractor_type", "processor_class")
REACHING_OUT = re.compile(r"oneformer|layoutlmv[23]|layoutxlm", re.IGNORECASE)  # processors, see `check_kind`
OWN_ATTENTION = (None, "eager", "sdpa")


def check_config(config: Mapping[str, Any], *, timm: bool = False) -> None:
    """Refuse a configuration from which transformers would load code of others, or whose numbers are absurd.

    Args:
        config: the content of a config.json; it is only read.
        timm: whether it may be timm's, which the caller reads itself and never gives to timm.

    Raises:
        ValueError: names the entry and the remedy.
    """
    layers = 0
    for count, (name, value) in enumerate(_entries(config)):
        if count > MOST_ENTRIES:
            raise ValueError(f"its config.json has more than {MOST_ENTRIES:,} entries: give the one of its checkpoint")
        if name.endswith("attn_implementation") or name.endswith("experts_implementation"):
            if value not in OWN_ATTENTION:
                raise ValueError(
                    f"its config.json names {value!r:.80} as {name}, which may be code from elsewhere and is never "
                    f"loaded: remove that entry"
                )
        elif name in KINDS and REACHING_OUT.search(str(value)):
            check_kind(value)
        elif name == "model_type" and value in FETCHING:
            raise ValueError(
                f"its config.json has model_type = {value!r}, for which transformers may fetch compiled code from the "
                f"hub: give a model of another kind"
            )
        elif not timm and (
            (name == "model_type" and str(value).startswith("timm")) or (name == "use_timm_backbone" and value)
        ):
            raise ValueError(
                f"its config.json has {name} = {value!r:.80}, with which timm would read files that it names: give a "
                f"model of transformers' own, or timm's folder of a ViT to backbone.name=vit"
            )
        elif name == "quantization_config":
            raise ValueError("its weights are quantized, which is not read: give a checkpoint in float32 or bfloat16")
        elif isinstance(value, int) and not isinstance(value, bool):
            most = _most(name)
            if abs(value) > most:
                raise ValueError(
                    f"its config.json has {name} = {value!s:.20}, at most {most:,} is read: give a whole checkpoint"
                )
            layers += max(1, abs(value)) if most == MOST_LAYERS else 0
            if layers > MOST_IN_ALL:
                raise ValueError(
                    f"the layers, blocks, experts and labels in its config.json add up to more than {MOST_IN_ALL:,}, "
                    f"at {name}: give a whole checkpoint"
                )


def check_kind(kind: Any) -> None:
    """Refuse a model or processor whose image processor reaches beyond its folder by what its settings name.

    OneFormer's reads any file, or fetches it from the hub, as soon as it is made (`class_info_file`); those of LayoutLM
    (v2, v3) and LayoutXLM start the program tesseract on every image, with arguments of `tesseract_config`.

    Args:
        kind: the name of its kind or class.

    Raises:
        ValueError: it is one of these.
    """
    if REACHING_OUT.search(str(kind)):
        raise ValueError(
            f"it is of kind {kind!r:.80}, whose image processor reads a file or starts a program that its settings "
            f"name: give a model of another kind"
        )


def check_kinds(content: Any) -> None:
    """Refuse the content of a file that names such a kind (`check_kind`) of model or processor anywhere.

    Raises:
        ValueError: names the kind.
    """
    for name, value in _entries(content):
        if name in KINDS:
            check_kind(value)


def _most(name: str) -> int:
    if LAYERS.search(name) and "size" not in name:
        return MOST_LAYERS
    return LARGEST_SIZE if SIZES.search(name) and "position" not in name else LARGEST_NUMBER


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every plain value with the name of the entry that it is in."""
    waiting: list[tuple[str, Any]] = [(name, value)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            if name == "quantization_config" and value:
                yield name, value
            waiting += [(str(key), inner) for key, inner in value.items() if key not in ANSWERS]
        elif isinstance(value, list | tuple):
            waiting += [(name, inner) for inner in value]
        else:
            yield name, value
