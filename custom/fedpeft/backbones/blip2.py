# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""BLIP-2 (Li et al. 2023, arXiv:2301.12597) with a causal language model: OPT.

An image tower, a Q-Former that makes 32 tokens of an image, and a language model that reads them before the question.
Adapters are in the language model's layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedpeft.backbones.checkpoint import check_kind, load_model, read_config, reading, unusable
from fedpeft.backbones.matrices import without_weights
from fedpeft.backbones.model_inputs import ModelInputs
from fedpeft.backbones.transformers_model import LAST, TransformersModel, check_features, pooled
from fedpeft.core.errors import FedpeftError

if TYPE_CHECKING:
    from fedpeft.backbones.registry import BackboneSettings

MODEL_NAME = "BLIP-2"
PROMPT = "{image}Question: {question} Answer:"  # of the paper's question answering
OPT_2_7B = {"hidden_size": 2560, "ffn_dim": 10240, "num_hidden_layers": 32, "num_attention_heads": 32}


class Blip2(TransformersModel):
    """A BLIP-2 with its inputs: transformers' Blip2ForConditionalGeneration; see `TransformersModel`."""

    def __init__(self, model: nn.Module, inputs: ModelInputs | None, source: str = "") -> None:
        super().__init__(model, inputs, source)
        self._token = LAST
        self._options = {"interpolate_pos_encoding": True}  # as in `hidden`

    def forward(self, **batch: Tensor) -> Tensor:
        """Return the language model's last layer at the last token of the question (B, d)."""
        return pooled({"last_hidden_state": self.hidden(batch)}, batch["attention_mask"], LAST)

    def hidden(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the language model's last layer (B, T, d), without its output layer over words."""
        pixels, ids = batch["pixel_values"], batch["input_ids"]
        image = self.model.get_image_features(pixels, interpolate_pos_encoding=True, return_dict=True).pooler_output
        tokens = self.model.get_input_embeddings()(ids)
        tokens = tokens.masked_scatter(self.model.get_placeholder_mask(ids, tokens), image.to(tokens.dtype))
        reads = self.model.language_model.base_model
        return reads(inputs_embeds=tokens, attention_mask=batch["attention_mask"], use_cache=False).last_hidden_state


def build(settings: BackboneSettings, *, half: bool = False, weights: bool = True) -> Blip2:
    """Load BLIP-2 from a folder; `weights=False` leaves it on the meta device."""
    from transformers import Blip2ForConditionalGeneration

    source, settings = settings.source, replace(settings, prompt=settings.prompt or PROMPT)
    if not settings.prompt.startswith("{image}"):
        raise FedpeftError(
            f"prompt is {settings.prompt!r}, and BLIP-2 reads the image before all text: begin it with '{{image}}'.",
            setting="backbone.prompt",
        )
    with reading(source, MODEL_NAME):
        config = _config(source)
        if not weights:
            model = _empty(config)
            return Blip2(model, ModelInputs.from_settings(model, settings), source)
        model, _ = load_model(
            Blip2ForConditionalGeneration, source, what=MODEL_NAME, skeleton=lambda: _empty(config), half=half
        )
        backbone = Blip2(model, ModelInputs.from_settings(model, settings), source)
        check_features(backbone)
    return backbone


def skeleton(source: str | None = None) -> Blip2:
    """Return a BLIP-2 on torch's meta device: that of a source, or BLIP-2 with OPT-2.7B."""
    from transformers import Blip2Config, OPTConfig

    text = OPTConfig(**OPT_2_7B, vocab_size=50_304, word_embed_proj_dim=OPT_2_7B["hidden_size"])
    with reading(source or "", MODEL_NAME):
        return Blip2(_empty(_config(source) if source else Blip2Config(text_config=text)), None)


def _config(source: str) -> Any:
    from transformers import Blip2Config

    check_kind(read_config(source), ("blip-2",), source, MODEL_NAME)
    config = Blip2Config.from_pretrained(source)
    if not config.use_decoder_only_language_model:
        raise unusable(
            f"{source!r} is a BLIP-2 with {config.text_config.model_type!r:.80}, an encoder with a decoder: give one "
            f"with OPT, for instance 'Salesforce/blip2-opt-2.7b'."
        )
    return config


def _empty(config: Any) -> nn.Module:
    from transformers import Blip2ForConditionalGeneration

    with without_weights():
        return Blip2ForConditionalGeneration(config)
