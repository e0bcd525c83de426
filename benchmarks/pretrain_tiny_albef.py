# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Pre-train the tiny ALBEF that ships with fedpeft, on the stream of images and plain words of pretrain_tiny_vilt.py.

    python benchmarks/pretrain_tiny_albef.py --out DIR

made the one that is shipped.

As ALBEF starts from a ViT and a BERT, this one starts from the tiny ViLT: its lower layers see the image, its words
are embedded in the same way; the text layers are new. Per image one question; the losses are
    answer      cross-entropy of the first token over all answers of the plain language
    asked       per patch: does it belong to what the question asks for? By its product with the first token
    anatomy     per patch: which kind of finding covers it, and is it bright?
    word        in a third of the samples the answer follows the question, masked, and is predicted (ALBEF's own loss)
Of the heads only that of words is kept. An interrupted run continues from its last checkpoint.
"""

import argparse
import math
import shutil
from pathlib import Path

import torch
from pretrain_tiny_vilt import ANSWERS, PATCH, SEED, SPECIAL, make_batch, vocabulary
from pretraining import arguments, as_float16, train
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu
from transformers import BertTokenizerFast

from fedpeft.backbones import BackboneSettings, build
from fedpeft.backbones.albef import Albef
from fedpeft.backbones.albef_model import AlbefConfig, AlbefModel
from fedpeft.backbones.registry import TINY_FOLDER
from fedpeft.backbones.weights import OUTSIDE, TIMM_LAYER
from fedpeft.data.phantom_scene import KINDS, SIZE

PUNCTUATION = ",.'!?\"()*#:;~-/"  # what `Albef.collate` takes out of a question
TOKENIZER = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
PAD, CLS, SEP, MASK = (SPECIAL.index(f"[{name}]") for name in ("PAD", "CLS", "SEP", "MASK"))
SHADES = 3


def write_configuration(folder: Path) -> None:
    """Write tokenizer and model configuration; the tokenizer is that of the tiny ViLT."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER:
        shutil.copy(TINY_FOLDER / name, folder)
    AlbefConfig(
        vocab_size=len(vocabulary()),
        hidden_size=96,
        num_hidden_layers=6,
        fusion_layer=3,
        vision_layers=6,
        num_attention_heads=4,
        intermediate_size=192,
        image_size=SIZE,
        patch_size=PATCH,
        max_position_embeddings=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ).save_pretrained(folder)


def load_untrained(folder: Path) -> Albef:
    """Make a tiny ALBEF with new text layers; image layers and words are those of the tiny ViLT."""
    backbone = Albef(AlbefModel(AlbefConfig.from_pretrained(folder)), BertTokenizerFast.from_pretrained(folder), 40)
    state = backbone.model.state_dict()
    image = build(BackboneSettings(name="tiny-vit", source=str(TINY_FOLDER))).model.state_dict()
    words = build(BackboneSettings(name="tiny-vilt")).model.embeddings.text_embeddings.state_dict()
    started = {f"visual_encoder.{name}": tensor for name, tensor in image.items()}
    started |= {f"text_encoder.embeddings.{name}": tensor for name, tensor in words.items()}
    backbone.model.load_state_dict(state | {name: tensor for name, tensor in started.items() if name in state})
    return backbone


class Heads(nn.Module):
    """The heads of pre-training; `word` and `norm` are kept, as ALBEF's head of masked words.

    Args:
        width: d.
        words: size of the vocabulary.
    """

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.answer = nn.Linear(width, len(ANSWERS))
        self.asked = nn.Linear(width, width)
        self.kinds = nn.Linear(width, 1 + len(KINDS))
        self.shades = nn.Linear(width, SHADES)
        self.word = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(words))

    def words(self, states: Tensor, table: Tensor) -> Tensor:
        """Return the logits of words at states (N, d), by the table of embeddings (words, d)."""
        return self.norm(gelu(self.word(states))) @ table.T + self.bias


def with_answers(batch: dict[str, Tensor], tokenizer: BertTokenizerFast) -> dict[str, Tensor]:
    """Make the questions tokens as `Albef.collate` does, and put the masked answer behind every third of them.

    A question alone is [CLS] and its words; with an answer it is [CLS] question [SEP] answer [SEP], the pair of BERT.

    Returns:
        the batch with other `input_ids` and `attention_mask`, and `words` (B, T): the answer's tokens, -100 elsewhere.
    """
    left_out = {*tokenizer.convert_tokens_to_ids(list(PUNCTUATION)), PAD, SEP}
    rows, words = [], []
    for number, (row, answer) in enumerate(zip(batch["input_ids"].tolist(), batch["answer"].tolist(), strict=True)):
        tokens = [token for token in row if token not in left_out]
        goal = [] if number % 3 else tokenizer(ANSWERS[answer], add_special_tokens=False)["input_ids"]
        ends = [SEP] * bool(goal)
        rows.append(tokens + ends + [MASK] * len(goal) + ends)
        words.append([-100] * len(tokens + ends) + goal + [-100] * len(ends))
    longest = max(map(len, rows))
    ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
    masked = torch.tensor([row + [-100] * (longest - len(row)) for row in words])
    return batch | {"input_ids": ids, "attention_mask": (ids != PAD).long(), "words": masked}


def losses(backbone: Albef, heads: Heads, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Return the total loss, its parts, and per question whether it was answered rightly."""
    model = backbone.model
    pixels = backbone.scaled(batch["image"].permute(0, 3, 1, 2).float().div(255))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        image = model.visual_encoder(pixels).last_hidden_state
        text = model.text_encoder(
            batch["input_ids"], batch["attention_mask"], encoder_hidden_states=image
        ).last_hidden_state
    patches, text = image[:, 1:].float(), text.float()
    logits = heads.answer(text[:, 0])
    asked = (heads.asked(text[:, :1]) * patches).sum(-1) / math.sqrt(patches.shape[-1])
    masked = batch["words"] != -100
    table = model.text_encoder.embeddings.word_embeddings.weight
    parts = {
        "answer": cross_entropy(logits, batch["answer"]),
        "asked": nn.functional.binary_cross_entropy_with_logits(asked, batch["asked"].float()),
        "kinds": cross_entropy(heads.kinds(patches).flatten(0, 1), batch["kinds"].flatten()),
        "shades": cross_entropy(heads.shades(patches).flatten(0, 1), batch["shades"].flatten()),
        "word": cross_entropy(heads.words(text[masked], table), batch["words"][masked]),
    }
    total = parts["answer"] + parts["asked"] + 0.5 * parts["kinds"] + 0.3 * parts["shades"] + 0.5 * parts["word"]
    return total, parts, logits.argmax(1) == batch["answer"]


def official(model: nn.Module, heads: Heads) -> dict[str, Tensor]:
    """Return the tensors by the names of ALBEF's checkpoints, as float16."""
    vision, text = (dict(part.state_dict()) for part in (model.visual_encoder, model.text_encoder))
    names = {f"{new}.": f"{old}." for old, new in OUTSIDE.items()}
    tensors: dict[str, Tensor] = {}
    for name, tensor in vision.items():
        if "attention.q_proj" in name:
            parts = [vision[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            tensors[_block(name.replace("attention.q_proj", "attn.qkv"))] = torch.cat(parts)
        elif not any(f"attention.{part}_proj" in name for part in "kv"):
            for new, old in (names | {f".{new}.": f".{old}." for old, new in TIMM_LAYER.items()}).items():
                if f"{name}.".startswith(new) or (name.startswith("layers.") and new[0] == "." and new in name):
                    name = f"{name}.".replace(new, old, 1).rstrip(".")
                    break
            tensors[_block(name)] = tensor
    tensors |= {f"text_encoder.bert.{name.replace('.inner.', '.')}": tensor for name, tensor in text.items()}
    kept = {"transform.dense": heads.word, "transform.LayerNorm": heads.norm}
    tensors |= {
        f"text_encoder.cls.predictions.{name}.{kind}": getattr(module, kind)
        for name, module in kept.items()
        for kind in ("weight", "bias")
    }
    tensors["text_encoder.cls.predictions.bias"] = heads.bias
    return as_float16(tensors)


def _block(name: str) -> str:
    return f"visual_encoder.{name.replace('layers.', 'blocks.', 1) if name.startswith('layers.') else name}"


def redraw_unseen(model: nn.Module, seen: Tensor) -> None:
    """Give words that pre-training never used random embeddings of the same spread as the learned ones."""
    table = model.text_encoder.embeddings.word_embeddings.weight.data
    generator = torch.Generator().manual_seed(SEED)
    fresh = torch.randn(table.shape, generator=generator) * table[seen].std(0) + table[seen].mean(0)
    table[~seen] = fresh[~seen]


def pretrain(args: argparse.Namespace) -> None:
    """Train, and write the weights under the official names."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    write_configuration(args.out)
    backbone = load_untrained(args.out)
    heads = Heads(backbone.hidden_size, backbone.model.config.vocab_size)
    seen = torch.zeros(backbone.model.config.vocab_size, dtype=torch.bool)

    def step(number: int) -> tuple[Tensor, dict[str, float]]:
        batch = with_answers(make_batch(number, args.batch, backbone.tokenizer), backbone.tokenizer)
        seen[batch["input_ids"].unique()] = True
        seen[batch["words"][batch["words"] >= 0]] = True
        total, parts, right = losses(backbone, heads, batch)
        figures = {name: value.item() for name, value in parts.items()}
        return total, figures | {"right": right.float().mean().item()}

    train(nn.ModuleDict({"backbone": backbone, "heads": heads}), step, args, kept={"seen": seen})
    redraw_unseen(backbone.model, seen)
    save_file(official(backbone.model, heads), args.out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    pretrain(arguments(__doc__.splitlines()[0], steps=1600))
