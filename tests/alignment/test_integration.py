# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's round: what it must leave unchanged, what it must equal, and what the settings do to it."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from grids import each
from samples import (
    PLACES,
    adapter,
    at,
    generator,
    largest_difference,
    noisy,
    same_bytes,
    shuffled_state,
    state,
)

from fedpeft.alignment import Bottleneck, PIASettings, barycenter, integrate

IDENTITY = {"solver": "identity", "gamma": 0.0}
COUNTS = [120, 7, 40]
REFERENCES = ("fedavg", "largest", "fixed_point")


def sites(kind, number=3, seed=0, width=16):
    """Sites that trained away from one adapter."""
    start = state(kind, generator(seed), width)
    return [noisy(start, generator(seed + k), 0.05) for k in range(1, number + 1)]


def mean(states, counts):
    """FedAvg, written down again in float64."""
    total = sum(counts)
    return {key: sum(n / total * s[key].double() for n, s in zip(counts, states, strict=True)) for key in states[0]}


def frobenius(state, other, place):
    names = [key for key in state if key.startswith(place + ".") and ".norm." not in key]
    return math.sqrt(sum(float((state[key].double() - other[key].double()).square().sum()) for key in names))


@pytest.mark.slow
@each("counts", [[1, 1], [3, 1], [1, 1, 1], [5, 1, 2], [1, 1, 1, 1], [9, 4, 4, 2, 7, 7]])
@each("reference", REFERENCES)
def test_shuffled_copies_integrate_back_to_the_function(kind, counts, reference):
    original = state(kind, generator(1))
    copies = [shuffled_state(kind, original, generator(10 + k)) for k in range(len(counts))]
    merged, report = integrate(copies, counts, PIASettings(reference=reference))
    assert largest_difference(kind, merged, original) <= 1e-5
    plain, _ = integrate(copies, counts, PIASettings(server=False))
    assert largest_difference(kind, plain, original) > 0.1
    assert any(figures["moved"] > 0 for figures in report["sites"].values())


@pytest.mark.parametrize("reference", REFERENCES)
def test_shuffled_copies_of_a_narrow_adapter_integrate_back(reference):
    for seed in range(10):
        rng = generator(seed)
        down, up = torch.randn(8, 1, generator=rng), torch.randn(1, 8, generator=rng)
        orders = [torch.randperm(8, generator=rng) for _ in range(5)]
        copies = [Bottleneck(down[order], None, up[:, order], None) for order in orders]
        merged = barycenter(copies, weights=[1, 2, 3, 4, 5], reference=reference)
        h = torch.randn(32, 1, generator=rng)
        expected = torch.nn.functional.silu(h @ down.T) @ up.T
        outputs = torch.nn.functional.silu(h @ merged.down.T) @ merged.up.T
        torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-170, 1e170])
def test_the_largest_and_smallest_numbers_of_double_precision_integrate(scale):
    rng = generator(4)
    down, up = torch.randn(6, 4, generator=rng, dtype=torch.float64), torch.randn(4, 6, generator=rng).double()
    order = torch.randperm(6, generator=rng)
    copies = [Bottleneck(d * scale, None, u * scale, None) for d, u in ((down, up), (1.01 * down[order], up[:, order]))]
    merged = barycenter(copies, gamma=0.5 / scale, reference="largest")
    torch.testing.assert_close(merged.up / scale, up, rtol=1e-6, atol=0)


def test_shuffled_copies_integrate_back_at_the_size_of_vilt():
    rng = generator(2)
    down, up = (0.02 * torch.randn(shape, generator=rng) for shape in ((48, 768), (768, 48)))
    orders = [torch.randperm(48, generator=rng) for _ in range(10)]
    merged = barycenter([Bottleneck(down[order], torch.zeros(48), up[:, order], torch.zeros(768)) for order in orders])
    h = torch.randn(32, 768, generator=rng)
    expected = torch.nn.functional.silu(h @ down.T) @ up.T
    outputs = torch.nn.functional.silu(h @ merged.down.T + merged.down_bias) @ merged.up.T + merged.up_bias
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("weighting", "normalize"), [("samples", True), ("uniform", True), ("uniform", False)])
def test_gamma_zero_and_identity_plans_are_fedavg_bit_for_bit(kind, weighting, normalize):
    counts = [1234, 77, 403]
    fedavg, _ = integrate(sites(kind), counts, PIASettings(server=False, weighting=weighting))
    pia, _ = integrate(sites(kind), counts, PIASettings(**IDENTITY, weighting=weighting, normalize=normalize))
    assert same_bytes(pia, fedavg)


def test_without_server_pia_it_is_plain_fedavg(kind):
    states = sites(kind)
    merged, report = integrate(states, COUNTS, PIASettings(server=False, gamma=5.0, normalize=False))
    for key, expected in mean(states, COUNTS).items():
        torch.testing.assert_close(merged[key].double(), expected, rtol=0, atol=1e-6)
    assert report["transport"] == {"states[0]": None, "states[1]": None, "states[2]": None}


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("kind", ["pfeiffer", "compacter", "lora"])
def test_weights_are_the_equations_of_the_specification(kind, weighting, normalize):
    states, gamma = sites(kind), 0.7
    settings = PIASettings(gamma=gamma, normalize=normalize, weighting=weighting, solver="identity")
    merged, report = integrate(states, COUNTS, settings, sites=["a", "b", "c"])
    counts = COUNTS if weighting == "samples" else [1, 1, 1]
    average = mean(states, counts)
    for place in PLACES:
        factors = [math.exp(-gamma * frobenius(s, average, place)) for s in states]
        lifted = [n * f for n, f in zip(counts, factors, strict=True)]
        weights = [w / sum(lifted) for w in lifted] if normalize else [f / 3 for f in factors]
        assert [report["places"][place][s]["weight"] for s in "abc"] == pytest.approx(weights, rel=1e-5)
        for key in (key for key in average if key.startswith(place)):
            expected = sum(w * s[key].double() for w, s in zip(weights, states, strict=True))
            expected = average[key] if ".norm." in key else expected
            torch.testing.assert_close(merged[key].double(), expected, rtol=0, atol=1e-5)


def test_the_papers_form_shrinks_the_adapter_and_the_default_does_not():
    states = sites("houlsby")
    norms = {}
    for name, settings in {
        "plain": {"gamma": 0.0},
        "paper": {"gamma": 0.5, "normalize": False},
        "ours": {"gamma": 0.5},
    }.items():
        merged, _ = integrate(states, [1, 1, 1], PIASettings(**settings))
        norms[name] = float(torch.cat([tensor.flatten() for tensor in merged.values()]).norm())
    assert norms["paper"] < 0.9 * norms["plain"]
    assert norms["ours"] == pytest.approx(norms["plain"], rel=0.01)


def test_a_large_gamma_keeps_the_nearest_site_instead_of_dividing_by_zero():
    merged, report = integrate(sites("houlsby"), [1, 1, 1], PIASettings(gamma=1e6))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in merged.values())
    for figures in report["places"].values():
        nearest_first = sorted(figures.values(), key=lambda row: row["distance"])
        weights = [row["weight"] for row in nearest_first]
        assert weights == sorted(weights, reverse=True)
        assert sum(weights) == pytest.approx(1)


def test_alignment_brings_shuffled_sites_closer_and_the_largest_sites_order_closer_still():
    start = state("houlsby", generator(3))
    states = [shuffled_state("houlsby", noisy(start, generator(k), 0.02), generator(20 + k)) for k in range(5)]
    distance = {}
    for name, settings in {
        "none": {"solver": "identity"},
        "fedavg": {"reference": "fedavg"},
        "largest": {"reference": "largest"},
    }.items():
        _, report = integrate(states, [5, 4, 3, 2, 1], PIASettings(gamma=0.0, **settings))
        distance[name] = sum(row["distance"] for row in report["sites"].values())
    assert distance["fedavg"] < distance["none"]
    assert distance["largest"] < 0.25 * distance["none"]


def test_two_equal_sites_in_unrelated_orders_meet_in_the_order_of_the_largest_only():
    start = state("houlsby", generator(4))
    states = [shuffled_state("houlsby", noisy(start, generator(k), 0.02), generator(30 + k)) for k in range(2)]
    apart = largest_difference("houlsby", states[0], states[1])
    fedavg, blurred = integrate(states, [1, 1], PIASettings(reference="fedavg"))
    largest, met = integrate(states, [1, 1], PIASettings(reference="largest"))
    assert largest_difference("houlsby", largest, states[0]) < apart < largest_difference("houlsby", fedavg, states[0])
    assert met["sites"]["states[0]"]["moved"] == 0
    assert blurred["sites"]["states[1]"]["moved"] < met["sites"]["states[1]"]["moved"]


def test_each_layer_is_averaged_over_the_sites_that_have_it(kind):
    first, second, _ = sites(kind)
    previous = state(kind, generator(5))
    shared = [key for key in previous if key.startswith("shared.")]
    only = {
        "a": (first, ["layer.0.attention", "layer.0.output"]),
        "b": (second, ["layer.0.output"]),
    }
    states = [{k: s[k] for k in s if k.startswith(tuple(places)) or k in shared} for s, places in only.values()]
    merged, report = integrate(states, [3, 1], PIASettings(**IDENTITY), sites=list(only), previous=previous)
    assert list(merged) == list(previous)
    for key in merged:
        if key.startswith("layer.1"):
            expected = previous[key].double()
        elif key.startswith("layer.0.attention"):
            expected = first[key].double()
        else:
            expected = 0.75 * first[key].double() + 0.25 * second[key].double()
        torch.testing.assert_close(merged[key].double(), expected, rtol=0, atol=1e-6)
    assert {place: list(rows) for place, rows in report["places"].items()} == {
        "layer.0.attention": ["a"],
        "layer.0.output": ["a", "b"],
    }


@pytest.mark.slow
@each(
    ("solver", "reference"),
    [*itertools.product(("exact", "sinkhorn"), ("fedavg", "largest")), ("exact", "fixed_point")],
)
@each(("previous", "width"), [(None, 24), (8, 8), (16, 16), (32, 32)])
def test_sites_of_any_width_meet_at_the_width_of_the_global_adapter(kind, solver, reference, previous, width):
    states = [state(kind, generator(k), w) for k, w in enumerate((8, 24, 16))]
    known = None if previous is None else state(kind, generator(9), previous)
    settings = PIASettings(solver=solver, reference=reference)
    merged, report = integrate(states, COUNTS, settings, previous=known)
    expected = state(kind, generator(9), width)
    assert {key: t.shape for key, t in merged.items()} == {key: t.shape for key, t in expected.items()}
    assert json.loads(json.dumps(report)) == report
    again, _ = integrate(states, COUNTS, settings, previous=known)
    assert same_bytes(merged, again)


def test_a_site_with_every_neuron_twice_integrates_to_the_same_function():
    narrow = adapter("houlsby", generator(6))
    wide = narrow | {
        "down.weight": narrow["down.weight"].repeat(2, 1),
        "down.bias": narrow["down.bias"].repeat(2),
        "up.weight": narrow["up.weight"].repeat(1, 2) / 2,
    }
    as_wide = {f"layer.0.output.{name}": tensor for name, tensor in barycenter([narrow, wide]).items()}
    assert as_wide["layer.0.output.down.bias"].shape == (32,)
    original = {f"layer.0.output.{name}": tensor for name, tensor in narrow.items()}
    assert largest_difference("houlsby", as_wide, original, ("layer.0.output",)) <= 1e-5


@pytest.mark.slow
@each(
    "settings",
    [
        {},
        {"output_axis": "matched"},
        {"solver": "sinkhorn"},
        {"reference": "largest"},
        {"reference": "fixed_point"},
        {"margin": 0.1},
    ],
)
def test_the_same_input_gives_the_same_bytes(kind, settings):
    runs = [integrate(sites(kind), COUNTS, PIASettings(**settings)) for _ in range(2)]
    assert same_bytes(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


@pytest.mark.parametrize("server", [True, False])
def test_bfloat16_is_computed_in_float32_and_given_back(server):
    half = [{key: tensor.bfloat16() for key, tensor in s.items()} for s in sites("houlsby")]
    merged, _ = integrate(half, COUNTS, PIASettings(server=server))
    full, _ = integrate([{k: t.float() for k, t in s.items()} for s in half], COUNTS, PIASettings(server=server))
    assert {tensor.dtype for tensor in merged.values()} == {torch.bfloat16}
    assert same_bytes(merged, {key: tensor.bfloat16() for key, tensor in full.items()})


def test_the_result_shares_no_memory_and_no_gradient_with_its_inputs():
    states = [{key: tensor.requires_grad_() for key, tensor in s.items()} for s in sites("compacter", 2)]
    previous = state("compacter", generator(7))
    trained = [{k: t for k, t in s.items() if not k.startswith("layer.1")} for s in states]
    before = [tensor.detach().clone() for s in [*states, previous] for tensor in s.values()]
    for settings in ({}, {"server": False}, IDENTITY):
        merged, _ = integrate(trained, [1, 1], PIASettings(**settings), previous=previous)
        assert not any(tensor.requires_grad for tensor in merged.values())
        for tensor in merged.values():
            tensor.zero_()
    after = [tensor.detach() for s in [*states, previous] for tensor in s.values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_tensors_without_neurons_are_averaged_as_they_stand():
    states = [{"shared.prompt": torch.full((5, 8), float(k)), "layer.3.norm.weight": torch.ones(8) * k} for k in (1, 3)]
    merged, report = integrate(states, [3, 1], PIASettings(gamma=2.0))
    assert torch.equal(merged["shared.prompt"], torch.full((5, 8), 1.5))
    assert torch.equal(merged["layer.3.norm.weight"], torch.full((8,), 1.5))
    assert report == {"transport": {}, "decisions": {}, "sites": {}, "places": {}}


def test_the_report_is_json_and_says_what_moved():
    original = state("houlsby", generator(8))
    states = [original, shuffled_state("houlsby", original, generator(9))]
    _, report = integrate(states, [2, 1], sites=["slake", "vqa-rad"])
    assert json.loads(json.dumps(report)) == report
    assert list(report["places"]) == list(PLACES)
    assert report["sites"]["slake"]["moved"] == 0
    assert report["sites"]["vqa-rad"]["moved"] > 0.5
    assert report["transport"]["vqa-rad"] < report["sites"]["vqa-rad"]["before"]
    for figures in report["places"].values():
        assert sum(row["weight"] for row in figures.values()) == pytest.approx(1)


def test_barycenter_of_single_adapters_is_integrate_of_their_states(kind):
    states = sites(kind)
    place = PLACES[0]
    merged = barycenter([at(s, place) for s in states], COUNTS, gamma=0.3)
    alone = [{k: s[k] for k in s if k.startswith((place, "shared."))} for s in states]
    expected, _ = integrate(alone, COUNTS, PIASettings(gamma=0.3))
    assert all(torch.equal(merged[name], at(expected, place)[name]) for name in merged)


def test_barycenter_of_tuples_is_a_bottleneck():
    first, second = (adapter("houlsby", generator(k)) for k in range(2))
    names = ("down.weight", "down.bias", "up.weight", "up.bias")
    merged = barycenter([tuple(first[n] for n in names), Bottleneck(*(second[n] for n in names))])
    expected = barycenter([first, second])
    assert isinstance(merged, Bottleneck)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in zip(names, merged, strict=True))
    without_bias = barycenter([Bottleneck(a["down.weight"], None, a["up.weight"], None) for a in (first, second)])
    assert without_bias.down_bias is None
    assert without_bias.down.shape == first["down.weight"].shape


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_site_whose_squares_are_no_float32_leaves_numbers(reference):
    states = sites("houlsby")
    states[0] = {key: tensor * 1e25 for key, tensor in states[0].items()}
    merged, report = integrate(states, COUNTS, PIASettings(reference=reference))
    assert all(tensor.isfinite().all() for tensor in merged.values())
    assert all(math.isfinite(figures["distance"]) for figures in report["sites"].values())


@pytest.mark.parametrize(
    "counts", [torch.tensor([1, 2]), np.array([1, 2]), iter([1, 2])], ids=["torch", "numpy", "iter"]
)
def test_counts_of_any_kind_and_generators_make_the_same_report(counts):
    states = [state("houlsby", generator(seed)) for seed in (1, 2)]
    expected, report = integrate(states, [1, 2], sites=["a", "b"])
    merged, other = integrate(iter(states), counts, sites=iter("ab"))
    assert same_bytes(merged, expected)
    assert json.dumps(other) == json.dumps(report)
