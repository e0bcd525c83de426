# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Wire keys, PEFT keys and module paths: three spellings of the same place."""

import pytest

from fedpeft.adapters.keys import SiteKey, parse_key, peft_to_wire, wire_to_peft
from fedpeft.backbones.sites import SITES, locate, module_path, site_templates
from fedpeft.errors import FedpeftError

TEMPLATES = SITES["vilt"]
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
def test_wire_and_peft_keys_are_inverse(method, wire, peft):
    assert wire_to_peft(wire, TEMPLATES, method) == peft
    assert peft_to_wire(peft, TEMPLATES, method) == wire
    below = peft.replace("model.encoder", "model.vilt.encoder")
    assert peft_to_wire(below, TEMPLATES, method) == wire


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
def test_peft_keys_of_nobody(peft):
    with pytest.raises(FedpeftError, match="belongs to no site of houlsby"):
        peft_to_wire(peft, TEMPLATES, "houlsby")


def test_parse_key():
    assert parse_key("layer.12.output.down.weight") == SiteKey(12, "output", "down.weight")
    assert parse_key("shared.rule") is None
    for key in ("layer.x.output.down", "output.down.weight", "layer.1.output", "shared.", "head.weight", ""):
        with pytest.raises(FedpeftError, match="is not an adapter key"):
            parse_key(key)


@pytest.mark.parametrize("family", SITES)
def test_every_site_of_the_table_is_found_again(family):
    for role, template in SITES[family].items():
        for layer in (0, 7, 31):
            assert locate(module_path(template, layer), SITES[family]) == (role, layer, "")
            assert locate(f"model.text.{module_path(template, layer)}", SITES[family]) == (role, layer, "model.text.")
            assert locate(f"{module_path(template, layer)}.dense", SITES[family]) is None
            assert locate(f"no{module_path(template, layer)}", SITES[family]) is None


def test_roles_of_a_family():
    assert list(site_templates("vilt", ["output", "attention"])) == ["output", "attention"]
    with pytest.raises(FedpeftError, match=r"'vilt' has no role 'crossattention' \(it has: attention, output, query"):
        site_templates("vilt", ["crossattention"])
