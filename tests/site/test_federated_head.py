# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A federated head: one answer space for all sites, from no site's data, and the head travels with the adapter."""

import math
import re

import pytest
import torch
from counted import counted
from safetensors.torch import load_file
from small_federations import learners_of

from fedpeft import backbones
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import HEAD
from fedpeft.core.states import equal
from fedpeft.data import registry
from fedpeft.data.answer_space import UNLISTED, keep_listed_answers, shared_answers, vocabulary_of
from fedpeft.data.remarks import remarks
from fedpeft.data.settings import DataSettings
from fedpeft.federate import federate
from fedpeft.job.catalog import entry
from fedpeft.methods.settings import MethodSettings
from fedpeft.server.handshake import agree
from fedpeft.server.job_run import export_head
from fedpeft.site import site_state
from fedpeft.site.learner import Learner

SITES = ("slake", "vqa-rad")
FEDERATED = "method.head=federated"


def size(state):
    return sum(tensor.numel() for tensor in state.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        ["method.name=classifier"],
        ["method.name=sba"],
        ["method.name=sba_vpt", "method.settings={sba_vpt: {vpt: {tokens: 3}}}"],
        ["method.name=lora", "method.aggregation=svd"],
        ["method.name=lora", "method.aggregation=stack"],
        ["method.name=dvpt", "method.aggregation=svd", "schedule.solver=own", "schedule.budget=1"],
        ["method.name=lora_dvpt", "method.aggregation=svd"],
        ["method.name=houlsby", "method.aggregation=pia"],
        ["method.name=houlsby", "method.pia.aligned_at=site", "method.secure_sum=true"],
        ["method.name=pfeiffer", "schedule.solver=own", "schedule.budget=1", "schedule.site_budgets={slake: 0}"],
    ],
    ids=" ".join,
)
def test_every_method_sends_the_head_beside_what_it_trains(sections, tmp_path, chosen):
    made = learners_of(sections(FEDERATED, *chosen, "training.rounds=3"), tmp_path)
    learner = made["slake"]
    head = {f"{HEAD}{name}" for name in learner.head.state_dict()}
    first = learner.first_state()
    for result in federate(made):
        for update in result.updates.values():
            assert {key for key in update.state if key.startswith(HEAD)} == head
        assert result.state.keys() == first.keys()
    classes = len(learner.vocabulary)
    assert size({key: first[key] for key in head}) == classes * (learner.backbone.hidden_size + 1)


@pytest.mark.slow
def test_sites_go_on_from_the_mean_of_the_heads(sections, tmp_path):
    made = learners_of(sections(FEDERATED, "method.name=classifier"), tmp_path)
    started = [learner.head.state_dict() for learner in made.values()]
    assert equal(*started)
    first, second = federate(made)
    counts = [update.samples for update in first.updates.values()]
    for key, tensor in first.state.items():
        sent = [update.state[key] for update in first.updates.values()]
        mean = sum(count * one for count, one in zip(counts, sent, strict=True)) / sum(counts)
        torch.testing.assert_close(tensor, mean)
    kept = site_state.load_before(tmp_path / "slake", 3)
    assert equal({f"{HEAD}{name}": tensor for name, tensor in kept.head.items()}, second.updates["slake"].state)


@pytest.mark.slow
def test_a_private_head_is_what_it_was(sections, tmp_path):
    made = learners_of(sections("method.aggregation=fedavg"), tmp_path)
    assert len({len(learner.vocabulary) for learner in made.values()}) == 2
    assert not any(key.startswith(HEAD) for result in federate(made) for key in result.state)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "vilt"])
def test_the_papers_counts_with_seven_classes(name):
    """What a site of ViT-B/16 sends in a round, its head with it; ViLT-B's layers are the same."""
    backbone = backbones.skeleton(name)
    head = 7 * (backbone.hidden_size + 1)
    papers = {
        "attention": 28_353_799,
        "sba": 2_367_751,
        "vpt": 466_183,
        "lora": 152_839,
        "lora_vpt": 613_639,
        "lora_dvpt": 231_367,
        "attention_vpt": 28_814_599,
        "sba_vpt": 2_828_551,
        "classifier": 5_383,
    }
    assert {entry.name: entry.exchanged + head for entry in counted(name, papers)} == papers


@pytest.mark.slow
def test_of_the_whole_backbone_all_travels():
    backbone = backbones.skeleton("vit")
    (full,) = counted("vit", ["full"])
    assert full.exchanged == sum(parameter.numel() for parameter in backbone.parameters()) == 85_798_656


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "sba", "vpt", "lora", "lora_dvpt", "sba_vpt", "classifier"])
def test_the_messages_of_a_run_hold_as_many_numbers_as_the_list_says(sections, tmp_path, name):
    made = learners_of(sections(FEDERATED, f"method.name={name}"), tmp_path)
    learner = made["slake"]
    plain = Learner.from_sections(sections("method.name=classifier"), site="slake", folder=tmp_path / "plain")
    listed = entry(plain.backbone, name).exchanged
    head = sum(math.prod(tensor.shape) for tensor in learner.head.state_dict().values())
    for result in federate(made):
        assert {size(update.state) for update in result.updates.values()} == {listed + head}


ANSWERS = ["yes", "No", " left  lung "]
REFUSED = [
    ({"dataset": "slake"}, {}, "dataset='slake' declares no answers, .*: set data.answers, or leave method.head out"),
    ({"dataset": "phantom"}, {"b": {"dataset": "slake"}}, "sites have the data sets phantom, slake"),
    ({"dataset": "phantom"}, {"b": {"answers": ["yes"]}}, "answers is set for single sites"),
    ({"dataset": "slake", "answers": ANSWERS}, {"b": {"answers": ANSWERS}}, "answers is set for single sites"),
]


@pytest.mark.parametrize(("own", "of_sites", "sentence"), REFUSED)
def test_a_job_that_gives_sites_no_common_answers_is_refused(own, of_sites, sentence):
    with pytest.raises(FedpeftError, match=sentence) as refused:
        shared_answers(DataSettings(**own), of_sites, federated=True)
    assert refused.value.setting == "data.answers"


def test_the_order_of_the_classes_is_that_of_the_names_at_all_sites():
    forth, back = (
        shared_answers(DataSettings(dataset="slake", answers=answers), {}, federated=True)
        for answers in (ANSWERS, ANSWERS[::-1])
    )
    assert forth == back == ("left lung", "no", "yes")
    with pytest.raises(FedpeftError, match=r"leave it out, or set method\.head to 'federated'"):
        shared_answers(DataSettings(dataset="slake", answers=ANSWERS), {}, federated=False)


@pytest.mark.parametrize("answers", [["yes", "YES"], [""], [7], ["a"] * 2])
def test_a_list_of_answers_that_is_none_is_refused(answers):
    with pytest.raises(FedpeftError, match="answers"):
        DataSettings(answers=answers)


def test_training_rows_with_other_answers_are_left_out_and_such_test_questions_stay():
    data = registry.load(DataSettings(train_size=30, validation_size=3, test_size=30))
    own = {example.answer for example in data.train}
    assert keep_listed_answers(data, own) is data
    assert vocabulary_of(data, tuple(sorted(own))).answers == tuple(sorted(own))
    listed = tuple(sorted(own - {"yes"}))
    fewer = keep_listed_answers(data, listed)
    assert fewer.train == tuple(example for example in data.train if example.answer != "yes")
    assert (fewer.validation, fewer.test) == (data.validation, data.test)
    assert fewer.left_out == ((UNLISTED, len(data.train) - len(fewer.train)),)
    assert fewer.unseen(vocabulary_of(fewer, listed)) >= sum(example.answer == "yes" for example in data.test) > 0
    assert not any("'yes'" in remark for remark in remarks(fewer))
    with pytest.raises(FedpeftError, match=f"empty train split.*; 30 left out: {re.escape(UNLISTED)}"):
        keep_listed_answers(data, ["of nobody"])


def test_a_learner_trains_without_the_rows_that_the_head_does_not_know(sections, tmp_path):
    listed = sections(FEDERATED, "method.name=classifier", "data.answers=['yes', 'no']")
    learner = Learner.from_sections(listed, site="slake", folder=tmp_path)
    assert {example.answer for example in learner.data.train} == {"yes", "no"}
    assert learner.unanswerable == sum(example.answer not in ("yes", "no") for example in learner.data.test) > 0
    update = learner.train_round(1, {})
    assert update.samples == len(learner.data.train)
    assert update.metrics["overall"] <= 1 - learner.unanswerable / len(learner.data.test)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"aggregation": "none"}, "aggregation='none' sends nothing"),
        ({"name": "classifier", "aggregation": "pia"}, "aligns neurons, which name='classifier' does not declare"),
        ({"head": "shared"}, "head is 'shared', allowed are private, federated"),
    ],
)
def test_heads_that_cannot_be_averaged_are_refused(values, sentence):
    with pytest.raises(FedpeftError, match=sentence):
        MethodSettings(**{"head": "federated", **values})


def test_the_server_refuses_a_head_that_the_job_does_not_federate():
    from harness import SCHEMA, introduction

    with_head = introduction("b", schema={**SCHEMA, "head.0.weight": [2, 3]})
    for head, both in (("private", {"a": introduction("a"), "b": with_head}), ("federated", {"b": introduction("a")})):
        able, problems = agree(both, version=with_head.version, method=MethodSettings(head=head))
        assert "b" not in able
        assert "a head, and the job's method.head is" in problems["b"]


def test_sites_with_different_numbers_of_answers_are_named():
    from harness import SCHEMA, introduction

    sites = {
        site: introduction(site, classes=classes, schema={**SCHEMA, "head.0.weight": [classes, 3]})
        for site, classes in (("a", 2), ("b", 2), ("c", 4))
    }
    able, problems = agree(sites, version=sites["a"].version, method=MethodSettings(head="federated"))
    assert set(able) == {"a", "b"}
    assert problems["c"] == (
        "site c has 4 answers and site a 2, and a federated head needs the same at all sites: set data.answers."
    )


def test_the_head_is_exported_under_its_own_names(tmp_path):
    export_head(tmp_path / "head.safetensors", {"layer.0.output.up.weight": torch.ones(1)})
    assert not (tmp_path / "head.safetensors").exists()
    export_head(tmp_path / "head.safetensors", {"head.0.weight": torch.ones(2, 3), "head.0.bias": torch.ones(2)})
    assert (tmp_path / "head.safetensors").stat().st_mode & 0o077 == 0  # as all that the server keeps
    torch.nn.Sequential(torch.nn.Linear(3, 2)).load_state_dict(load_file(tmp_path / "head.safetensors"))
