# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The modules of ALBEF (Li et al. 2021, arXiv:2107.07651), out of transformers' ViT and BERT.

The image goes through a ViT. The question goes through BERT's layers, of which those from `fusion_layer` on attend to
the image's tokens as well:

    vision   x = x + attention(norm1(x));  x = x + mlp(norm2(x))
    text     x = LN(self_attention(x) + x);  [x = LN(cross_attention(x, image) + x)];  x = LN(mlp(x) + x)

Adapters are after the residual in the vision layers. In the text layers they stand inside the output block, before its
norm: f = dropout(dense(h)), LN(f + A(LN(f + x)) + x).

ALBEF with the decoder that its authors answer questions with.

The decoder is BERT's layers, which see the answer's tokens so far and attend to the states of the question. Its weights
are those of a checkpoint that was fine-tuned on questions; from a pre-trained one it begins as in the authors' code, as
a copy of the fusion layers, of the embeddings and of the head of masked words, whose output layer is the table of
embeddings.
"""

from __future__ import annotations

import copy
from typing import Any

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

VISION_EPS = 1e-6


class AlbefConfig(BertConfig):
    """Sizes of an ALBEF: those of BERT, and

    Args:
        fusion_layer: the first text layer that attends to the image.
        vision_layers: layers of the image encoder, as wide as those of the text.
        image_size: pixels of both sides.
        patch_size: pixels of a patch's sides.
    """

    model_type = "albef"

    fusion_layer: int = 6
    vision_layers: int = 12
    image_size: int = 256
    patch_size: int = 16


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

    def _init_weights(self, module: nn.Module) -> None: ...


class ResidualMlp(ViTMLP):
    """A feed-forward block that adds the stream that enters it: adapters come after the sum."""

    def forward(self, hidden_states: Tensor, stream: Tensor) -> Tensor:
        """Return `stream + mlp(hidden_states)`, (B, T, d)."""
        return stream + super().forward(hidden_states)


class VisionLayer(ViTLayer):
    """A layer of transformers' ViT whose feed-forward block has the residual sum inside."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.mlp = ResidualMlp(config)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Return the stream after this layer, (B, T, d); ALBEF has no dropout here."""
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
        """Return LN(f + x), (B, T, d)."""
        return self.LayerNorm(self.inner(hidden_states, input_tensor, self.LayerNorm) + input_tensor)


def reset_positions(model: AlbefModel) -> None:
    """Fill the buffers that no checkpoint has, of a model that was made on the meta device."""
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
    """Return the sizes of the text layers as transformers' BERT has them."""
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
        """Return the logits (B, T, V) of what follows each token of answers (B, T), given the questions' states (B, T',
        d).
        """
        decoded = self.decoder(ids, mask, encoder_hidden_states=states, encoder_attention_mask=states_mask)
        hidden = self.word_transform(decoded.last_hidden_state)
        return F.linear(hidden, self.decoder.embeddings.word_embeddings.weight, self.word_bias)
