# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the site policy changes in training: no step over a few samples, no more parameters than it allows."""

import pytest
import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build
from fedpeft.job.site_policy import SitePolicy
from fedpeft.methods.backbone_part import PartTuning
from fedpeft.methods.slot_tuning import SlotTuning
from fedpeft.site.learner import Learner


@pytest.fixture
def learner(sections, small_policy, tmp_path):
    """Function: a learner of 18 samples; `own` replaces lines of the site policy, None: there is no file."""

    def made(*overrides, own=None):
        policy = None if own is None else build(SitePolicy, {**small_policy, **own}, section="site")
        chosen = sections("data.train_size=18", "method.pia.support=weights", *overrides)
        return Learner.from_sections(chosen, site="slake", folder=tmp_path / "state", policy=policy)

    return made


def batch_sizes(learner, monkeypatch):
    """Samples in each step of a round."""
    sizes, answering = [], learner.answering
    monkeypatch.setattr(learner._evaluation, "measure_round", lambda: ({}, None))
    answering.register_forward_pre_hook(lambda module, arguments: sizes.append(len(arguments[0]["input_ids"])))
    learner.train_round(1, {})
    return sizes


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(17, [18]), (15, [18]), (14, [14, 4]), (8, [8, 10]), (6, [6, 6, 6]), (64, [18])]
)
def test_no_step_is_over_fewer_samples_than_the_least_batch(learner, monkeypatch, batch_size, sizes):
    own = learner(f"training.batch_size={batch_size}", "training.local_epochs=1", own={"min_batch_size": 4})
    assert batch_sizes(own, monkeypatch) == sizes


def test_without_a_sites_file_the_job_decides_on_the_last_step(learner, monkeypatch):
    assert batch_sizes(learner("training.batch_size=17", "training.local_epochs=1"), monkeypatch) == [17, 1]


@pytest.mark.parametrize(("own", "size"), [({"seed": 3, "min_score_samples": 8}, 16), (None, 17)])
def test_a_job_chooses_the_samples_whose_scores_leave_only_where_there_is_no_sites_file(learner, own, size):
    scheduled = ("schedule.solver=exact", "schedule.budget=1", "method.aggregation=fedavg", "schedule.score_samples=17")
    drawn = []
    for seed in (0, 1):
        _, batches = learner(*scheduled, f"training.seed={seed}", own=own)._score_samples(1)
        drawn.append(torch.cat([batch.inputs["pixel_values"] for batch in batches]))
    assert [len(one) for one in drawn] == [size, size]
    assert torch.equal(*drawn) == bool(own)


@pytest.mark.parametrize(("own", "sizes"), [({"seed": 3}, (8, 8)), (None, (10, 11))])
def test_a_job_chooses_the_samples_whose_loss_leaves_only_where_there_is_no_sites_file(learner, own, sizes):
    chosen = [("method.probe_samples=10", "training.seed=0"), ("method.probe_samples=11", "training.seed=1")]
    samples = []
    for settings in chosen:
        made = learner(*settings, own=own)
        (batch,) = made.batches.lasting_sample(made.method.probe_samples)
        samples.append(batch.inputs["pixel_values"])
    assert tuple(len(one) for one in samples) == sizes
    assert torch.equal(*samples) == (own is not None)


@pytest.mark.parametrize(("own", "size"), [({"min_batch_size": 4}, 18), (None, 17)])
def test_the_memory_of_layers_is_measured_with_the_largest_step(learner, monkeypatch, own, size):
    sizes = []
    measure = lambda model, parameters, batch, *_: sizes.append(len(batch.target)) or 1  # noqa: E731
    monkeypatch.setattr("fedpeft.site.learner.measure_budget", measure)
    made = learner("training.batch_size=17", "method.aggregation=fedavg", "schedule.solver=exact", own=own)
    assert made.layer_budget() == 1
    assert sizes == [size]


@pytest.mark.slow
def test_the_learning_rate_falls_over_the_steps_that_are_made(learner, monkeypatch):
    calls = set()
    monkeypatch.setattr(
        "fedpeft.site.learner.rate_factor",
        lambda step, *, total_steps, warmup, decays: calls.add((step, total_steps)) or 1.0,
    )
    own = learner("training.batch_size=8", "training.local_epochs=2", own={"min_batch_size": 4})
    for round in (1, 2):
        own.train_round(round, {})
    assert sorted(calls) == [(step, 8) for step in range(8)], "two rounds, two passes, two steps"


FEDAVG = "method.aggregation=fedavg"
TOO_MANY = [
    ([], {"max_trained_parameters": 100}, "method.settings"),
    (
        [FEDAVG, "method.name=lora", "method.settings.lora.r=4096"],
        {"max_trained_parameters": 10**5},
        "method.settings",
    ),
    ([FEDAVG, "method.name=full"], {"max_trained_parameters": 100, "methods": ["full"]}, "method.name"),
]


@pytest.mark.parametrize(("overrides", "own", "setting"), TOO_MANY)
def test_too_many_parameters_are_refused_before_they_take_memory(learner, monkeypatch, overrides, own, setting):
    devices = []

    for kind in (SlotTuning, PartTuning):
        prepare = kind.prepare

        def watched(self, backbone, settings, *, seed, prepare=prepare):
            devices.extend({parameter.device.type for parameter in backbone.parameters()})
            return prepare(self, backbone, settings, seed=seed)

        monkeypatch.setattr(kind, "prepare", watched)
    with pytest.raises(FedpeftError, match="max_trained_parameters") as refused:
        learner(*overrides, own=own)
    assert (refused.value.setting, refused.value.code) == (setting, "setting-not-allowed")
    assert devices == ["meta"]


@pytest.mark.slow
def test_parameters_are_counted_before_as_they_are_afterwards(learner, kind):
    chosen = [FEDAVG, f"method.name={kind}"]
    count = sum(parameter.numel() for parameter in learner(*chosen).trainable.parameters().values())
    assert learner(*chosen, own={"max_trained_parameters": count})
    with pytest.raises(FedpeftError, match=f"asks for {count:,} trained parameters"):
        learner(*chosen, own={"max_trained_parameters": count - 1})


@pytest.mark.slow
def test_what_never_leaves_a_site_counts_as_trained(learner):
    chosen = [FEDAVG, "method.name=feddat_houlsby"]
    trainable = learner(*chosen).trainable
    count = sum(tensor.numel() for state in (trainable.state(), trainable.private_state()) for tensor in state.values())
    assert learner(*chosen, own={"max_trained_parameters": count})
    with pytest.raises(FedpeftError, match=f"asks for {count:,} trained parameters"):
        learner(*chosen, own={"max_trained_parameters": count - 1})


def test_a_score_of_all_logits_is_refused_where_its_rows_are_too_many(learner):
    scored = ["schedule.solver=own", "schedule.budget=1", "schedule.score_settings.target=logits"]
    assert learner(FEDAVG, *scored)
    with pytest.raises(FedpeftError, match="max_score_rows is 16") as refused:
        learner(FEDAVG, *scored, own={"max_score_rows": 16})
    assert (refused.value.setting, refused.value.code) == ("schedule.score_settings", "setting-not-allowed")
    assert learner(FEDAVG, *scored[:2], own={"max_score_rows": 16})
    directions = [*scored, "schedule.score_settings.directions=2"]
    assert learner(FEDAVG, *directions, own={"max_score_rows": 32})
    with pytest.raises(FedpeftError, match="32 rows"):
        learner(FEDAVG, *directions, own={"max_score_rows": 31})


def test_a_score_of_ranked_answers_counts_the_bytes_of_the_longest_and_not_the_answers(learner):
    scored = ["schedule.solver=own", "schedule.budget=1", "schedule.score_settings.target=logits"]
    ranked = [FEDAVG, *scored, "backbone.name=tiny-albef-decoder", "training.answering=ranking"]
    longest = max(len(example.answer.encode()) for example in learner(FEDAVG).data.train) + 2
    outputs = 1 << (longest - 1).bit_length()  # the next power of two: a refusal does not give the length
    with pytest.raises(FedpeftError, match=f"asks for {16 * outputs} rows of 16 samples and {outputs} outputs"):
        learner(*ranked, own={"max_score_rows": 16 * outputs - 1})
