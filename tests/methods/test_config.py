# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Settings: what is refused, in which words, and what survives a file."""

import ast
from pathlib import Path

import pytest
from grids import each
from peft import LoraConfig, PeftConfig

import fedpeft.methods
from fedpeft import adapters
from fedpeft.core.errors import FedpeftError

OF_ANOTHER_TYPE = {"dora": "LORA", "layernorm": "LN_TUNING"}  # of PEFT than the one that is called like the method


def test_every_method_of_peft_has_a_configuration_of_its_own_type():
    assert {"houlsby", "pfeiffer", "parallel", "compacter", *OF_ANOTHER_TYPE} <= set(adapters.names())
    for name in adapters.names():
        assert adapters.config(name).peft_type.value == OF_ANOTHER_TYPE.get(name, name.upper())


def test_defaults_are_those_of_the_specification():
    got = {
        name: (c.roles, c.activation, c.reduction_factor)
        for name in ("houlsby", "pfeiffer", "parallel", "compacter")
        for c in [adapters.config(name)]
    }
    assert got == {
        "houlsby": (("attention", "output"), "swish", 16),
        "pfeiffer": (("output",), "relu", 16),
        "parallel": (("output",), "relu", 2),
        "compacter": (("attention", "output"), "gelu", 32),
    }
    assert adapters.config("parallel").scaling == 4.0
    compacter = adapters.config("compacter")
    assert (compacter.blocks, compacter.rank) == (4, 1)
    lora = adapters.config("lora")
    assert isinstance(lora, LoraConfig)
    assert (lora.r, lora.lora_alpha / lora.r, lora.target_modules) == (4, 2, {"query", "value"})
    assert adapters.config("lora", r=8).lora_alpha == 16


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("houlsbi", {}, "adapter 'houlsbi' is unknown: choose one of houlsby, pfeiffer, parallel, compacter, lora"),
        ("houlsby", {"reduction": 8}, "adapter 'houlsby' has no setting 'reduction': it has .*reduction_factor"),
        ("houlsby", {"layer_norm": True}, "adapter 'houlsby' has no setting 'layer_norm'"),
        ("houlsby", {"reduction_factor": 0}, "houlsby: reduction_factor=0 must be a number of at least 0.01"),
        ("houlsby", {"reduction_factor": None}, "houlsby: reduction_factor=None must be a number of at least 0.01"),
        (
            "houlsby",
            {"reduction_factor": float("nan")},
            "houlsby: reduction_factor=nan must be a number of at least 0.01",
        ),
        ("houlsby", {"reduction_factor": True}, "houlsby: reduction_factor=True must be a number of at least 0.01"),
        ("houlsby", {"activation": "tanh"}, "activation='tanh' is unknown: choose one of relu, swish, gelu"),
        ("houlsby", {"init_seed": None}, "init_seed=None must be an integer of at least 0"),
        ("houlsby", {"init_seed": -1}, "init_seed=-1 must be an integer of at least 0"),
        ("pfeiffer", {"layers": []}, r"layers=\[\] must be a list that is not empty, or None"),
        ("pfeiffer", {"layers": "01"}, r"layers='01' must be a list"),
        ("pfeiffer", {"layers": [0, -1]}, r"layers=-1 must be an integer of at least 0"),
        ("pfeiffer", {"layer_widths": [4]}, r"layer_widths=\[4\] must map layers to widths"),
        ("pfeiffer", {"layer_widths": {0: 0}}, r"layer_widths\[0\]=0 must be an integer of at least 1"),
        ("pfeiffer", {"layer_widths": {"first": 4}}, r"layer_widths='first' must be an integer"),
        ("pfeiffer", {"layer_norm": None}, "layer_norm=None must be true or false"),
        ("pfeiffer", {"target_modules": [3]}, r"target_modules=\[3\] must map roles to module paths"),
        ("pfeiffer", {"target_modules": {"output": "encoder.layer.3"}}, r"must be a module path with '\{layer\}'"),
        ("pfeiffer", {"target_modules": {"output": "layer{layer}.x"}}, r"must be a module path with '\{layer\}'"),
        ("pfeiffer", {"target_modules": {"a.b": "x.{layer}"}}, r"role 'a.b' in target_modules must be a word"),
        ("pfeiffer", {"target_modules": {"shared": "x.{layer}"}}, r"other than 'shared'"),
        ("lora", {"r": "x"}, r"adapter 'lora' has r='x', it must be a whole number\.$"),
        ("lora", {"r": None}, r"adapter 'lora' has r=None, it must be a whole number\.$"),
        ("houlsby", {"reduction_factor": 1e-9}, "houlsby: reduction_factor=1e-09 must be a number of at least 0.01"),
        ("lora", {"bias": 3}, r"adapter 'lora' has bias=3, it must be a text\.$"),
        ("lora", {"layers_to_transform": ["a"]}, r"=\['a'\], it must be a list of whole numbers or a whole number\.$"),
        ("dora", {"lora_alpha": "x"}, r"adapter 'dora' has lora_alpha='x', it must be a number\.$"),
        ("ia3", {"fan_in_fan_out": 1}, r"adapter 'ia3' has fan_in_fan_out=1, it must be true or false\.$"),
        ("vera", {"r": 1.5}, r"adapter 'vera' has r=1.5, it must be a whole number\.$"),
        *(
            (m, {"r": 0}, rf"adapter {m!r} has r=0, it must be at least 1\.$")
            for m in ("lora", "dora", "vera", "hra", "miss")
        ),
        ("fourierft", {"init_weights": False}, r"adapter 'fourierft' has init_weights=False, it must be True\.$"),
        ("miss", {"init_weights": "bat"}, r"adapter 'miss' has init_weights='bat', it must be True\.$"),
        ("miss", {"init_weights": 3}, r"adapter 'miss' has init_weights=3, it must be "),
        ("fourierft", {"n_frequency": 0}, r"adapter 'fourierft' has n_frequency=0, it must be at least 1\.$"),
        ("lora", {"rank_pattern": {"query": 0}}, r"has rank_pattern={.query.: 0}, it must be at least 1\.$"),
        ("oft", {"r": 0, "oft_block_size": -3}, r"adapter .oft. has oft_block_size=-3, it must be at least 0\.$"),
        ("parallel", {"scaling": "4"}, "scaling='4' must be a number"),
        ("compacter", {"blocks": 0}, "blocks=0 must be an integer of at least 1"),
        ("compacter", {"rank": 1.5}, "rank=1.5 must be an integer of at least 1"),
        ("compacter", {"rule_std": 0}, "rule_std=0 must be a number above 0"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(name, settings, message):
    with pytest.raises(FedpeftError, match=message) as caught:
        adapters.config(name, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "settings", "hidden_size", "message"),
    [
        ("houlsby", {"reduction_factor": 64}, 48, "reduction_factor=64 leaves no neuron of hidden width 48"),
        ("compacter", {"reduction_factor": 8}, 48, "bottleneck width 6 of layer 0 is not a multiple of blocks=4"),
        ("compacter", {"blocks": 5}, 768, "hidden width 768 of layer 0 is not a multiple of blocks=5"),
        ("houlsby", {"layers": [0, 2]}, 48, "names layer 2, but the backbone has layers 0 to 1"),
        ("houlsby", {"layer_widths": {2: 4}}, 48, "names layer 2, but the backbone has layers 0 to 1"),
        ("lora", {"layers_to_transform": [5]}, 48, "names layer 5, but the backbone has layers 0 to 1"),
        ("lora", {"target_modules": ["query", "dense"]}, 48, "model family 'vilt' has no role 'dense'"),
        ("lora", {"target_modules": "all-linear"}, 48, r"target_modules='all-linear' must list roles"),
    ],
)
def test_settings_that_do_not_fit_the_backbone(name, settings, hidden_size, message):
    with pytest.raises(FedpeftError, match=message):
        adapters.schema(adapters.config(name, **settings), "vilt", 2, hidden_size)


def test_an_unknown_family_is_refused_with_what_to_set():
    unknown = r"'bart' are not known \(known: .*bert, .*\).*'{}': 'path.*', '{}': 'path"
    for family, message in (("bart", unknown), (None, "give the model family")):
        for name, roles in (("houlsby", ("attention", "output")), ("lora", ("query", "value"))):
            with pytest.raises(FedpeftError, match=message.format(*roles)):
                adapters.schema(adapters.config(name), family, 2, 48)


def test_a_reduction_need_not_divide():
    shapes = adapters.schema(adapters.config("houlsby", reduction_factor=1.5), "vilt", 1, 8)
    assert shapes["layer.0.output.down.weight"] == (5, 8)


def test_settings_survive_a_file(tmp_path):
    for name, settings in (
        ("houlsby", {"layer_widths": {0: 3, 10: 4}, "layers": (10, 0), "init_seed": 9}),
        ("pfeiffer", {"layer_norm": True, "target_modules": {"output": "blocks.{layer}.mlp"}}),
        ("parallel", {"scaling": 2}),
        ("compacter", {"blocks": 2, "rank": 3, "rule_std": 0.5}),
    ):
        config = adapters.config(name, **settings)
        config.save_pretrained(tmp_path / name)
        assert PeftConfig.from_pretrained(str(tmp_path / name)) == config


# Every error message of `fedpeft.methods` ends with a period.


FILES = sorted(Path(fedpeft.methods.__file__).parent.rglob("*.py"))


def messages(file):
    """Line and last piece of text of every FedpeftError that is written out there."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "FedpeftError":
            text = node.args[0].values[-1] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            if isinstance(text, ast.Constant):
                yield node.lineno, text.value
            elif isinstance(text, ast.FormattedValue) and getattr(text.value, "id", "") != "error":
                yield node.lineno, ""  # ends with a value


@pytest.mark.slow
@each("file", FILES)
def test_every_error_message_ends_with_a_period(file):
    assert [line for line, text in messages(file) if not text.endswith(".")] == []
