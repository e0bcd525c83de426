# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The official checkpoints of ALBEF: the file, its tensors, and their names in `AlbefModel`.

pre-trained
    visual_encoder.*                 as timm names a ViT              ->  visual_encoder.*, as transformers does
    text_encoder.bert.*              BERT with cross-attention        ->  text_encoder.*
    text_encoder.cls.predictions.*   the head of masked words         ->  that of the answer decoder, if there is one
    text_proj.*, itm_head.* ...      heads of pre-training, momentum copies (`*_m`), queues: left out
fine-tuned on questions: it has a decoder of its own
    visual_encoder.*                 as above
    text_encoder.*                   without `bert.`                  ->  text_encoder.*
    text_decoder.bert.*              the decoder's layers             ->  decoder.*, if there is one
    text_decoder.cls.predictions.*   its head                         ->  that of the answer decoder, if there is one
"""

from __future__ import annotations

import math
import pickletools
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from fedpeft.backbones import weights
from fedpeft.backbones.registry import ALBEF_PICKLE
from fedpeft.backbones.weights import from_timm

VISION, TEXT, WORDS = "visual_encoder.", "text_encoder.bert.", "text_encoder.cls.predictions."
DECODER = "text_decoder."
POSITIONS, PATCHES = f"{VISION}pos_embed", f"{VISION}patch_embed.proj.weight"
NOT_READ = re.compile(
    r"((visual_encoder_m|text_encoder_m|text_decoder_m|vision_proj|vision_proj_m|text_proj|text_proj_m|itm_head)\..*"
    r"|temp|image_queue|text_queue|queue_ptr|text_(encoder|decoder)\.(bert\.)?embeddings\.position_ids"
    r"|text_(encoder|decoder)\.cls\.predictions\.decoder\..*)"  # the table of embeddings again, and the head's bias
)
HEAD = {"bias": "word_bias"} | {
    f"transform.{module}.{kind}": f"word_transform.{module}.{kind}"
    for module in ("dense", "LayerNorm")
    for kind in ("weight", "bias")
}
LAYER = re.compile(r"text_encoder\.encoder\.layer\.(\d{1,4})\.(.*)")
# what a pickle of tensors is made of; what else torch allows, as bytearray and encode, can fill the memory
MADE = re.compile(r"collections OrderedDict|torch \w+Storage|torch\._utils _rebuild_(tensor|tensor_v2|parameter)")
OUTPUT = re.compile(r"(encoder\.layer\.\d+\.(?:attention\.)?output)\.dense\.")


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint (model.safetensors, or ALBEF.pth as it is downloaded), by their own names."""
    if (folder / weights.WEIGHTS).is_file():
        from safetensors import safe_open

        with safe_open(folder / weights.WEIGHTS, "pt") as stored:
            kept = [name for name in stored.keys() if not NOT_READ.fullmatch(name)]  # noqa: SIM118
            return {name: stored.get_tensor(name).to(torch.float32) for name in kept}
    if not (folder / ALBEF_PICKLE).is_file():
        raise ValueError(f"it has neither {weights.WEIGHTS} nor {ALBEF_PICKLE}")
    stored = _unpickled(folder / ALBEF_PICKLE)
    kept = {name: tensor for name, tensor in stored.items() if not NOT_READ.fullmatch(name)}
    held, needed = (folder / ALBEF_PICKLE).stat().st_size, sum(tensor.nbytes for tensor in kept.values())
    if needed > held:  # tensors can be views of the same numbers
        raise ValueError(
            f"the tensors of its {ALBEF_PICKLE} have {needed:,} bytes, the file has {held:,}; download it again"
        )
    return {name: tensor.to(torch.float32, copy=True) for name, tensor in kept.items()}


def image_sizes(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the image size and patch size that the image encoder was trained with."""
    positions, patches = (tensors.get(name, torch.empty(0)) for name in (POSITIONS, PATCHES))
    if positions.dim() != 3 or patches.dim() != 4:
        raise ValueError(f"its tensors are not those of ALBEF, which has {POSITIONS} and {PATCHES}")
    grid, patch = math.isqrt(positions.shape[1] - 1), patches.shape[-1]
    if grid < 1 or grid**2 + 1 != positions.shape[1]:
        raise ValueError(f"its {POSITIONS} has {positions.shape[1]} positions, which are not those of a square image")
    return {"image_size": grid * patch, "patch_size": patch}


def resized(positions: Tensor, grid: int) -> Tensor:
    """Interpolate position embeddings bicubically, as ALBEF does: (1, 1 + n*n, d) -> (1, 1 + grid*grid, d)."""
    side = math.isqrt(positions.shape[1] - 1)
    if side == grid:
        return positions
    square = positions[:, 1:].transpose(1, 2).unflatten(2, (side, side))
    square = torch.nn.functional.interpolate(square, size=(grid, grid), mode="bicubic", align_corners=False)
    return torch.cat((positions[:, :1], square.flatten(2).transpose(1, 2)), dim=1)


def renamed(tensors: Mapping[str, Tensor], decoder_of: int | None = None) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors by their names in `AlbefModel`, and the names of those that have no place there.

    Args:
        tensors: by their own names.
        decoder_of: the fusion layer of which the first layer of an answer decoder is a copy, where the checkpoint has
            no decoder; None: the model has none.
    """
    tuned = any(name.startswith(DECODER) for name in tensors)
    if tuned:
        tensors = _as_pretrained(tensors)
    vision = {name.removeprefix(VISION): tensor for name, tensor in tensors.items() if name.startswith(VISION)}
    placed, unknown = from_timm(vision)
    found = {f"{VISION}{name}": tensor for name, tensor in placed.items()}
    unknown = [f"{VISION}{name}" for name in unknown]
    for name, tensor in tensors.items():
        if name.startswith(TEXT):
            found[f"text_encoder.{_inner(name.removeprefix(TEXT))}"] = tensor
        elif name.startswith(f"{DECODER}bert."):
            if decoder_of is not None:
                found[f"decoder.{_inner(name.removeprefix(f'{DECODER}bert.'))}"] = tensor
        elif name.startswith(WORDS) and name.removeprefix(WORDS) in HEAD:
            if decoder_of is not None:
                found[HEAD[name.removeprefix(WORDS)]] = tensor
        elif not name.startswith(VISION):
            unknown.append(name)
    if decoder_of is not None and not tuned:
        found |= _decoder(found, decoder_of)
    return found, unknown


def _as_pretrained(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a fine-tuned checkpoint with the names that encoder and head have in a pre-trained one."""
    head = WORDS.replace("encoder", "decoder", 1)
    renamed = {}
    for name, tensor in tensors.items():
        if name.startswith(head):
            name = name.replace(head, WORDS, 1)
        elif name.startswith("text_encoder."):
            name = name.replace("text_encoder.", TEXT, 1)
        renamed[name] = tensor
    return renamed


def _inner(name: str) -> str:
    """Return the name of a BERT's tensor where its output blocks have slots: `DenseHalf` of the block."""
    return OUTPUT.sub(r"\1.inner.dense.", name)


def _decoder(tensors: Mapping[str, Tensor], first: int) -> dict[str, Tensor]:
    """Return copies of the embeddings and of the layers from the first one on, as the decoder has them."""
    copies = {}
    for name, tensor in tensors.items():
        if name.startswith("text_encoder.embeddings."):
            copies[name.replace("text_encoder", "decoder")] = tensor.clone()
        elif (match := LAYER.fullmatch(name)) and int(match[1]) >= first:
            copies[f"decoder.encoder.layer.{int(match[1]) - first}.{match[2]}"] = tensor.clone()
    return copies


def _unpickled(file: Path) -> dict[str, Tensor]:
    """Return `checkpoint["model"]` of a file of torch.save, of whose pickle only tensors and plain values are made."""
    convert = f"convert it once where you trust its author, as docs/backbones.md shows, and give the {weights.WEIGHTS}"
    more = f"its {ALBEF_PICKLE} is damaged or holds more than tensors and plain values; {convert}"
    if not zipfile.is_zipfile(file):
        raise ValueError(f"its {ALBEF_PICKLE} is not a file of torch.save of version 1.6 or later; {convert}")
    with zipfile.ZipFile(file) as parts:
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
            raise ValueError(f"its {ALBEF_PICKLE} is compressed, which torch.save does not do; download it again")
        pickles = [parts.open(part) for part in parts.infolist() if part.filename.lower().endswith("data.pkl")]
        if not all(map(_is_plain, pickles)):
            raise ValueError(more)
    try:
        content: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # pickle, torch and zip raise their own kinds, over many lines
        raise ValueError(more) from error
    model = content.get("model") if isinstance(content, Mapping) else None
    if not isinstance(model, Mapping) or not all(isinstance(tensor, Tensor) for tensor in model.values()):
        raise ValueError(
            f"its {ALBEF_PICKLE} has no tensors under 'model', as ALBEF's checkpoints have; download it again"
        )
    for name, tensor in model.items():
        if tensor.is_sparse or tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
            raise ValueError(f"its {ALBEF_PICKLE} stores fewer numbers than {name!s:.120} has; download it again")
    return dict(model)


def _is_plain(pickle: IO[bytes]) -> bool:
    """Return whether tensors and plain values are all that a pickle makes; it is not run for this."""
    try:
        made = [argument for operation, argument, _ in pickletools.genops(pickle) if operation.name == "GLOBAL"]
    except ValueError:
        return False
    return all(MADE.fullmatch(str(name)) for name in made)
