# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass

import pytest

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build, differing, orders_of
from fedpeft.methods.settings import MethodSettings


@dataclass(frozen=True, kw_only=True)
class Example:
    width: int
    rate: float = 0.1
    names: tuple[str, ...] = ()
    source: str | None = None


def test_values_get_their_declared_types():
    built = build(Example, {"width": 4, "rate": 1, "names": ["a"]}, section="example")
    assert built == Example(width=4, rate=1.0, names=("a",))
    assert isinstance(built.rate, float)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "example is None"),
        ([], "example must be an object"),
        ({"width": 4, "wdith": 1}, "did you mean 'width'"),
        ({"width": None}, "example.width is None: give it a value"),
        ({"width": "four"}, "example.width is 'four'"),
        ({"width": True}, "example.width is True"),
        ({"width": 1.5}, "example.width is 1.5"),
        ({"rate": 0.5}, "example lacks width"),
        ({"width": 4, "rate": 10**400}, "example has a number that is too large"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(values, message):
    with pytest.raises(FedpeftError, match=message):
        build(Example, values, section="example")


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (TrainingSettings, {"rounds": 0}, "rounds is 0, it must be at least 1"),
        (TrainingSettings, {"rounds": 1, "learning_rate": 0.0}, "learning_rate is 0.0, it must be above 0"),
        (TrainingSettings, {"rounds": 1, "learning_rate": float("nan")}, "learning_rate is nan"),
        (TrainingSettings, {"rounds": 1, "warmup": 2}, "warmup is 2"),
        (TrainingSettings, {"rounds": 1, "head": "deep"}, "head is 'deep', allowed are linear, mlp"),
        (MethodSettings, {"aggregation": "sum"}, "aggregation is 'sum', allowed are pia, fedavg, svd, stack, none"),
        (MethodSettings, {"name": "classifier", "aggregation": "pia"}, "a head that is private never leaves its site"),
        (MethodSettings, {"name": "lora", "pia": {"support": "samples"}}, "no hidden activations"),
        (MethodSettings, {"name": "full", "aggregation": "pia"}, "aligns neurons"),
        (
            MethodSettings,
            {"aggregation": "svd"},
            "averages products of two factors, which name='houlsby' does not declare: use aggregation='pia'",
        ),
        (
            MethodSettings,
            {"name": "lora", "aggregation": "svd", "robust": {"average": "median"}},
            "takes means only, not robust.average='median'",
        ),
        (MethodSettings, {"name": "lora", "aggregation": "svd", "secure_sum": True}, "use 'fedavg'"),
        (MethodSettings, {"name": "lora", "aggregation": "stack", "secure_sum": True}, "use 'fedavg'"),
        (MethodSettings, {"name": "vpt", "aggregation": "stack"}, "side by side, which name='vpt' does not declare"),
        (
            MethodSettings,
            {"name": "lora_dvpt", "aggregation": "stack"},
            "the factors of all products side by side, which name='lora_dvpt' does not declare: use "
            "aggregation='fedavg' or 'svd' or 'none'",
        ),
        *(
            (
                MethodSettings,
                {"name": "lora", "aggregation": name, "site_settings": {"a": {"r": 2}}},
                f"aggregation='{name}' averages factors of one shape: .* need aggregation='svd' or 'stack'",
            )
            for name in ("pia", "fedavg")
        ),
        (
            MethodSettings,
            {
                "name": "lora",
                "aggregation": "stack",
                "settings": {"lora": {"lora_alpha": 4}},
                "site_settings": {"a": {"r": 8}},
            },
            "products of a count 0.5 times and those of the others 1 times",
        ),
        (
            MethodSettings,
            {"name": "lora", "aggregation": "svd", "site_settings": {"a": {"rank_pattern": {"query": 2}}}},
            "method.site_settings.a has rank_pattern, with which the same tensors compute something else",
        ),
        (
            MethodSettings,
            {"name": "lora_vpt", "aggregation": "svd", "site_settings": {"a": {"lora": {"alpha_pattern": {"q": 32}}}}},
            "method.site_settings.a has lora.alpha_pattern",
        ),
        (
            MethodSettings,
            {
                "name": "lora",
                "aggregation": "svd",
                "settings": {"lora": {"alpha_pattern": {"query": 8, "value": 4}}},
                "site_settings": {"a": {"alpha_pattern": {"value": 4, "query": 8}}},
            },
            "method.site_settings.a has alpha_pattern",
        ),
        (
            MethodSettings,
            {"name": "parallel", "aggregation": "pia", "site_settings": {"a": {"scaling": 1.0}}},
            "method.site_settings.a has scaling",
        ),
        (
            MethodSettings,
            {"name": "houlsby", "aggregation": "pia", "site_settings": {"a": {"activation": "relu"}}},
            "method.site_settings.a has activation",
        ),
        (
            MethodSettings,
            {"name": "lora", "aggregation": "stack", "settings": {"lora": {"alpha_pattern": {"query": 32}}}},
            "the ranks of all modules follow from what the sites train",
        ),
        (
            MethodSettings,
            {"server_optimizer": "momentum", "pia": {"normalize": False}},
            "set pia.normalize to true, or leave server_optimizer out",
        ),
        (MethodSettings, {"name": "lora", "pia": {"integration": "two_branches"}}, "no second branch"),
        (
            MethodSettings,
            {"name": "compacter", "site_settings": {"a": {"rank": 2}}},
            "supported for name='compacter'",
        ),
        (MethodSettings, {"pia": {"gamma": -1.0}}, "method.pia: gamma is -1.0"),
    ],
)
def test_values_outside_their_range_are_refused(cls, values, message):
    with pytest.raises(FedpeftError, match=message):
        build(cls, values, section="section")


def test_the_order_of_patterns_is_part_of_a_setting():
    """PEFT takes the first pattern that matches; in other settings the order of names changes nothing."""
    one, other = {"query": 4, "layer.1.query": 8}, {"layer.1.query": 8, "query": 4}
    assert differing({"lora": {"alpha_pattern": one}}, {"lora": {"alpha_pattern": other}}, {}) == ["lora.alpha_pattern"]
    assert differing({"lora": one}, {"lora": other}, {}) == []
    assert orders_of({"alpha_pattern": one}) != orders_of({"alpha_pattern": other})
    both = {"alpha_pattern": one, "rank_pattern": other}
    assert orders_of(both) == orders_of(dict(reversed(both.items())))
