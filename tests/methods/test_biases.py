# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which parameters the method `bias` trains, against counts written down from each model's own equations."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.models.layoutlmv2.modeling_layoutlmv2 import LayoutLMv2SelfAttention

from fedpeft.methods.backbone_part import BIAS, bias_names
from fedpeft.site.loop import build_optimizer

D, M, L = 32, 64, 2  # width, that of the feed-forward block, layers
SIZE = {"hidden_size": D, "num_hidden_layers": L, "num_attention_heads": 2, "intermediate_size": M}
WORDS = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = {"image_size": 16, "patch_size": 8}
BLOCK = 3 * D + D + M + D  # query, key and value; output projection; feed-forward block
NORMS = 2 * D


def siglip():
    text = {**SIZE, **WORDS, "max_position_embeddings": 16, "projection_size": D}
    return hf.SiglipModel(hf.SiglipConfig(text_config=text, vision_config={**SIZE, **IMAGE}))


def swin():
    return hf.SwinModel(
        hf.SwinConfig(embed_dim=D, depths=[L], num_heads=[2], mlp_ratio=2.0, window_size=2, **IMAGE),
        add_pooling_layer=False,
    )


def gpt_oss():
    size = {**SIZE, **WORDS, "num_key_value_heads": 1, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
    return hf.GptOssModel(hf.GptOssConfig(**size))


MODELS = {
    # q and v have one, the projection to all three none; the positions' tables are in no list
    "deberta": (
        lambda: hf.DebertaModel(hf.DebertaConfig(**SIZE, **WORDS, pos_att_type=["c2p"], relative_attention=True)),
        NORMS // 2 + L * (BLOCK - D + NORMS),
        {"q_bias": L, "v_bias": L},
        set(),
    ),
    # its keys have no bias, and every layer has a table of positions
    "beit": (
        lambda: hf.BeitModel(hf.BeitConfig(**SIZE, **IMAGE, use_relative_position_bias=True), add_pooling_layer=False),
        D + L * (BLOCK - D + NORMS),
        {},
        {"relative_position_bias_table"},
    ),
    "swin": (swin, D + D + L * (BLOCK + NORMS) + D, {}, {"relative_position_bias_table"}),
    # the image's features are pooled by torch's attention; a loss that is not trained here has a bias
    "siglip": (
        siglip,
        L * (BLOCK + NORMS) + D + D + D + L * (BLOCK + NORMS) + D + (BLOCK + D),
        {"in_proj_bias": 1},
        {"logit_bias"},
    ),
    # two heads of 16 for the queries, one for keys and values; a router, and four experts; norms without biases
    "gpt_oss": (
        gpt_oss,
        L * (2 * 16 + 16 + 16 + D + 4 + 4 * (2 * M + D)),
        {"gate_up_proj_bias": L, "down_proj_bias": L},
        set(),
    ),
    # the last layer alone has a bias of the attention's output
    "gpt_neox_japanese": (
        lambda: hf.GPTNeoXJapaneseModel(hf.GPTNeoXJapaneseConfig(**SIZE, **WORDS)),
        L * NORMS + D + D,
        {"dense_bias": 1},
        set(),
    ),
    # a router's corrections are no biases
    "laguna": (
        lambda: hf.LagunaModel(
            hf.LagunaConfig(
                **SIZE, **WORDS, num_key_value_heads=1, head_dim=16, num_experts=4, num_experts_per_tok=2,
                moe_intermediate_size=16, shared_expert_intermediate_size=16,
            )
        ),
        0,
        {},
        {"e_score_correction_bias"},
    ),
    # what the queries get where they meet contents, segments and positions
    "xlnet": (
        lambda: hf.XLNetModel(hf.XLNetConfig(vocab_size=50, d_model=D, n_layer=L, n_head=2, d_inner=M)),
        L * (NORMS + M + D),
        {},
        {"r_w_bias", "r_r_bias", "r_s_bias"},
    ),
    # the step is part of what one projection gives; its convolution has a bias
    "mamba2": (
        lambda: hf.Mamba2Model(
            hf.Mamba2Config(vocab_size=50, hidden_size=D, num_hidden_layers=L, num_heads=4, head_dim=16, n_groups=1,
                            state_size=8)
        ),
        L * (4 + (4 * 16 + 2 * 8)),
        {"dt_bias": L},
        set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_every_bias_of_a_model_is_trained_and_nothing_that_only_has_the_word_in_its_name(kind):
    make, expected, others, left_out = MODELS[kind]
    with torch.device("meta"):
        model = make()
    trained = bias_names(model)
    assert sum(model.get_parameter(name).numel() for name in trained) == expected
    last = Counter(name.rpartition(".")[2] for name in trained)
    assert {name: count for name, count in last.items() if name != "bias"} == others
    rest = {name.rpartition(".")[2] for name, _ in model.named_parameters() if name not in trained}
    assert {name for name in rest if "bias" in name} == left_out


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.MultiheadAttention(8, 2, add_bias_kv=True), {"in_proj_bias", "out_proj.bias"}),  # not bias_k and bias_v
        (nn.MultiheadAttention(8, 2, kdim=4, vdim=6), {"in_proj_bias", "out_proj.bias"}),
        (nn.LSTM(4, 8), {"bias_ih_l0", "bias_hh_l0"}),
        (
            LayoutLMv2SelfAttention(hf.LayoutLMv2Config(**SIZE, fast_qkv=True)),
            {"q_bias", "v_bias"},  # (1, 1, d)
        ),
    ],
    ids=["attention", "unequal", "lstm", "layoutlmv2"],
)
def test_biases_of_single_modules(module, expected):
    assert set(bias_names(module)) == expected


def test_the_names_that_are_new_have_gradients_and_the_rest_is_frozen():
    torch.manual_seed(0)
    model = gpt_oss().train()
    trainable = BIAS.prepare(SimpleNamespace(model=model), {}, seed=0)
    model(input_ids=torch.tensor([[3, 4, 5, 6]])).last_hidden_state.square().sum().backward()
    expected = {f"backbone.{name}" for name, _ in model.named_parameters() if name.endswith("bias")}
    assert trainable.parameters().keys() == expected
    assert {f"backbone.{name}" for name, p in model.named_parameters() if p.requires_grad} == expected
    for name in ("layers.0.mlp.experts.gate_up_proj_bias", "layers.0.mlp.experts.down_proj_bias"):
        gradient = trainable.parameters()[f"backbone.{name}"].grad
        assert gradient.shape[0] == 4
        assert gradient.abs().sum(-1).count_nonzero() >= 2  # of the experts that were chosen
    rates = {"learning_rate": 0.1, "head_learning_rate": 0.1, "weight_decay": 0.01}
    optimizer = build_optimizer(trainable.parameters().items(), [], kind="adamw", **rates)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0]


def test_a_bias_without_a_map_that_it_fits_is_left_out():
    module = nn.Module()
    module.dense = nn.Linear(6, 8, bias=False)
    module.dense_bias = nn.Parameter(torch.zeros(3))  # of no 8 outputs
    module.score_bias = nn.Parameter(torch.zeros(8))
    module.q_bias = nn.Parameter(torch.zeros(9))
    module.in_proj_weight = nn.Parameter(torch.zeros(4, 6))
    module.in_proj_bias = nn.Parameter(torch.zeros(5))
    assert bias_names(module) == []
    module.dense_bias, module.q_bias = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(4))
    module.in_proj_bias = nn.Parameter(torch.zeros(4))
    assert set(bias_names(module)) == {"dense_bias", "q_bias", "in_proj_bias"}
