# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site kept gives the model that was measured at the end of the round, to the last digit."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from trained_sites import trained

from fedpeft.core.errors import FedpeftError
from fedpeft.inference.examples import read_split
from fedpeft.inference.kept_model import find
from fedpeft.inference.predictor import Predictor
from fedpeft.job.site_policy import SitePolicy
from fedpeft.site import computing

FIGURES = ("overall", "open", "closed")
FROZEN = "method.pia.integration=two_branches"


def measured(predictor, wanted):
    """Figures of a split, and the predictions."""
    measure = predictor.measure(wanted.unseen)
    found = list(predictor.predictions(wanted.examples, wanted.known, max_answers=3, measure=measure))
    return measure.figures(), found


def figures_again(folder, split="test", **which):
    kept = find(folder, site=None, **which)
    return measured(Predictor(kept), read_split(split, kept))[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [FROZEN, "method.pia.share=[1, 0.3]", "method.name=compacter"],
        ["method.name=lora", "method.aggregation=stack", "training.learning_rate=0.05"],
        ["method.name=lora", "method.aggregation=svd", "method.site_settings={slake: {r: 2}}"],
        ["method.name=adapterfusion"],
        ["method.name=feddat_houlsby"],
        ["method.name=full", "method.head=federated"],
        ["training.head=mlp", "training.precision=bfloat16", "training.last_layer=first_token"],
        ["schedule.solver=nsga2", "schedule.budget=1"],
    ],
    ids=" ".join,
)
def test_every_kept_model_reproduces_its_last_figures(sections, tmp_path, overrides):
    folder, metrics = trained(sections(*overrides), tmp_path)["slake"]
    assert figures_again(folder) == {name: metrics[name] for name in FIGURES}
    assert figures_again(folder, "validation")["overall"] == metrics["validation"]


@pytest.mark.slow
def test_the_frozen_branch_is_part_of_the_model(sections, tmp_path):
    """Without it, or with what the site keeps for the next round, the logits are others."""
    folder, _ = trained(sections(FROZEN, "training.learning_rate=0.05"), tmp_path)["slake"]
    kept = find(folder, site="slake")
    batch = next(iter(Predictor(kept).batches(read_split("test", kept).examples)))
    logits = []
    for changes in ({}, {"beside": {}}, {"trained": {}}):
        for name, value in changes.items():
            object.__setattr__(kept.state, name, value)
        with torch.no_grad():
            logits.append(Predictor(kept).model.answering.eval()(batch.inputs))
    assert not torch.allclose(logits[0], logits[1], atol=1e-4)
    assert not torch.allclose(logits[0], logits[2], atol=1e-4)


@pytest.mark.parametrize("kind", ["questions", "classes", "labels"])
def test_the_figures_of_a_table_are_those_of_the_run(of_tables, kind):
    folder, metrics = of_tables[kind]
    assert figures_again(folder) == {name: metrics[name] for name in FIGURES}
    kept = find(folder, site=None, round="1")
    assert measured(Predictor(kept), read_split("test", kept))[0]["overall"] == kept.record.rounds[0]["overall"]


def test_accuracy_is_the_share_of_right_predictions(of_tables):
    kept = find(of_tables["questions"][0], site=None)
    figures, found = measured(Predictor(kept), read_split("test", kept))
    assert sum(prediction.right for prediction in found) / len(found) == pytest.approx(figures["overall"])
    for prediction in found:
        probabilities = [scored.probability for scored in prediction.answers]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1)  # of all three answers


@pytest.mark.parametrize("unknown", [0, -1])
def test_a_measure_is_refused_where_an_answer_is_unknown(of_tables, unknown):
    kept = find(of_tables["questions"][0], site=None)
    predictor, examples = Predictor(kept), read_split("test", kept).examples
    added, known = [], [True] * len(examples)
    measure = SimpleNamespace(add=lambda answering, batch: added.append(batch))
    list(predictor.predictions(examples, known, max_answers=1, measure=measure))
    assert sum(len(batch.target) for batch in added) == len(examples)
    added.clear()
    known[unknown] = False
    found = list(predictor.predictions(examples, known, max_answers=1))
    assert [prediction.known for prediction in found] == known
    with pytest.raises(FedpeftError, match="a measure needs the answer of every example"):
        next(predictor.predictions(examples, known, max_answers=1, measure=measure))
    assert added == []


def test_labels_apply_from_their_thresholds_on(of_tables):
    kept = find(of_tables["labels"][0], site=None)
    predictor = Predictor(kept)
    assert len(kept.record.thresholds) == len(kept.record.answers) == 2
    for prediction in measured(predictor, read_split("test", kept))[1]:
        above = {s.text for s in prediction.answers if s.probability >= predictor.thresholds[s.text]}
        assert set(prediction.applies) == above


def test_another_models_tensors_are_refused(sections, tmp_path, of_tables):
    kept = find(of_tables["classes"][0], site=None)
    state = find(of_tables["labels"][0], site=None).state
    object.__setattr__(kept, "state", state)
    with pytest.raises(FedpeftError, match="do not fit this model"):
        Predictor(kept)


def test_a_site_predicts_on_the_device_of_its_site_policy(of_tables, small_policy, monkeypatch):
    asked, device_of = [], computing.device_of
    monkeypatch.setattr(computing, "device_of", lambda training: asked.append(training.device) or device_of(training))
    kept = find(of_tables["classes"][0], site=None)
    Predictor(replace(kept, policy=SitePolicy(**small_policy, device="cpu")))
    Predictor(kept)
    assert asked == ["cpu", "auto"]
