# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FLoRA at a site: what all have learned is in its frozen weights, and its own factors start anew."""

import copy

import pytest
import torch
from small_federations import learners_of

from fedpeft import adapters
from fedpeft.core.keys import group_by_place
from fedpeft.federate import federate
from fedpeft.server.aggregation import aggregate
from fedpeft.server.job_run import export_adapter
from fedpeft.site.learner import Learner
from fedpeft.site.site_state import SiteState

SITES = ("slake", "vqa-rad")
STACK = ("method.name=lora", "method.aggregation=stack", "training.learning_rate=0.05")
RANKS = "method.site_settings={slake: {r: 2}}"


def features(model, batch):
    model.eval()
    with torch.no_grad():
        return model(**batch.inputs)


@pytest.mark.slow
def test_a_round_starts_from_the_function_that_the_stack_has(sections, tmp_path):
    made = learners_of(sections(*STACK, RANKS), tmp_path)
    plain = copy.deepcopy(made["slake"].backbone)
    first = next(federate(made))
    batch = made["slake"].probe(1)[0]
    places = group_by_place(first.state)
    assert {first.state[names["A"]].shape[0] for names in places.values()} == {2 + 4}
    for path, module in plain.named_modules():
        if hasattr(module, "lora_A"):
            layer, slot = next(part for part in path.split(".") if part.isdigit()), path.rpartition(".")[2]
            names = places[f"layer.{layer}.{slot}"]
            module.get_base_layer().weight.data += 2 * first.state[names["B"]] @ first.state[names["A"]]
    learner = made["slake"]
    before = features(learner.backbone, batch)
    for _ in range(2):  # what a round added is taken away before the next one adds
        learner.trainable.load(learner.values.adapter(2, None, first.state))
        torch.testing.assert_close(features(learner.backbone, batch), features(plain, batch))
    assert not torch.allclose(features(plain, batch), before)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["schedule.solver=own", "schedule.budget=1"]], ids=["all", "scheduled"])
def test_a_new_process_goes_on_to_the_bit_and_the_frozen_weights_hold_no_rounding_of_earlier_rounds(
    sections, tmp_path, more
):
    chosen = sections(*STACK, RANKS, "training.rounds=3", *more)
    *_, together = federate(learners_of(chosen, tmp_path / "together"))
    state = learners_of(chosen, tmp_path / "first")["slake"].trainable.state() if more else {}
    for number in (1, 2, 3):
        fresh = learners_of(chosen, tmp_path / "apart")
        layers = dict.fromkeys(SITES)
        if more:
            scores = {site: fresh[site].score_layers(number, state) for site in SITES}
            layers = {site: [max(range(2), key=lambda n, s=site: scores[s][n])] for site in SITES}
        updates = {site: learner.train_round(number, state, layers[site]) for site, learner in fresh.items()}
        replies = {site: (update.state, update.samples) for site, update in updates.items()}
        state, _ = aggregate(replies, fresh["slake"].method, previous=state or None)
    assert together.state.keys() == state.keys()
    assert all(torch.equal(together.state[key], state[key]) for key in state)


def test_fresh_factors_keep_no_moments_of_the_round_before(sections, tmp_path):
    learner = learners_of(sections(*STACK), tmp_path)["slake"]
    update = learner.train_round(1, {})
    moments = {"layer.0.query.A/step": torch.ones(1), "head.0.weight/step": torch.ones(1)}
    kept = learner.values.moments(SiteState(round=1, adapter={}, head={}, optimizer=moments, facts={}), 2)
    assert list(kept) == ["head.0.weight/step"]
    again = learner.values.adapter(2, update.state, update.state)
    assert all(not again[key].any() for key in again if key.endswith(".B"))
    assert not torch.equal(again["layer.0.query.A"], learner.values.first["layer.0.query.A"])


@pytest.mark.slow
def test_the_exported_adapter_has_the_product_of_all_rounds(sections, tmp_path):
    made = learners_of(sections(*STACK, RANKS), tmp_path)
    *_, last = federate(made)
    learner = made["slake"]
    batch = learner.probe(1)[0]
    learner.trainable.load(learner.values.adapter(3, None, last.state))
    expected = features(learner.backbone, batch)
    folder = export_adapter(tmp_path / "adapter", last.state, learner.method, family="vilt")
    other = Learner.from_sections(sections("method.name=classifier"), site="slake", folder=tmp_path / "other")
    adapters.load_adapter(other.backbone.model, folder)
    torch.testing.assert_close(features(other.backbone, batch), expected)


@pytest.mark.parametrize(("aggregation", "kept"), [("svd", ["head.0.weight/step"]), ("fedavg", None)])
def test_factors_of_the_mean_product_keep_no_moments_either(sections, tmp_path, aggregation, kept):
    """Their basis is another one in every round; factors that are averaged as they are keep theirs."""
    chosen = ("method.name=lora", f"method.aggregation={aggregation}")
    learner = learners_of(sections(*chosen), tmp_path)["slake"]
    moments = {name: torch.ones(1) for name in ("layer.0.query.A/step", "layer.0.query.B/step", "head.0.weight/step")}
    own = SiteState(round=1, adapter={}, head={}, optimizer=moments, facts={})
    assert list(learner.values.moments(own, 2)) == (kept or list(moments))
