# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Any model of transformers as a backbone: what it reads, its layers and its features are found in the model itself.

Only transformers' own code and safetensors are loaded. When it is built, two blank images with a short question and
the longest one go through tokenizer, image processor and model, so that misfits show before training begins. LLaVA-1.5
(Liu et al. 2024, arXiv:2310.03744) is such a model. Features are one vector for each sample:

two towers       the features of image and text, one after the other, each by the rules below
pooler_output    where the model has one
causal model     its last layer at the last token that is not padding
else             at the first token where the model has a classifying one, or the mean over the tokens
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpeft.backbones.checkpoint import check_kind, load_model, read_config, reading, unusable
from fedpeft.backbones.images import Images
from fedpeft.backbones.matrices import products, without_weights
from fedpeft.backbones.model_inputs import ModelInputs, ReadsText
from fedpeft.backbones.structure import layer_stacks, model_roles
from fedpeft.backbones.writing import Writer, writer
from fedpeft.core.errors import FedpeftError
from fedpeft.core.seeds import draws_restored

if TYPE_CHECKING:
    from fedpeft.backbones.registry import BackboneSettings


TOWER_OUTPUTS = ("vision_model_output", "text_model_output")
LAST, FIRST, MEAN = "last", "first", "mean"

MODEL_NAME = "the model"
POOLER = "pooler."

# as in its training; adapters are in its language model's layers, 32 in the 7B model, the number that F3OCUS gives
LLAVA_PROMPT = "USER: {image}\n{question}\nAnswer the question using a single word or phrase. ASSISTANT:"


# models that write text from left to right, whose layers do not say so
CAUSAL = frozenset({"git", "bloom", "xglm", "codegen", "mpt", "openai-gpt"})
ROUNDING = 1e-5  # a sample's features differ by it from those beside texts of other lengths, relative to their norm
SHUFFLED = "vit_mae"  # its model hides random patches of every image, also when it does not train


def pooled(output: Mapping[str, Any], mask: Tensor | None, token: str) -> Tensor:
    """Return the features (B, d) of a model's output at the token that `token_of` names; the mask is (B, T)."""
    towers = [output.get(name) for name in TOWER_OUTPUTS]
    if all(tower is not None for tower in towers):
        vision, text = towers
        return torch.cat((pooled(vision, None, FIRST), pooled(text, mask, token)), dim=-1)
    if isinstance(pooler := output.get("pooler_output"), Tensor) and pooler.dim() == 2:
        return pooler
    hidden = output.get("last_hidden_state")
    if not isinstance(hidden, Tensor) or hidden.dim() != 3:
        raise FedpeftError(
            f"the model returns {', '.join(output)}, and no pooler_output or last_hidden_state of tokens to make "
            f"features of: name the folder of its encoder as backbone.source.",
            code="backbone-unusable",
        )
    if token == FIRST:
        return hidden[:, 0]
    if token == LAST and mask is not None and (before := hidden.shape[1] - mask.shape[1]) > 0:
        mask = torch.cat((mask.new_ones(len(mask), before), mask), dim=1)  # the image comes before the text
    if mask is None or mask.shape != hidden.shape[:2]:
        mask = torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)
    if token == LAST:
        places = torch.arange(mask.shape[1], device=mask.device)
        last = (mask.bool() * places).argmax(dim=1)
        return hidden[torch.arange(len(hidden), device=hidden.device), last]
    weights = mask.to(hidden.dtype)[..., None]
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1)


def token_of(model: nn.Module, has_first: bool) -> str:
    """Return which token has the features of a model without pooler; `has_first`: texts begin with a class token."""
    stacks = layer_stacks(model)
    last = list(stacks.values())[-1] if stacks else []
    causal = any(getattr(module, "is_causal", None) is True for layer in last for module in layer.modules())
    if causal or model.config.model_type in CAUSAL:
        return LAST
    classifies = any(name.endswith(("cls_token", "class_embedding")) for name, _ in model.named_parameters())
    return FIRST if has_first or classifies else MEAN


class TransformersModel(ReadsText):
    """A transformers model with its inputs (None in a skeleton) and the folder of its weights."""

    def __init__(self, model: nn.Module, inputs: ModelInputs | None, source: str = "") -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.source = source
        self.family: str = model.config.model_type
        self.num_layers: int = max(map(len, layer_stacks(model).values()), default=0)
        self.image_size: int = inputs.image_size if inputs else 0
        self.hidden_size: int = getattr(model.config.get_text_config(), "hidden_size", 0)
        self._token = token_of(model, inputs.has_first) if inputs else ""
        self._options = {} if inputs is None else _options(inputs.names)

    def collate(self, images: Images, questions: Sequence[str]) -> dict[str, Tensor]:
        """Turn B images (PIL, or (H, W, 3) uint8) and B questions into a batch of what the model reads.

        Texts are padded on the right, whatever the tokenizer was saved with: a position, and the first token, would
        otherwise depend on the longest text of the batch.
        """
        return self.inputs(images, questions, padding_side="right")

    max_answer: int | None = None  # it is trained on whole answers

    def answer_lengths(self, answers: Sequence[str]) -> list[int]:
        return [len(self.inputs.answer(answer)) for answer in answers]

    def forward(self, **batch: Tensor) -> Tensor:
        output = self.model(**batch, **self._options)
        return pooled(output, batch.get("attention_mask"), self._token)

    @property
    def causal(self) -> bool:
        """Whether a token sees only those before it, so that the model can write."""
        return self._token == LAST

    def hidden(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the last layer (B, T, d) at the T tokens of a batch, whose texts may be padded on the left."""
        places = {}
        if self.inputs.joint is None and "position_ids" in self.inputs.names:
            places["position_ids"] = (batch["attention_mask"].cumsum(-1) - 1).clamp_min(0)
        return self.model(**batch, **places, **self._options).last_hidden_state

    def generate(self, whole: nn.Module, **options: Any) -> Tensor:
        """Return the tokens (B, T) of prompts and the answers that `whole`, the model around these layers, writes."""
        return whole.generate(**self.resized, **options)

    @property
    def resized(self) -> dict[str, bool]:
        """The option that fits positions to images of another size, where the model has it."""
        return {name: value for name, value in self._options.items() if name == "interpolate_pos_encoding"}

    def writer(self) -> Writer:
        with reading(self.source, MODEL_NAME):
            return writer(self, self.source)


def build(
    settings: BackboneSettings, *, kinds: tuple[str, ...] = (), half: bool = False, weights: bool = True
) -> TransformersModel:
    """Load a model of transformers from a folder; `kinds` are the allowed values of `model_type`, empty: any."""
    from transformers import AutoModel

    source = settings.source
    with reading(source, MODEL_NAME):
        config = config_of(source, kinds)
        if not weights:
            model = empty_model(config)
            return TransformersModel(model, ModelInputs.from_settings(model, settings), source)
        model, lacking = load_model(
            AutoModel, source, what="model", skeleton=lambda: empty_model(config), may_lack=POOLER, half=half
        )
        if lacking:  # its values would be random, and different at each site
            model.pooler = None
        backbone = TransformersModel(model, ModelInputs.from_settings(model, settings), source)
        model_roles(model)
        check_features(backbone)
    return backbone


def skeleton(source: str | None) -> TransformersModel:
    with reading(source, MODEL_NAME):
        return TransformersModel(empty_model(config_of(source)), None)


def config_of(source: str, kinds: tuple[str, ...] = ()) -> Any:
    """Return the configuration of a source that transformers' own code can load as an encoder."""
    from transformers import AutoConfig

    stored = read_config(source)
    kind = stored.get("model_type")
    if kinds:
        check_kind(stored, kinds, source, kinds[0])
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except ValueError as error:
        raise unusable(
            f"transformers has no code of its own for {source!r} (model_type {kind!r:.80}), and code that comes with a "
            f"model is never run: give a model of another kind, or update transformers."
        ) from error
    if kind == SHUFFLED:
        raise unusable(
            f"{source!r} hides random patches of every image (model_type {kind!r}), so its features are random: give a "
            f"model that sees all of them."
        )
    if getattr(config, "is_encoder_decoder", False):
        raise unusable(
            f"{source!r} is an encoder with a decoder (model_type {kind!r:.80}), which writes text: give a model of "
            f"one stack, or of an image and a text tower."
        )
    return config


def empty_model(config: Any) -> nn.Module:
    from transformers import AutoModel

    with without_weights():
        return AutoModel.from_config(config, trust_remote_code=False)


def _options(names: set[str]) -> dict[str, Any]:
    """Return what is set in every call: no cache of keys and values, positions that fit the image."""
    options = {"use_cache": False, "interpolate_pos_encoding": True, "return_dict": True}
    return {name: value for name, value in options.items() if name in names}


def check_features(backbone: TransformersModel) -> None:
    """Set the width of the features, those of two blank images with a short question and the longest one."""
    size = backbone.image_size or 16
    training = backbone.training
    with torch.no_grad(), draws_restored(), products(backbone.model):
        longest = "word " * backbone.inputs.text_length  # the model must have its positions
        batch = backbone.collate([np.zeros((size, size, 3), dtype=np.uint8)] * 2, ["a question", longest])
        features = backbone.eval()(**batch)
    backbone.train(training)
    if features.dim() != 2 or len(features) != 2:
        raise ValueError(f"its features of two samples are of shape {tuple(features.shape)}")
    asked = batch.get("input_ids")
    first, second = features.float()
    if asked is not None and not torch.equal(*asked) and (first - second).norm() <= ROUNDING * first.norm():
        raise ValueError("its features are the same whatever the question is")
    backbone.hidden_size = features.shape[1]


def build_llava(settings: BackboneSettings, *, half: bool = False, weights: bool = True) -> TransformersModel:
    settings = replace(settings, prompt=settings.prompt or LLAVA_PROMPT)
    return build(settings, kinds=("llava",), half=half, weights=weights)


def llava_skeleton(source: str | None = None) -> TransformersModel:
    if source:
        return skeleton(source)
    from transformers import LlavaConfig, LlavaModel

    config = LlavaConfig()
    config.text_config.vocab_size = 32_064  # Llama's 32,000, the image's token, and room
    with reading("", "LLaVA"), torch.device("meta"):
        return TransformersModel(LlavaModel(config), None)
