# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every model family of the table: its module paths, and each method on a small model of it."""

import warnings

import pytest
import torch
import transformers as hf

from fedpeft import adapters, methods
from fedpeft.backbones.albef_model import AlbefConfig, AlbefModel
from fedpeft.backbones.slots import SLOTS, locate
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.adapters import adapter_parameters

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
CLIP_TEXT = {**SIZE, **TEXT, "max_position_embeddings": 16}
IMAGE = {"image_size": 16, "patch_size": 8}
GPT2 = {**TEXT, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16}
DINO = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS, PIXELS = {"input_ids": torch.tensor([[3, 4, 5, 1]])}, {"pixel_values": torch.ones(1, 3, 16, 16)}
MODELS = {
    "bert": (lambda: hf.BertModel(hf.BertConfig(**SIZE, **TEXT)), WORDS),
    "roberta": (lambda: hf.RobertaModel(hf.RobertaConfig(**SIZE, **TEXT)), WORDS),
    "vit": (lambda: hf.ViTModel(hf.ViTConfig(**SIZE, **IMAGE)), PIXELS),
    "dinov2": (lambda: hf.Dinov2Model(hf.Dinov2Config(**DINO, **IMAGE)), PIXELS),
    "gpt2": (lambda: hf.GPT2Model(hf.GPT2Config(**GPT2)), WORDS),
    "llama": (lambda: hf.LlamaModel(hf.LlamaConfig(**SIZE, **TEXT, num_key_value_heads=2)), WORDS),
    "clip": (
        lambda: hf.CLIPModel(hf.CLIPConfig(text_config=CLIP_TEXT, vision_config={**SIZE, **IMAGE})),
        WORDS | PIXELS,
    ),
    "clip_text_model": (lambda: hf.CLIPTextModel(hf.CLIPTextConfig(**CLIP_TEXT)), WORDS),
    "clip_vision_model": (lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**SIZE, **IMAGE)), PIXELS),
    "albef": (
        lambda: AlbefModel(AlbefConfig(**SIZE, **TEXT, **IMAGE, fusion_layer=1, vision_layers=2)),
        WORDS | PIXELS | {"attention_mask": torch.ones(1, 4)},
    ),
}
TOWERS = {"clip": 2, "albef": 2}


def build(family):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS[family][0]().eval()


def output(model, family):
    return model(**MODELS[family][1])[0]


def test_every_family_of_the_table_is_tried():
    # answers go through the decoder, which tests/site/test_ranking.py does
    assert set(MODELS) | {"vilt", "albef_decoder"} == set(SLOTS)


@pytest.mark.parametrize("family", MODELS)
def test_every_template_names_one_module_of_each_layer(family):
    model = build(family)
    assert model.config.model_type == family
    paths = [path for path, _ in model.named_modules()]
    for role, template in SLOTS[family].items():
        places = [place for place in (locate(path, {role: template}) for path in paths) if place]
        assert [place[:2] for place in places] == [(role, 0), (role, 1)]


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("name", ["houlsby", "pfeiffer", "parallel", "compacter"])
def test_each_method_finds_its_places_and_changes_the_output(family, name, draw):
    config = adapters.config(name, reduction_factor=8)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*target_modules")
        model = adapters.attach(build(family), config).eval()
    state = adapters.adapter_state(model)
    places = {key.rsplit(".", 2)[0] for key in state if key.startswith("layer.")}
    assert len(places) == 2 * len(config.roles) * TOWERS.get(family, 1)
    if family not in TOWERS:
        assert {key: tuple(t.shape) for key, t in state.items()} == adapters.schema(config, family, 2, 32)
    adapters.load_adapter_state(model, draw({key: tensor.shape for key, tensor in state.items()}))
    changed = output(model, family)
    assert not torch.allclose(changed, output(build(family), family))
    changed.sum().backward()
    trained = {key: p.grad for key, p in adapter_parameters(model).items() if "text" not in key}
    assert all(gradient is not None for gradient in trained.values())


@pytest.mark.parametrize("family", [family for family in MODELS if "query" in SLOTS[family]])
def test_lora_finds_query_and_value_by_role(family):
    config = adapters.config("lora")
    model = adapters.attach(build(family), config)
    shapes = {key: tuple(tensor.shape) for key, tensor in adapters.adapter_state(model).items()}
    assert shapes == adapters.schema(config, family, 2, 32) == adapters.schema(adapters.config("lora"), family, 2, 32)


def test_lora_trains_both_towers_of_clip():
    model = adapters.attach(build("clip"), adapters.config("lora"))
    roles = {key.split(".")[2] for key in adapters.adapter_state(model)}
    assert roles == {"text_query", "text_value", "vision_query", "vision_value"}
    with pytest.raises(FedpeftError, match="two stacks of layers"):
        adapters.schema(adapters.config("lora"), "clip", 2, 32)


@pytest.mark.parametrize(
    ("family", "targets", "scaled"),
    [
        ("llama", ["k_proj", "v_proj", "down_proj"], "mlp.down_proj"),
        ("gpt2", ["c_attn", "c_proj"], "mlp.c_proj"),
        ("vit", ["k_proj", "v_proj", "fc2"], "mlp.fc2"),
        ("vit", {"mine": "layers.{layer}.mlp.fc2"}, "mlp.fc2"),
    ],
)
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
def test_ia3_scales_the_input_of_the_last_layer_of_a_feed_forward_block_and_the_output_of_others(
    family, targets, scaled, draw
):
    model = adapters.attach(build(family), adapters.config("ia3", target_modules=targets)).eval()
    adapters.load_adapter_state(model, draw({k: tuple(t.shape) for k, t in adapters.adapter_state(model).items()}))
    layers = {path: module for path, module in model.named_modules() if hasattr(module, "ia3_l")}
    assert len(layers) == 2 * len(targets) + 2 * (family == "gpt2")  # whose attention has a c_proj as well
    for path, layer in layers.items():
        gains, inner = layer.ia3_l["default"].flatten(), layer.base_layer
        x = torch.randn(3, layer.in_features)
        expected = inner(x * gains) if path.endswith(scaled) else inner(x) * gains
        torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("name", ["lora", "ia3", "vera", "houlsby"])
def test_a_model_outside_the_table_gets_a_second_adapter_in_the_same_places(name):
    model = hf.MistralModel(hf.MistralConfig(**SIZE, **TEXT, num_key_value_heads=2))
    assert model.config.model_type not in SLOTS
    adapters.attach(adapted := adapters.attach(model, adapters.config(name)), adapters.config(name), "second")
    first, second = (adapters.adapter_state(adapted, one) for one in ("default", "second"))
    assert {key: tensor.shape for key, tensor in second.items()} == {key: tensor.shape for key, tensor in first.items()}


def test_lora_where_query_and_value_are_one_matrix():
    with pytest.raises(FedpeftError, match=r"'gpt2' has no role 'query' \(it has: attention, output\)"):
        adapters.attach(build("gpt2"), adapters.config("lora"))
    config = adapters.config("lora", target_modules={"joint": "h.{layer}.attn.c_attn"})
    state = adapters.adapter_state(adapters.attach(build("gpt2"), config))
    assert state["layer.1.joint.B"].shape == (96, 4)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("encoder.layer.{layer}.attention.self.query", r"'query' is .* matches no module of ViTModel"),
        ("layers.{layer}.nothing", r"'query' is layers\.\{layer\}\.nothing in target_modules"),
    ],
)
def test_lora_with_templates_of_another_family_is_refused_and_nothing_is_replaced(template, message):
    model = build("vit")
    before = [path for path, _ in model.named_modules()]
    with pytest.raises(FedpeftError, match=message):
        adapters.attach(model, adapters.config("lora", target_modules={"query": template}))
    assert [path for path, _ in model.named_modules()] == before


def test_lora_templates_survive_saving(tmp_path):
    config = adapters.config("lora", target_modules={"up": "layers.{layer}.mlp.fc1"}, init_lora_weights=False)
    model = adapters.attach(build("vit"), config)
    state = adapters.adapter_state(model)
    assert set(state) == {f"layer.{layer}.up.{side}" for layer in (0, 1) for side in "AB"}
    model.save_pretrained(tmp_path)
    loaded = adapters.load_adapter(build("vit"), tmp_path)
    assert all(torch.equal(tensor, state[key]) for key, tensor in adapters.adapter_state(loaded).items())


@pytest.mark.parametrize(
    ("name", "roles"),
    [("houlsby", ("attention", "output")), ("lora", ("query", "value")), ("ia3", ("key", "value", "second_linear"))],
)
def test_an_unknown_family_is_refused_with_every_role(name, roles):
    model = hf.MambaModel(hf.MambaConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2))
    paths = ", ".join(rf"'{role}': 'path\.\{{layer\}}\.to\.{role}'" for role in roles)
    message = rf"'mamba' are not known .* layers \(2 of MambaBlock\).*target_modules=\{{{paths}\}}"
    with pytest.raises(FedpeftError, match=message):
        adapters.attach(model, adapters.config(name))


def test_two_towers_that_differ_have_no_shapes_without_the_model():
    text, vision = {**SIZE, **TEXT, "max_position_embeddings": 16}, {**SIZE, **IMAGE, "num_hidden_layers": 3}
    model = hf.BlipForImageTextRetrieval(hf.BlipConfig(text_config=text, vision_config=vision))
    config = adapters.config("pfeiffer", reduction_factor=8)
    state = adapters.adapter_state(adapters.attach(model, config))
    assert len(state) == 4 * (2 + 3)
    with pytest.raises(FedpeftError, match=r"two stacks of layers.*adapter_state\(model\)"):
        adapters.schema(config, model.config.model_type, 3, 32)


def test_one_tower_of_two_has_shapes():
    targets = {"output": SLOTS["clip"]["text_output"]}
    config = adapters.config("pfeiffer", reduction_factor=8, target_modules=targets)
    state = adapters.adapter_state(adapters.attach(build("clip"), config))
    assert {key: tuple(tensor.shape) for key, tensor in state.items()} == adapters.schema(config, "clip", 2, 32)


def test_a_missing_role_is_warned_of():
    with pytest.warns(UserWarning, match="houlsby has an adapter at attention and output .*: add attention"):
        adapters.attach(build("bert"), adapters.config("houlsby", target_modules={"output": SLOTS["bert"]["output"]}))


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_parallel_beside_a_projection_that_narrows_is_refused(family):
    paths = {"bert": "encoder.layer.{layer}.output.dense", "gpt2": "h.{layer}.mlp.c_proj"}
    model = build(family)
    with pytest.raises(FedpeftError, match=r"reads (64|128) features and writes 32.*name the feed-forward block"):
        adapters.attach(model, adapters.config("parallel", target_modules={"output": paths[family]}))
    assert not [path for path, _ in model.named_modules() if "parallel" in path]


def test_parallel_is_refused_where_only_the_whole_layer_could_be_wrapped():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64}
    model = hf.OPTModel(hf.OPTConfig(**sizes, **TEXT, word_embed_proj_dim=32))
    paths = {"output": "decoder.layers.{layer}.fc2"}
    with pytest.raises(FedpeftError, match=r"no module of its own, so use another method.*'houlsby'") as refused:
        adapters.attach(model, adapters.config("parallel", target_modules=paths))
    assert "name the" not in str(refused.value)
    assert adapters.adapter_state(adapters.attach(model, adapters.config("pfeiffer", target_modules=paths)))


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["attention.output", "output"], {"attention", "output"}),
        (r"encoder\.layer\.\d+\.(attention\.)?output", {"attention", "output"}),
        (r".*\.intermediate", {"intermediate"}),
        (["attention.output.dense"], {"attention_output_dense"}),
    ],
)
def test_targets_as_peft_has_them(targets, expected, tmp_path):
    config = adapters.config("pfeiffer", target_modules=targets, reduction_factor=8)
    if isinstance(targets, str):
        with pytest.raises(FedpeftError, match="has to be looked up in a model"):
            adapters.schema(config, "bert", 2, 32)
    model = adapters.attach(build("bert"), config)
    state = adapters.adapter_state(model)
    assert {key.split(".")[2] for key in state} == expected
    assert len({key.rsplit(".", 2)[0] for key in state}) == 2 * len(expected)
    model.save_pretrained(tmp_path)
    loaded = adapters.load_adapter(build("bert"), tmp_path)
    assert all(torch.equal(tensor, state[key]) for key, tensor in adapters.adapter_state(loaded).items())


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("nothing", "selects no module of the model"),
        (["pooler"], "selects pooler, which has 0 numbers"),
        ("layer(", r"is not a valid pattern"),
        ("all-linear", "must map roles to module paths"),
        ([], "must map roles to module paths"),
        (3, "must map roles to module paths"),
    ],
)
def test_targets_that_select_nothing_are_refused(targets, message):
    with pytest.raises(FedpeftError, match=message):
        adapters.attach(build("bert"), adapters.config("pfeiffer", target_modules=targets))


def test_a_list_that_selects_two_towers_is_refused_where_the_family_has_no_roles_for_them():
    towers = torch.nn.ModuleDict({name: torch.nn.ModuleList([torch.nn.Linear(8, 8)]) for name in "ab"})
    with pytest.raises(
        FedpeftError, match=r"selects a\.\{layer\} and b\.\{layer\}, which would both be called 'output'"
    ):
        adapters.attach(towers, adapters.config("pfeiffer", target_modules=r"[ab]\.\d+", reduction_factor=2))
    model = adapters.attach(build("clip"), adapters.config("pfeiffer", target_modules=["mlp"], reduction_factor=8))
    assert {key.split(".")[2] for key in adapters.adapter_state(model)} == {"text_output", "vision_output"}


@pytest.mark.parametrize("name", adapters.names())
def test_a_task_type_by_name_is_that_of_the_configuration_class(name):
    model = hf.BertForSequenceClassification(hf.BertConfig(**SIZE, **TEXT))
    settings = {"reduction_factor": 8} if methods.get(name).peft_tuner else {}
    adapted = adapters.attach(model, adapters.config(name, task_type="SEQ_CLS", **settings))
    assert type(adapted).__name__ == "PeftModelForSequenceClassification"
    assert any(p.requires_grad for key, p in adapted.named_parameters() if "classifier" in key)
    with pytest.raises(FedpeftError, match="task_type is 'VQA', allowed are SEQ_CLS"):
        adapters.config(name, task_type="VQA")
