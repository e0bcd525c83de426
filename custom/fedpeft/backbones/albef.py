# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""ALBEF (Li et al. 2021, arXiv:2107.07651): an image encoder, and a text encoder whose upper half attends to the image.

The features are those of the first token after the last fusion layer; the decoder says how probable an answer is, token
by token, given image and question. Questions and answers are read without punctuation. A question is [CLS] and its
words: the tokenizer of ALBEF's authors adds nothing after a single text, in pre-training as in tuning. An answer ends
with [SEP], which their code appends as text: there the decoder ends.

Source: models/tokenization_bert.py, dataset/utils.py and dataset/vqa_dataset.py of github.com/salesforce/ALBEF.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fedpeft.backbones import albef_model, checkpoint, weights
from fedpeft.backbones.albef_model import AlbefConfig, AlbefDecoderModel, AlbefModel, reset_positions
from fedpeft.backbones.backbone import ANSWER, ANSWER_MASK, STATES
from fedpeft.backbones.images import Images, SquareImages
from fedpeft.backbones.matrices import without_weights
from fedpeft.backbones.registry import ALBEF_PICKLE
from fedpeft.backbones.weights import misfits

if TYPE_CHECKING:
    from fedpeft.backbones.registry import BackboneSettings


NO_PUNCTUATION = str.maketrans("-/", "  ", ",.'!?\"()*#:;~")

MODEL_NAME = "ALBEF"
COLOR_MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])
COLOR_DEVIATION = torch.tensor([0.26862954, 0.26130258, 0.27577711])


def plain(text: str) -> str:
    """Return a text in lower case without punctuation, as ALBEF was trained."""
    return re.sub(r"\s+", " ", text.lower().translate(NO_PUNCTUATION)).strip()


def tokens(tokenizer: Any, texts: Sequence[str], max_length: int, *, ends: bool) -> tuple[Tensor, Tensor]:
    """Return B texts without punctuation as tokens, (B, T), and their mask, (B, T).

    Words are cut after `max_length` tokens, including [CLS] and [SEP]; `ends`: whether each text ends with [SEP].
    """
    begin, end = [tokenizer.cls_token_id], [tokenizer.sep_token_id] * ends
    max_words = max_length - len(begin) - len(end)
    rows = [torch.tensor([*begin, *row[:max_words], *end]) for row in _words(tokenizer, texts)]
    ids = pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    return ids, pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)


def lengths(tokenizer: Any, texts: Sequence[str], *, ends: bool) -> list[int]:
    return [1 + len(row) + ends for row in _words(tokenizer, texts)]


def _words(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    return tokenizer([plain(text) for text in texts], add_special_tokens=False, verbose=False)["input_ids"]


class Albef(nn.Module):
    """An ALBEF with its tokenizer (BERT's; None in a skeleton) and image preparation; adapters are put into `model`."""

    family = "albef"
    own_layout = True  # that of the official checkpoint

    def __init__(self, model: AlbefModel, tokenizer: Any, text_length: int) -> None:
        super().__init__()
        self.model: nn.Module = model
        self.tokenizer = tokenizer
        self.text_length = text_length
        self.image_size: int = model.config.image_size
        self.hidden_size: int = model.config.hidden_size
        self.num_layers: int = max(model.config.num_hidden_layers, model.config.vision_layers)
        self.max_text: int = model.config.max_position_embeddings
        self.prepare = SquareImages(self.image_size)

    def collate(self, images: Images, questions: Sequence[str]) -> dict[str, Tensor]:
        """Return B images (PIL, or (H, W, 3) uint8) and B questions, padded to the longest, as ALBEF was tuned."""
        ids, mask = tokens(self.tokenizer, questions, self.text_length, ends=False)
        pixels = self.scaled((self.prepare(images)["pixel_values"] + 1) / 2)
        return {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels}

    def text_tokens(self, texts: Sequence[str]) -> list[int]:
        return lengths(self.tokenizer, texts, ends=False)

    @staticmethod
    def scaled(pixels: Tensor) -> Tensor:
        """Return pixels of 0 to 1, (B, 3, H, W), by ALBEF's mean and deviation of each color."""
        return (pixels - COLOR_MEAN[:, None, None]) / COLOR_DEVIATION[:, None, None]

    def save_inputs(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)

    def forward(self, **batch: Tensor) -> Tensor:
        """Return the first token after the last fusion layer (B, d) for a batch of `collate`."""
        return self.model(**batch)[:, 0]


def build(settings: BackboneSettings, *, weights: bool = True) -> Albef:
    return Albef(*load(settings, AlbefModel, weights=weights), settings.text_length)


def skeleton(source: str | None = None) -> Albef:
    """Return an ALBEF without weights and tokenizer on torch's meta device; None: of the official sizes."""
    model = empty(AlbefModel, source)
    return Albef(model, None, model.config.max_position_embeddings)


def empty(kind: type[AlbefModel], source: str | None) -> AlbefModel:
    with checkpoint.reading(source or "", MODEL_NAME):
        return _empty(kind, _config(source, kind.config_class) if source else kind.config_class())


def load(
    settings: BackboneSettings, kind: type[AlbefModel], *, decodes: bool = False, weights: bool = True
) -> tuple[AlbefModel, Any]:
    """Return a model with its weights, and its tokenizer; `decodes` says whether it has an answer decoder."""
    from transformers import BertTokenizerFast

    with checkpoint.reading(settings.source, MODEL_NAME):
        tokenizer = BertTokenizerFast.from_pretrained(settings.source)
        vocabulary = _config(settings.source, kind.config_class).vocab_size
        checkpoint.check_vocabulary(tokenizer, vocabulary, settings.source)
        if weights:
            model = _load(settings.source, settings.image_size, kind, decodes=decodes)
        else:
            model = empty(kind, settings.source)
    checkpoint.check_text_length(settings.text_length, model.config.max_position_embeddings, settings.source)
    return model, tokenizer


def _load(source: str, image_size: int | None, kind: type[AlbefModel], *, decodes: bool) -> AlbefModel:
    """Return the model of a folder with its weights; positions are resized to `image_size`, None: the stored one."""
    config = _config(source, kind.config_class)
    tensors = albef_model.read_tensors(Path(source))
    for name, pixels in albef_model.image_sizes(tensors).items():
        setattr(config, name, pixels)
    if image_size is not None:
        checkpoint.check_image_size(image_size, config.patch_size, source)
        config.image_size = image_size
    grid = config.image_size // config.patch_size
    positions = albef_model.POSITIONS
    tensors[positions] = albef_model.resized(tensors[positions], grid)
    kept, unknown = albef_model.renamed(tensors, config.fusion_layer if decodes else None)
    if unknown:
        raise checkpoint.unusable(
            f"The weights in {source!r} have {len(unknown)} tensors that ALBEF does not have, first {unknown[0]}: give "
            f"the folder of an official checkpoint."
        )
    model = _empty(kind, config)
    weights.check_size(model, {name: tuple(tensor.shape) for name, tensor in kept.items()})
    expected = dict(model.named_parameters())
    checkpoint.check_complete(misfits(kept, expected), source, MODEL_NAME)
    if extra := sorted(kept.keys() - expected.keys()):
        raise checkpoint.unusable(
            f"The weights in {source!r} have {len(extra)} tensors that an ALBEF of its config.json does not have, "
            f"first {extra[0]}: give the folder whose two files belong together."
        )
    model.load_state_dict(kept, strict=True, assign=True)
    reset_positions(model)
    return model


def _empty(kind: type[AlbefModel], config: AlbefConfig) -> AlbefModel:
    with without_weights():
        return kind(config)


def _config(source: str, kind: type[AlbefConfig]) -> AlbefConfig:
    """Return the sizes in a folder's config.json, which may be ALBEF's own config_bert.json."""
    stored = checkpoint.read_config(source, pickle=ALBEF_PICKLE)
    if not (stored.get("model_type") == "bert" and "fusion_layer" in stored):
        checkpoint.check_kind(stored, (AlbefConfig.model_type,), source, f"model of {MODEL_NAME}")
    width = stored.get("hidden_size", AlbefConfig.hidden_size)
    if stored.get("encoder_width", width) != width:
        raise ValueError(
            f"its config.json has encoder_width {stored['encoder_width']!r:.40} beside hidden_size {width}"
        )
    known = {field.name for field in dataclasses.fields(kind)}
    unread = {"model_type", "architectures", "is_decoder", "add_cross_attention"}
    return kind(**{name: value for name, value in stored.items() if name in known - unread})


class AlbefDecoder(Albef):
    family = "albef_decoder"
    answering = "ranking"

    def __init__(self, model: AlbefDecoderModel, tokenizer: Any, text_length: int) -> None:
        super().__init__(model, tokenizer, text_length)
        self.max_answer: int = model.config.max_position_embeddings

    def answer_tokens(self, answers: Sequence[str]) -> dict[str, Tensor]:
        """Return N answers as tokens between [CLS] and [SEP], (N, T), and their mask, (N, T)."""
        ids, mask = tokens(self.tokenizer, answers, self.max_answer, ends=True)
        return {ANSWER: ids, ANSWER_MASK: mask}

    def answer_lengths(self, answers: Sequence[str]) -> list[int]:
        return lengths(self.tokenizer, answers, ends=True)

    def forward(self, **batch: Tensor) -> Tensor:
        """Return the logits (B, T - 1, V) of each answer token given those before it; 0 after an answer's end.

        Without answers it returns the states of the questions (B, T, d). A batch with `states` and `attention_mask`
        needs no question and image.
        """
        seen = batch["attention_mask"]
        states = batch.get(STATES)
        if states is None:
            states = self.model(batch["input_ids"], seen, batch["pixel_values"])
        if ANSWER not in batch:
            return states
        ids, mask = batch[ANSWER], batch[ANSWER_MASK]
        words = cast(AlbefDecoderModel, self.model).words(ids[:, :-1], mask[:, :-1], states, seen)
        return words * mask[:, 1:, None]


def build_decoder(settings: BackboneSettings, *, weights: bool = True) -> AlbefDecoder:
    return AlbefDecoder(*load(settings, AlbefDecoderModel, decodes=True, weights=weights), settings.text_length)


def decoder_skeleton(source: str | None = None) -> AlbefDecoder:
    model = empty(AlbefDecoderModel, source)
    return AlbefDecoder(model, None, model.config.max_position_embeddings)
