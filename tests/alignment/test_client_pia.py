# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The site's half: the received adapter in the site's own order, and what becomes of the two."""

import json

import pytest
import torch
from samples import (
    PLACES,
    D,
    at,
    generator,
    hidden,
    largest_difference,
    noisy,
    same_bytes,
    shuffled_state,
    state,
)

from fedpeft.alignment import PIASettings, align_global, finish_round, start_merged
from fedpeft.alignment.neurons import neurons_of
from fedpeft.alignment.permutation import align_adapter
from fedpeft.alignment.transport import cost_matrix, match
from fedpeft.core.errors import FedpeftError

INPUTS = torch.randn(24, D, generator=generator(0))


def activations(kind, *states, inputs=INPUTS):
    """Hidden activations of each state at all places, on the same inputs."""
    return tuple({place: hidden(kind, at(s, place), inputs) for place in PLACES} for s in states)


@pytest.mark.parametrize("support", ["samples", "mean", "weights"])
def test_a_shuffled_copy_of_the_own_adapter_comes_back_bit_for_bit(kind, support):
    own = state(kind, generator(1))
    received = shuffled_state(kind, own, generator(2))
    aligned, report = align_global(received, own, activations(kind, received, own), PIASettings(support=support))
    assert same_bytes({key: aligned[key] for key in own}, own)
    assert report["transport"]["here"] == pytest.approx(0, abs=1e-5)
    assert json.loads(json.dumps(report)) == report


@pytest.mark.parametrize("support", ["samples", "mean", "weights"])
def test_alignment_leaves_the_global_function_unchanged(kind, support):
    received, own = state(kind, generator(3)), state(kind, generator(4))
    aligned, report = align_global(received, own, activations(kind, received, own), PIASettings(support=support))
    assert largest_difference(kind, aligned, received) <= 1e-5
    assert report["sites"]["here"]["moved"] > 0
    assert list(aligned) == list(received)


@pytest.mark.parametrize("support", ["samples", "mean"])
def test_activations_and_weights_give_plans_of_their_own(support):
    received, own = state("houlsby", generator(5)), state("houlsby", generator(6))
    seen = activations("houlsby", received, own)
    by_activation, _ = align_global(received, own, seen, PIASettings(support=support))
    by_weight, _ = align_global(received, own, seen, PIASettings(support="weights"))
    assert not same_bytes(by_activation, by_weight)


@pytest.mark.parametrize("seed", range(4))
def test_one_mean_for_each_neuron_is_a_sort_as_cheap_as_the_assignment(seed):
    received, own = state("houlsby", generator(seed)), state("houlsby", generator(seed + 50))
    seen = activations("houlsby", received, own)
    _, report = align_global(received, own, seen, PIASettings(support="mean"))
    for place in PLACES:
        means = [one[place].mean(dim=0)[:, None] for one in seen]
        cost = cost_matrix(*means)
        assert report["places"][place]["here"]["after"] == pytest.approx(match(cost).distance(cost), rel=1e-6)


def test_all_samples_tell_neurons_apart_that_their_means_confuse():
    own = state("houlsby", generator(7), places=PLACES[:1])
    place = PLACES[0]
    received = shuffled_state("houlsby", own, generator(8), PLACES[:1])
    seen = [{place: hidden("houlsby", at(s, place), INPUTS)} for s in (received, own)]
    centred = tuple({place: one[place] - one[place].mean(dim=0)} for one in seen)
    by_samples, _ = align_global(received, own, centred, PIASettings(support="samples"))
    by_mean, _ = align_global(received, own, centred, PIASettings(support="mean"))
    assert same_bytes(by_samples, own)
    assert not same_bytes(by_mean, own)


@pytest.mark.parametrize("support", ["samples", "mean", "weights"])
@pytest.mark.parametrize("widths", [(16, 8), (8, 16)])
def test_the_aligned_adapter_has_the_sites_width(kind, support, widths):
    received, own = state(kind, generator(9), widths[0]), state(kind, generator(10), widths[1])
    aligned, report = align_global(received, own, activations(kind, received, own), PIASettings(support=support))
    assert {key: t.shape for key, t in aligned.items()} == {key: t.shape for key, t in own.items()}
    assert report["sites"]["here"]["moved"] is None
    assert {key: t.shape for key, t in start_merged(own, aligned).items()} == {key: t.shape for key, t in own.items()}


@pytest.mark.parametrize("kind", ["houlsby", "compacter"])
def test_layers_that_the_site_does_not_have_stay_as_received(kind):
    received, own = state(kind, generator(11)), state(kind, generator(12))
    own = {key: tensor for key, tensor in own.items() if not key.startswith("layer.0")}
    seen = activations(kind, received, own | {k: t for k, t in received.items() if k not in own})
    aligned, report = align_global(received, own, seen)
    assert list(report["places"]) == ["layer.1.output"]
    assert all(torch.equal(aligned[key], received[key]) for key in received if key.startswith("layer.0"))


def test_outputs_are_matched_by_what_they_put_out(kind):
    received, own = state(kind, generator(13)), state(kind, generator(14))
    seen = activations(kind, received, own)
    fixed, _ = align_global(received, own, seen)
    matched, _ = align_global(received, own, seen, PIASettings(output_axis="matched"))
    assert largest_difference(kind, fixed, received) <= 1e-5
    assert largest_difference(kind, matched, received) > 0.1
    place = PLACES[0]
    again = align_adapter(
        at(received, place),
        at(own, place),
        neurons_of(at(received, place)),
        PIASettings(output_axis="matched"),
        activations=(seen[0][place], seen[1][place]),
    )
    assert all(torch.equal(again.tensors[name], at(matched, place)[name]) for name in again.tensors)


def test_a_permutation_of_the_outputs_is_undone_when_outputs_are_matched():
    own = state("houlsby", generator(15))
    order = torch.randperm(D, generator=generator(16))
    received = {key: t[order] if key.endswith(("up.weight", "up.bias")) else t for key, t in own.items()}
    aligned, _ = align_global(received, own, activations("houlsby", received, own), PIASettings(output_axis="matched"))
    assert same_bytes(aligned, own)


def test_merging_is_the_mean_of_the_aligned_weights(kind):
    own = state(kind, generator(17))
    received = shuffled_state(kind, noisy(own, generator(18)), generator(19))
    aligned, _ = align_global(received, own, activations(kind, received, own))
    merged = start_merged(own, aligned)
    for key in own:
        torch.testing.assert_close(merged[key], (own[key] + aligned[key]) / 2)
    same = start_merged(own, own)
    assert same_bytes(same, own)


@pytest.mark.parametrize(("upload", "share"), [("integrated", 0.5), ("local", 1.0)])
def test_what_is_uploaded_is_kept(upload, share):
    trained, frozen = state("houlsby", generator(20)), state("houlsby", generator(21))
    end = finish_round(trained, frozen, PIASettings(upload=upload))
    assert same_bytes(end.upload, end.own)
    for key in trained:
        torch.testing.assert_close(end.upload[key], share * trained[key] + (1 - share) * frozen[key])


def test_results_share_no_memory_with_the_arguments():
    received, own = state("pfeiffer", generator(22)), state("pfeiffer", generator(23))
    before = [tensor.clone() for s in (received, own) for tensor in s.values()]
    aligned, _ = align_global(received, own, settings=PIASettings(support="weights", solver="identity"))
    for result in (aligned, start_merged(own, aligned), finish_round(own, aligned, PIASettings(upload="local")).upload):
        for tensor in result.values():
            tensor.zero_()
    assert all(torch.equal(a, b) for a, b in zip(before, [*received.values(), *own.values()], strict=True))


def test_bfloat16_is_given_back():
    received, own = (
        {key: tensor.bfloat16() for key, tensor in state("houlsby", generator(k)).items()} for k in (24, 25)
    )
    aligned, _ = align_global(received, own, settings=PIASettings(support="weights"))
    assert {t.dtype for s in (aligned, start_merged(own, aligned)) for t in s.values()} == {torch.bfloat16}


def test_without_permutation_no_activations_are_needed():
    received, own = state("houlsby", generator(26)), state("houlsby", generator(27))
    aligned, report = align_global(received, own, settings=PIASettings(solver="identity"))
    assert same_bytes(aligned, received)
    assert report["sites"]["here"]["moved"] == 0


PLACE = PLACES[0]


@pytest.mark.parametrize(
    ("spoil", "expected_parts"),
    [
        (lambda mine, theirs: None, ["global adapter", PLACE, "support='weights'"]),
        (lambda mine, theirs: (theirs, {}), ["site rad", PLACE, "support='weights'"]),
        (lambda mine, theirs: (theirs, mine | {PLACE: mine[PLACE][:, :9]}), ["site rad", PLACE, "(24, 9)", "(m, 16)"]),
        (lambda mine, theirs: (theirs, mine | {PLACE: mine[PLACE][:5]}), ["24 samples", "site rad", PLACE, "5"]),
        (lambda mine, theirs: (theirs, mine | {PLACE: mine[PLACE][:0]}), ["site rad", PLACE, "(0, 16)"]),
        (lambda mine, theirs: (theirs, mine | {PLACE: mine[PLACE] * float("nan")}), ["site rad", PLACE, "NaN"]),
    ],
)
def test_activations_that_do_not_fit_are_refused_by_place(spoil, expected_parts):
    received, own = state("houlsby", generator(28)), state("houlsby", generator(29))
    theirs, mine = activations("houlsby", received, own)
    with pytest.raises(FedpeftError) as caught:
        align_global(received, own, spoil(mine, theirs), site="rad")
    assert all(part in str(caught.value) for part in expected_parts), str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "expected_parts"),
    [
        (
            lambda own: own | {f"{PLACE}.up.bias": torch.full((D,), float("nan"))},
            ["site rad", f"{PLACE}.up.bias", "NaN"],
        ),
        (lambda own: own | {f"{PLACE}.up.bias": torch.ones(D + 1)}, ["site rad", f"{PLACE}.up.bias", "(33,)", "(32,)"]),
        (lambda own: own | {"layer.7.output.up.bias": torch.ones(D)}, ["site rad", "layer.7.output.up.bias"]),
    ],
)
def test_an_own_adapter_that_does_not_fit_is_refused_by_key(spoil, expected_parts):
    received, own = state("houlsby", generator(30)), state("houlsby", generator(31))
    with pytest.raises(FedpeftError) as caught:
        align_global(received, spoil(own), settings=PIASettings(support="weights"), site="rad")
    assert all(part in str(caught.value) for part in expected_parts), str(caught.value)


def test_what_is_done_to_the_upload_leaves_the_kept_adapter():
    trained, frozen = state("houlsby", generator(30)), state("houlsby", generator(31))
    end = finish_round(trained, frozen)
    before = {key: tensor.clone() for key, tensor in end.own.items()}
    for tensor in end.upload.values():
        tensor.zero_()
    assert same_bytes(end.own, before)


@pytest.mark.parametrize("share", [-0.1, 1.1, 3, float("nan")])
def test_a_share_is_from_0_to_1(share):
    own = state("houlsby", generator(32))
    with pytest.raises(FedpeftError, match="must be a number from 0 to 1"):
        start_merged(own, own, share)
    with pytest.raises(FedpeftError, match="must be a number from 0 to 1"):
        finish_round(own, own, PIASettings(upload="local"), share)


def test_adapters_of_other_widths_are_aligned_before_they_are_merged():
    with pytest.raises(FedpeftError, match=r"head.bias has shape \(2,\) .* align first with align_global"):
        start_merged({"head.bias": torch.zeros(2)}, {"head.bias": torch.ones(1)})
