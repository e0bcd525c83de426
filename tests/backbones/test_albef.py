# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""ALBEF: the official checkpoint, what it computes, where its adapters are, and every method in it."""

import json
import pickle
import zipfile

import numpy as np
import pytest
import torch
from counted import counted
from safetensors.torch import save_file
from small_albef import CONFIG, VISION_LAYERS, Reference, albef_folder, albef_tensors, pfeiffer_adapters
from torch.nn import functional as F

from fedpeft import methods
from fedpeft.backbones import BackboneSettings, build, skeleton
from fedpeft.backbones.albef import plain
from fedpeft.backbones.albef_model import MAX_PICKLE, POSITIONS, resized
from fedpeft.backbones.registry import BACKBONES
from fedpeft.core.errors import FedpeftError
from fedpeft.doctor import content as doctor

INPUTS = ("input_ids", "attention_mask", "pixel_values")
QUESTIONS = ["Where is the nodule?", "is there an effusion in the image ?", "why?"]
PFEIFFER = 2 * 768 * 48 + 48 + 768  # parameters of one with 48 neurons
COUNTS = {  # of both towers of 12 layers
    "houlsby": 48 * PFEIFFER,
    "pfeiffer": 24 * PFEIFFER,
    "lora": 48 * 2 * 4 * 768,
    "attention": 24 * 4 * (768 * 768 + 768),
    "layernorm": 48 * 2 * 768,
    "classifier": 0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return albef_folder(tmp_path_factory.mktemp("albef"))


def load(folder, **settings):
    return build(BackboneSettings(name="albef", source=str(folder), text_length=20, **settings)).eval()


def pictures(count=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, size=(20, 24, 3), dtype=np.uint8) for _ in range(count)]


def states(backbone, batch):
    with torch.no_grad():
        return backbone.model(**batch)


def expected_states(batch, places=None):
    return Reference(albef_tensors(), places).states(*(batch[name] for name in INPUTS))


@pytest.mark.slow
def test_the_official_checkpoint_gives_what_albef_computes(folder):
    backbone = load(folder)
    batch = backbone.collate(pictures(), QUESTIONS)
    assert batch["attention_mask"].min() == 0  # the questions differ in length
    seen = batch["attention_mask"].bool()
    assert torch.allclose(states(backbone, batch)[seen], expected_states(batch)[seen], atol=1e-5)
    with torch.no_grad():
        features = backbone(**batch)
    assert torch.equal(features, states(backbone, batch)[:, 0])
    assert (backbone.hidden_size, backbone.num_layers, backbone.image_size, backbone.family) == (32, 4, 16, "albef")


@pytest.mark.slow
def test_adapters_stand_where_feddat_has_them(folder):
    backbone = load(folder)
    added = pfeiffer_adapters(backbone.model)
    assert set(added) == {f"layer.{layer}.vision_output" for layer in range(VISION_LAYERS)} | {
        f"layer.{layer}.text_output" for layer in range(4)
    }
    batch = backbone.collate(pictures(), QUESTIONS)
    seen = batch["attention_mask"].bool()
    computed = expected_states(batch, added)
    assert torch.allclose(states(backbone, batch)[seen], computed[seen], atol=1e-4)
    assert not torch.allclose(computed, expected_states(batch), atol=1e-2)


@pytest.mark.slow
def test_sizes_and_counts_are_the_papers():
    full = skeleton("albef")
    assert {parameter.device.type for parameter in full.parameters()} == {"meta"}
    assert len(full.model.visual_encoder.layers) == len(full.model.text_encoder.encoder.layer) == 12
    assert [hasattr(layer, "crossattention") for layer in full.model.text_encoder.encoder.layer] == [False] * 6 + [
        True
    ] * 6
    counts = {entry.name: entry.exchanged for entry in counted("albef", [*COUNTS, "feddat_houlsby"])}
    assert {name: counts[name] for name in COUNTS} == COUNTS
    assert counts["feddat_houlsby"] == COUNTS["houlsby"]  # a head answers here


@pytest.mark.slow
def test_an_own_image_size_resizes_the_positions_bicubically_and_once(folder):
    backbone = load(folder, image_size=32)
    assert backbone.collate(pictures(1), ["why?"])["pixel_values"].shape == (1, 3, 32, 32)
    stored = albef_tensors()[POSITIONS]
    grown = F.interpolate(
        stored[:, 1:].reshape(1, 2, 2, -1).permute(0, 3, 1, 2), size=(4, 4), mode="bicubic", align_corners=False
    )
    positions = backbone.model.visual_encoder.embeddings.position_embeddings
    assert torch.equal(positions, torch.cat((stored[:, :1], grown.permute(0, 2, 3, 1).flatten(1, 2)), dim=1))
    assert torch.equal(resized(stored, 2), stored)
    with pytest.raises(FedpeftError, match="image_size is 20, it must be a multiple of the patch size 8"):
        load(folder, image_size=20)


def test_images_and_questions_are_prepared_as_albef_was_trained(folder):
    assert plain("Is there a Pneumo-thorax (left)?") == "is there a pneumo thorax left"
    pixels = load(folder).collate([np.full((4, 4, 3), 255, dtype=np.uint8)], ["why"])["pixel_values"]
    expected = [(1 - 0.48145466) / 0.26862954, (1 - 0.4578275) / 0.26130258, (1 - 0.40821073) / 0.27577711]
    assert torch.allclose(pixels.mean(dim=(0, 2, 3)), torch.tensor(expected), atol=1e-5)


def test_a_question_is_its_first_token_and_its_words(folder):
    backbone = load(folder)
    texts = ["Where is the nodule?", "why?", "?", "why why why " * 9]
    batch = backbone.collate(pictures(len(texts)), texts)
    number = backbone.tokenizer.convert_tokens_to_ids
    expected = [["[CLS]", *text.lower().replace("?", "").split()][:20] for text in texts]  # no [SEP], as its authors do
    found = [ids[seen.bool()].tolist() for ids, seen in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
    assert found == [number(row) for row in expected]
    assert set(batch["input_ids"][batch["attention_mask"] == 0].tolist()) == {number("[PAD]")}


@pytest.mark.slow
def test_safetensors_of_the_same_names_and_albefs_own_configuration_are_read(folder, tmp_path):
    albef_folder(tmp_path, model_type="bert", encoder_width=32)
    (tmp_path / "ALBEF.pth").unlink()
    save_file(albef_tensors(), tmp_path / "model.safetensors")
    both = [load(place) for place in (folder, tmp_path)]
    assert all(torch.equal(a, b) for a, b in zip(*(each.parameters() for each in both), strict=True))


def without(name):
    return {key: tensor for key, tensor in albef_tensors().items() if key != name}


LAST = "text_encoder.bert.encoder.layer.3"


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (without(f"{LAST}.crossattention.self.key.bias"), {}, "1 tensors missing .*layer.3.crossattention.self.key.b"),
        (without("visual_encoder.norm.bias"), {}, "first visual_encoder.layernorm.bias"),
        (without(POSITIONS), {}, "are not those of ALBEF, which has visual_encoder.pos_embed"),
        (albef_tensors() | {"prompt": torch.ones(1)}, {}, "1 tensors that ALBEF does not have, first prompt"),
        (albef_tensors() | {"visual_encoder.blocks.0.ls1": torch.ones(1)}, {}, "first visual_encoder.blocks.0.ls1"),
        (albef_tensors() | {POSITIONS: torch.ones(1, 4, 32)}, {}, "has 4 positions, which are not those of a square"),
        (None, {"num_hidden_layers": 3}, "an ALBEF of its config.json does not have, first text_encoder.enc.*layer.3"),
        (None, {"fusion_layer": 3}, "does not have, first text_encoder.encoder.layer.2.crossattention"),
        (None, {"fusion_layer": 1}, "tensors missing .*layer.1.crossattention"),
        (None, {"fusion_layer": 5}, "fusion_layer is 5, it must be 0 to 4"),
        (None, {"intermediate_size": 128}, "tensors missing or of another shape"),
        (None, {"hidden_size": 2**20}, "describes a model of"),
        (None, {"num_hidden_layers": 10**6}, "num_hidden_layers = 1000000, at most"),
        (None, {"vocab_size": 7}, "tokens, the model 7"),
        (None, {"encoder_width": 64}, "encoder_width 64 beside hidden_size 32"),
        (None, {"model_type": "vilt"}, "does not hold a model of ALBEF .model_type 'vilt'"),
        (None, {"model_type": "bert", "fusion_layer": None}, "cannot be loaded"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_one_sentence(tensors, config, message, tmp_path):
    with pytest.raises(FedpeftError, match=message) as caught:
        load(albef_folder(tmp_path, tensors, **config))
    assert "\n" not in str(caught.value)


class Hostile:
    """A pickle that would make a file."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def hostile(file):
    torch.save({"model": Hostile(file.parent / "ran")}, file)


def legacy(file):
    file.write_bytes(pickle.dumps({"model": Hostile(file.parent / "ran")}))


def compressed(file):
    with zipfile.ZipFile(file) as parts, zipfile.ZipFile(f"{file}.new", "w", zipfile.ZIP_DEFLATED) as smaller:
        for part in parts.namelist():
            smaller.writestr(part, parts.read(part))
    (file.parent / "ALBEF.pth.new").rename(file)


def swelling(file):
    content = b"c__builtin__\nbytearray\nJ\x00\x00\x00\x40\x85R."  # a gigabyte of zeros
    torch.save({"model": {}}, file)
    with zipfile.ZipFile(file) as parts, zipfile.ZipFile(f"{file}.new", "w") as other:
        for part in parts.namelist():
            other.writestr(part, b"\x80\x02" + content if part.endswith("data.pkl") else parts.read(part))
    (file.parent / "ALBEF.pth.new").rename(file)


def overlapping(file):
    with zipfile.ZipFile(file, "a") as parts:
        parts.writestr(next(name for name in parts.namelist() if name.endswith("data.pkl")), b"N.")


def long_pickle(file):
    with zipfile.ZipFile(file) as parts, zipfile.ZipFile(f"{file}.new", "w") as other:
        for part in parts.namelist():
            other.writestr(part, b"N" * MAX_PICKLE + b"." if part.endswith("data.pkl") else parts.read(part))
    (file.parent / "ALBEF.pth.new").rename(file)


def shared(file):
    numbers = torch.zeros(1000, 1000)
    torch.save({"model": {f"text_encoder.{number}": numbers for number in range(50)}}, file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swelling, "is damaged or holds more than tensors and plain values"),
        pytest.param(
            overlapping,
            "is damaged or holds more than tensors and plain values",
            marks=pytest.mark.filterwarnings("ignore:Duplicate name"),
        ),
        (long_pickle, "is damaged or holds more than tensors and plain values"),
        (shared, r"the tensors of its ALBEF.pth have 200,000,000 bytes, the file has 4,0.*; download it again"),
        (hostile, "is damaged or holds more than tensors and plain values; convert it once where you trust"),
        (legacy, "is not a file of torch.save of version 1.6 or later"),
        (compressed, "is compressed, which torch.save does not do"),
        (lambda file: file.write_bytes(file.read_bytes()[:5000]), "is not a file of torch.save"),
        (lambda file: torch.save({"state_dict": {}}, file), "has no tensors under 'model'"),
        (lambda file: torch.save({"model": {"temp": 1.0}}, file), "has no tensors under 'model'"),
        (lambda file: torch.save({"model": {"temp": torch.zeros(1).expand(9, 9)}}, file), "stores fewer numbers than"),
        (lambda file: file.rename(file.parent / "other.pth"), "its weights are a pickle, other.pth"),
        (lambda file: file.unlink(), "it has neither model.safetensors nor ALBEF.pth"),
    ],
)
def test_a_hostile_or_damaged_file_runs_no_code(change, message, tmp_path):
    change(albef_folder(tmp_path) / "ALBEF.pth")
    with pytest.raises(FedpeftError, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_without_a_source_there_are_no_weights():
    with pytest.raises(FedpeftError, match="'albef' has no weights of its own: give a folder"):
        BackboneSettings(name="albef")


def test_doctor_knows_the_folder(folder, tmp_path):
    name = BACKBONES.get("albef").pickle
    assert "albef" in str(doctor.folder(folder, pickle=name))
    assert "its weights are a pickle" in str(doctor.folder(folder))


@pytest.mark.slow
def test_neurons_are_aligned_by_what_adapters_read(folder):
    backbone = load(folder)
    tuning = methods.get("houlsby").tuning()
    trainable = tuning.prepare(backbone, {"reduction_factor": 4}, seed=0)
    batch = backbone.collate(pictures(), QUESTIONS)
    (means,) = trainable.activations([trainable.state()], [batch])
    assert {place.rpartition(".")[2] for place in means} == {
        f"{tower}_{role}" for tower in ("vision", "text") for role in ("attention", "output")
    }
    layer = backbone.model.text_encoder.encoder.layer[0].output
    read = []
    layer.inner.adapters["default"].down.register_forward_pre_hook(lambda module, args: read.append(args[0]))
    layer.inner.base_layer.register_forward_hook(
        lambda module, args, f: read.append(layer.LayerNorm(f + args[1]).detach())
    )
    states(backbone, batch)
    assert torch.equal(*read)


def test_the_configuration_of_a_folder_is_that_of_its_skeleton(folder):
    assert skeleton("albef", str(folder)).model.config.vision_layers == CONFIG["vision_layers"]
    assert json.loads((folder / "config.json").read_text())["model_type"] == "albef"
