# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Aligned weights: the same function, in the reference's order."""

import pytest
import torch
from samples import PLACES, D, adapter, generator, hidden, largest_difference, output, phm, shuffled, state

from fedpeft.alignment import PIASettings, materialize
from fedpeft.alignment.neurons import Neurons, neurons_of, register
from fedpeft.alignment.permutation import align_adapter
from fedpeft.alignment.transport import permutation_of, transport_plan
from fedpeft.core.errors import FedpeftError

INPUTS = torch.randn(64, D, generator=generator(1))


def difference(kind, a, b):
    return float((output(kind, a, INPUTS) - output(kind, b, INPUTS)).abs().max())


def align(kind, client, reference, **settings):
    shared = {name: tensor for name, tensor in client.items() if name.startswith("shared.")}
    aligned = align_adapter(client, reference, neurons_of(client), PIASettings(**settings))
    return aligned.tensors | shared, aligned


def with_duplicates(tensors):
    """Every neuron twice, each with half the effect: the same function at twice the width."""
    return tensors | {
        "down.weight": tensors["down.weight"].repeat(2, 1),
        "down.bias": tensors["down.bias"].repeat(2),
        "up.weight": tensors["up.weight"].repeat(1, 2) / 2,
    }


def test_alignment_leaves_the_function_unchanged(kind):
    client, reference = adapter(kind, generator(2)), adapter(kind, generator(3))
    aligned, figures = align(kind, client, reference)
    assert difference(kind, aligned, client) <= 1e-5
    assert figures.moved > 0
    assert figures.after < figures.before


def test_a_shuffled_copy_comes_back_bit_for_bit(kind):
    client = adapter(kind, generator(4))
    aligned, figures = align(kind, shuffled(kind, client, generator(5)), client)
    assert all(torch.equal(aligned[name], client[name]) for name in client)
    assert figures.after == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_alignment_keeps_the_dtype(kind, dtype):
    client, reference = (
        {name: tensor.to(dtype) for name, tensor in adapter(kind, generator(seed)).items()} for seed in (6, 7)
    )
    aligned, _ = align(kind, client, reference)
    assert {tensor.dtype for tensor in aligned.values()} == {dtype}


@pytest.mark.parametrize("widths", [(8, 16), (16, 8), (8, 12), (12, 8)])
def test_unequal_widths_take_the_width_of_the_reference(kind, widths):
    client, reference = adapter(kind, generator(8), widths[0]), adapter(kind, generator(9), widths[1])
    aligned, figures = align(kind, client, reference)
    assert {name: t.shape for name, t in aligned.items()} == {name: t.shape for name, t in reference.items()}
    assert figures.before is None
    assert figures.moved is None


@pytest.mark.parametrize("kind", ["houlsby", "parallel"])
def test_preserved_mass_keeps_the_function_where_neurons_are_split_or_duplicates_fall_together(kind):
    narrow = adapter(kind, generator(10))
    wide = with_duplicates(narrow)
    split, _ = align(kind, narrow, wide, mass="preserved")
    joined, _ = align(kind, wide, narrow, mass="preserved")
    assert difference(kind, split, narrow) <= 1e-5
    assert difference(kind, joined, narrow) <= 1e-5


def test_the_papers_form_counts_a_split_neuron_twice():
    narrow = adapter("houlsby", generator(11))
    wide = with_duplicates(narrow)
    bias = narrow["up.bias"]
    doubled, _ = align("houlsby", narrow, wide, mass="paper")
    halved, _ = align("houlsby", wide, narrow, mass="paper")
    effect = output("houlsby", narrow, INPUTS) - bias
    torch.testing.assert_close(output("houlsby", doubled, INPUTS) - bias, 2 * effect, rtol=0, atol=1e-5)
    torch.testing.assert_close(output("houlsby", halved, INPUTS) - bias, effect / 2, rtol=0, atol=1e-5)


def test_both_masses_are_one_for_equal_widths(kind):
    client, reference = adapter(kind, generator(12)), adapter(kind, generator(13))
    preserved, _ = align(kind, client, reference, mass="preserved")
    paper, _ = align(kind, client, reference, mass="paper")
    assert all(torch.equal(preserved[name], paper[name]) for name in client)


def test_aligned_weights_are_the_equations_of_the_specification():
    client, reference = adapter("houlsby", generator(14), 6), adapter("houlsby", generator(15), 9)
    aligned, _ = align("houlsby", client, reference, mass="paper")
    rows = [torch.cat([a["down.weight"], a["down.bias"][:, None]], dim=1) for a in (client, reference)]
    plan = transport_plan(*rows)
    by_beta = torch.diag(1 / plan.sum(dim=0))
    expected = {
        "down.weight": by_beta @ plan.T @ client["down.weight"].double(),
        "down.bias": by_beta @ plan.T @ client["down.bias"].double(),
        "up.weight": client["up.weight"].double() @ plan @ by_beta,
        "up.bias": client["up.bias"].double(),
    }
    for name, tensor in expected.items():
        torch.testing.assert_close(aligned[name].double(), tensor, rtol=0, atol=1e-6)


def test_mixed_neurons_lie_in_memory_as_safetensors_and_flare_store_them(kind):
    client, wider = adapter(kind, generator(16), 8), adapter(kind, generator(17), 16)
    for aligned, _ in (
        align(kind, client, wider),
        align(kind, wider, adapter(kind, generator(18), 16), solver="sinkhorn", output_axis="matched"),
    ):
        assert [name for name, tensor in aligned.items() if not tensor.is_contiguous()] == []


@pytest.mark.parametrize("kind", ["houlsby", "lora", "compacter"])
def test_sinkhorn_blurs_neurons_but_keeps_their_total_effect(kind):
    client, reference = adapter(kind, generator(16)), adapter(kind, generator(17))
    exact, _ = align(kind, client, reference)
    blurred, _ = align(kind, client, reference, solver="sinkhorn")
    outgoing, axis = {"houlsby": ("up.weight", 1), "lora": ("B", 1), "compacter": ("up.left", 1)}[kind]
    assert not torch.allclose(blurred[outgoing], exact[outgoing], atol=1e-3)
    torch.testing.assert_close(blurred[outgoing].sum(axis), client[outgoing].sum(axis), rtol=0, atol=1e-5)


def test_matched_outputs_are_permuted_and_change_the_function(kind):
    client, reference = adapter(kind, generator(18)), adapter(kind, generator(19))
    fixed, _ = align(kind, client, reference)
    matched, _ = align(kind, client, reference, output_axis="matched")
    assert difference(kind, matched, client) > 0.1
    values = [output(kind, tensors, INPUTS).sort(dim=1).values for tensors in (matched, fixed)]
    torch.testing.assert_close(*values, rtol=0, atol=1e-5)


def test_matched_outputs_follow_the_rows_of_up():
    client, reference = adapter("houlsby", generator(20)), adapter("houlsby", generator(21))
    fixed, _ = align("houlsby", client, reference)
    matched, _ = align("houlsby", client, reference, output_axis="matched")
    rows = [torch.cat([a["up.weight"], a["up.bias"][:, None]], dim=1) for a in (fixed, reference)]
    order = permutation_of(transport_plan(*rows))
    assert torch.equal(matched["up.weight"], fixed["up.weight"][order])
    assert torch.equal(matched["up.bias"], fixed["up.bias"][order])
    assert torch.equal(matched["down.weight"], fixed["down.weight"])


def test_compacter_reorders_within_blocks_and_leaves_the_rule_alone():
    client, reference = adapter("compacter", generator(22)), adapter("compacter", generator(23))
    aligned, _ = align("compacter", client, reference)
    before, after = phm(client, "down").unflatten(1, (4, -1)), phm(aligned, "down").unflatten(1, (4, -1))
    orders = [
        [next(i for i in range(4) if torch.allclose(before[:, b, i], after[:, b, j], atol=1e-6)) for j in range(4)]
        for b in range(4)
    ]
    assert all(order == orders[0] for order in orders)
    assert torch.equal(aligned["shared.rule"], client["shared.rule"])


def test_materialized_compacter_is_a_plain_bottleneck_with_the_same_function():
    factored = state("compacter", generator(24))
    plain = materialize(factored)
    assert set(plain) == {f"{p}.{n}" for p in PLACES for n in ("down.weight", "down.bias", "up.weight", "up.bias")}
    for place in PLACES:
        tensors = {key.removeprefix(place + "."): t for key, t in factored.items() if key.startswith(place)}
        activated = hidden("compacter", tensors | {"shared.rule": factored["shared.rule"]}, INPUTS)
        torch.testing.assert_close(
            torch.nn.functional.gelu(INPUTS @ plain[f"{place}.down.weight"].T + plain[f"{place}.down.bias"]), activated
        )
        expected = output("compacter", tensors | {"shared.rule": factored["shared.rule"]}, INPUTS)
        torch.testing.assert_close(activated @ plain[f"{place}.up.weight"].T + plain[f"{place}.up.bias"], expected)


def test_materialize_leaves_other_adapters_as_they_are():
    plain = state("pfeiffer", generator(25))
    assert largest_difference("pfeiffer", materialize(plain), plain) == 0


def test_a_kind_can_be_registered_once():
    known = neurons_of({"A", "B"})
    with pytest.raises(FedpeftError, match="'lora' is registered already"):
        register(Neurons(kind="lora", needs=known.needs, incoming={}, outgoing={}, outputs={}, dense=known.dense))
