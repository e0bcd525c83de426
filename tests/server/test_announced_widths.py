# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Where sites may differ in width, each announces that of its own settings, and nothing else passes the handshake."""

import re
from types import SimpleNamespace

import pytest
from harness import introduction

import fedpeft
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.method import TuningMethod
from fedpeft.methods.setting_limits import MAX_WIDTH
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.reply_contract import check_announcement
from fedpeft.server import handshake
from fedpeft.server.handshake import agree
from fedpeft.site.learner import Learner

DOWN, UP = "layer.0.output.down.weight", "layer.0.output.up.weight"
WIDE = MethodSettings(site_settings={"c": {"reduction_factor": 2}})  # 16 elsewhere
RANKED = MethodSettings(name="lora", aggregation="svd", site_settings={"c": {"r": 2, "lora_alpha": 4}})


def bottleneck(neurons, stream=96, up=None):
    return {DOWN: [neurons, stream], UP: [stream, up or neurons]}


def factors(rank, outputs=12, inputs=10):
    return {"layer.0.query.A": [rank, inputs], "layer.0.query.B": [outputs, rank]}


def agreed(method, schemas):
    sites = {site: introduction(site, schema=schema) for site, schema in schemas.items()}
    for site, own in sites.items():
        check_announcement(own, site=site)
    able, problems = agree(sites, version=fedpeft.__version__, method=method)
    assert able == {site: own for site, own in sites.items() if site not in problems}
    return problems


HONEST = {"a": bottleneck(6), "b": bottleneck(6), "c": bottleneck(48)}
LIES = {
    "far too wide": ("b", bottleneck(2**20), r"site b announces 1048576 neurons in .* give it 6: look at its log"),
    "another declared width": ("b", bottleneck(48), "site b announces 48 neurons in .* give it 6: look at"),
    "not its declared width": ("c", bottleneck(6), "site c announces 6 neurons in .* give it 48: look at"),
    "tensors of two widths": ("b", bottleneck(6, up=2**20), "site b has 6 neurons in .* but 1048576 in"),
    "another stream, of the first site": (
        "a",
        bottleneck(8, stream=128),
        r"site a has layer\.0\.output\.down\.weight with shape \[8, 128\], site b has it with \[6, 96\]: nothing but",
    ),
    "a stream without a neuron, of the first site": (
        "a",
        bottleneck(1, stream=8),
        "site a announces layers of width 8, for which houlsby: reduction_factor=16 leaves no neuron",
    ),
    "no matrix": ("b", {DOWN: [6], UP: [96, 6]}, "site b announces layers of width 0, for which"),
}


BLOCKS = {  # of a Compacter, whose first axes count the blocks
    "shared.rule": [1, 1, 1],
    "layer.0.output.down.left": [],
    "layer.0.output.down.right": [1, 1, 1],
    "layer.0.output.down.bias": [1],
    "layer.0.output.up.left": [1, 1, 1],
    "layer.0.output.up.right": [1, 1, 1],
}


@pytest.mark.parametrize("method", [WIDE, RANKED])
@pytest.mark.parametrize("lack", [None, *BLOCKS])
def test_blocks_that_cannot_be_counted_cost_their_site_its_part_alone(method, lack):
    """Whatever the method, and whichever tensor is missing."""
    honest = HONEST if method is WIDE else {"a": factors(4), "b": factors(4), "c": factors(2)}
    lie = {key: shape for key, shape in BLOCKS.items() if key != lack}
    assert set(agreed(method, {**honest, "d": lie})) == {"d"}
    assert set(agreed(MethodSettings(), {"a": lie, "b": bottleneck(6), "c": bottleneck(6)})) == {"a"}
    assert "a" in agreed(MethodSettings(), {"a": lie, "b": bottleneck(6)})  # without a majority


def test_a_schema_that_nobody_thought_of_costs_its_site_its_part_alone(monkeypatch):
    def check(site, schema, method):
        if site == "b":
            raise IndexError("tuple index out of range")

    monkeypatch.setattr(handshake, "_check_widths", check)
    assert agreed(WIDE, HONEST)["b"].startswith("site b announces an adapter that raised IndexError: look at its log")
    assert set(agreed(WIDE, HONEST)) == {"b"}


@pytest.mark.parametrize("lie", LIES)
def test_a_width_that_its_settings_do_not_give_costs_its_site_its_part_alone(lie):
    site, schema, reason = LIES[lie]
    problems = agreed(WIDE, {**HONEST, site: schema})
    assert set(problems) == {site}
    assert re.search(reason, problems[site]), problems[site]


@pytest.mark.parametrize("method", [MethodSettings(aggregation="fedavg"), WIDE], ids=["one width", "several widths"])
def test_a_connector_of_another_shape_is_of_another_image_encoder(method):
    widths = {"a": 24, "b": 24, "c": 32}
    schemas = {site: {**HONEST[site], "connector.projection": [96, widths[site]]} for site in widths}
    schemas |= {} if method is WIDE else {"c": {**HONEST["a"], "connector.projection": [96, 32]}}
    assert agreed(method, schemas) == {
        "c": "connector.projection has shape [96, 32] at site c and [96, 24] at site a: give all sites the same "
        "backbone.source and backbone.image_source, between which it maps."
    }


@pytest.mark.parametrize("number", ["01", "001", "\u0661"])
@pytest.mark.parametrize("liar", ["a", "b", "c"])
def test_a_layer_has_one_spelling(number, liar):
    """A second key for the same tensor would be seen by some checks and not by others."""
    deeper = {
        site: schema | {key.replace(".0.", ".1."): shape for key, shape in schema.items()}
        for site, schema in HONEST.items()
    }
    assert agreed(WIDE, deeper) == {}
    lie = deeper[liar] | {DOWN.replace(".0.", f".{number}."): [1]}
    with pytest.raises(FedpeftError, match=f"site {liar} announces .*, which is not a tensor's name"):
        agreed(WIDE, {**deeper, liar: lie})


def test_honest_widths_and_ranks_take_part():
    assert agreed(WIDE, HONEST) == {}
    assert agreed(RANKED, {"a": factors(4), "b": factors(4), "c": factors(2)}) == {}


def test_a_rank_is_that_of_the_settings():
    assert set(agreed(RANKED, {"a": factors(4), "b": factors(2**20), "c": factors(4)})) == {"b", "c"}


@pytest.mark.parametrize(
    ("kinds", "refused"),
    [
        ("as", "s"),
        ("sa", "s"),
        ("sasa", "ss"),
        ("satsa", "sts"),
        ("ab", "ab"),  # of two backbones the server cannot know which is the right one
        ("abs", "abs"),
        ("st", "st"),
        ("ssa", "a"),  # the word of a majority counts
    ],
)
def test_where_no_kind_has_a_majority_the_jobs_settings_decide(kinds, refused):
    known = {"a": bottleneck(6), "b": bottleneck(8, stream=128), "s": bottleneck(48), "t": bottleneck(5)}
    problems = agreed(MethodSettings(), {f"{kind}{number}": known[kind] for number, kind in enumerate(kinds)})
    assert sorted(site[0] for site in problems) == sorted(refused)
    decided = refused not in (kinds, "a")
    assert all(("announces" in said) == decided for said in problems.values()), problems
    assert all(("none of them takes part" in said) == (refused == kinds) for said in problems.values())


def test_a_shape_beyond_any_tensor_is_none():
    with pytest.raises(FedpeftError, match="which is not a valid shape"):
        agreed(WIDE, {**HONEST, "b": {DOWN: [2**31] * 3, UP: [2**31] * 3}})


def test_of_a_method_that_does_not_say_its_widths_sites_of_equal_settings_are_alike(monkeypatch):
    monkeypatch.setattr(TuningMethod, "tuning", lambda self: SimpleNamespace())
    assert agreed(WIDE, {"a": bottleneck(6), "b": bottleneck(6), "c": bottleneck(MAX_WIDTH)}) == {}
    problems = agreed(WIDE, {"a": bottleneck(7), "b": bottleneck(6), "b2": bottleneck(6), "c": bottleneck(2**20)})
    assert re.search(
        r"site a has .* \[7, 96\] and site b with \[6, 96\], and method.site_settings gives", problems["a"]
    )
    assert re.search(f"site c announces 1048576 neurons in .* give it at most {MAX_WIDTH}", problems["c"])
    assert set(problems) == {"a", "c"}
    for first, second in ((7, 6), (6, 7)):  # of two alone neither counts, and the others go on
        problems = agreed(WIDE, {"a": bottleneck(first), "b": bottleneck(second), "c": bottleneck(8)})
        assert set(problems) == {"a", "b"}
        assert all("none of them takes part" in problem for problem in problems.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        ["method.site_settings={slake: {reduction_factor: 2}}"],
        ["method.site_settings={slake: {layer_widths: {'0': 3, '1': 7}}}"],
        ["method.name=pfeiffer", "method.site_settings={slake: {reduction_factor: 5}}"],
        ["method.name=parallel", "method.site_settings={slake: {reduction_factor: 7}}"],
        ["method.name=lora", "method.aggregation=svd", "method.site_settings={slake: {r: 2}}"],
        ["method.name=lora", "method.aggregation=stack", "method.site_settings={slake: {r: 99}}"],
        ["method.name=lora_vpt", "method.aggregation=svd", "method.site_settings={slake: {lora: {r: 2}}}"],
        ["method.name=lora_dvpt", "method.aggregation=svd", "method.site_settings={slake: {lora: {r: 8}}}"],
    ],
    ids=lambda chosen: " ".join(chosen),
)
def test_what_sites_really_announce_is_what_their_settings_give(sections, tmp_path, chosen):
    built = sections(*chosen)
    made = [Learner.from_sections(built, site=site, folder=tmp_path / site) for site in ("slake", "vqa-rad")]
    schemas = {each.site: {key: list(tensor.shape) for key, tensor in each.first_state().items()} for each in made}
    assert schemas["slake"] != schemas["vqa-rad"]
    assert agreed(made[0].method, schemas) == {}
