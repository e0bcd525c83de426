# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_vilt import tiny_vilt
from transformers import BertTokenizerFast
from transformers.models.vilt.modeling_vilt import ViltForMaskedLM

from fedpeft.backbones import BackboneSettings, build
from fedpeft.backbones.registry import TINY_FOLDER
from fedpeft.core.errors import FedpeftError
from fedpeft.data import DataSettings, load
from fedpeft.data.phantom_scene import CLINICAL, PLAIN, TEMPLATES


@pytest.fixture(scope="module")
def tiny():
    return build(BackboneSettings()).eval()


@pytest.fixture(scope="module")
def masked_lm_folder(tmp_path_factory):
    """A small checkpoint in the layout of dandelin/vilt-b32-mlm: keys begin with `vilt.`, and there is an MLM head."""
    folder = tmp_path_factory.mktemp("vilt-mlm")
    shutil.copy(TINY_FOLDER / "vocab.txt", folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    words = len((folder / "vocab.txt").read_text().split())
    sizes = {"hidden_size": 24, "intermediate_size": 48, "image_size": 64, "patch_size": 16}
    model = tiny_vilt(ViltForMaskedLM, vocab_size=words, max_position_embeddings=40, **sizes)
    model.save_pretrained(folder)
    return folder


def pictures(*sizes):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, size=(*size, 3), dtype=np.uint8) for size in sizes]


def questions(count):
    return ["where is the nodule ?", "is there an effusion in the cranial part of the image ?", "why ?"][:count]


def test_tiny_vilt_is_small_deep_and_complete(tiny):
    weights = TINY_FOLDER / "model.safetensors"
    assert weights.stat().st_size <= 8_000_000
    assert (tiny.num_layers, tiny.hidden_size, tiny.family) == (12, 96, "vilt")
    assert {p.dtype for p in tiny.parameters()} == {torch.float32}
    with safe_open(weights, "pt") as stored:
        assert set(stored.keys()) == set(tiny.model.state_dict())


def test_pooled_output_of_phantom_questions(tiny):
    examples = load(DataSettings(site="slake", train_size=6, validation_size=1, test_size=1)).train
    batch = tiny.collate([e.image for e in examples], [e.question for e in examples])
    pooled = tiny(**batch)
    assert pooled.shape == (6, 96)
    assert torch.isfinite(pooled).all()
    assert pooled.std(0).max() > 0.05  # it tells questions apart


def test_phantom_questions_have_one_token_a_word(tiny):
    words = {*PLAIN.values(), *CLINICAL.values()}
    words |= {w for wordings in TEMPLATES.values() for wording in wordings for w in wording.split() if "{" not in w}
    assert all(len(tiny.tokenizer.tokenize(word)) == 1 for word in words)


def test_the_tokenizer_knows_every_word(tiny):
    text = "Is there a Pneumomediastinum (T2-weighted), 12.5 cm? café"
    assert tiny.tokenizer.unk_token not in tiny.tokenizer.tokenize(text)


def test_clinical_words_have_embeddings_of_the_usual_size_that_differ(tiny):
    table = tiny.model.embeddings.text_embeddings.word_embeddings.weight.detach()

    def rows(language):
        return table[tiny.tokenizer.convert_tokens_to_ids(list(language.values()))]

    known, new = rows(PLAIN), rows(CLINICAL)
    assert 0.5 < new.norm(dim=1).mean() / known.norm(dim=1).mean() < 2
    assert torch.pdist(new).min() > 0.3 * torch.pdist(known).min()


@pytest.mark.parametrize("size", [(48, 48), (72, 48)], ids=["square", "interpolated positions"])
def test_ordered_patches_equal_transformers_path(tiny, size):
    batch = tiny.collate(pictures((48, 48), (48, 48)), questions(2))
    torch.manual_seed(0)
    batch["pixel_values"] = torch.rand(2, 3, *size) * 2 - 1
    mask = torch.ones(2, *size, dtype=torch.long)
    with torch.no_grad():
        theirs = tiny.model(**batch, pixel_mask=mask)
        ours = tiny(**batch, pixel_mask=mask)
    assert torch.allclose(ours, theirs.pooler_output, atol=1e-5)


def test_ordered_patches_use_no_random_number_and_transformers_path_does(tiny):
    batch = tiny.collate(pictures((48, 48)), questions(1))
    before = torch.get_rng_state()
    tiny(**batch)
    assert torch.equal(before, torch.get_rng_state())
    tiny.model(**batch)
    assert not torch.equal(before, torch.get_rng_state())


def test_gradients_reach_the_patch_and_position_embeddings(tiny):
    tiny(**tiny.collate(pictures((48, 48)), questions(1))).sum().backward()
    embeddings = tiny.model.embeddings
    for parameter in (embeddings.patch_embeddings.projection.weight, embeddings.position_embeddings):
        assert parameter.grad.abs().sum() > 0
    tiny.zero_grad(set_to_none=True)


def test_tiny_squeezes_any_image_and_takes_pil_and_arrays(tiny):
    gray = Image.new("L", (100, 31), 128)
    batch = tiny.collate([gray, *pictures((31, 90), (48, 48))], questions(3))
    assert batch["pixel_values"].shape == (3, 3, 48, 48)
    assert batch["pixel_values"][0].unique().tolist() == pytest.approx([128 / 127.5 - 1], abs=1e-6)
    assert batch["pixel_values"].abs().max() <= 1


@pytest.mark.slow
def test_long_questions_are_cut(tiny):
    batch = build(BackboneSettings(text_length=8)).collate(pictures((48, 48)), ["where " * 50])
    assert batch["input_ids"].shape == (1, 8)


@pytest.mark.slow
def test_another_image_size_than_in_training(tiny):
    other = build(BackboneSettings(image_size=96)).eval()
    assert other(**other.collate(pictures((48, 48)), questions(1))).shape == (1, 96)


def test_masked_lm_checkpoint_loads_with_its_prefix(masked_lm_folder):
    backbone = build(BackboneSettings(name="vilt", source=str(masked_lm_folder)))
    stored = load_file(masked_lm_folder / "model.safetensors")
    own = backbone.model.state_dict()
    assert {name.removeprefix("vilt.") for name in stored if name.startswith("vilt.")} == set(own)
    assert all(torch.equal(stored[f"vilt.{name}"], tensor) for name, tensor in own.items())


def test_vilt_keeps_proportions_and_pads(masked_lm_folder):
    backbone = build(BackboneSettings(name="vilt", source=str(masked_lm_folder))).eval()
    ragged = backbone.collate(pictures((64, 64), (64, 100)), questions(2))
    assert ragged["pixel_values"].shape[-2:] == (64, 96)  # a multiple of the patch size
    assert ragged["pixel_mask"].float().mean(dim=(1, 2)).tolist() == pytest.approx([64 / 96, 1])
    with torch.no_grad():
        padded = backbone(**ragged)
        alone = backbone(**backbone.collate(pictures((64, 64)), ["where is the nodule ?"]))
    assert torch.allclose(padded[0], alone[0], atol=1e-5)


@pytest.mark.parametrize("size", [(3, 1000), (1000, 3), (1, 40), (40, 1), (1, 30_000), (2, 7)])
def test_of_an_image_too_narrow_for_a_patch_one_row_of_them_is_left(masked_lm_folder, size):
    backbone = build(BackboneSettings(name="vilt", source=str(masked_lm_folder))).eval()
    batch = backbone.collate(pictures(size), questions(1))
    sides = batch["pixel_values"].shape[-2:]
    assert sides == ((16, 96) if size[0] < size[1] else (96, 16))
    assert torch.isfinite(backbone(**batch)).all()


def copy_tiny(folder):
    shutil.copytree(TINY_FOLDER, folder)
    return folder


def no_config(folder):
    (copy_tiny(folder) / "config.json").unlink()


def no_weights(folder):
    (copy_tiny(folder) / "model.safetensors").unlink()


def cut_weights(folder):
    path = copy_tiny(folder) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])


def other_architecture(folder):
    path = copy_tiny(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "bert"}))


def tensor_missing(folder):
    path = copy_tiny(folder) / "model.safetensors"
    tensors = load_file(path)
    del tensors["encoder.layer.3.output.dense.weight"]
    save_file(tensors, path, metadata={"format": "pt"})


def tensor_reshaped(folder):
    path = copy_tiny(folder) / "model.safetensors"
    save_file(load_file(path) | {"pooler.dense.bias": torch.zeros(7)}, path, metadata={"format": "pt"})


def longer_vocabulary(folder):
    copy_tiny(folder)
    (folder / "tokenizer.json").unlink()
    with (folder / "vocab.txt").open("a") as vocabulary:
        vocabulary.write("zebra\n")


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __reduce__(self):
        return Path.touch, (Path("exploded"),)


def pickled(folder, name="pytorch_model.bin"):
    copy_tiny(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"weights": Bomb()}, folder / name)


def pickled_shards(folder):
    pickled(folder, "shard.bin")
    weight_map = {"embeddings.cls_token": "shard.bin"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def pickled_by_configuration(folder):
    pickled(folder, "adapter_model.bin")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_weights": "adapter_model.bin"}))


def configured(**entries):
    def damage(folder):
        path = copy_tiny(folder) / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | entries))

    return damage


def with_adapter(folder):
    (copy_tiny(folder) / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')


@pytest.mark.parametrize(
    ("damage", "expected_text"),
    [
        (with_adapter, "adapter_config.json"),
        (configured(attn_implementation="someone/kernel"), "'someone/kernel' as attn_implementation"),
        (configured(text_config={"_attn_implementation": "a/b"}), "'a/b' as _attn_implementation"),
        (configured(quantization_config={"quant_method": "awq"}), "quantized"),
        (configured(hidden_size=10**9), "hidden_size = 1000000000, at most 1,048,576"),
        (configured(num_hidden_layers=10**9), "num_hidden_layers = 1000000000, at most 4,096"),
        (configured(num_labels=10**9), "num_labels = 1000000000"),
        (configured(intermediate_size=10**6), "config.json describes a model of"),
        (configured(hidden_size=10**400), "hidden_size"),
        (pickled, "a pickle, pytorch_model.bin, which can run code and is never read (use_safetensors=True)"),
        (pickled_shards, "its model.safetensors.index.json names 'shard.bin'"),
        (pickled_by_configuration, "its config.json names 'adapter_model.bin' as transformers_weights"),
        (lambda folder: None, "neither a folder here nor a hub name"),
        (no_config, "config.json"),
        (no_weights, "model.safetensors"),
        (cut_weights, "cannot be loaded"),
        (other_architecture, "'bert'"),
        (tensor_missing, "encoder.layer.3.output.dense.weight"),
        (tensor_reshaped, "pooler.dense.bias"),
        (longer_vocabulary, "tokens"),
    ],
)
def test_damaged_sources_are_refused_in_one_sentence(damage, expected_text, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "backbone"
    damage(folder)
    with pytest.raises(FedpeftError) as caught:
        build(BackboneSettings(source=str(folder)))
    sentence = str(caught.value)
    assert expected_text in sentence
    assert str(folder) in sentence
    assert "\n" not in sentence
    assert "give" in sentence
    assert "weights_only" not in sentence
    assert not Path("exploded").exists()


@pytest.mark.parametrize(
    ("values", "expected_text"),
    [
        ({"name": "tiny-vlit"}, "tiny-vilt"),
        ({"source": ""}, "source is ''"),
        ({"image_size": 0}, "image_size is 0"),
        ({"image_size": 50}, "image_size is 50"),
        ({"text_length": 2}, "text_length is 2"),
        ({"text_length": 41}, "at most 40"),
        ({"text_length": True}, "text_length is True"),
    ],
)
def test_wrong_settings_are_named(values, expected_text):
    with pytest.raises(FedpeftError, match=expected_text):
        build(BackboneSettings(**values))


@pytest.mark.slow
def test_registry_imports_no_torch():
    import subprocess
    import sys

    code = "import sys, fedpeft.backbones as b; b.BackboneSettings(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
