# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The handshake of sites whose backbones differ in depth, and whose first adapter all sites get."""

import re
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import fedpeft
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import matched_layers
from fedpeft.core.states import digest
from fedpeft.methods.method import TuningMethod
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.types import Introduction
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.server import first_adapter
from fedpeft.server.handshake import agree

DEEPEST = 4
METHOD = MethodSettings(matched_layers=DEEPEST)


def schema(layers, *, stream=8, neurons=2):
    return {
        f"layer.{layer}.output.{name}": shape
        for layer in layers
        for name, shape in (("down.weight", [neurons, stream]), ("up.weight", [stream, neurons]))
    }


def introduction(own, **changes):
    values = {"schema": schema(matched_layers(own, DEEPEST)), "family": "vilt", "backbone": "tiny-vilt"}
    return Introduction(**{"version": fedpeft.__version__, **values, **changes})


def agreed(method=METHOD, **sites):
    return agree(sites, version=fedpeft.__version__, method=method)


def test_sites_of_any_depth_take_part_with_what_they_announced():
    sites = {f"s{own}": introduction(own) for own in (2, 4, 3, 1)}
    able, problems = agreed(**sites)
    assert (able, problems) == (sites, {})
    assert first_adapter.choose_sender({site: (i.schema, "") for site, i in able.items()}, METHOD).site == "s4"


OTHERS = {
    "wider": (
        {"schema": schema([0, 3], stream=16)},
        r"down.weight has shape \[2, 16\] in the layers of site x and \[2, 8\] in those of site a: layers can be "
        r"matched only if the backbones in backbone.sites are equally wide",
    ),
    "more layers": ({"schema": schema(range(5))}, "site x has 5 layers, and method.matched_layers is 4"),
    "other layers": ({"schema": schema([1, 2])}, "in layers 1, 2, and 2 layers are matched with 0, 3 of 4"),
    "one tensor less": (
        {"schema": {key: shape for key, shape in schema([0, 3]).items() if key != "layer.3.output.up.weight"}},
        "output.up.weight in layers 0, and 2 layers are matched with 0, 3 of 4",
    ),
    "a place of two shapes": (
        {"schema": schema([0, 3]) | {"layer.3.output.up.weight": [2, 2]}},
        "and the same tensor of another layer with",
    ),
    "a parameter of the backbone": (
        {"schema": schema([0, 3]) | {"backbone.encoder.layer.0.bias": [8]}},
        "only one of them has backbone.encoder.layer.0.bias",
    ),
    "another family": ({"family": "vit"}, "site x has a backbone of family vit, site a of vilt"),
    "nothing": ({"schema": {}}, "only one of them has layer.0.output.down.weight"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_does_not_fit_takes_no_part_and_the_reason_is_said(other):
    changes, message = OTHERS[other]
    able, problems = agreed(a=introduction(4), b=introduction(2), x=introduction(2, **changes))
    assert list(able) == ["a", "b"]
    assert re.search(message, problems["x"]), problems["x"]


def of_ranks(layers, rank, *, stream=8):
    shapes = {"A": [rank, stream], "B": [stream, rank]}
    return {f"layer.{layer}.query.{name}": shape for layer in layers for name, shape in shapes.items()}


def test_unequal_ranks_and_depths_go_together():
    lora = {"name": "lora", "aggregation": "svd", "settings": {"lora": {"r": 2, "lora_alpha": 4}}}
    method = MethodSettings(**lora, matched_layers=DEEPEST, site_settings={"x": {"r": 4, "lora_alpha": 8}})
    deep, shallow = introduction(4, schema=of_ranks(range(4), 2)), introduction(2, schema=of_ranks([0, 3], 4))
    able, problems = agreed(method, a=deep, x=shallow)
    assert (list(able), problems) == (["a", "x"], {})
    able, problems = agreed(method, a=deep, x=replace(shallow, schema=of_ranks([0, 3], 4, stream=16)))
    assert "nothing but an adapter's number of neurons may differ" in problems["x"]


def test_without_the_setting_other_layers_are_refused_and_the_setting_is_named():
    able, problems = agreed(MethodSettings(), a=introduction(4), b=introduction(4), x=introduction(2))
    assert list(able) == ["a", "b"]
    assert problems["x"] == (
        "sites a and x have 4 and 2 layers: use one backbone, or set method.matched_layers to the layers of the "
        "deepest."
    )


@pytest.mark.parametrize(
    ("kinds", "able"),
    [("xa", ""), ("ax", ""), ("xyaa", ""), ("xxaa", ""), ("axxab", ""), ("xaa", "aa"), ("xyaaa", "aaa"), ("x", "x")],
)
def test_a_kind_of_adapter_is_used_only_if_more_than_half_have_it(kinds, able):
    layers = {"a": 4, "b": 3, "x": 2, "y": 1}
    sites = {f"{kind}{number}": introduction(layers[kind]) for number, kind in enumerate(kinds)}
    taking_part, problems = agreed(MethodSettings(), **sites)
    assert "".join(site[0] for site in taking_part) == able
    assert set(problems) == set(sites) - set(taking_part)
    assert all(
        f"{site} have " in said or f"{site} and " in said or f"sites {site}" in said for site, said in problems.items()
    )
    assert all(("none of them takes part" in said) != bool(able) for said in problems.values())


def test_somebody_must_have_all_layers():
    with pytest.raises(FedpeftError, match=r"has all 4 layers of method.matched_layers, .*: why b is away\.$"):
        first_adapter.choose_sender({"a": (schema([0, 3]), "")}, METHOD, problems={"b": "site b: why b is away."})


FOUR, TWO = schema(range(4)), schema([0, 3])
WIDE = schema(range(4), neurons=4)
SENDERS = {  # what sites announce; whose adapter it is, which digest counts, and who is said to differ
    "all alike": ({"a": (FOUR, "x"), "b": (FOUR, "x"), "c": (FOUR, "x")}, "a", "x", []),
    "the first differs": ({"a": (FOUR, "y"), "b": (FOUR, "x"), "c": (FOUR, "x")}, "b", "x", ["a"]),
    "one says nothing": ({"a": (FOUR, ""), "b": (FOUR, "x"), "c": (FOUR, "x")}, "b", "x", ["a"]),
    "two that differ": ({"a": (FOUR, "x"), "b": (FOUR, "y")}, "a", "", ["b"]),
    "halves": ({"a": (FOUR, "x"), "b": (FOUR, "y"), "c": (FOUR, "x"), "d": (FOUR, "y")}, "a", "", ["b", "d"]),
    "more than any other, but not than half": (
        {"a": (FOUR, "x"), "b": (FOUR, "x"), "c": (FOUR, "y"), "d": (FOUR, "z"), "e": (FOUR, "w")},
        "a",
        "",
        ["c", "d", "e"],
    ),
    "one alone": ({"a": (FOUR, "x")}, "a", "", []),
    "the only one that has all layers": ({"b": (TWO, "x"), "a": (FOUR, "y"), "c": (TWO, "x")}, "a", "", []),
    "those that lack layers do not count": (
        {"b": (TWO, "y"), "a": (FOUR, "x"), "c": (TWO, "y"), "d": (FOUR, "x")},
        "a",
        "x",
        [],
    ),
    "another width starts from something else": (
        {"w": (WIDE, "y"), "a": (FOUR, "x"), "b": (FOUR, "x")},
        "a",
        "x",
        [],
    ),
    "who joins later is no voter": (
        {"joins": (FOUR, ""), "a": (FOUR, "x"), "b": (FOUR, "x")},
        "a",
        "x",
        [],
    ),
    "nor does it send where no vote is taken": ({"joins": (FOUR, "y"), "a": (FOUR, "x")}, "a", "", []),
    "nor may it vote": ({"a": (FOUR, "x"), "joins": (FOUR, "y"), "b": (FOUR, "z")}, "a", "", ["b"]),
}


@pytest.mark.parametrize(("announced", "site", "digest", "differing"), SENDERS.values(), ids=SENDERS)
def test_the_adapter_that_all_start_from_is_one_that_most_sites_announce(announced, site, digest, differing):
    sender = first_adapter.choose_sender(announced, METHOD, joins=["joins"])
    assert (sender.site, sender.digest, list(sender.differing)) == (site, digest, differing)
    assert all(f"site {other} starts from another adapter" in what for other, what in sender.differing.items())


def test_where_every_site_starts_from_its_own_seed_no_digest_counts():
    method = MethodSettings(initialization="own")
    same = dict.fromkeys("abc", (FOUR, "x"))
    assert first_adapter.choose_sender(same, method) == first_adapter.Sender("a", "", {})


HEAD = {"head.0.weight": torch.full((4, 8), 0.3), "head.0.bias": torch.zeros(4)}


@pytest.mark.parametrize(("answering", "refused"), [("classification", True), ("generation", False)])
def test_a_head_that_goes_to_all_sites_begins_as_its_way_to_answer_declares(answering, refused):
    announced = introduction(4, schema={key: list(tensor.shape) for key, tensor in HEAD.items()})
    sender = first_adapter.Sender("a", "", {})
    with pytest.raises(FedpeftError, match=r"0.3 in head.0.weight") if refused else nullcontext():
        first_adapter.check(HEAD, sender, announced, METHOD, answering=answering)


@pytest.mark.parametrize(("std", "refused"), [(0.0, True), (0.2, True), (0.02, False)])
def test_a_majority_does_not_make_a_start_that_the_method_has_not(std, refused):
    own = schema(range(4), stream=64, neurons=4)
    state = {key: std * torch.randn(shape, generator=torch.Generator().manual_seed(0)) for key, shape in own.items()}
    sender = first_adapter.Sender("a", digest(state), {})
    with pytest.raises(FedpeftError, match="site a sent a first adapter with") if refused else nullcontext():
        first_adapter.check(state, sender, introduction(4, schema=own), METHOD, answering="classification")


@pytest.mark.parametrize(("value", "refused"), [(0.3, False), (999.0, False), (1001.0, True)])
def test_of_a_plugin_that_declares_no_first_values_only_their_size_is_bounded(monkeypatch, value, refused):
    monkeypatch.setattr(TuningMethod, "tuning", lambda self: object())
    state = {key: torch.full(shape, value) for key, shape in FOUR.items()}
    sender = first_adapter.Sender("a", "", {})
    with pytest.raises(FedpeftError, match=r"site a sent a first adapter with 1e\+03 in") if refused else nullcontext():
        first_adapter.check(state, sender, introduction(4, schema=FOUR), METHOD, answering="classification")


@pytest.mark.parametrize(
    ("method", "needed"),
    [
        ({}, False),
        ({"matched_layers": 4}, True),
        ({"matched_layers": 4, "aggregation": "none"}, False),
    ],
)
def test_one_site_sends_the_first_adapter_where_layers_are_matched(method, needed):
    assert first_adapter.is_needed(MethodSettings(**method), ScheduleSettings()) == needed
