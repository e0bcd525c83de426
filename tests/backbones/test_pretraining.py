# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import importlib
import json
import subprocess
from argparse import Namespace
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import BertTokenizerFast

from fedpeft.backbones import BackboneSettings, build
from fedpeft.backbones.registry import TINY_ALBEF_FOLDER, TINY_FOLDER, TINY_VIT_FOLDER
from fedpeft.data.phantom_scene import CLINICAL

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "pretrain_tiny_vilt.py"


@contextmanager
def imported(name):
    """A script of benchmarks/, which imports others from there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        yield importlib.import_module(name)


@pytest.fixture(scope="module")
def script():
    with imported("pretrain_tiny_vilt") as module:
        yield module


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizerFast.from_pretrained(TINY_FOLDER)


def test_shipped_files_are_those_that_the_script_writes(script, tmp_path):
    script.write_configuration(tmp_path)
    assert (tmp_path / "vocab.txt").read_text() == (TINY_FOLDER / "vocab.txt").read_text()
    written, shipped = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path, TINY_FOLDER))
    assert written == shipped


def test_every_shard_of_the_stream_is_new_and_reproducible(script, tokenizer):
    first, again, second = (script.make_batch(number, 8, tokenizer) for number in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["image"], second["image"])


def test_pre_training_never_uses_a_clinical_word(script, tokenizer):
    clinical = set(tokenizer.convert_tokens_to_ids(list(CLINICAL.values())))
    used = {
        token
        for number in range(20)
        for token in script.make_batch(number, 32, tokenizer)["input_ids"].unique().tolist()
    }
    assert not used & clinical


def test_answers_and_patches_of_the_stream_lie_in_their_heads(script, tokenizer):
    batch = script.make_batch(3, 64, tokenizer)
    heads = script.Heads(8)
    assert batch["answer"].max() < heads.answer.out_features
    for name in ("asked", "kinds", "shades"):
        assert batch[name].shape == (64, script.GRID**2)
        assert batch[name].max() < getattr(heads, name).out_features


def test_pre_training_runs_resumes_and_leaves_a_backbone(tmp_path, warm_python):
    def run(steps):
        command = [warm_python, SCRIPT, "--out", tmp_path, "--steps", str(steps), "--batch", "8"]
        subprocess.run(command, check=True, capture_output=True)
        return torch.load(tmp_path / "checkpoint.pt", weights_only=True)

    assert run(2)["step"] == 2
    resumed = run(3)
    assert resumed["step"] == 3
    assert {state["step"].item() for state in resumed["optimizer"]["state"].values()} == {3.0}
    backbone = build(BackboneSettings(source=str(tmp_path))).eval()
    kept = resumed["modules"]["backbone.model.pooler.dense.weight"]
    assert torch.allclose(backbone.model.pooler.dense.weight, kept, atol=1e-3)  # stored as float16


@pytest.fixture(scope="module")
def albef_script():
    with imported("pretrain_tiny_albef") as module:
        yield module


@pytest.fixture(scope="module")
def vit_script():
    with imported("pretrain_tiny_vit") as module:
        yield module


def test_the_tiny_albef_is_small_and_its_files_are_those_that_its_script_writes(albef_script, tmp_path):
    albef_script.write_configuration(tmp_path)
    for name in ("vocab.txt", "config.json", "tokenizer.json"):
        assert (tmp_path / name).read_text() == (TINY_ALBEF_FOLDER / name).read_text()
    assert (TINY_ALBEF_FOLDER / "model.safetensors").stat().st_size <= 8_000_000


def test_what_the_script_writes_under_official_names_is_what_it_trained(albef_script, tmp_path):
    albef_script.write_configuration(tmp_path)
    torch.manual_seed(0)
    trained = albef_script.load_untrained(tmp_path).eval()
    heads = albef_script.Heads(96, trained.model.config.vocab_size)
    save_file(albef_script.official(trained.model, heads), tmp_path / "model.safetensors")
    read = build(BackboneSettings(name="tiny-albef-decoder", source=str(tmp_path))).model
    for name, parameter in trained.model.named_parameters():
        assert torch.allclose(read.get_parameter(name), parameter, atol=1e-3)  # stored as float16
    assert torch.allclose(read.word_transform.dense.weight, heads.word.weight, atol=1e-3)


def test_masked_answers_stand_behind_every_third_question_without_punctuation(albef_script, script, tokenizer):
    batch = albef_script.with_answers(script.make_batch(0, 9, tokenizer), tokenizer)
    masked = batch["words"] != -100
    assert masked.any(1).tolist() == [True, False, False] * 3
    assert bool((batch["input_ids"][masked] == tokenizer.mask_token_id).all())
    for row, answer in zip(range(0, 9, 3), batch["answer"][::3].tolist(), strict=True):
        text = tokenizer.decode(batch["words"][row][masked[row]])
        assert text == script.ANSWERS[answer]
    assert not set(batch["input_ids"].unique().tolist()) & set(tokenizer.convert_tokens_to_ids(list("?.,-/")))


def test_a_question_is_pre_trained_as_the_tiny_albef_reads_it(albef_script, script, tokenizer):
    stream = script.make_batch(0, 9, tokenizer)
    texts = tokenizer.batch_decode(stream["input_ids"], skip_special_tokens=True)
    read = build(BackboneSettings(name="tiny-albef")).collate(list(stream["image"].numpy()), texts)["input_ids"]
    trained = albef_script.with_answers(stream, tokenizer)["input_ids"]
    ends = (trained == tokenizer.sep_token_id).sum(1)
    assert ends.tolist() == [2, 0, 0] * 3, "behind the question that an answer follows, and behind the answer"
    for row, other in zip(trained[ends == 0].tolist(), read[ends == 0].tolist(), strict=True):
        assert [token for token in row if token] == [token for token in other if token]


def test_the_tiny_albef_answers_plain_questions_of_the_stream(albef_script, script, tokenizer):
    """The nearest other sample by its features has mostly the same answer."""
    tiny = build(BackboneSettings(name="tiny-albef")).eval()
    batch = script.make_batch(10_000, 256, tokenizer)
    texts = [tokenizer.decode([token for token in row if token]) for row in batch["input_ids"][:, 1:].tolist()]
    images = list(batch["image"].numpy())
    with torch.no_grad():
        features = tiny(**tiny.collate(images, [text.replace("[SEP]", "") for text in texts]))
    distance = torch.cdist(features, features).fill_diagonal_(torch.inf)
    nearest = batch["answer"][distance.argmin(1)]
    assert (nearest == batch["answer"]).float().mean() > 0.8


def test_the_tiny_vit_is_small_and_its_configuration_is_that_of_its_script(vit_script, tmp_path):
    vit_script.write_configuration(tmp_path)
    assert (tmp_path / "config.json").read_text() == (TINY_VIT_FOLDER / "config.json").read_text()
    assert (TINY_VIT_FOLDER / "model.safetensors").stat().st_size <= 8_000_000


def test_the_stream_of_the_tiny_vit_has_pictures_and_no_label(vit_script):
    first, again, second = (vit_script.make_batch(number, 8) for number in (0, 0, 1))
    assert set(first) == {"image", "clean", "covered"}
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["image"], second["image"])
    assert first["covered"].sum(1).tolist() == [vit_script.COVERED] * 8


def test_scenes_of_a_group_differ_in_shapes_alone(vit_script):
    scenes = vit_script.alike(np.random.default_rng(3))
    assert len({scene.findings for scene in scenes}) > 1
    same = {
        (scene.region, scene.modality, *((f.quadrant, f.bright, f.large) for f in scene.findings)) for scene in scenes
    }
    assert len(same) == 1
    for scene in scenes:
        assert len({finding.kind for finding in scene.findings}) == len(scene.findings)


def test_a_patch_of_a_picture_is_where_its_token_is(vit_script):
    image = torch.arange(48 * 48.0).view(1, 48, 48)
    patches = vit_script.in_patches(image)
    assert patches.shape == (1, 16, 144)
    assert torch.equal(patches[0, 6], image[0, 12:24, 24:36].flatten())


def test_pre_training_of_the_tiny_vit_resumes_and_its_weights_are_read(vit_script, tmp_path):
    for steps in (1, 2):
        vit_script.pretrain(Namespace(out=tmp_path, steps=steps, until=0, batch=8, lr=1e-3))
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["step"] == 2
    kept = state["modules"]["backbone.model.layers.0.mlp.fc1.weight"]
    read = build(BackboneSettings(name="tiny-vit", source=str(tmp_path))).model
    assert torch.allclose(read.layers[0].mlp.fc1.weight, kept, atol=1e-3)  # stored as float16


def test_the_tiny_vit_knows_two_pictures_of_one_scene(vit_script):
    tiny = build(BackboneSettings(name="tiny-vit")).eval()
    images = vit_script.make_batch(10_000, 128)["image"][:, :, :, None].expand(-1, -1, -1, 3).numpy()
    with torch.no_grad():
        features = tiny(**tiny.collate(list(images), [""] * len(images)))
    nearest = torch.cdist(features, features).fill_diagonal_(torch.inf).argmin(1)
    assert (nearest == torch.arange(128).roll(64)).float().mean() > 0.7
