# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Keys, PEFT's names and module paths: three spellings of the same place."""

import numpy as np
import pytest
import torch

from fedpeft import methods
from fedpeft.backbones.slots import SLOTS, locate, module_path, slot_templates
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import SlotKey, belongs, group_by_place, is_key, layer_numbers, layers_of, parse_key
from fedpeft.methods.adapters import own_key, peft_key

TEMPLATES = SLOTS["vilt"]
ROOT = "base_model.model"
PAIRS = [
    ("houlsby", "layer.3.attention.up.bias", f"{ROOT}.encoder.layer.3.attention.output.houlsby_adapter.up.bias"),
    ("pfeiffer", "layer.11.output.norm.weight", f"{ROOT}.encoder.layer.11.output.pfeiffer_adapter.norm.weight"),
    ("compacter", "layer.0.output.down.left", f"{ROOT}.encoder.layer.0.output.compacter_adapter.down.left"),
    ("compacter", "shared.rule", "base_model.compacter_shared.rule"),
    ("lora", "layer.10.query.A", f"{ROOT}.encoder.layer.10.attention.attention.query.lora_A.weight"),
    ("lora", "layer.10.value.B", f"{ROOT}.encoder.layer.10.attention.attention.value.lora_B.weight"),
]


@pytest.mark.parametrize(("method", "wire", "peft"), PAIRS)
def test_own_and_peft_keys_are_inverse(method, wire, peft):
    tuning = methods.get(method).tuning()
    assert peft_key(wire, TEMPLATES, tuning) == peft
    assert own_key(peft, TEMPLATES, tuning) == wire
    below = peft.replace("model.encoder", "model.vilt.encoder")
    assert own_key(below, TEMPLATES, tuning) == wire


@pytest.mark.parametrize(
    "peft",
    [
        f"{ROOT}.encoder.layer.3.intermediate.houlsby_adapter.up.bias",
        f"{ROOT}.encoder.layer.3.output.pfeiffer_adapter.up.bias",
        f"{ROOT}.encoder.layer.x.output.houlsby_adapter.up.bias",
        "encoder.layer.3.output.houlsby_adapter.up.bias",
        "base_model.compacter_shared.rule",
        f"{ROOT}.classifier.weight",
    ],
)
def test_a_peft_key_outside_the_methods_slots_is_refused(peft):
    with pytest.raises(FedpeftError, match="belongs to no slot of houlsby"):
        own_key(peft, TEMPLATES, methods.get("houlsby").tuning())


def test_a_key_is_parsed_into_layer_slot_and_tensor():
    assert parse_key("layer.12.output.down.weight") == SlotKey(12, "output", "down.weight")
    assert parse_key("shared.rule") is None
    for key in ("layer.x.output.down", "output.down.weight", "layer.1.output", "shared.", "head.weight", ""):
        with pytest.raises(FedpeftError, match="is not an adapter key"):
            parse_key(key)


def test_what_is_read_off_keys():
    keys = ["layer.2.output.up.bias", "layer.10.query.A", "shared.rule", "backbone.encoder.layer.3.output.dense.weight"]
    assert all(map(is_key, keys))
    others = ["layer.2.output", "shared.", "head.", "backbone.", "layer.123456.output.A", "a b"]
    assert not any(map(is_key, others))
    assert layers_of(keys) == [2, 3, 10]
    assert [belongs(key, [2]) for key in keys] == [True, False, True, False]
    assert [belongs(key, []) for key in keys] == [False] * 4
    assert all(belongs(key, None) for key in keys)
    assert group_by_place(keys)["layer.2.output"] == {"up.bias": "layer.2.output.up.bias"}
    assert group_by_place(keys)["shared.rule"] == {"shared.rule": "shared.rule"}


@pytest.mark.parametrize("kind", [list, tuple, iter, np.array, torch.tensor], ids=lambda kind: kind.__name__)
def test_chosen_layers_are_whole_numbers_and_a_mask_of_them_is_refused(kind):
    numbers = layer_numbers(kind([0, 3]))
    assert numbers == [0, 3]
    assert all(type(number) is int for number in numbers)
    with pytest.raises(FedpeftError, match=r"is a mask .* give np\.flatnonzero\(mask\)"):
        layer_numbers(kind([False, True]))
    with pytest.raises(FedpeftError, match="must be a list of whole numbers"):
        layer_numbers(kind([0.0, 1.0]))


def test_all_layers_are_chosen_by_none_and_one_layer_by_a_list():
    assert layer_numbers(None) is None
    assert layer_numbers([]) == []
    with pytest.raises(FedpeftError, match="layers is 1, it must be a list"):
        layer_numbers(1)


@pytest.mark.parametrize("family", SLOTS)
def test_every_slot_of_the_table_is_found_again(family):
    for role, template in SLOTS[family].items():
        for layer in (0, 7, 31):
            assert locate(module_path(template, layer), SLOTS[family]) == (role, layer, "")
            assert locate(f"model.text.{module_path(template, layer)}", SLOTS[family]) == (role, layer, "model.text.")
            assert locate(f"{module_path(template, layer)}.dense", SLOTS[family]) is None
            assert locate(f"no{module_path(template, layer)}", SLOTS[family]) is None


def test_a_role_that_a_family_does_not_have_is_refused_with_those_it_has():
    assert list(slot_templates("vilt", ["output", "attention"])) == ["output", "attention"]
    with pytest.raises(FedpeftError, match=r"'vilt' has no role 'crossattention' \(it has: attention, output, query"):
        slot_templates("vilt", ["crossattention"])
