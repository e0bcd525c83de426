# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A small ALBEF checkpoint with random weights under the official names, and what such a model computes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from small_models import IMAGE, PLAIN, SIZE
from torch import Tensor
from torch.nn import functional as F
from transformers import BertTokenizerFast

from fedpeft import adapters

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PLAIN]
WIDTH, INNER, HEADS = SIZE["hidden_size"], SIZE["intermediate_size"], SIZE["num_attention_heads"]
VISION_LAYERS, TEXT_LAYERS, FUSION = 3, 4, 2
CONFIG = {
    **SIZE,
    "model_type": "albef",
    "num_hidden_layers": TEXT_LAYERS,
    "vision_layers": VISION_LAYERS,
    "fusion_layer": FUSION,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 20,
}
GRID = IMAGE["image_size"] // IMAGE["patch_size"]
Adapters = Mapping[str, Callable[[Tensor], Tensor]]


def tuned_tensors(encoder: Mapping[str, Tensor], decoder: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The layout of the official checkpoint that was fine-tuned on questions, with momentum copies.

    Args:
        encoder: `albef_tensors` of image and question.
        decoder: `albef_tensors` of whose fusion layers, embeddings and head the decoder is.
    """
    bert, tensors = "text_encoder.bert.", {}
    for name, tensor in encoder.items():
        if name.startswith(("visual_encoder.", bert)):
            tensors[name.replace(bert, "text_encoder.")] = tensor
    for name, tensor in decoder.items():
        parts = name.split(".")
        if name.startswith(f"{bert}encoder.layer."):
            if int(parts[4]) < FUSION:
                continue
            parts[4] = str(int(parts[4]) - FUSION)
        if parts[0] == "text_encoder":
            tensors[".".join(["text_decoder", *parts[1:]])] = tensor
    return tensors | {name.replace(".", "_m.", 1): tensor.clone() for name, tensor in tensors.items()}


def albef_tensors(seed: int = 0) -> dict[str, Tensor]:
    """The official names, heads of pre-training, momentum copies and queues included."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.2

    def linear(name: str, outputs: int, inputs: int) -> dict[str, Tensor]:
        return {f"{name}.weight": draw(outputs, inputs), f"{name}.bias": draw(outputs)}

    def norm(name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": 1 + draw(WIDTH), f"{name}.bias": draw(WIDTH)}

    def bert_attention(name: str) -> dict[str, Tensor]:
        parts = [linear(f"{name}.self.{part}", WIDTH, WIDTH) for part in ("query", "key", "value")]
        merged = {key: tensor for part in parts for key, tensor in part.items()}
        return merged | linear(f"{name}.output.dense", WIDTH, WIDTH) | norm(f"{name}.output.LayerNorm")

    patch = IMAGE["patch_size"]
    tensors = {
        "visual_encoder.cls_token": draw(1, 1, WIDTH),
        "visual_encoder.pos_embed": draw(1, GRID**2 + 1, WIDTH),
        "visual_encoder.patch_embed.proj.weight": draw(WIDTH, 3, patch, patch),
        "visual_encoder.patch_embed.proj.bias": draw(WIDTH),
        **norm("visual_encoder.norm"),
    }
    for layer in range(VISION_LAYERS):
        block = f"visual_encoder.blocks.{layer}"
        tensors |= norm(f"{block}.norm1") | norm(f"{block}.norm2")
        tensors |= linear(f"{block}.attn.qkv", 3 * WIDTH, WIDTH) | linear(f"{block}.attn.proj", WIDTH, WIDTH)
        tensors |= linear(f"{block}.mlp.fc1", INNER, WIDTH) | linear(f"{block}.mlp.fc2", WIDTH, INNER)
    words = "text_encoder.bert.embeddings"
    tensors |= {
        f"{words}.word_embeddings.weight": draw(len(WORDS), WIDTH),
        f"{words}.position_embeddings.weight": draw(CONFIG["max_position_embeddings"], WIDTH),
        f"{words}.token_type_embeddings.weight": draw(2, WIDTH),
        f"{words}.position_ids": torch.arange(CONFIG["max_position_embeddings"])[None],
        **norm(f"{words}.LayerNorm"),
    }
    for number in range(TEXT_LAYERS):
        layer = f"text_encoder.bert.encoder.layer.{number}"
        tensors |= bert_attention(f"{layer}.attention")
        if number >= FUSION:
            tensors |= bert_attention(f"{layer}.crossattention")
        tensors |= linear(f"{layer}.intermediate.dense", INNER, WIDTH)
        tensors |= linear(f"{layer}.output.dense", WIDTH, INNER) | norm(f"{layer}.output.LayerNorm")
    head = "text_encoder.cls.predictions"
    tensors |= linear(f"{head}.transform.dense", WIDTH, WIDTH) | norm(f"{head}.transform.LayerNorm")
    tensors |= linear(f"{head}.decoder", len(WORDS), WIDTH) | {f"{head}.bias": draw(len(WORDS))}
    tensors |= linear("vision_proj", 8, WIDTH) | linear("text_proj", 8, WIDTH) | linear("itm_head", 2, WIDTH)
    parts = ("visual_encoder", "text_encoder", "vision_proj", "text_proj")
    momentum = {
        f"{part}_m{name.removeprefix(part)}": tensor.clone()
        for part in parts
        for name, tensor in tensors.items()
        if name.startswith(f"{part}.")
    }
    queues = {"image_queue": draw(8, 4), "text_queue": draw(8, 4), "queue_ptr": torch.zeros(1, dtype=torch.long)}
    return tensors | momentum | queues | {"temp": torch.tensor(0.07)}


def albef_folder(folder: Path, tensors: Mapping[str, Tensor] | None = None, **config: Any) -> Path:
    """A folder as a user makes it: ALBEF.pth, config.json and the tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    content = {"model": dict(albef_tensors() if tensors is None else tensors), "epoch": 29, "config": {"k": [1, "x"]}}
    torch.save(content, folder / "ALBEF.pth")
    return folder


def pfeiffer_adapters(model: torch.nn.Module) -> Adapters:
    """Put Pfeiffer adapters with ten times their first values into a model; place -> what the adapter there adds."""
    peft = adapters.attach(model, adapters.config("pfeiffer", reduction_factor=4, init_seed=1))
    state = {key: tensor * 10 for key, tensor in adapters.adapter_state(peft).items()}
    adapters.load_adapter_state(peft, state)

    def added(place: str) -> Callable[[Tensor], Tensor]:
        down, up = ((state[f"{place}.{half}.weight"], state[f"{place}.{half}.bias"]) for half in ("down", "up"))
        return lambda x: F.linear(F.linear(x, *down).relu(), *up)

    return {place: added(place) for place in {key.rsplit(".", 2)[0] for key in state}}


class Reference:
    """ALBEF's equations, on the tensors of its checkpoint.

    Args:
        tensors: by their official names.
        adapters: place, for instance "layer.1.text_output" -> what an adapter there adds, of what it reads.
    """

    def __init__(self, tensors: Mapping[str, Tensor], adapters: Adapters | None = None) -> None:
        self.tensors, self.adapters = tensors, adapters or {}

    def states(self, ids: Tensor, mask: Tensor, pixels: Tensor) -> Tensor:
        """The states (B, T, d) of questions (B, T) about images (B, 3, H, W)."""
        image, h = self._image(pixels), self._embedded(ids)
        for number in range(TEXT_LAYERS):
            h = self._layer(h, number, f"layer.{number}.text", mask[:, None, None], image if number >= FUSION else None)
        return h

    def words(self, ids: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """The logits (B, T, V) of the token after each of an answer, by the decoder as ALBEF initializes it."""
        causal = torch.ones(ids.shape[1], ids.shape[1]).tril()[None, None]
        h = self._embedded(ids)
        for number in range(FUSION, TEXT_LAYERS):
            h = self._layer(h, number, f"layer.{number - FUSION}.decoder", causal, states, mask[:, None, None])
        head = "text_encoder.cls.predictions"
        h = self._norm(F.gelu(self._linear(h, f"{head}.transform.dense")), f"{head}.transform.LayerNorm", 1e-12)
        table = self.tensors["text_encoder.bert.embeddings.word_embeddings.weight"]
        return h @ table.T + self.tensors[f"{head}.bias"]

    def _image(self, pixels: Tensor) -> Tensor:
        vision = "visual_encoder"
        weight, bias = (self.tensors[f"{vision}.patch_embed.proj.{kind}"] for kind in ("weight", "bias"))
        patches = F.conv2d(pixels, weight, bias, stride=IMAGE["patch_size"])
        first = self.tensors[f"{vision}.cls_token"].expand(len(pixels), -1, -1)
        x = torch.cat((first, patches.flatten(2).transpose(1, 2)), dim=1) + self.tensors[f"{vision}.pos_embed"]
        for layer in range(VISION_LAYERS):
            name = f"{vision}.blocks.{layer}"
            heads = _attend(*self._linear(self._norm(x, f"{name}.norm1", 1e-6), f"{name}.attn.qkv").chunk(3, dim=-1))
            x = x + self._linear(heads, f"{name}.attn.proj")
            inner = F.gelu(self._linear(self._norm(x, f"{name}.norm2", 1e-6), f"{name}.mlp.fc1"))
            x = x + self._linear(inner, f"{name}.mlp.fc2")
            x = x + self._added(f"layer.{layer}.vision_output", x)
        return self._norm(x, f"{vision}.norm", 1e-6)

    def _embedded(self, ids: Tensor) -> Tensor:
        words = "text_encoder.bert.embeddings"
        word, kind, place = (self.tensors[f"{words}.{n}_embeddings.weight"] for n in ("word", "token_type", "position"))
        return self._norm(word[ids] + kind[0] + place[: ids.shape[1]], f"{words}.LayerNorm", 1e-12)

    def _layer(
        self, h: Tensor, number: int, place: str, seen: Tensor, other: Tensor | None, others_seen: Tensor | None = None
    ) -> Tensor:
        name = f"text_encoder.bert.encoder.layer.{number}"
        h = self._attention(h, h, f"{name}.attention", seen, f"{place}_attention")
        if other is not None:
            h = self._attention(h, other, f"{name}.crossattention", others_seen)
        inner = F.gelu(self._linear(h, f"{name}.intermediate.dense"))
        return self._block(inner, h, f"{name}.output", f"{place}_output")

    def _attention(self, x: Tensor, other: Tensor, name: str, seen: Tensor | None, place: str = "") -> Tensor:
        query, key, value = (
            self._linear(y, f"{name}.self.{part}") for y, part in ((x, "query"), (other, "key"), (other, "value"))
        )
        return self._block(_attend(query, key, value, seen), x, f"{name}.output", place)

    def _block(self, h: Tensor, stream: Tensor, name: str, place: str) -> Tensor:
        f, normed = self._linear(h, f"{name}.dense"), f"{name}.LayerNorm"
        f = f + self._added(place, self._norm(f + stream, normed, 1e-12))
        return self._norm(f + stream, normed, 1e-12)

    def _added(self, place: str, x: Tensor) -> Tensor | int:
        return self.adapters[place](x) if place in self.adapters else 0

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        return F.layer_norm(x, (WIDTH,), self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"], eps)


def _attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None = None) -> Tensor:
    q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in (query, key, value))
    scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH / HEADS)
    if seen is not None:
        scores = scores.masked_fill(seen == 0, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
