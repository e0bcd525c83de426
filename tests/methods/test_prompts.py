# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Prompts before each layer, or before the first."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from small_albef import albef_folder
from torch import nn

from fedpeft import methods
from fedpeft.backbones import BackboneSettings, build
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.prompts import FactoredSettings, PromptSettings, PromptTuning, factored

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
NAMES = ("vpt", "dvpt", "promptfl")


def prepared(name, model, **settings):
    backbone = nn.Module()
    backbone.model = model
    return methods.get(name).tuning().prepare(backbone, {"tokens": 4, **settings}, seed=0)


def in_text(name, model, **settings):
    """The same prompts in a model of text, where VPT's own first values, which depend on patches, are not defined."""
    kind = FactoredSettings if name == "dvpt" else PromptSettings
    tuning = PromptTuning(name, kind, deep=name != "promptfl", std=0.3)
    return tuning.prepare(SimpleNamespace(model=model), {"tokens": 4, **settings}, seed=0)


def by_hand(model, inputs, prompts, *, deep):
    """ViLT with prompts, its layers called one after the other."""
    hidden, mask = model.embeddings(**inputs, token_type_ids=None, inputs_embeds=None)
    assert mask.all()  # so that the layers need none
    count = prompts[0].shape[0]
    for number, layer in enumerate(model.encoder.layer):
        if deep or number == 0:
            first = hidden[:, :1]
            rest = hidden[:, 1:] if number == 0 else hidden[:, 1 + count :]
            hidden = torch.cat((first, prompts[number].expand(len(hidden), -1, -1), rest), dim=1)
        hidden = layer(hidden)[0]
    return model.pooler(model.layernorm(torch.cat((hidden[:, :1], hidden[:, 1 + count :]), dim=1)))


@pytest.mark.parametrize("name", NAMES)
def test_the_output_is_that_of_layers_called_by_hand(name, vilt, batch):
    settings = {"rank": 2} if name == "dvpt" else {}
    model, plain = vilt(), vilt()
    state = prepared(name, model, **settings).state()
    deep = name != "promptfl"
    tokens = [
        state.get(f"layer.{n}.prompt.tokens")
        if name != "dvpt"
        else state[f"layer.{n}.prompt.coefficients"] @ state[f"layer.{n}.prompt.basis"]
        for n in range(2 if deep else 1)
    ]
    inputs = batch()
    with torch.no_grad():
        got = model(**inputs)
        expected = by_hand(plain, {**inputs, "pixel_values": None}, tokens, deep=deep)
    assert torch.allclose(got.pooler_output, expected, atol=1e-6)
    assert got.last_hidden_state.shape == plain(**inputs).last_hidden_state.shape


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", NAMES)
def test_prompts_in_other_families_and_behind_a_mask(name, attention):
    settings = {"rank": 2} if name == "dvpt" else {}
    bert = hf.BertModel(hf.BertConfig(**SIZE, vocab_size=50, attn_implementation=attention)).eval()
    in_text(name, bert, **settings)
    words, mask = torch.tensor([[3, 4, 5, 0]]), torch.tensor([[1, 1, 1, 0]])
    with torch.no_grad():
        short = bert(input_ids=words[:, :3]).last_hidden_state
        padded = bert(input_ids=words, attention_mask=mask).last_hidden_state[:, :3]
    assert torch.allclose(short, padded, atol=1e-5)  # a padded place is still not seen
    vit = hf.ViTModel(hf.ViTConfig(**SIZE, image_size=16, patch_size=8)).eval()
    before = vit(pixel_values=torch.ones(1, 3, 16, 16)).last_hidden_state
    prepared(name, vit, **settings)
    after = vit(pixel_values=torch.ones(1, 3, 16, 16)).last_hidden_state
    assert after.shape == before.shape
    assert not torch.allclose(after, before)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["vpt", "dvpt"])
def test_in_gpt2_they_are_tokens_that_see_and_are_seen_as_all_others(name, attention):
    """Its layers get the cache of earlier tokens before the mask."""
    settings = {"rank": 2} if name == "dvpt" else {}
    config = hf.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=16, vocab_size=50)
    config._attn_implementation = attention
    model = hf.GPT2Model(config).eval()
    plain = copy.deepcopy(model)
    state = in_text(name, model, **settings).state()
    words, mask = torch.tensor([[3, 4, 5, 0]]), torch.tensor([[1, 1, 1, 0]])
    hidden = plain.wte(words[:, :3]) + plain.wpe.weight[:3]
    length = 4 + 3
    earlier = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]
    with torch.no_grad():
        for number, layer in enumerate(plain.h):
            place = f"layer.{number}.prompt"
            own = (
                state[f"{place}.coefficients"] @ state[f"{place}.basis"] if name == "dvpt" else state[f"{place}.tokens"]
            )
            first, rest = hidden[:, :1], hidden[:, 1:] if number == 0 else hidden[:, 5:]
            hidden = torch.cat((first, own[None], rest), dim=1)
            hidden = layer(hidden, attention_mask=earlier)
        expected = plain.ln_f(torch.cat((hidden[:, :1], hidden[:, 5:]), dim=1))
        got = model(input_ids=words, attention_mask=mask).last_hidden_state[:, :3]
    assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("together", [False, True])
def test_factors_of_full_rank_reproduce_the_prompts(together):
    draw = torch.Generator().manual_seed(0)
    tokens = {f"layer.{n}.prompt": torch.randn(4, 8, generator=draw) for n in range(3)}
    factors = factored(tokens, 8 if together else 4, together=together)
    for place, value in tokens.items():
        basis = factors["shared.basis" if together else f"{place}.basis"]
        assert torch.allclose(factors[f"{place}.coefficients"] @ basis, value, atol=1e-5)


def test_a_rank_that_prompts_cannot_have_is_refused(vilt):
    with pytest.raises(FedpeftError, match=r"rank is 8, but prompts of shape \(4, 32\) have at most 4"):
        prepared("dvpt", vilt(), rank=8)


@pytest.mark.parametrize("name", NAMES)
def test_counting_draws_no_prompts(name, vilt):
    settings = {"tokens": 10**9} | ({"rank": 8} if name == "dvpt" else {})
    parameters = prepared(name, vilt().to("meta"), **settings).parameters()
    assert all(parameter.is_meta for parameter in parameters.values())
    assert max(max(parameter.shape) for parameter in parameters.values()) == 10**9


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"tokens": 0}, "tokens is 0"), ({"decomposition": "all"}, "decomposition is 'all'"), ({"tokns": 3}, "tokns")],
)
def test_wrong_settings_are_refused(vilt, settings, sentence):
    with pytest.raises(FedpeftError, match=sentence):
        prepared("dvpt", vilt(), **{"rank": 2, **settings})


CLIP = {
    "text_config": {**SIZE, "vocab_size": 50, "max_position_embeddings": 16, "eos_token_id": 49},
    "vision_config": {**SIZE, "image_size": 16, "patch_size": 8},
}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("name", "moved"), [("vpt", "image_embeds"), ("dvpt", "image_embeds"), ("promptfl", "text_embeds")]
)
def test_of_two_towers_one_gets_prompts(name, moved, attention):
    model = hf.CLIPModel(hf.CLIPConfig(**CLIP, attn_implementation=attention)).eval()
    words, mask = torch.tensor([[3, 4, 49, 0], [5, 6, 7, 49]]), torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    inputs = {"input_ids": words, "attention_mask": mask, "pixel_values": torch.ones(2, 3, 16, 16)}
    with torch.no_grad():
        before = model(**inputs)
        prepared(name, model, **({"rank": 2} if name == "dvpt" else {}))
        after = model(**inputs)
        short = model(**{name: tensor[:1, :3] if tensor.dim() == 2 else tensor[:1] for name, tensor in inputs.items()})
    same = ({"image_embeds", "text_embeds"} - {moved}).pop()
    assert torch.equal(before[same], after[same])
    assert not torch.allclose(before[moved], after[moved], atol=1e-3)
    assert torch.allclose(short[moved], after[moved][:1], atol=1e-5)  # a padded place is still not seen


@pytest.mark.slow
def test_text_prompts_of_albef_are_those_of_layers_called_by_hand(tmp_path):
    model = build(BackboneSettings(name="albef", source=str(albef_folder(tmp_path)), text_length=16)).model.eval()
    words, image = torch.tensor([[3, 4, 5], [6, 7, 8]]), torch.rand(2, 3, *[model.config.image_size] * 2)
    with torch.no_grad():
        seen = model.visual_encoder(image).last_hidden_state
        hidden = model.text_encoder.embeddings(words)
        prompts = prepared("promptfl", copy.deepcopy(model)).state()["layer.0.prompt.tokens"]
        hidden = torch.cat((hidden[:, :1], prompts.expand(2, -1, -1), hidden[:, 1:]), dim=1)
        for layer in model.text_encoder.encoder.layer:
            hidden = layer(hidden, encoder_hidden_states=seen)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        prepared("promptfl", model)
        got = model(words, torch.ones_like(words), image)
    assert torch.allclose(got, torch.cat((hidden[:, :1], hidden[:, 5:]), dim=1), atol=1e-5)


def test_towers_of_other_names_are_refused():
    model = nn.ModuleDict(
        {name: hf.BertModel(hf.BertConfig(**SIZE, vocab_size=50)).encoder for name in ("left", "right")}
    )
    with pytest.raises(
        FedpeftError, match="in the text layers, and model family 'ModuleDict' has the stacks left, right"
    ):
        prepared("promptfl", model)


def dual_encoder():
    towers = hf.ViTConfig(**SIZE, image_size=16, patch_size=4), hf.BertConfig(**SIZE, vocab_size=50)
    return hf.VisionTextDualEncoderModel(hf.VisionTextDualEncoderConfig.from_vision_text_configs(*towers))


def linear_patches():
    """SigLIP 2, which cuts patches before a linear layer and declares their size below `vision_config`."""
    vision = {**SIZE, "patch_size": 4, "num_patches": 16}
    text = {**SIZE, "vocab_size": 50, "projection_size": 32, "max_position_embeddings": 16}
    return hf.Siglip2Model(hf.Siglip2Config(text_config=text, vision_config=vision))


PATCHED = {  # model -> pixels of a patch's side
    "vit": (lambda: hf.ViTModel(hf.ViTConfig(**SIZE, image_size=16, patch_size=8)), 8),
    "clip": (lambda: hf.CLIPModel(hf.CLIPConfig(**CLIP)), 8),
    "dual encoder": (dual_encoder, 4),
    "linear": (linear_patches, 4),
}


@pytest.mark.parametrize("name", PATCHED)
def test_first_prompts_are_uniform_up_to_the_bound_of_the_backbones_own_patches(name):
    """VPT, section 3.2: Xavier's uniform distribution, as for a layer that embeds patches of 3 colors."""
    make, side = PATCHED[name]
    bound = math.sqrt(6 / (3 * side * side + 32))
    for tensor in prepared("vpt", make(), tokens=2000).state().values():
        assert 0.999 * bound < tensor.abs().max() <= bound
        assert tensor.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize("name", ["vpt", "dvpt"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_visual_prompts_of_a_model_without_patches_are_refused(name, device):
    bert = hf.BertModel(hf.BertConfig(**SIZE, vocab_size=50)).to(device)
    with pytest.raises(FedpeftError, match=r"BertModel has no layer that embeds such patches: use promptfl"):
        prepared(name, bert, **({"rank": 2} if name == "dvpt" else {}))
    assert prepared("promptfl", bert).parameters()
