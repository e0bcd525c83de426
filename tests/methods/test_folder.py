# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Adapters on disk, without a model on one side and with all strictness on the other."""

import json
import re

import pytest
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

import fedpeft
from fedpeft import adapters
from fedpeft.backbones.structure import roles_of
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.setting_limits import check_strangers_settings

METHODS = [
    ("houlsby", {}),
    ("houlsby", {"layers": [1], "layer_widths": {1: 3}}),
    ("pfeiffer", {"layer_norm": True}),
    ("parallel", {}),
    ("compacter", {"reduction_factor": 8}),
    ("lora", {}),
]
every_method = pytest.mark.parametrize(("name", "settings"), METHODS)


@pytest.mark.slow
@every_method
def test_saved_without_a_model_it_is_what_peft_saves_with_one(name, settings, vilt, draw, run, tmp_path):
    config = adapters.config(name, **settings)
    state = draw(adapters.schema(config, "vilt", 2, 32))
    adapters.save_adapter(tmp_path / "wire", state, config, family="vilt")
    model = get_peft_model(vilt(), adapters.config(name, **settings)).eval()
    adapters.load_adapter_state(model, state)
    model.save_pretrained(tmp_path / "peft")
    ours, theirs = (load_file(tmp_path / kind / "adapter_model.safetensors") for kind in ("wire", "peft"))
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    ours, theirs = (json.loads((tmp_path / kind / "adapter_config.json").read_text()) for kind in ("wire", "peft"))
    theirs["auto_mapping"] = None  # the class of the model, which only PEFT has seen
    if name == "lora":  # names, of which PEFT finds other modules too in a model with several attentions
        assert roles_of(ours["target_modules"]).keys() == set(theirs["target_modules"])
        theirs["target_modules"] = ours["target_modules"]
    assert {k: sorted(v) if isinstance(v, list) else v for k, v in theirs.items()} == ours
    for folder in (tmp_path / "wire", tmp_path / "peft"):
        assert torch.equal(run(PeftModel.from_pretrained(vilt(), folder)), run(model))
        loaded = fedpeft.load_adapter(vilt(), folder)
        assert isinstance(loaded, PeftModel)
        assert torch.equal(run(loaded), run(model))
        assert not loaded.training
        assert not any(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.slow
def test_peft_combines_our_folders(vilt, draw, run, tmp_path):
    """It puts their patterns of modules side by side in one, where the name of a group may stand once."""
    config = adapters.config("lora", r=2)
    names = ["a", "b", "c", "d"]
    for name in names:
        adapters.save_adapter(tmp_path / name, draw(adapters.schema(config, "vilt", 2, 32)), config, "vilt")
    model = PeftModel.from_pretrained(vilt(), tmp_path / "a", adapter_name="a")
    for name in names[1:]:
        model.load_adapter(tmp_path / name, name)
    model.add_weighted_adapter(names, [0.25] * 4, "mean", combination_type="cat")
    model.set_adapter("mean")
    model.save_pretrained(tmp_path / "peft", selected_adapters=["mean"])
    assert torch.equal(run(fedpeft.load_adapter(vilt(), tmp_path / "peft" / "mean")), run(model))
    merged = fedpeft.merge([tmp_path / name for name in names], tmp_path / "merged")
    assert torch.allclose(run(model.eval()), run(PeftModel.from_pretrained(vilt(), merged)), atol=1e-6)


def test_a_pattern_with_named_groups_as_once_still_says_its_roles(draw, tmp_path):
    config = adapters.config("lora")
    adapters.save_adapter(tmp_path, draw(adapters.schema(config, "vilt", 2, 32)), config, "vilt")
    pattern = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    once = re.sub(r"\(\?:\(\?#(\w+)\)", r"(?P<\1>", pattern)
    assert "(?P<query>" in once
    assert roles_of(once) == roles_of(pattern) != {}


def test_same_state_same_bytes(draw, tmp_path):
    config = adapters.config("lora", target_modules=["value", "query"])
    state = draw(adapters.schema(config, "vilt", 2, 32))
    for name, order in (("a", 1), ("b", -1)):
        adapters.save_adapter(tmp_path / name, dict(list(state.items())[::order]), config, "vilt")
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_of_patterns_that_match_one_module_the_first_counts_in_the_folder_too(vilt, draw, run, tmp_path):
    """In the order of the alphabet the other would."""
    config = adapters.config("lora", alpha_pattern={"layer.1.attention.attention.query": 40, "attention.query": 3})
    state = draw(adapters.schema(config, "vilt", 2, 32))
    model = get_peft_model(vilt(), config).eval()
    adapters.load_adapter_state(model, state)
    adapters.save_adapter(tmp_path, state, config, "vilt")
    assert torch.equal(run(PeftModel.from_pretrained(vilt(), tmp_path)), run(model))


def test_a_configuration_that_went_through_a_model_needs_no_family(vilt, tmp_path):
    model = get_peft_model(vilt(), adapters.config("houlsby"))
    folder = adapters.save_adapter(tmp_path, adapters.adapter_state(model), model.peft_config["default"])
    assert fedpeft.load_adapter(vilt(), folder).peft_config["default"].method == "houlsby"
    with pytest.raises(FedpeftError, match="houlsby: give the model family"):
        adapters.save_adapter(tmp_path, adapters.adapter_state(model), adapters.config("houlsby"))


def test_a_second_adapter_is_loaded_beside_the_first_and_may_be_trained(vilt, draw, tmp_path):
    config = adapters.config("houlsby")
    state = draw(adapters.schema(config, "vilt", 2, 32))
    adapters.save_adapter(tmp_path, state, config, "vilt")
    model = fedpeft.load_adapter(vilt(), tmp_path, trainable=True)
    count = sum(tensor.numel() for tensor in state.values())
    assert model.get_nb_trainable_parameters()[0] == count
    assert fedpeft.load_adapter(model, tmp_path, "global") is model
    assert model.active_adapters == ["default"]
    assert model.get_nb_trainable_parameters()[0] == count
    assert all(torch.equal(state[key], tensor) for key, tensor in adapters.adapter_state(model, "global").items())


def spoil(folder, what):
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    if what == "no config":
        config.unlink()
    elif what == "broken config":
        config.write_text("{")
    elif what == "list":
        config.write_text("[]")
    elif what == "unknown kind":
        config.write_text(json.dumps({"peft_type": "HOULSBI"}))
    elif what == "no wire form":
        config.write_text(json.dumps({"peft_type": "LOHA", "target_modules": ["x"]}))
    elif what == "no weights":
        weights.unlink()
    elif what == "truncated weights":
        weights.write_bytes(weights.read_bytes()[:100])
    else:
        tensors = load_file(weights)
        key = "base_model.model.encoder.layer.1.output.houlsby_adapter.up.bias"
        if what == "missing tensor":
            del tensors[key]
        elif what == "unknown tensor":
            tensors["base_model.model.encoder.layer.1.nowhere.houlsby_adapter.up.bias"] = tensors[key].clone()
        elif what == "other shape":
            tensors[key] = tensors[key][:-1]
        save_file(tensors, weights)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no config", r"adapter_config.json does not exist: give a folder"),
        ("broken config", r"adapter_config.json cannot be read"),
        ("list", r"adapter_config.json cannot be read"),
        ("unknown kind", r"names peft_type 'HOULSBI', which this PEFT does not know"),
        ("no wire form", r"LoHaConfig is of no method of fedpeft"),
        ("no weights", r"adapter_model.safetensors does not exist"),
        ("truncated weights", r"is not a readable safetensors file"),
        ("missing tensor", r"does not fit ViltModel: the adapter state lacks 'layer.1.output.up.bias'"),
        ("unknown tensor", r"'.*nowhere.houlsby_adapter.up.bias' belongs to no slot of houlsby"),
        ("other shape", r"does not fit ViltModel: 'layer.1.output.up.bias' in the adapter state has shape \(31,\)"),
    ],
)
def test_a_spoilt_folder_is_named_and_the_model_stays_as_it_was(what, message, added, vilt, draw, run, tmp_path):
    config = adapters.config("houlsby")
    adapters.save_adapter(tmp_path, draw(adapters.schema(config, "vilt", 2, 32)), config, "vilt")
    spoil(tmp_path, what)
    model = get_peft_model(vilt(), adapters.config("houlsby")).eval() if added else vilt()
    before, names = run(model), [name for name, _ in model.named_modules()]
    with pytest.raises(FedpeftError, match=message):
        fedpeft.load_adapter(model, tmp_path, "global")
    assert [name for name, _ in model.named_modules()] == names
    assert torch.equal(run(model), before)


@pytest.mark.parametrize("name", ["houlsby", "lora", "compacter"])
def test_what_the_caller_trains_is_the_same_after_a_failed_load(name, vilt, draw, tmp_path):
    config = adapters.config(name, **({"reduction_factor": 8} if name == "compacter" else {}))
    state = draw(adapters.schema(config, "vilt", 2, 32))
    folder = adapters.save_adapter(tmp_path, state, config, "vilt")
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(dict(list(weights.items())[1:]), folder / "adapter_model.safetensors")
    model = vilt()
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(number % 2 == 0)
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    with pytest.raises(FedpeftError, match="does not fit ViltModel: the adapter state lacks"):
        fedpeft.load_adapter(model, folder)
    assert {parameter: parameter.requires_grad for parameter in model.parameters()} == before


def test_the_connector_of_an_earlier_adapter_does_not_stay_in_the_folder(draw, tmp_path):
    config = adapters.config("houlsby")
    state = draw(adapters.schema(config, "vilt", 2, 32))
    connector = {"connector.projection.weight": torch.ones(2, 2)}
    adapters.save_adapter(tmp_path, state | connector, config, "vilt")
    assert set(load_file(tmp_path / "connector.safetensors")) == {"projection.weight"}
    adapters.save_adapter(tmp_path, state, config, "vilt")
    assert {file.name for file in tmp_path.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}


def test_a_folder_that_names_a_module_for_peft_to_import_is_refused(vilt, draw, tmp_path, monkeypatch):
    """PEFT imports `megatron_core` of the file, and a notebook's current folder may be where the adapter lies."""
    config = adapters.config("lora")
    folder = adapters.save_adapter(tmp_path / "megatron", draw(adapters.schema(config, "vilt", 2, 32)), config, "vilt")
    written = json.loads((folder / "adapter_config.json").read_text())
    written |= {"megatron_config": {"tensor_model_parallel_size": 1}, "megatron_core": "megatron.payload"}
    (folder / "adapter_config.json").write_text(json.dumps(written))
    (folder / "payload.py").write_text("raise SystemExit('code of the adapter folder ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FedpeftError, match=r"has megatron_config, .*: leave it out"):
        fedpeft.load_adapter(vilt(), folder)


@pytest.mark.parametrize(
    "slow",
    [
        {"exclude_modules": "(a|aa)+b"},
        {"exclude_modules": ".*.*.*.*b"},
        {"exclude_modules": r"(?x)([\w.]+) +!"},
        {"layers_pattern": ["(a*)*b"]},
        {"modules_to_save": [r"([\w.]+)+!"]},
    ],
    ids=str,
)
def test_a_pattern_that_peft_would_match_for_hours_is_refused(slow, vilt, draw, tmp_path):
    config = adapters.config("lora")
    folder = adapters.save_adapter(tmp_path, draw(adapters.schema(config, "vilt", 2, 32)), config, "vilt")
    written = json.loads((folder / "adapter_config.json").read_text()) | slow
    if "layers_pattern" in slow:
        written |= {"target_modules": ["query", "value"], "layers_to_transform": [0, 1]}
    (folder / "adapter_config.json").write_text(json.dumps(written))
    with pytest.raises(FedpeftError, match=f"in {next(iter(slow))}, which is no regular expression, or one that can"):
        fedpeft.load_adapter(vilt(), folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"layer_widths": {0: 48, 1: 16}, "rank_pattern": {}, "target_modules": ["query", "value"]},
        {"lora": {"target_modules": {"query": "blocks.{layer}.q"}, "rank_pattern": {r"^blocks\.\d+\.(q|v)": 2}}},
        {"modules_to_save": ["classifier"], "exclude_modules": r".*vision_tower.*", "layers_pattern": "layers"},
    ],
    ids=str,
)
def test_ordinary_settings_are_no_strangers(settings):
    check_strangers_settings(settings, "a file")


def test_a_state_with_keys_of_no_slot_is_refused(tmp_path, draw):
    config = adapters.config("houlsby")
    for key, message in (
        ("encoder.layer.1.down", "is not an adapter key"),
        ("layer.1.query.down.weight", "names slot 'query', but the adapter's are attention, output"),
    ):
        with pytest.raises(FedpeftError, match=message):
            adapters.save_adapter(tmp_path, draw({key: (2, 2)}), config, "vilt")
