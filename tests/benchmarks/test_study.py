# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The study's runs, and what the peers of FedPIA compute."""

import math

import pytest
import torch

from fedpeft.federate import federate

LIVELY = ("method.initialization=own", "training.learning_rate=0.1", "method.aggregation=fedavg")


def last(kind, sections, folder):
    learners = {site: kind.from_sections(sections, site=site, folder=folder / site) for site in ("slake", "vqa-rad")}
    return list(federate(learners))[-1]


def test_every_method_of_the_study_is_known(benchmark):
    study, learning = benchmark("study"), benchmark("learning")
    chosen = list(study.runs(study.SEEDS))
    assert {run.method for run in chosen} <= set(learning.KNOWN)
    assert len(chosen) == len(set(chosen))


def test_an_interval_is_students(benchmark):
    mean, half = benchmark("study").interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.303 / math.sqrt(3), rel=1e-3))
    assert benchmark("study").interval([1.0]) == (1.0, math.inf)


@pytest.mark.parametrize(("kind", "attribute"), [("FedProx", "strength"), ("Ditto", "strength")])
def test_held_by_nothing_what_is_sent_is_fedavgs_to_the_bit(
    benchmark, sections, tmp_path, monkeypatch, kind, attribute
):
    peers = benchmark("peers")
    monkeypatch.setattr(getattr(peers, kind), attribute, 0.0)
    from fedpeft.client.learner import Learner

    chosen = sections(*LIVELY)
    mine = last(getattr(peers, kind), chosen, tmp_path / "peer").state
    theirs = last(Learner, chosen, tmp_path / "fedavg").state
    assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


def test_fedprox_stays_nearer_to_where_it_began(benchmark, sections, tmp_path, monkeypatch):
    peers = benchmark("peers")
    distances = []
    for strength in (0.0, 10.0):
        monkeypatch.setattr(peers.FedProx, "strength", strength)
        chosen = sections("training.learning_rate=0.01", "training.rounds=1", "training.local_epochs=4")
        learner = peers.FedProx.from_sections(chosen, site="slake", folder=tmp_path / str(strength))
        start = learner.trainable.state()
        trained = learner.train_round(1, {}).state
        distances.append(sum(float((trained[key] - start[key]).square().sum()) for key in start))
    assert distances[1] < distances[0]


def test_fedala_takes_shares_between_none_and_all(benchmark, sections, tmp_path):
    peers = benchmark("peers")
    chosen = sections(*LIVELY)
    learners = {
        site: peers.FedALA.from_sections(chosen, site=site, folder=tmp_path / site) for site in ("slake", "vqa-rad")
    }
    list(federate(learners))
    weights = torch.cat([tensor.flatten() for tensor in learners["slake"]._weights.values()])
    assert 0 <= float(weights.min()) < 1
    assert float(weights.max()) <= 1


def test_ditto_measures_its_own_model(benchmark, sections, tmp_path):
    peers = benchmark("peers")
    result = last(peers.Ditto, sections(*LIVELY), tmp_path)
    assert all(update.metrics["overall"] is not None for update in result.updates.values())
