# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Any transformers model as a backbone: what it reads, where its slots are, and that the adapters train in it."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
import transformers as hf
from safetensors.torch import load_file
from small_models import MODELS, SIZE, git, gpt2, roberta, saved, tokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

from fedpeft import adapters, methods
from fedpeft.backbones import BackboneSettings, build, matrices, skeleton
from fedpeft.backbones.albef_model import AlbefConfig, AlbefDecoderConfig, AlbefDecoderModel, AlbefModel
from fedpeft.backbones.checkpoint import FETCHING
from fedpeft.backbones.model_inputs import check_growth, check_image_processor, check_processor
from fedpeft.backbones.slots import INNER, SLOTS
from fedpeft.backbones.structure import layer_stacks, model_roles
from fedpeft.backbones.transformers_model import pooled
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import is_key
from fedpeft.methods.settings import MethodSettings
from fedpeft.methods.trainable import parameter_count
from fedpeft.server.job_run import export_adapter

QUESTIONS = ["where is the nodule ?", "is there an effusion in the image ?", "why ?"]
READS = {  # model -> whether the features depend on image and question
    "dual_encoder": (True, True),
    "clip": (True, True),
    "siglip": (True, True),
    "paligemma": (True, True),
    "qwen_vl": (True, True),
    "llava": (True, True),
    "bert": (False, True),
    "distilbert": (False, True),
    "dinov2": (True, False),
}
TOWERS = {"llava": 1, "bert": 1, "distilbert": 1, "dinov2": 1}
WIDTHS = {"dual_encoder": 64, "siglip": 64}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(name):
        if name not in made:
            made[name] = MODELS[name](tmp_path_factory.mktemp(name))
        return made[name]

    return folder


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def load(folder, **settings):
    return build(BackboneSettings(name="transformers", source=str(folder), **settings))


def pictures(count=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, size=(20, 24, 3), dtype=np.uint8) for _ in range(count)]


@pytest.mark.slow
def test_it_reads_what_the_model_reads(name, folders):
    backbone = load(folders(name)).eval()
    with torch.no_grad():
        first = backbone(**backbone.collate(pictures(), QUESTIONS))
        others = backbone(**backbone.collate(pictures(seed=1), QUESTIONS))
        other_questions = backbone(**backbone.collate(pictures(), QUESTIONS[1:] + QUESTIONS[:1]))
        alone = backbone(**backbone.collate(pictures()[2:], QUESTIONS[2:]))
    assert first.shape == (3, backbone.hidden_size) == (3, WIDTHS.get(name, 32))
    assert (not torch.allclose(first, others), not torch.allclose(first, other_questions)) == READS[name]
    assert torch.allclose(alone, first[2:], atol=1e-5)  # a sample does not depend on its batch
    assert backbone.num_layers == 2


@pytest.mark.parametrize("name", ["bert", "distilbert", "clip", "dual_encoder", "gpt2"])
def test_features_depend_on_no_other_text_where_the_tokenizer_was_saved_with_padding_on_the_left(name, tmp_path):
    """As one is after it padded prompts: positions, and the first token, would depend on the longest text."""
    folder = (MODELS | {"gpt2": gpt2})[name](tmp_path)
    for file in folder.rglob("tokenizer_config.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"padding_side": "left"}))
    backbone = load(folder).eval()
    with torch.no_grad():
        together = backbone(**backbone.collate(pictures(), QUESTIONS))
        for row, question in enumerate(QUESTIONS):
            alone = backbone(**backbone.collate(pictures()[row : row + 1], [question]))
            assert torch.allclose(alone, together[row : row + 1], atol=1e-5)


ONE_TOWER = ("bert", "distilbert", "dinov2")


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_TOWER)
@pytest.mark.parametrize("method", ["houlsby", "lora"])
def test_an_adapter_learns_and_changes_nothing_else(name, method, folders, tmp_path):
    """Models of image and question: tests/methods/test_every_pair.py."""
    backbone = load(folders(name))
    tuning = methods.get(method).tuning()
    settings = {"reduction_factor": 8} if method == "houlsby" else {}
    count = parameter_count(backbone, tuning, settings).exchanged
    trainable = tuning.prepare(backbone, settings, seed=0)
    first = trainable.state()
    assert all(map(is_key, first))
    assert sum(tensor.numel() for tensor in first.values()) == count
    trained = {id(parameter) for parameter in trainable.parameters().values()}
    frozen = {key: p for key, p in backbone.named_parameters() if id(p) not in trained}
    before = {key: p.detach().clone() for key, p in frozen.items()}

    losses = fit(backbone, trainable)
    assert losses[-1] < 0.9 * losses[0]
    assert all(torch.equal(p, before[key]) for key, p in frozen.items())
    learned = trainable.state()
    assert any(not torch.equal(tensor, first[key]) for key, tensor in learned.items())
    trainable.load(first)
    assert all(torch.equal(tensor, first[key]) for key, tensor in trainable.state().items())

    # what the server writes without the model is read by PEFT
    slots, chosen = trainable.slots(), MethodSettings(name=method, settings={method: settings})
    export_adapter(tmp_path, learned, chosen, family=backbone.family, slots=slots)
    model = load(folders(name)).model
    read = adapters.adapter_state(adapters.load_adapter(model, tmp_path))
    assert all(torch.equal(tensor, learned[key]) for key, tensor in read.items())
    assert bool(slots) == (backbone.family not in SLOTS)


def fit(backbone, trainable, steps=12):
    batch = backbone.collate(pictures(), QUESTIONS)
    goal = torch.randn(3, backbone.hidden_size, generator=torch.Generator().manual_seed(5))
    optimizer = torch.optim.Adam([p for p in trainable.parameters().values() if p.requires_grad], lr=3e-2)
    losses = []
    torch.manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (backbone.train()(**batch) - goal).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_every_tower_has_its_slots(name, folders):
    backbone = load(folders(name))
    roles = model_roles(backbone.model)
    houlsby = [role for role in roles if role.endswith(("attention", "output"))]
    assert len(houlsby) == 2 * TOWERS.get(name, 2)
    # LoRA too is in all towers that have a projection of queries, whatever they call it
    keys = methods.get("lora").tuning().prepare(backbone, {}, seed=0).parameters()
    assert {key.split(".")[2] for key in keys} == {role for role in roles if role.endswith(("query", "value"))}


JOINT = {  # of 2 layers with d = 32: a joint (96, 32) and a (32, 32); Qwen's text has three (32, 32) and one
    ("gpt2", "attention"): 2 * (96 * 32 + 96 + 32 * 32 + 32),
    ("gpt2", "ia3"): 2 * (96 + 128),
    ("qwen_vl", "attention"): 2 * (96 * 32 + 96 + 32 * 32 + 32) + 2 * (3 * (32 * 32 + 32) + 32 * 32),
    ("qwen_vl", "ia3"): 2 * (96 + 64) + 2 * (32 + 32 + 64),
    ("qwen_vl", "vera"): 2 * 2 * (32 + 256),  # needs the query alone: the text has it
}


@pytest.mark.parametrize(("name", "method"), JOINT)
def test_one_matrix_of_query_key_and_value_trains_as_three_do(name, method, folders, tmp_path):
    backbone = load(gpt2(tmp_path) if name == "gpt2" else folders(name))
    assert parameter_count(backbone, methods.get(method).tuning(), {}).trained == JOINT[name, method]


CONFIGS = {
    "bert": hf.BertConfig(**SIZE),
    "roberta": hf.RobertaConfig(**SIZE),
    "vit": hf.ViTConfig(**SIZE),
    "vilt": hf.ViltConfig(**SIZE),
    "dinov2": hf.Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=2),
    "gpt2": hf.GPT2Config(n_embd=32, n_layer=2, n_head=2),
    "llama": hf.LlamaConfig(**SIZE),
    "clip": hf.CLIPConfig(text_config=SIZE, vision_config=SIZE),
    "clip_text_model": hf.CLIPTextConfig(**SIZE),
    "clip_vision_model": hf.CLIPVisionConfig(**SIZE),
    "albef": AlbefConfig(**SIZE, fusion_layer=1, vision_layers=2),
    "albef_decoder": AlbefDecoderConfig(**SIZE, fusion_layer=0, vision_layers=2),
}
OWN = {"albef": AlbefModel, "albef_decoder": AlbefDecoderModel}


@pytest.mark.parametrize("family", SLOTS)
def test_what_is_read_off_the_structure_is_what_the_table_has(family, monkeypatch):
    with torch.device("meta"):
        model = OWN.get(family, hf.AutoModel.from_config)(CONFIGS[family])
    table = SLOTS[family] | INNER.get(family, {})
    monkeypatch.setattr("fedpeft.backbones.structure.SLOTS", {})
    found = model_roles(model)
    assert {role: found[role] for role in table} == table
    adapters.attach(model, adapters.config("houlsby", reduction_factor=8))
    assert model_roles(model) == found  # an adapter that stands in the model does not hide it
    assert {len(layers) for layers in layer_stacks(model).values()} == {2}


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("mamba", hf.MambaConfig(**SIZE), r"'mamba' are not known .* layers \(2 of MambaBlock\)"),
        ("resnet", hf.ResNetConfig(), "'resnet' are not known"),
        ("swin", hf.SwinConfig(), "'swin' has the stacks of layers encoder.layers.0.blocks, .*target_modules="),
    ],
)
def test_a_structure_that_cannot_be_read_is_said_in_one_sentence(family, config, message):
    with torch.device("meta"):
        model = hf.AutoModel.from_config(config)
    with pytest.raises(FedpeftError, match=message) as caught:
        adapters.attach(model, adapters.config("houlsby"))
    assert "target_modules={" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pooler_that_the_weights_lack_is_not_used(folders):
    stored = load_file(folders("bert") / "model.safetensors")
    assert not any("pooler" in name for name in stored)
    backbone = load(folders("bert")).eval()
    batch = backbone.collate(pictures(), QUESTIONS)
    with torch.no_grad():
        assert torch.equal(backbone(**batch), backbone.model(**batch).last_hidden_state[:, 0])


@pytest.mark.parametrize(("token", "expected"), [("first", [0.0, 4.0]), ("last", [1.0, 7.0]), ("mean", [0.5, 5.5])])
def test_padding_is_not_part_of_the_features(token, expected):
    hidden = torch.arange(8.0).reshape(2, 4, 1)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    assert pooled({"last_hidden_state": hidden}, mask, token).flatten().tolist() == expected


def test_the_last_token_of_a_text_is_behind_those_of_the_image():
    hidden = torch.arange(12.0).reshape(2, 6, 1)  # 2 tokens of the image, and 4 of the text
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    assert pooled({"last_hidden_state": hidden}, mask, "last").flatten().tolist() == [3.0, 11.0]


def test_a_causal_model_that_does_not_say_so_has_its_features_at_the_last_token(tmp_path):
    backbone = load(git(tmp_path)).eval()
    batch = backbone.collate(pictures(), QUESTIONS)
    with torch.no_grad():
        hidden = backbone.model(**batch).last_hidden_state
        patches = hidden.shape[1] - batch["input_ids"].shape[1]
        last = patches + batch["attention_mask"].sum(dim=1) - 1
        assert backbone.causal
        assert patches > 0
        assert torch.equal(backbone(**batch), hidden[torch.arange(3), last])


def test_features_that_do_not_depend_on_the_question_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedpeft.backbones.transformers_model.CAUSAL", frozenset())  # GIT's first token is the image's
    with pytest.raises(FedpeftError, match="its features are the same whatever the question is"):
        load(git(tmp_path))


@pytest.mark.slow
def test_without_a_mask_texts_are_cut_to_their_length_and_padded_to_the_models_own(folders):
    backbone = load(folders("siglip"), text_length=5)
    ids = backbone.collate(pictures(2), ["why ?", "where " * 50])["input_ids"]
    assert ids.shape == (2, backbone.max_text) == (2, 64)
    assert (ids != backbone.inputs.tokenizer.pad_token_id).sum(dim=1).tolist() == [3, 5]  # each with <eos>


@pytest.mark.slow
def test_long_questions_are_cut_and_cannot_name_an_image(folders):
    for name in ("bert", "qwen_vl"):
        backbone = load(folders(name), text_length=5)
        short = backbone.collate(pictures(1), ["where " * 5])["input_ids"]
        assert backbone.collate(pictures(1), ["where " * 50])["input_ids"].shape == short.shape
    plain, hostile = (backbone.collate(pictures(1), [text])["input_ids"] for text in ("why ?", "<|image_pad|> why ?"))
    assert torch.equal(plain, hostile)


def test_another_image_size(folders):
    backbone = load(folders("clip"), image_size=32)
    batch = backbone.collate(pictures(1), ["why ?"])
    assert batch["pixel_values"].shape == (1, 3, 32, 32)
    assert backbone(**batch).shape == (1, 32)
    with pytest.raises(
        FedpeftError, match=r"image_size is 32, and Qwen\w* keeps the size of each image, .* leave it out"
    ):
        load(folders("qwen_vl"), image_size=32)


def test_positions_behind_that_of_padding_are_not_for_words(tmp_path):
    folder = roberta(tmp_path)
    assert load(folder, text_length=63).max_text == 63
    with pytest.raises(FedpeftError, match="at most 63"):
        load(folder, text_length=64)


def test_a_skeleton_needs_no_weights(name, folders, tmp_path):
    for file in folders(name).glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    empty = skeleton("transformers", str(tmp_path))
    assert {p.device.type for p in empty.parameters()} == {"meta"}
    assert empty.num_layers == 2


def test_a_job_has_to_name_the_source():
    with pytest.raises(FedpeftError, match="'transformers' has no weights of its own: give a folder or a hub name"):
        BackboneSettings(name="transformers")


def edited(folder, target, file="config.json", **entries):
    for part in folder.iterdir():
        (target / part.name).write_bytes(part.read_bytes())
    content = json.loads((target / file).read_text()) | entries
    (target / file).write_text(json.dumps(content))
    return target


NEO = {"num_layers": 2, "attention_types": [[["global"], 2]], "hidden_size": 8, "num_heads": 2, "vocab_size": 50}
CODE = "from pathlib import Path\nPath({!r}).touch()\n"


@pytest.mark.parametrize(
    ("file", "entries", "message"),
    [
        ("config.json", {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}, "code that comes with a"),
        ("config.json", {"auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}, None),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["mine.T", "mine.T"]}}, None),
        ("preprocessor_config.json", {"auto_map": {"AutoImageProcessor": "mine.P"}}, None),
        ("config.json", {"model_type": "timm_wrapper", "model_args": {"checkpoint_path": "/a.pth"}}, "timm would read"),
        ("config.json", {"vision_config": {"model_type": "timm_backbone"}}, "timm would read"),
        ("config.json", {"vision_config": {"use_timm_backbone": True}}, "timm would read"),
        ("config.json", {"transformers_weights": "model.safetensors.index.json"}, "remove that entry"),
        ("config.json", {"model_type": "yoso"}, "may fetch compiled code from the hub: give a model of another kind"),
        ("config.json", {"text_config": {"model_type": "rwkv"}}, "may fetch compiled code from the hub"),
        ("config.json", {"model_type": "t5"}, "is an encoder with a decoder"),
        ("config.json", {"model_type": "vit_mae"}, "hides random patches of every image .* sees all of them"),
        ("config.json", {"model_type": "mine"}, "transformers has no code of its own"),
        ("config.json", {"vision_config": {"hidden_size": 10**9}}, "hidden_size = 1000000000, at most"),
        ("config.json", {"text_config": {"num_hidden_layers": 10**9}}, "num_hidden_layers = 1000000000, at most"),
        ("config.json", {"vision_config": {**SIZE, "hidden_size": 2**19}}, "describes a model of"),
        ("config.json", {"text_config": {"num_hidden_layers": -1}}, "cannot be loaded"),
        ("config.json", {"model_type": "gpt_neo", "max_position_embeddings": 60_000, **NEO}, "describes a model of"),
        ("config.json", {"model_type": "swin", "depths": [4096] * 9}, "more than 32,768, at depths: give a whole"),
        ("config.json", {"model_type": "swin", "depths": [0] * 40_000}, "more than 32,768, at depths: give a whole"),
        ("config.json", {"model_type": "albert", "num_hidden_groups": 10**9}, "than 500 modules and parameters: give"),
        ("preprocessor_config.json", {"crop_size": {"height": 10**6, "width": 16}}, "height = 1000000, at most"),
        ("preprocessor_config.json", {"size": {"longest_edge": 2**24}}, "size.longest_edge = 16777216, at most 4,096"),
        ("preprocessor_config.json", {"pad_size": {"height": 1e12, "width": 1}}, "pad_size.height = 1000000000000, at"),
        ("preprocessor_config.json", {"size_divisor": 10**9}, "size_divisor = 1000000000, at most 256 is read"),
        ("preprocessor_config.json", {"crop_size": {"height": 4096, "width": 8}}, "all its tiles together = "),
        ("tokenizer_config.json", {"tokenizer_class": "NoSuchTokenizer"}, None),
    ],
)
def test_a_hostile_folder_runs_no_code_and_is_one_sentence(file, entries, message, folders, tmp_path, monkeypatch):
    if "num_hidden_groups" in entries:
        monkeypatch.setattr(matrices, "MAX_PARTS", 500)
    folder = tmp_path / "model"
    folder.mkdir()
    edited(folders("clip"), folder, file, **entries)
    (folder / "mine.py").write_text(CODE.format(str(tmp_path / "ran")))
    with pytest.raises(FedpeftError, match=message) if message else nullcontext() as caught:
        load(folder)
    assert caught is None or "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_no_other_kind_of_transformers_fetches_compiled_code():
    folder = Path(hf.__file__).parent / "models"
    fetches = (b"get_kernel(", b"load_kernel(", b"attn_kernel(", b"cpp_extension")
    files = ((file, file.read_bytes()) for file in folder.glob("*/modeling_*.py"))
    assert {file.parent.name for file, text in files if any(name in text for name in fetches)} == set(FETCHING)
    kinds = {kind for kind in CONFIG_MAPPING_NAMES if model_type_to_module_name(kind) in FETCHING}
    assert kinds == set(FETCHING)
    code = "import os, sys, fedpeft; assert os.environ['USE_HUB_KERNELS'] == '0' and 'transformers' not in sys.modules"
    variables = {name: value for name, value in os.environ.items() if name != "USE_HUB_KERNELS"}
    subprocess.run([sys.executable, "-c", code], check=True, env=variables)


@pytest.mark.parametrize(
    ("kind", "entries", "message"),
    [
        ("mllama", {"max_image_tiles": 4096}, "all its tiles together = "),
        (
            "llava_next",
            {"image_grid_pinpoints": [[4096, 4096]], "crop_size": {"height": 1, "width": 1}},
            "all its tiles",
        ),
        ("got_ocr2", {"max_patches": 4096}, "all its tiles together = "),
        ("idefics3", {"max_image_size": {"longest_edge": 1}}, "all its tiles together = "),
        ("qwen2_vl", {"temporal_patch_size": 4096}, "all its tiles together = "),
        ("qwen2_vl", {"patch_size": 256, "merge_size": 256}, "all its tiles together = "),
        ("qwen2_vl", {"min_pixels": 10**9}, "size.shortest_edge = 1000000000, at most 16,777,216 is read"),
        ("qwen2_vl", {"patch_size": 1, "merge_size": 1}, "the number of its patches = 1003520, at most 131,072"),
        ("qwen2_vl", {"size": {"shortest_edge": 65536, "longest_edge": 2**24}}, None),
        ("pix2struct", {}, None),
        ("llava_onevision", {}, None),
    ],
)
def test_an_image_processor_makes_no_huge_image(kind, entries, message):
    files = importlib.import_module(f"transformers.models.{kind}.image_processing_pil_{kind}")
    processor = getattr(files, next(name for name in files.__all__ if name.endswith("Pil")))(**entries)
    with pytest.raises(ValueError, match=re.escape(message)) if message else nullcontext():
        check_image_processor(processor)


LONGER = {"type": "Replace", "pattern": {"String": "o"}, "content": "oo"}
TWICE = [{"Sequence": {"id": "A", "type_id": 0}}] * 2
TEMPLATE = {"type": "TemplateProcessing", "single": TWICE, "pair": TWICE, "special_tokens": {}}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    ("part", "steps"),
    [
        ("normalizer", {"type": "Sequence", "normalizers": [LONGER] * 40}),
        ("normalizer", {**LONGER, "content": "o" * 10_000}),
        ("normalizer", {"type": "Sequence", "normalizers": [LONGER | {"pattern": {"Regex": ""}, "content": "o"}] * 40}),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTES] * 40}),
        ("post_processor", {"type": "Sequence", "processors": [TEMPLATE] * 40}),
    ],
)
def test_a_tokenizer_makes_no_huge_text(part, steps, folders):
    content = json.loads((folders("clip") / "tokenizer.json").read_text()) | {part: steps}
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    with pytest.raises(ValueError, match=rf"more than 1,024 times as long, at \w+ of its {part}: give the tokenizer"):
        check_growth(SimpleNamespace(backend_tokenizer=backend))


@pytest.mark.parametrize(
    ("ids", "length", "message"),
    [
        (100, 40, "its tokenizer.json adds 100 special tokens to each text, at most 64 are read: give the tokenizer"),
        (30, 30, "text_length is 30, and .* adds 30 special tokens: raise it"),
        (30, 31, ""),
    ],
)
def test_a_tokenizer_adds_few_tokens_to_a_text(ids, length, message, folders, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    special = {"mark": {"id": "mark", "ids": [1] * ids, "tokens": ["a"] * ids}}
    single = [{"SpecialToken": {"id": "mark", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": single, "pair": TWICE, "special_tokens": special}
    edited(folders("clip"), folder, "tokenizer.json", post_processor=template)
    with pytest.raises(FedpeftError, match=message) if message else nullcontext():
        batch = load(folder, text_length=length).inputs([], ["a " * 40])
        assert batch["input_ids"].shape == (1, length)


@pytest.mark.parametrize(("name", "value"), [("patch_size", 1), ("num_additional_image_tokens", 10**9)])
def test_a_processor_writes_no_huge_text(name, value):
    images = SimpleNamespace(to_dict=lambda: {"size": {"shortest_edge": 4096}})
    with pytest.raises(ValueError, match="at most"):
        check_processor({"image_processor": {"size": 1}, name: value}, images)


@pytest.mark.parametrize("file", ["processor_config.json", "audio_tokenizer_config.json"])
def test_a_processor_loads_no_second_model(file, folders, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(folders("llava"), folder)
    second = {"audio_tokenizer_class": "AutoModel", "audio_tokenizer_name_or_path": str(tmp_path / "elsewhere")}
    path = folder / file
    entries = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(entries | ({"audio_tokenizer": second} if file.startswith("processor") else second)))
    with pytest.raises(FedpeftError, match=rf"its {file} names a model for sound, which is never loaded: remove it"):
        load(folder)


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    tokenizer().save_pretrained(tmp_path)
    saved(hf.LlamaModel(hf.LlamaConfig(**SIZE, vocab_size=7, num_key_value_heads=2, pad_token_id=0)), tmp_path)
    with pytest.raises(FedpeftError, match="tokens, the model 7"):
        load(tmp_path)
