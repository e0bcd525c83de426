# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The lists of `fedpeft methods` and `fedpeft backbones`."""

import math
import warnings

import pytest
import torch
from counted import counted
from peft import get_peft_model
from small_models import MODELS
from transformers import ViltConfig, ViltModel

from fedpeft import adapters, backbones, methods
from fedpeft.backbones import BACKBONES
from fedpeft.cli import main
from fedpeft.job.catalog import entries
from fedpeft.methods.adapters import adapter_parameters
from fedpeft.methods.trainable import parameter_counts
from fedpeft.report import catalogs
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.slow

VILT_B = {  # of the papers, where they give a number
    "houlsby": 1_789_056,
    "pfeiffer": 894_528,
    "parallel": 7_091_712,
    "compacter": 57_088,
    "lora": 147_456,
    "attention": 28_353_799 - 5_383,  # ABA of ViT-B/16, whose layers are the same, without its head
    "vpt": 466_183 - 5_383,  # of ViT-B/16 as well
    "dvpt": 78_528,
    "lora_vpt": 613_639 - 5_383,
    "lora_dvpt": 231_367 - 5_383,
    "attention_vpt": 28_814_599 - 5_383,
    "classifier": 0,
}


def test_counts_on_vilt_b_are_the_papers():
    counts = {entry.name: entry.trained for entry in counted("vilt")}
    assert counts.keys() == set(methods.names())
    assert {name: counts[name] for name in VILT_B} == VILT_B


def test_private_parameters_are_trained_and_not_exchanged():
    listed = [entry for entry in counted("vilt") if not entry.method.schedule]
    counts = {entry.name: (entry.trained, entry.exchanged) for entry in listed}
    private = {name: trained - exchanged for name, (trained, exchanged) in counts.items() if trained != exchanged}
    fusion = 12 * (3 * 768 * 768 + 768)
    expected = {
        "adapterfusion": fusion,
        "feddat_adapterfusion": fusion + VILT_B["pfeiffer"],
        "feddat_houlsby": VILT_B["houlsby"],
        "feddat_parallel": VILT_B["parallel"],
        "feddat_compacter": VILT_B["compacter"],
    }
    assert {name: private[name] for name in expected} == expected
    assert not private.keys() & set(adapters.names())
    for name in expected:
        assert counts[name][1] == VILT_B["pfeiffer" if "fusion" in name else name.removeprefix("feddat_")]


ATTENTION = 4 * (768 * 768 + 768)  # of one layer of one tower
PROMPTS = 12 * 50 * 768


@pytest.mark.parametrize(
    ("backbone", "towers"),  # of the layers with the fewest and with the most of them
    [("vit", (1, 1)), ("albef", (2, 2)), ("albef-decoder", (2, 3))],  # its decoder has 6 layers, the others 12
)
def test_what_one_drawn_layer_sends_goes_from_the_smallest_to_the_largest(backbone, towers):
    listed = {entry.name: entry for entry in counted(backbone)}
    for name, always in (("sba", 0), ("sba_vpt", PROMPTS)):
        entry, bounds = listed[name], [always + count * ATTENTION for count in towers]
        assert (entry.min_exchanged, entry.exchanged) == tuple(bounds)
        assert entry.sent == " to ".join(f"{count:,}" for count in dict.fromkeys(bounds))
    others = [entry for entry in listed.values() if not entry.method.schedule and not entry.misfit]
    assert all(entry.sent == f"{entry.exchanged:,}" for entry in others)


def test_a_range_holds_what_every_drawn_layer_sends():
    counts = parameter_counts(backbones.skeleton("albef-decoder"), methods.get("sba").tuning(), {})
    sums = [sum(count for key, count in counts.items() if f".{layer}." in key) for layer in range(12)]
    entry = next(entry for entry in counted("albef-decoder") if entry.name == "sba")
    assert sums == 6 * [entry.exchanged] + 6 * [entry.min_exchanged]


def test_counting_leaves_the_backbone_as_it_is():
    skeleton = backbones.skeleton("tiny-vilt")
    before = [name for name, _ in skeleton.named_parameters()]
    assert list(entries(skeleton))
    assert [name for name, _ in skeleton.named_parameters()] == before


def test_a_method_that_does_not_fit_says_why():
    without = entries(backbones.skeleton("tiny-vilt"))  # without the settings that the backbone declares
    misfits = {entry.name: entry.misfit for entry in without if entry.misfit}
    assert misfits.keys() == {"compacter", "feddat_compacter"}
    assert all("not a multiple of blocks" in misfit for misfit in misfits.values())


@pytest.mark.parametrize(
    ("backbone", "method"),
    [
        ("tiny-vilt", "houlsby"),
        ("tiny-vilt", "compacter"),
        ("tiny-vilt", "feddat_compacter"),
        ("tiny-vilt", "adapterfusion"),  # built on pfeiffer
        ("tiny-vit", "compacter"),
        ("tiny-vit", "parallel"),  # for which it declares nothing
        ("tiny-albef", "feddat_parallel"),
    ],
)
def test_a_count_is_what_the_learner_of_a_composed_job_trains(sections, tmp_path, backbone, method):
    source = backbones.default_source(backbone)
    job = sections(f"backbone.name={backbone}", f"backbone.source={source}", f"method.name={method}")
    model = Learner.from_sections(job, site="slake", folder=tmp_path).model
    trained = {key: parameter.numel() for key, parameter in model.trainable.parameters().items()}
    (listed,) = counted(backbone, [method])
    assert listed.trained == sum(trained.values())
    assert listed.exchanged == sum(tensor.numel() for tensor in model.trainable.state().values())


@pytest.mark.parametrize("backbone", [name for name, pretrained in BACKBONES.usable() if pretrained.tiny])
def test_every_method_for_which_a_tiny_backbone_declares_settings_fits_it(backbone):
    listed = counted(backbone, BACKBONES.get(backbone).method_settings)
    assert listed
    assert not any(entry.misfit for entry in listed)


@pytest.mark.parametrize("name", [name for name, one in BACKBONES.usable() if one.default_source or one.sized])
def test_a_skeleton_takes_no_memory(name):
    assert {parameter.device.type for parameter in backbones.skeleton(name).parameters()} == {"meta"}


def test_the_lists_are_printed_and_cut_no_name_in_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with warnings.catch_warnings(action="error"):  # of PEFT and transformers, about training
        assert main(["methods", "--backbone", "tiny-vilt"]) == 0
    assert "113,472" in capsys.readouterr().out  # houlsby of the embedded federation
    monkeypatch.setattr(catalogs, "entries", lambda *_: counted("vilt"))
    assert main(["methods"]) == 0
    printed = capsys.readouterr().out
    assert "methods in vilt" in printed
    assert "1,789,056" in printed
    assert main(["backbones"]) == 0
    printed = capsys.readouterr().out
    assert "111,595,008" in printed
    unwrapped = " ".join(printed.split())
    for name, pretrained in backbones.BACKBONES.usable():
        assert f" {name} " in printed
        assert pretrained.tiny or pretrained.default_source in printed
        assert pretrained.source in unwrapped
    assert main(["methods", "--backbone", "vilt-huge"]) == 1
    assert "vilt-huge" in capsys.readouterr().err


def test_the_slots_of_a_model_are_shown_before_anybody_trains(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    folder = MODELS["siglip"](tmp_path)
    (folder / "model.safetensors").unlink()
    capsys.readouterr()
    assert main(["backbones", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "SiglipModel, family siglip, 52,994 parameters" in shown
    assert "text_model.encoder.layers.{layer}.self_attn.q_proj" in shown
    assert "1,296" in shown  # houlsby in both towers
    assert "1,600" in shown  # 50 prompts in one of the towers
    assert main(["backbones", "tiny-vit"]) == 0
    assert "family vit, 940,896 parameters" in capsys.readouterr().out
    monkeypatch.setattr(catalogs, "entries", lambda *_: counted("vit"))
    assert main(["methods", "--backbone", "vit"]) == 0
    assert "85,798,656" in capsys.readouterr().out
    assert main(["methods", "--backbone", "transformers"]) == 1
    assert "name a folder or a hub name" in capsys.readouterr().err


# The trainable counts of SPEC section 1 on a full-size ViLT-B/32, from the model and from the schema.


COUNTS = [
    ("houlsby", {}, 1_789_056),
    ("pfeiffer", {}, 894_528),
    ("pfeiffer", {"layer_norm": True}, 912_960),
    ("parallel", {}, 7_091_712),
    ("compacter", {}, 57_088),
    ("lora", {}, 147_456),  # 12 layers, query and value, r = 4: 12 * 2 * 2 * 4 * 768
]


@pytest.mark.parametrize(("name", "settings", "expected"), COUNTS, ids=lambda value: str(value))
def test_trainable_parameters_of_vilt_b(name, settings, expected):
    config = adapters.config(name, **settings)
    with torch.device("meta"):
        model = get_peft_model(ViltModel(ViltConfig()), config)
    assert model.get_nb_trainable_parameters()[0] == expected
    shapes = adapters.schema(config, "vilt", 12, 768)
    assert sum(math.prod(shape) for shape in shapes.values()) == expected
    parameters = adapter_parameters(model)
    assert [(key, tuple(p.shape)) for key, p in parameters.items()] == list(shapes.items())


def test_four_pfeiffer_layers_are_9_54_megabit():
    # SPEC section 4: what a client of F3OCUS sends with 4 of 12 layers
    for layer_norm, megabit in ((False, 9.54), (True, 9.74)):
        config = adapters.config("pfeiffer", layers=[0, 3, 7, 11], layer_norm=layer_norm)
        shapes = adapters.schema(config, "vilt", 12, 768)
        assert round(sum(math.prod(shape) for shape in shapes.values()) * 32 / 1e6, 2) == megabit
