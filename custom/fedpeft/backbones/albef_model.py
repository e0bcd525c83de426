# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The modules and checkpoints of ALBEF (Li et al. 2021, arXiv:2107.07651), built from transformers' ViT and BERT.

The image goes through a ViT. The question goes through BERT's layers; those from `fusion_layer` on also attend to the
image's tokens:

    vision   x = x + attention(norm1(x));  x = x + mlp(norm2(x))
    text     x = LN(self_attention(x) + x);  [x = LN(cross_attention(x, image) + x)];  x = LN(mlp(x) + x)

Adapters are after the residual in the vision layers. In the text layers they are inside the output block, before its
norm: f = dropout(dense(h)), LN(f + A(LN(f + x)) + x).

The authors answer questions with a decoder of BERT's layers, which see the answer's tokens so far and attend to the
states of the question. Its weights come from a checkpoint that was fine-tuned on questions. From a pre-trained one it
begins as in the authors' code: as a copy of the fusion layers, of the embeddings and of the head of masked words, whose
output layer is the table of embeddings.

The official checkpoints:

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

import copy
import math
import pickletools
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, ViTConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.models.bert.modeling_bert import (
    BertEmbeddings,
    BertLayer,
    BertModel,
    BertOutput,
    BertPredictionHeadTransform,
    BertSelfOutput,
)
from transformers.models.vit.modeling_vit import ViTLayer, ViTMLP, ViTModel

from fedpeft.backbones import weights
from fedpeft.backbones.registry import ALBEF_PICKLE
from fedpeft.backbones.weights import from_timm

VISION_EPS = 1e-6

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
MAX_PICKLE = 2**24  # bytes, without the tensors
# all that a pickle of tensors needs; what else torch allows, such as bytearray and encode, can fill the memory
ALLOWED_IN_PICKLE = re.compile(
    r"collections OrderedDict|torch \w+Storage|torch\._utils _rebuild_(tensor|tensor_v2|parameter)"
)
OUTPUT = re.compile(r"(encoder\.layer\.\d+\.(?:attention\.)?output)\.dense\.")


class AlbefConfig(BertConfig):
    """Sizes of an ALBEF: those of BERT, and of its image encoder, whose layers are as wide as those of the text."""

    model_type = "albef"

    fusion_layer: int = 6  # the first text layer that attends to the image
    vision_layers: int = 12
    image_size: int = 256  # pixels of both sides
    patch_size: int = 16  # pixels of a patch's sides


class AlbefModel(PreTrainedModel):
    """Image encoder and text encoder with fusion layers."""

    config_class = AlbefConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(self, config: AlbefConfig) -> None:
        super().__init__(config)
        if not 0 <= config.fusion_layer <= config.num_hidden_layers:
            raise ValueError(
                f"fusion_layer is {config.fusion_layer}, it must be 0 to {config.num_hidden_layers}, the number of "
                f"text layers"
            )
        self.visual_encoder = _vision(config)
        self.text_encoder = _text(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor) -> Tensor:
        """Return the states after the last fusion layer (B, T, d) of tokens and mask (B, T) and pixels (B, 3, H, W)."""
        image = self.visual_encoder(pixel_values).last_hidden_state
        question = self.text_encoder(input_ids, attention_mask, encoder_hidden_states=image)
        return question.last_hidden_state

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: ViT and BERT have drawn their own."""


class ResidualMlp(ViTMLP):
    """A feed-forward block that adds the stream that enters it: adapters come after the sum."""

    def forward(self, hidden_states: Tensor, stream: Tensor) -> Tensor:
        return stream + super().forward(hidden_states)


class VisionLayer(ViTLayer):
    """A layer of transformers' ViT whose feed-forward block has the residual sum inside, without dropout."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.mlp = ResidualMlp(config)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        attended, _ = self.attention(self.layernorm_before(hidden_states), attention_mask, **kwargs)
        hidden_states = hidden_states + attended
        return self.mlp(self.layernorm_after(hidden_states), hidden_states)


class DenseHalf(nn.Module):
    """The first half of BERT's output block, a slot: adapters add to it and read what the block would return."""

    def __init__(self, block: BertOutput | BertSelfOutput) -> None:
        super().__init__()
        self.dense = block.dense
        self.dropout = block.dropout

    def forward(self, hidden_states: Tensor, stream: Tensor, norm: nn.Module) -> Tensor:
        """Return f, (B, T, d); `stream` and `norm` are what `adapter_input` needs."""
        return self.dropout(self.dense(hidden_states))

    def adapter_input(self, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """Return what an adapter here reads, LN(f + x); see `BottleneckLayer.branch_input`."""
        _, stream, norm = args
        return norm(output + stream)


class OutputBlock(nn.Module):
    """BERT's output block, with a slot before its norm."""

    def __init__(self, block: BertOutput | BertSelfOutput) -> None:
        super().__init__()
        self.inner = DenseHalf(block)
        self.LayerNorm = block.LayerNorm

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        return self.LayerNorm(self.inner(hidden_states, input_tensor, self.LayerNorm) + input_tensor)


def reset_positions(model: AlbefModel) -> None:
    """Fill the position buffers of a model that was made on the meta device; no checkpoint has them."""
    for module in model.modules():
        if isinstance(module, BertEmbeddings):
            positions = torch.arange(module.position_ids.shape[1]).expand(1, -1)
            module.position_ids, module.token_type_ids = positions, torch.zeros_like(positions)


def put_slots(encoder: BertModel) -> BertModel:
    """Give both output blocks of every layer a slot, and return the encoder."""
    for layer in encoder.encoder.layer:
        layer.attention.output = OutputBlock(layer.attention.output)
        layer.output = OutputBlock(layer.output)
    return encoder


def bert_config(config: AlbefConfig, **changes: Any) -> BertConfig:
    """Return the sizes of the text layers as a configuration of transformers' BERT."""
    plain = {name: value for name, value in config.to_dict().items() if name not in ("model_type", "architectures")}
    return BertConfig(**(plain | changes))


def _vision(config: AlbefConfig) -> ViTModel:
    sizes = ViTConfig(
        hidden_size=config.hidden_size,
        num_hidden_layers=config.vision_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        layer_norm_eps=VISION_EPS,
        image_size=config.image_size,
        patch_size=config.patch_size,
    )
    encoder = ViTModel(sizes, add_pooling_layer=False)
    encoder.layers = nn.ModuleList(VisionLayer(encoder.config) for _ in range(config.vision_layers))
    encoder.init_weights()
    return encoder


def _text(config: AlbefConfig) -> BertModel:
    encoder = BertModel(bert_config(config), add_pooling_layer=False)
    # transformers has cross-attention in decoders only, whose self-attention sees no later token
    fused = copy.deepcopy(encoder.config)
    fused.is_decoder = fused.add_cross_attention = True
    layers = encoder.encoder.layer
    for number in range(config.fusion_layer, len(layers)):
        layers[number] = BertLayer(fused, layer_idx=number)
        layers[number].attention.self.is_causal = False
    encoder.init_weights()
    return put_slots(encoder)


class AlbefDecoderConfig(AlbefConfig):
    model_type = "albef_decoder"


class AlbefDecoderModel(AlbefModel):
    """Image encoder, text encoder, and a decoder with as many layers as the fusion."""

    config_class = AlbefDecoderConfig

    def __init__(self, config: AlbefDecoderConfig) -> None:
        super().__init__(config)
        sizes = bert_config(
            config,
            num_hidden_layers=config.num_hidden_layers - config.fusion_layer,
            is_decoder=True,
            add_cross_attention=True,
            use_cache=False,
        )
        self.decoder = put_slots(BertModel(sizes, add_pooling_layer=False))
        self.word_transform = BertPredictionHeadTransform(sizes)
        self.word_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def words(self, ids: Tensor, mask: Tensor, states: Tensor, states_mask: Tensor) -> Tensor:
        """Return the logits (B, T, V) of what follows each token of answers, from questions' states (B, T', d)."""
        decoded = self.decoder(ids, mask, encoder_hidden_states=states, encoder_attention_mask=states_mask)
        hidden = self.word_transform(decoded.last_hidden_state)
        return F.linear(hidden, self.decoder.embeddings.word_embeddings.weight, self.word_bias)


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
    """Return the tensors by their names in `AlbefModel`, and the names of those that it does not have.

    Without an answer decoder in the checkpoint, it is copied from the fusion layer `decoder_of` on; None: no decoder.
    """
    tuned = any(name.startswith(DECODER) for name in tensors)
    if tuned:
        tensors = _rename_as_pretrained(tensors)
    vision = {name.removeprefix(VISION): tensor for name, tensor in tensors.items() if name.startswith(VISION)}
    placed, unknown = from_timm(vision)
    found = {f"{VISION}{name}": tensor for name, tensor in placed.items()}
    unknown = [f"{VISION}{name}" for name in unknown]
    for name, tensor in tensors.items():
        if name.startswith(TEXT):
            found[f"text_encoder.{_name_with_slots(name.removeprefix(TEXT))}"] = tensor
        elif name.startswith(f"{DECODER}bert."):
            if decoder_of is not None:
                found[f"decoder.{_name_with_slots(name.removeprefix(f'{DECODER}bert.'))}"] = tensor
        elif name.startswith(WORDS) and name.removeprefix(WORDS) in HEAD:
            if decoder_of is not None:
                found[HEAD[name.removeprefix(WORDS)]] = tensor
        elif not name.startswith(VISION):
            unknown.append(name)
    if decoder_of is not None and not tuned:
        found |= _copy_as_decoder(found, decoder_of)
    return found, unknown


def _rename_as_pretrained(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a fine-tuned checkpoint with the names of encoder and head in a pre-trained one."""
    head = WORDS.replace("encoder", "decoder", 1)
    renamed = {}
    for name, tensor in tensors.items():
        if name.startswith(head):
            name = name.replace(head, WORDS, 1)
        elif name.startswith("text_encoder."):
            name = name.replace("text_encoder.", TEXT, 1)
        renamed[name] = tensor
    return renamed


def _name_with_slots(name: str) -> str:
    """Return the name of a BERT tensor after `put_slots`, which moves dense layers into a `DenseHalf`."""
    return OUTPUT.sub(r"\1.inner.dense.", name)


def _copy_as_decoder(tensors: Mapping[str, Tensor], first: int) -> dict[str, Tensor]:
    """Return copies of the embeddings and of the layers from `first` on, under the decoder's names."""
    copies = {}
    for name, tensor in tensors.items():
        if name.startswith("text_encoder.embeddings."):
            copies[name.replace("text_encoder", "decoder")] = tensor.clone()
        elif (match := LAYER.fullmatch(name)) and int(match[1]) >= first:
            copies[f"decoder.encoder.layer.{int(match[1]) - first}.{match[2]}"] = tensor.clone()
    return copies


def _unpickled(file: Path) -> dict[str, Tensor]:
    """Return `checkpoint["model"]` of a torch.save file; refuse pickles of more than tensors and plain values."""
    convert = f"convert it once where you trust its author, as docs/backbones.md shows, and give the {weights.WEIGHTS}"
    more = f"its {ALBEF_PICKLE} is damaged or holds more than tensors and plain values; {convert}"
    if not zipfile.is_zipfile(file):
        raise ValueError(f"its {ALBEF_PICKLE} is not a file of torch.save of version 1.6 or later; {convert}")
    with zipfile.ZipFile(file) as parts:
        names = [part.filename for part in parts.infolist()]
        pickles = [part for part in parts.infolist() if part.filename.lower().endswith("data.pkl")]
        if len(set(names)) < len(names) or sum(part.file_size for part in pickles) > MAX_PICKLE:
            raise ValueError(more)
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
            raise ValueError(f"its {ALBEF_PICKLE} is compressed, which torch.save does not do; download it again")
        if not all(_is_plain(parts.open(part)) for part in pickles):
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
    """Return whether a pickle makes only tensors and plain values; it is not run for this."""
    try:
        made = [argument for operation, argument, _ in pickletools.genops(pickle) if operation.name == "GLOBAL"]
    except ValueError:
        return False
    return all(ALLOWED_IN_PICKLE.fullmatch(str(name)) for name in made)
