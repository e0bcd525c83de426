# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""PromptFL in causal language models: prompts are the first tokens of what a model reads, also while it writes."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as hf
from small_models import MODELS, SIZE, SPECIAL, blip2, gpt2
from torch import nn

from fedpeft import methods
from fedpeft.backbones import BackboneSettings, build
from fedpeft.backbones.backbone import ANSWER, ANSWER_MASK, question_of
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.prepended_prompts import takes_prompts

COUNT = 3
IDS = {"vocab_size": 50, "pad_token_id": 0}
OPT = {"hidden_size": 32, "word_embed_proj_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64}
DECODERS = {
    "llama": lambda: hf.LlamaModel(hf.LlamaConfig(**SIZE, **IDS, max_position_embeddings=12)),
    "mistral": lambda: hf.MistralModel(hf.MistralConfig(**SIZE, **IDS, num_key_value_heads=2, sliding_window=64)),
    "gpt2": lambda: hf.GPT2Model(hf.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=12, vocab_size=50)),
    "opt": lambda: hf.OPTModel(hf.OPTConfig(**IDS, **OPT)),
    "opt, narrow words": lambda: hf.OPTModel(hf.OPTConfig(**IDS, **OPT | {"word_embed_proj_dim": 16})),
}
ROTARY = ("llama", "mistral")
WRITERS = {
    "llava": ("llava", MODELS["llava"]),
    "blip2": ("blip2", blip2),
    "paligemma": ("transformers", MODELS["paligemma"]),
    "qwen_vl": ("transformers", MODELS["qwen_vl"]),
    "gpt2": ("transformers", gpt2),
}
QUESTIONS = ["where is the nodule in the image ?", "why ?"]
ANSWERS = ["in the image", "why"]


def prepared(model, *, tokens=COUNT, seed=0):
    backbone = nn.Module()
    backbone.model = model
    trainable = methods.get("promptfl").tuning().prepare(backbone, {"tokens": tokens}, seed=seed)
    with torch.no_grad():  # as large as embeddings, so that their effect is seen
        for prompts in trainable.parameters().values():
            prompts.mul_(25)
    return trainable


@pytest.mark.parametrize("name", DECODERS)
def test_they_are_the_embeddings_of_a_text_that_begins_with_them(name):
    torch.manual_seed(0)
    model = DECODERS[name]().eval()
    plain = copy.deepcopy(model)
    prompts = prepared(model).state()["layer.0.prompt.tokens"]
    words = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
    with torch.no_grad():
        before = torch.cat((prompts.expand(2, -1, -1), plain.get_input_embeddings()(words)), dim=1)
        expected = plain(inputs_embeds=before).last_hidden_state[:, COUNT:]
        assert not torch.allclose(plain(input_ids=words).last_hidden_state, expected, atol=1e-2)
        for got in (model(input_ids=words), model(words), model(input_ids=words, attention_mask=torch.ones(2, 4))):
            assert torch.allclose(got.last_hidden_state, expected, atol=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", DECODERS)
def test_what_pads_a_text_on_either_side_changes_nothing(name, attention):
    torch.manual_seed(0)
    model = DECODERS[name]().eval()
    model.set_attn_implementation(attention)
    prepared(model)
    words, whole = torch.tensor([[3, 4, 5]]), torch.tensor([[7, 8, 9, 10, 11]])
    with torch.no_grad():
        alone = model(input_ids=words).last_hidden_state[0]
        for left in (False, True):
            pads = torch.zeros(1, 2, dtype=torch.long)
            row = torch.cat((pads, words) if left else (words, pads), dim=1)
            mask = torch.cat(((row > 0).long(), torch.ones(1, 5, dtype=torch.long)))
            places = (mask.cumsum(-1) - 1).clamp_min(0)
            for positions in (None, places, places + 1 if name in ROTARY else places):  # PaliGemma counts from 1
                got = model(input_ids=torch.cat((row, whole)), attention_mask=mask, position_ids=positions)
                assert torch.allclose(got.last_hidden_state[0][mask[0] > 0], alone, atol=1e-5)


def loaded(name, tmp_path):
    torch.manual_seed(0)
    backbone, save = WRITERS[name]
    model = build(BackboneSettings(name=backbone, source=str(save(tmp_path / "model")), text_length=16)).eval()
    prepared(model.model)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_model_writes_what_it_was_trained_to(name, tmp_path):
    """The tokens that it writes are the most probable ones by the logits of training, read one after the other."""
    backbone = loaded(name, tmp_path)
    writer = backbone.writer()
    pictures = [np.random.default_rng(n).integers(0, 256, size=(16, 16, 3), dtype=np.uint8) for n in range(2)]
    batch = writer.collate(pictures, QUESTIONS, ANSWERS)
    prompt = question_of(batch)
    assert (prompt["attention_mask"] == 0).any()
    steps, whole, tokenizer = 4, writer._shared[1], writer.tokenizer
    unwanted = [tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(SPECIAL)]  # an end, and images
    options = {"max_new_tokens": steps, "do_sample": False, "suppress_tokens": unwanted}
    written = backbone.generate(whole, **prompt, **options)[:, -steps:]
    both = prompt | {ANSWER: written, ANSWER_MASK: torch.ones_like(written)}
    with torch.no_grad():
        logits = writer(both)
        alone = writer({name: tensor[len(tensor) // 2 :] for name, tensor in both.items()})
    assert torch.allclose(alone[0], logits[1], atol=1e-4)
    logits[..., unwanted] = -torch.inf
    assert torch.equal(logits.argmax(-1), written)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_they_change_the_features_and_can_be_learned(name, tmp_path):
    backbone = loaded(name, tmp_path)
    pictures = [np.full((16, 16, 3), value, dtype=np.uint8) for value in (40, 200)]
    batch = backbone.collate(pictures, QUESTIONS)
    goal = torch.randn(2, backbone.hidden_size, generator=torch.Generator().manual_seed(0))
    loss = (backbone(**batch) - goal).square().sum()
    loss.backward()
    gradients = {key: tensor.grad for key, tensor in backbone.named_parameters() if tensor.grad is not None}
    assert [key for key in gradients if "prompts" not in key] == []
    assert all(gradient.abs().sum(-1).min() > 0 for gradient in gradients.values())
    with torch.no_grad():
        for key, tensor in backbone.named_parameters():
            if key in gradients:
                tensor -= 1e-2 * gradients[key]
        assert (backbone(**batch) - goal).square().sum() < loss


def test_a_text_that_is_too_long_with_them_is_refused():
    model = DECODERS["llama"]().eval()
    prepared(model, tokens=9)
    with pytest.raises(FedpeftError, match=r"a text of 13 tokens, prompts included, is more than the 12 positions"):
        model(input_ids=torch.tensor([[3, 4, 5, 6]]))


def test_prompts_without_room_for_the_longest_question_are_refused_when_a_site_starts(tmp_path):
    backbone = build(BackboneSettings(name="transformers", source=str(gpt2(tmp_path)), text_length=60))
    methods.get("promptfl").tuning().prepare(backbone, {"tokens": 3}, seed=0)
    with pytest.raises(FedpeftError, match="more than the 64 positions of the language model"):
        methods.get("promptfl").tuning().prepare(backbone, {"tokens": 5}, seed=0)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"token_type_ids": torch.zeros(1, 3, dtype=torch.long)}, "is given token_type_ids"),
        ({"past_key_values": SimpleNamespace(is_compileable=True, get_seq_length=lambda: 0)}, "a cache that grows"),
    ],
)
def test_what_prompts_cannot_stand_before_is_refused(given, sentence):
    model = DECODERS["gpt2"]().eval()
    prepared(model)
    with pytest.raises(FedpeftError, match=sentence):
        model(input_ids=torch.tensor([[3, 4, 5]]), **given)


def test_a_decoder_that_reads_more_than_tokens_has_no_place_for_prompts():
    class Deep(hf.LlamaModel):
        def forward(self, input_ids=None, attention_mask=None, past_key_values=None, inputs_embeds=None, visual=None):
            """As Qwen3-VL, whose images enter the layers by the places of their tokens."""

    class WithoutPositions(hf.GPT2Model):
        def forward(self, input_ids=None, attention_mask=None, past_key_values=None, inputs_embeds=None, visual=None):
            """The same, with layers that need no positions."""

    assert takes_prompts(DECODERS["llama"]())
    for model in (Deep(hf.LlamaConfig(**SIZE, **IDS)), WithoutPositions(hf.GPT2Config(n_embd=32, n_layer=2, n_head=2))):
        assert not takes_prompts(model)
        with pytest.raises(FedpeftError, match="reads visual beside its tokens: use another method"):
            prepared(model)


@pytest.mark.parametrize("name", ["vpt", "dvpt"])
def test_prompts_before_every_layer_are_refused_where_layers_need_positions(name):
    backbone = nn.Module()
    backbone.model = DECODERS["llama"]()
    with pytest.raises(FedpeftError, match=r"which every layer of model family 'llama' needs: use promptfl"):
        methods.get(name).tuning().prepare(backbone, {}, seed=0)
