# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The weights in a checkpoint folder: safetensors only, because a pickle can run code when it is read.

How transformers' ViT names the weights of a vision transformer from elsewhere:

timm   blocks.3.attn.qkv.weight (3d, d)                      ->  layers.3.attention.{q,k,v}_proj.weight (d, d)
ViLT   encoder.layer.3.attention.attention.query.weight      ->  layers.3.attention.q_proj.weight
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor, nn

from fedpeft.core import files as bounded_files

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
MAX_TIMES, SLACK = 2, 10_000_000  # a pooler or head that the checkpoint lacks; matrices that are stored once
REMEDY = (
    f"take a checkpoint with {WEIGHTS}, or convert it once where you trust its author: "
    "AutoModel.from_pretrained(folder, use_safetensors=False).save_pretrained(folder)"
)

TIMM_KEY, VILT_KEY = "blocks.0.attn.qkv.weight", "embeddings.text_embeddings.word_embeddings.weight"
TIMM_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16}  # by width: their number is not in the weights
TIMM_NOT_READ = re.compile(r"(head|head_dist|pre_logits)\..*")
VILT_NOT_READ = re.compile(r"(embeddings\.text_embeddings|pooler)\..*|embeddings\.token_type_embeddings\.weight")
OUTSIDE = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
}
TIMM_LAYER = {
    "norm1": "layernorm_before",
    "attn.proj": "attention.o_proj",
    "norm2": "layernorm_after",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
VILT_LAYER = {
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "layernorm_before": "layernorm_before",
    "layernorm_after": "layernorm_after",
}


def check_folder(folder: Path, config: Mapping[str, Any], *, pickle: str = "") -> None:
    """Refuse a folder from which transformers would read a pickle, or a file that is not beside its config.json.

    The file `pickle`, which transformers does not read, may be there.
    """
    try:
        bounded_files.check_folder(folder, deep=False)
    except OSError as error:
        raise ValueError(f"its {Path(error.filename).name} cannot be read: {error.strerror}") from error
    if (folder / ADAPTER).exists():
        raise ValueError(
            f"it has an {ADAPTER}, whose adapter transformers would load as well; give the folder of the model alone"
        )
    if (
        named := config.get("transformers_weights")
    ) is not None:  # it may be any file, and is read instead of the others
        raise ValueError(f"its config.json names {named!r:.80} as transformers_weights: remove that entry; {REMEDY}")
    if (folder / WEIGHTS).is_file():
        return
    if (folder / INDEX).is_file():
        for part in _parts(folder / INDEX):  # transformers would read whatever it names
            if not isinstance(part, str) or PurePosixPath(part).name != part or not part.endswith(".safetensors"):
                raise ValueError(f"its {INDEX} names {part!r:.80}, which is not a safetensors file beside it; {REMEDY}")
        return
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLED and file.name != pickle)
    if pickles:
        raise ValueError(
            f"its weights are a pickle, {pickles[0]}, which can run code and is never read (use_safetensors=True); "
            f"{REMEDY}"
        )


def stored(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every tensor in a folder's weights; none of them is read."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in files(folder):
        with safe_open(file, "pt") as tensors:
            shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    return shapes


def read_tensor(folder: Path, name: str) -> Tensor:
    """Return one of the stored tensors."""
    from safetensors import safe_open

    for file in files(folder):
        with safe_open(file, "pt") as tensors:
            if name in tensors.keys():  # noqa: SIM118
                return tensors.get_tensor(name)
    raise ValueError(f"it has no tensor {name}; copy it again")


def files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise ValueError(f"it has no {WEIGHTS}; {REMEDY}")
    return [folder / part for part in sorted(map(str, _parts(folder / INDEX)))]


def check_size(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a model (on the meta device) far larger than its stored tensors, before memory is taken for it."""
    described = sum(parameter.numel() for parameter in model.parameters())
    described += sum(buffer.nbytes for buffer in model.buffers()) // 4  # such as a mask of every pair of positions
    held = sum(math.prod(shape) for shape in shapes.values())
    if described > MAX_TIMES * held + SLACK:
        raise ValueError(
            f"its config.json describes a model of {described:,} numbers, its weights have {held:,}: give a folder "
            f"whose two files belong together"
        )


def _parts(index: Path) -> set[Any]:
    try:
        return set(bounded_files.read_json(index)["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its {INDEX} cannot be read ({type(error).__name__}); copy it again") from error


def timm_settings(shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `ViTConfig` that timm's weights, and `model_args` of its config.json, have."""
    try:
        width, patch = shapes["cls_token"][-1], shapes["patch_embed.proj.weight"][-1]
        grid = math.isqrt(shapes["pos_embed"][1] - 1)
        blocks = {name.split(".")[1] for name in shapes if name.startswith("blocks.")}
        inner = shapes["blocks.0.mlp.fc1.weight"][0]
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"its tensors are not those of timm's vision transformer (first missing {error})") from error
    if stray := sorted(blocks - set(map(str, range(len(blocks))))):
        raise ValueError(f"it has {len(blocks)} blocks, and one of them has the number {stray[0]:.40}: copy it again")
    arguments = stored.get("model_args")
    heads = arguments.get("num_heads") if isinstance(arguments, Mapping) else None
    heads = heads or TIMM_HEADS.get(width)
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise ValueError(
            f"the number of heads of its width {width} is not known: write it into its config.json as "
            f'"model_args": {{"num_heads": ...}}'
        )
    return {
        "hidden_size": width,
        "num_hidden_layers": len(blocks),
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "patch_size": patch,
        "image_size": grid * patch,
        "layer_norm_eps": 1e-6,
    }


def from_timm(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Return timm's tensors by the names of transformers' ViT, and the names of those that it does not have."""
    renamed: dict[str, Tensor] = {}
    unknown = []
    for name, tensor in tensors.items():
        if TIMM_NOT_READ.fullmatch(name):
            continue
        if match := re.fullmatch(r"blocks\.(\d+)\.attn\.qkv\.(weight|bias)", name):
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                renamed[f"layers.{match[1]}.attention.{part}_proj.{match[2]}"] = rows.contiguous()
        elif new := _renamed(name, "blocks", TIMM_LAYER):
            renamed[new] = tensor
        else:
            unknown.append(name)
    return renamed, unknown


def from_vilt(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Return the same of a ViLT's image half; its embedding of the image modality is added to the positions."""
    read = [name for name in tensors if not VILT_NOT_READ.fullmatch(name)]
    places = {name: _renamed(name, "encoder.layer", VILT_LAYER) for name in read}
    places |= {name: name for name in read if not places[name] and name.startswith(("embeddings.", "layernorm."))}
    renamed = {place: tensors[name] for name, place in places.items() if place}
    kind = tensors["embeddings.token_type_embeddings.weight"][1]
    renamed["embeddings.position_embeddings"] = tensors["embeddings.position_embeddings"] + kind
    return renamed, [name for name in read if not places[name]]


def misfits(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Return the names of expected tensors that are missing or of another shape."""
    empty = torch.empty(0, device="meta")
    return sorted(name for name, tensor in expected.items() if tensors.get(name, empty).shape != tensor.shape)


def _renamed(name: str, stack: str, layer: Mapping[str, str]) -> str:
    """Return the name in transformers' ViT; empty: it has no such tensor."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    path, _, kind = name.rpartition(".")
    if path in OUTSIDE and kind in ("weight", "bias"):
        return f"{OUTSIDE[path]}.{kind}"
    match = re.fullmatch(rf"{re.escape(stack)}\.(\d+)\.(.+)", path)
    if match and match[2] in layer and kind in ("weight", "bias"):
        return f"layers.{match[1]}.{layer[match[2]]}.{kind}"
    return ""
