# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Settings that single sites have instead of the common ones, and which of them a federation cannot average."""

from dataclasses import replace

import pytest

from fedpeft import backbones, methods
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.combined import CombinedTuning
from fedpeft.methods.settings import MethodSettings

COMMON = {"lora_vpt": {"lora": {"r": 4, "start_std": 0.1, "lora_dropout": 0.2}, "vpt": {"tokens": 5}}}
COMBINED = [name for name, method in methods.METHODS.usable() if method.parts]


def lora_vpt(own, **changes):
    values = {"name": "lora_vpt", "aggregation": "svd", "settings": COMMON, "site_settings": {"slake": own}}
    return MethodSettings(**values | changes)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, COMMON["lora_vpt"]),
        (
            {"lora": {"r": 8}},
            {"lora": {"r": 8, "start_std": 0.1, "lora_dropout": 0.2}, "vpt": {"tokens": 5}},
        ),
        ({"lora": {}}, COMMON["lora_vpt"]),
        (
            {"lora": {"r": 8, "start_std": 0.3}, "vpt": {}},
            {"lora": {"r": 8, "start_std": 0.3, "lora_dropout": 0.2}, "vpt": {"tokens": 5}},
        ),
    ],
)
def test_each_setting_of_a_part_is_replaced_by_itself(own, expected):
    method = lora_vpt(own)
    assert method.settings_of("slake") == expected
    assert method.settings_of("vqa-rad") == method.settings_of("") == COMMON["lora_vpt"]
    assert COMMON == {"lora_vpt": {"lora": {"r": 4, "start_std": 0.1, "lora_dropout": 0.2}, "vpt": {"tokens": 5}}}


@pytest.mark.slow
def test_a_site_trains_with_what_it_has_in_common_with_the_others():
    method = lora_vpt({"lora": {"r": 8}})
    trainable = method.registered.tuning().prepare(backbones.skeleton("tiny-vilt"), method.settings_of("slake"), seed=0)
    shapes = {key.split(".", 2)[2]: tuple(tensor.shape) for key, tensor in trainable.parameters().items()}
    assert shapes["query.A"] == (8, 96)
    assert shapes["prompt.tokens"] == (5, 96)
    assert trainable.start_std == 0.1


def test_a_mapping_that_is_one_setting_is_replaced_whole():
    common, own = {"houlsby": {"layer_widths": {"0": 8, "1": 8}, "activation": "relu"}}, {"layer_widths": {"2": 4}}
    method = MethodSettings(settings=common, site_settings={"slake": own}, pia={"share": 0.5})
    assert method.settings_of("slake") == {"layer_widths": {"2": 4}, "activation": "relu"}


def test_the_parts_of_a_method_are_those_of_its_code():
    assert COMBINED == ["lora_vpt", "lora_dvpt", "attention_vpt", "sba_vpt"]
    for name, method in methods.METHODS.usable():
        code = method.tuning()
        assert tuple(code.homes if isinstance(code, CombinedTuning) else ()) == method.parts, name
        assert set(method.parts) <= set(methods.names())
        assert not method.parts or set(method.limits) <= set(method.parts)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"dvpt": {"rank": 2}}, r"^method.site_settings.slake: lora_vpt has no part 'dvpt': .* lora and vpt\.$"),
        ({"r": 8}, r"^method.site_settings.slake: lora_vpt has no part 'r'"),
        ({"lora": {"rank": 8}}, r"^method.site_settings.slake: adapter 'lora' has no setting 'rank': it has"),
        ({"lora": 8}, r"^method.site_settings.slake: the settings of lora in lora_vpt are 8, not an object\.$"),
        ({"lora": {"r": "x"}}, r"^method.site_settings.slake: adapter 'lora' has r='x', it must be a whole number\.$"),
    ],
)
def test_what_is_no_setting_of_the_method_is_refused_with_its_place(own, message):
    with pytest.raises(FedpeftError, match=message) as caught:
        lora_vpt(own).check_settings()
    assert caught.value.code == "setting-refused"


@pytest.mark.parametrize(
    ("name", "aggregation", "own"),
    [
        ("lora_vpt", "svd", {"vpt": {"tokens": 7}}),
        ("lora_vpt", "stack", {"vpt": {"tokens": 7}}),
        ("lora_dvpt", "svd", {"dvpt": {"rank": 2}}),
    ],
)
def test_a_part_whose_tensors_have_one_shape_everywhere_is_refused(name, aggregation, own):
    message = rf"for the part '{next(iter(own))}' of name='{name}': leave method.site_settings.slake.{next(iter(own))}"
    with pytest.raises(FedpeftError, match=message):
        MethodSettings(name=name, aggregation=aggregation, site_settings={"slake": {"lora": {"r": 8}} | own})
    alone = MethodSettings(name=name, aggregation="none", site_settings={"slake": own})
    alone.check_settings()
    assert alone.settings_of("slake") == own


def test_the_ratio_of_the_factors_is_that_of_all_settings_of_a_site():
    common = {"lora_vpt": {"lora": {"r": 4, "lora_alpha": 4}}}
    with pytest.raises(FedpeftError, match=r"products of slake count 0.5 times and those of the others 1 times"):
        lora_vpt({"lora": {"r": 8}}, settings=common)
    assert lora_vpt({"lora": {"r": 8, "lora_alpha": 8}}, settings=common)


@pytest.mark.parametrize(
    ("name", "own"), [("lora", {"start_std": 0.5}), ("lora_vpt", {"lora": {"r": 4, "init_lora_weights": False}})]
)
def test_first_values_of_one_site_are_refused_where_all_start_from_one_adapter(name, own):
    method = MethodSettings(name=name, aggregation="svd", site_settings={"slake": own})
    method.check_first_values(scheduled=False)
    given = r"method\.site_settings\.slake sets (start_std=0\.5|init_lora_weights=False), how first"
    with pytest.raises(FedpeftError, match=given):
        method.check_first_values(scheduled=True)
    replace(method, settings={name: own}).check_first_values(scheduled=True)  # those of all
    replace(method, aggregation="stack").check_first_values(scheduled=True)  # every round draws them anew


MAPPED = {"query": "encoder.layer.{layer}.attention.attention.key"}


@pytest.mark.parametrize(
    ("name", "settings", "where"),
    [
        ("lora", {"target_modules": MAPPED}, "target_modules"),
        ("lora", {"target_modules": ["query"]}, "target_modules"),
        ("lora_vpt", {"lora": {"target_modules": MAPPED}}, "lora.target_modules"),
        ("houlsby", {"target_modules": {"output": "encoder.layer.{layer}.intermediate"}}, "target_modules"),
    ],
)
def test_tensors_of_one_name_are_in_one_module_at_all_sites(name, settings, where):
    aggregation = "pia" if name == "houlsby" else "svd"
    with pytest.raises(FedpeftError, match=f"site_settings.slake has {where}, with which the same tensors compute"):
        MethodSettings(name=name, aggregation=aggregation, pia={"share": 0.5}, site_settings={"slake": settings})
    MethodSettings(name=name, aggregation=aggregation, pia={"share": 0.5}, settings={name: settings})
    common = {"settings": {name: settings}, "site_settings": {"slake": settings}}
    MethodSettings(name=name, aggregation=aggregation, pia={"share": 0.5}, **common)


def test_a_site_may_repeat_what_all_have():
    common, own = {"parallel": {"scaling": 1.0}}, {"slake": {"reduction_factor": 2, "scaling": 1.0}}
    MethodSettings(name="parallel", pia={"share": 0.5}, settings=common, site_settings=own)
    with pytest.raises(FedpeftError, match="slake has scaling, with which the same tensors compute"):
        MethodSettings(name="parallel", pia={"share": 0.5}, site_settings=own)


def test_a_wrong_value_beside_a_sites_own_one_is_the_one_that_is_named():
    common, own = {"lora": {"r": "8"}}, {"slake": {"r": 4}}
    method = MethodSettings(name="lora", aggregation="svd", settings=common, site_settings=own)
    with pytest.raises(FedpeftError, match=r"^adapter 'lora' has r='8', it must be a whole number\.$"):
        method.registered.check_settings(method.settings_of(""))


def test_layers_that_one_part_lacks_are_trained_in_the_other():
    method = MethodSettings(name="lora_vpt", settings={"lora_vpt": {"lora": {"layers_to_transform": [1]}}})
    trainable = method.registered.tuning().prepare(backbones.skeleton("tiny-vilt"), method.settings_of(""), seed=0)
    for layers, expected in (
        ([0], {"prompt"}),
        ([1], {"prompt", "query", "value"}),
        (None, {"prompt", "query", "value"}),
    ):
        trainable.train_only(layers)
        trained = {key for key, parameter in trainable.parameters().items() if parameter.requires_grad}
        assert {key.split(".")[2] for key in trained} == expected
        assert layers is None or {int(key.split(".")[1]) for key in trained} == set(layers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("oft", {"r": 4}),
        ("oft", {"oft_block_size": 0}),
        ("compacter", {"rule_std": 0}),
        ("houlsby", {"layers": []}),
        ("lora", {"start_std": 0.1, "init_lora_weights": False}),
        ("lora_vpt", {"lora": {"start_std": 0.1, "init_lora_weights": False}}),
    ],
)
def test_what_no_site_could_prepare_is_refused_before_the_job_is_written(name, settings):
    with pytest.raises(FedpeftError) as refused:
        methods.get(name).check_settings(settings)
    with pytest.raises(FedpeftError) as at_site:
        methods.get(name).tuning().prepare(backbones.skeleton("tiny-vilt"), settings, seed=0)
    assert str(at_site.value) in str(refused.value)
