# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""MOON: as a plain form of it has it, with PIA and with scheduled layers, from a site's disk, and refused without
features."""

import pytest
import torch
from peers import Moon
from small_federations import FEDAVG, LAYERS, SITES, assert_same, learner_builder

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.federate import federate
from fedpeft.job.settings import CommonSettings
from fedpeft.site.moon import contrast

pytestmark = pytest.mark.slow

MOON = "training.moon_mu=1"
SERVER_PIA = ("method.aggregation=pia", "method.pia.client=false")
MERGED = ("method.aggregation=pia", "method.pia.integration=weight_space")
HALF = ("method.aggregation=pia", "method.pia.integration=frozen_half")


@pytest.fixture(scope="module")
def learners(sections, tmp_path_factory):
    return learner_builder(sections, tmp_path_factory)


@pytest.mark.parametrize("method", [(FEDAVG,), (FEDAVG, "method.name=lora"), LAYERS, SERVER_PIA])
def test_numbers_are_those_of_a_plain_form(learners, method):
    rounds = list(federate(learners(*method, MOON)))
    others = list(federate(learners(*method, kind=Moon)))
    assert_same(rounds, others, rtol=0, atol=1e-6)
    for one, other in zip(rounds, others, strict=True):
        for site in SITES:
            losses = [result.updates[site].metrics["loss"] for result in (one, other)]
            assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    plain = list(federate(learners(*method)))
    assert_same(rounds[:1], plain[:1])  # no site has a model before its first round
    assert any(not torch.equal(rounds[-1].state[key], tensor) for key, tensor in plain[-1].state.items())


def test_other_numbers_and_parts_of_a_batch(learners):
    kind = type("Moon", (Moon,), {"mu": 5.0, "tau": 0.1})
    settings = (FEDAVG, "training.moon_mu=5", "training.moon_temperature=0.1")
    others = list(federate(learners(FEDAVG, kind=kind)))
    assert_same(list(federate(learners(*settings))), others, rtol=0, atol=1e-6)
    assert_same(list(federate(learners(*settings, "training.micro_batch=3"))), others, rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", [MERGED, HALF, LAYERS], ids=["pia", "half", "layers"])
def test_a_site_goes_on_from_its_disk(learners, tmp_path, method):
    site, ends = SITES[0], []
    layers = [0] if method == LAYERS else None
    one = learners(*method, MOON)[site]
    for fresh in (False, True):
        received, folder = {}, tmp_path / str(fresh)
        for number in (1, 2, 3):
            if number == 1 or fresh:
                one = learners(*method, MOON, folder=folder)[site]
            update = one.train_round(number, received, layers)
            received = {**one.first_state(), **{key: tensor + 0.01 for key, tensor in update.state.items()}}
        ends.append(update)
    torch.testing.assert_close(ends[0].state, ends[1].state, rtol=0, atol=0)
    assert ends[0].metrics == ends[1].metrics
    assert "step" not in vars(one.trainable)


def test_the_term_is_log_2_where_both_models_are_one():
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    other = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    assert contrast(z, other, other, 0.5).item() == pytest.approx(torch.tensor(2.0).log().item())
    assert contrast(z, z, -z, 0.5) < contrast(z, z, other, 0.5) < contrast(z, other, z, 0.5)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ({"aggregation": "none"}, "'none' makes no global adapter"),
        ({"name": "lora", "aggregation": "stack"}, "'stack' adds its factors to the frozen weights"),
        (
            {"aggregation": "pia", "pia": {"integration": "two_branches"}},
            "set method.pia.integration to 'weight_space'",
        ),
        ({"name": "feddat_houlsby"}, "computes with several adapters: use 'houlsby'"),
        ({"name": "classifier", "head": "federated"}, "leaves the features as they are"),
    ],
)
def test_what_cannot_be_compared_is_refused(method, reason):
    sections = {"method": method, "training": {"rounds": 2, "moon_mu": 1.0}}
    with pytest.raises(FedpeftError, match=reason) as caught:
        CommonSettings.from_sections(sections)
    assert caught.value.setting == "training.moon_mu"


@pytest.mark.parametrize("answering", ["generation", "ranking"])
def test_answers_without_a_head_have_no_features(answering):
    with pytest.raises(FedpeftError, match="no head reads features that could be compared") as caught:
        TrainingSettings(rounds=1, answering=answering, moon_mu=1.0)
    assert caught.value.setting == "moon_mu"


def test_features_that_are_kept_are_one_models(learners):
    with pytest.raises(FedpeftError, match="moon_mu computes a batch with three adapters in turn"):
        learners(*LAYERS, MOON, "training.features_mib=8")
