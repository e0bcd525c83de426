# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""ViT in three layouts of weights: transformers', timm's, and the layers of a ViLT."""

import json
import math

import numpy as np
import pytest
import torch
from counted import counted
from small_models import draw, timm_folder, timm_tensors
from torch.nn import functional as F
from transformers import AutoModel, ViTConfig, ViTForImageClassification
from transformers.models.efficientnet.image_processing_pil_efficientnet import EfficientNetImageProcessorPil
from transformers.models.mobilevit.image_processing_pil_mobilevit import MobileViTImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from fedpeft.backbones import BackboneSettings, build, default_source
from fedpeft.backbones.registry import TINY_FOLDER
from fedpeft.core.errors import FedpeftError

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
IMAGE = {"image_size": 16, "patch_size": 8}
SPEC = {  # parameters of the federated tuning of vision transformers, without the head of 5,383
    "full": 85_798_656,
    "attention": 28_348_416,
    "vpt": 460_800,
    "dvpt": 78_528,
    "lora": 147_456,
    "lora_vpt": 608_256,
    "lora_dvpt": 225_984,
    "attention_vpt": 28_809_216,
    "classifier": 0,
}


def pictures(count, size=16):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, size=(size, size, 3), dtype=np.uint8) for _ in range(count)]


def timm_features(tensors, pixels):
    """The first token, computed as timm does: one matrix for query, key and value, norms before each half."""

    def linear(x, name):
        return F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def norm(x, name):
        return F.layer_norm(x, (32,), tensors[f"{name}.weight"], tensors[f"{name}.bias"], eps=1e-6)

    patches = F.conv2d(pixels, tensors["patch_embed.proj.weight"], tensors["patch_embed.proj.bias"], stride=8)
    x = torch.cat([tensors["cls_token"].expand(len(pixels), -1, -1), patches.flatten(2).transpose(1, 2)], dim=1)
    x = x + tensors["pos_embed"]
    for layer in range(2):
        block = f"blocks.{layer}"
        joint = linear(norm(x, f"{block}.norm1"), f"{block}.attn.qkv")
        q, k, v = joint.unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        heads = (q @ k.transpose(-1, -2) / math.sqrt(8)).softmax(-1) @ v
        x = x + linear(heads.transpose(1, 2).flatten(2), f"{block}.attn.proj")
        x = x + linear(F.gelu(linear(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1")), f"{block}.mlp.fc2")
    return norm(x, "norm")[:, 0]


def test_weights_of_timm_give_what_timm_computes(tmp_path):
    backbone = build(BackboneSettings(name="vit", source=str(timm_folder(tmp_path)))).eval()
    batch = backbone.collate(pictures(3), ["the question is not read"] * 3)
    with torch.no_grad():
        assert torch.allclose(backbone(**batch), timm_features(timm_tensors(), batch["pixel_values"]), atol=1e-5)


def test_weights_of_transformers_give_its_first_token(tmp_path):
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(**SIZE, **IMAGE)).eval()
    model.save_pretrained(tmp_path)
    backbone = build(BackboneSettings(name="vit", source=str(tmp_path))).eval()
    batch = backbone.collate(pictures(2), ["", ""])
    with torch.no_grad():
        assert torch.equal(backbone(**batch), model.vit(**batch).last_hidden_state[:, 0])
        assert backbone(**batch).shape == (2, 32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-vilt", "tiny-vit"])
def test_transformers_alone_computes_in_float32_as_fedpeft_does(name):
    model = AutoModel.from_pretrained(default_source(name))
    own = build(BackboneSettings(name=name)).model
    assert {tensor.dtype for tensor in model.state_dict().values() if tensor.is_floating_point()} == {torch.float32}
    assert all(
        torch.equal(tensor, own.state_dict()[key])
        for key, tensor in model.state_dict().items()
        if key in own.state_dict()
    )


@pytest.mark.slow
def test_a_vilt_is_read_as_its_image_half():
    tiny = build(BackboneSettings(name="tiny-vit", source=str(TINY_FOLDER))).eval()
    vilt = build(BackboneSettings(name="tiny-vilt")).eval()
    pixels = tiny.collate(pictures(2, 48), ["", ""])["pixel_values"]
    embeddings = vilt.model.embeddings
    with torch.no_grad():
        ordered = vilt.with_ordered_patches({"pixel_values": pixels, "pixel_mask": torch.ones(2, 48, 48)})
        x = ordered["image_embeds"] + embeddings.token_type_embeddings.weight[1]
        for layer in vilt.model.encoder.layer:
            x = layer(x)[0] if isinstance(layer(x), tuple) else layer(x)
        assert torch.allclose(tiny(pixel_values=pixels), vilt.model.layernorm(x)[:, 0], atol=1e-5)
    assert (tiny.num_layers, tiny.hidden_size, tiny.image_size) == (12, 96, 48)


def test_another_image_size_than_in_training(tmp_path):
    folder = str(timm_folder(tmp_path))
    backbone = build(BackboneSettings(name="vit", source=folder, image_size=32)).eval()
    assert backbone.collate(pictures(1), [""])["pixel_values"].shape == (1, 3, 32, 32)
    assert backbone(**backbone.collate(pictures(1), [""])).shape == (1, 32)
    with pytest.raises(FedpeftError, match="image_size is 20, it must be a multiple of the patch size 8"):
        build(BackboneSettings(name="vit", source=folder, image_size=20))
    with pytest.raises(FedpeftError, match=r"image_size is 8,192, of the job or of .*, at most 4,096: set backbone"):
        build(BackboneSettings(name="vit", source=folder, image_size=8192))


IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def transformers_folder(folder, kind=ViTImageProcessorPil, **processor):
    torch.manual_seed(0)
    ViTForImageClassification(ViTConfig(**SIZE, **IMAGE)).save_pretrained(folder)
    if processor:
        kind(size={"height": 16, "width": 16}, **processor).save_pretrained(folder)
    return folder


def prepared(folder):
    backbone = build(BackboneSettings(name="vit", source=str(folder)))
    return backbone.collate(pictures(3), [""] * 3)["pixel_values"]


@pytest.mark.parametrize(
    "processor",
    [
        {"image_mean": IMAGENET[0], "image_std": IMAGENET[1]},
        {"image_mean": 0.25, "image_std": [0.5, 0.25, 0.125]},
        {"do_normalize": False},
        {"do_rescale": False, "image_mean": [100.0, 110.0, 120.0], "image_std": [50.0, 60.0, 70.0]},
        {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3},
        {"do_resize": True},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_pixels_are_those_of_the_folders_image_processor(processor, tmp_path):
    folder = transformers_folder(tmp_path, **processor)
    theirs = ViTImageProcessorPil.from_pretrained(folder)(pictures(3), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(prepared(folder), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "processor",
    [
        {"include_top": True},
        {"include_top": False},
        {"include_top": True, "rescale_offset": True, "rescale_factor": 1 / 127.5},
        {"include_top": False, "rescale_offset": True, "rescale_factor": 1 / 127.5},
        {"include_top": True, "do_normalize": False, "image_std": [0.5, 0.25, 0.125]},
        {"include_top": False, "rescale_offset": True, "do_normalize": False},
        {"include_top": False, "rescale_offset": True, "do_rescale": False},
    ],
    ids=lambda settings: "-".join(f"{name}={value}" for name, value in settings.items()),
)
def test_pixels_are_those_of_efficientnets_image_processor(processor, tmp_path):
    folder = transformers_folder(tmp_path, EfficientNetImageProcessorPil, **processor)
    theirs = EfficientNetImageProcessorPil.from_pretrained(folder)(pictures(3), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(prepared(folder), theirs, rtol=1e-5, atol=1e-5)


def test_a_processor_that_gives_blue_first_is_refused(tmp_path):
    folder = transformers_folder(tmp_path, MobileViTImageProcessorPil, do_flip_channel_order=True)
    with pytest.raises(FedpeftError, match="do_flip_channel_order, and images are given with red first"):
        prepared(folder)


@pytest.mark.parametrize("place", ["pretrained_cfg", "beside"])
def test_pixels_are_scaled_as_timms_configuration_says(place, tmp_path):
    mean, deviation = IMAGENET
    changes = {"mean": mean, "std": deviation}
    folder = timm_folder(tmp_path, **({"pretrained_cfg": changes} if place == "pretrained_cfg" else changes))
    if place == "beside":  # as older ones are
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "pretrained_cfg"}))
    by_hand = np.stack([[(p[..., c] / 255 - mean[c]) / deviation[c] for c in range(3)] for p in pictures(3)])
    torch.testing.assert_close(prepared(folder), torch.from_numpy(by_hand).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_without_a_word_about_colors_pixels_are_minus_one_to_one(tmp_path):
    (tmp_path / "timm").mkdir()
    expected = torch.from_numpy(np.stack(pictures(3)).astype(np.float32)).permute(0, 3, 1, 2) / 127.5 - 1
    assert torch.equal(prepared(timm_folder(tmp_path / "timm")), expected)
    assert torch.equal(prepared(transformers_folder(tmp_path / "hf")), expected)
    tiny = build(BackboneSettings(name="tiny-vit"))
    rows = pictures(2, 48)
    expected = torch.from_numpy(np.stack(rows).astype(np.float32)).permute(0, 3, 1, 2) / 127.5 - 1
    assert torch.equal(tiny.collate(rows, ["", ""])["pixel_values"], expected)


@pytest.mark.slow
def test_what_is_saved_scales_as_the_backbone_does(tmp_path):
    folder = transformers_folder(tmp_path / "first", image_mean=IMAGENET[0], image_std=IMAGENET[1])
    backbone = build(BackboneSettings(name="vit", source=str(folder)))
    again = transformers_folder(tmp_path / "again")
    backbone.save_inputs(again)
    assert torch.equal(prepared(again), prepared(folder))


@pytest.mark.parametrize(
    ("colors", "message"),
    [
        ({"image_mean": [0.5, 0.5]}, r"has the mean \(0.5, 0.5\) of colors: give 3 numbers"),
        ({"image_std": [0.5, 0.5, 0.0]}, r"the deviation \(0.5, 0.5, 0.0\): give deviations from 0.0001 on"),
        ({"image_std": [1e-300] * 3}, r"give deviations from 0.0001 on"),
        ({"rescale_factor": 1e-300}, r"and nothing beyond 1000"),
        ({"rescale_factor": "1"}, r"has rescale_factor = '1': give a number above 0, at most 1"),
        ({"image_mean": [0.5, 0.5, math.nan]}, "its image processor has image_mean = nan"),
        ({"rescale_factor": -1.0}, r"has rescale_factor = -1.0: give a number above 0, at most 1"),
    ],
)
def test_colors_that_are_no_numbers_are_refused_in_one_sentence(colors, message, tmp_path):
    folder = transformers_folder(tmp_path, do_resize=True)
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | colors))
    with pytest.raises(FedpeftError, match=message):
        prepared(folder)


def test_timms_colors_that_are_no_numbers_are_refused(tmp_path):
    for mean in ([0.5, "a", 0.5], [0.5, math.nan, 0.5], {}):
        folder = timm_folder(tmp_path, pretrained_cfg={"mean": mean})
        with pytest.raises(FedpeftError, match=r"its config.json has the mean .* of colors: give 3 numbers"):
            prepared(folder)


def without(tensors, name):
    return {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "changes", "message"),
    [
        (without(timm_tensors(), "blocks.1.norm2.bias"), {}, "1 tensors missing .* layers.1.layernorm_after.bias"),
        (
            timm_tensors() | {"blocks.0.ls1.gamma": draw(32)},
            {},
            "that a ViT does not have, first blocks.0.ls1",
        ),
        (timm_tensors() | {"norm.bias": draw(7)}, {}, "first layernorm.bias"),
        (timm_tensors(), {"model_args": {}}, "the number of heads of its width 32 is not known"),
        (timm_tensors() | {"blocks.999999999.x": draw(1)}, {}, "3 blocks, .* the number 999999999: copy it"),
        (timm_tensors() | {f"blocks.{'9' * 5000}.x": draw(1)}, {}, "3 blocks, .* the number 9{40}: copy it"),
        (without(timm_tensors(), "cls_token"), {}, "not those of timm's vision transformer"),
        (without(timm_tensors(), "blocks.0.attn.qkv.weight"), {}, "does not hold a ViT"),
        (timm_tensors(), {"model_type": "bert"}, "does not hold a ViT .model_type 'bert'"),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_one_sentence(tensors, changes, message, tmp_path):
    folder = timm_folder(tmp_path, tensors, **changes)
    with pytest.raises(FedpeftError, match=message) as caught:
        build(BackboneSettings(name="vit", source=str(folder)))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_counts_on_vit_b_are_the_papers():
    counts = {entry.name: entry.trained for entry in counted("vit", SPEC)}
    assert counts == SPEC
