# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FedProx, Ditto and FedALA: at the ends of their one number they are FedAvg, or training alone."""

from types import SimpleNamespace

import pytest
import torch

from fedpeft.federate import federate
from fedpeft.site.learner import Learner

SITES = ("slake", "vqa-rad")
RUN = (
    "method.aggregation=fedavg",
    f"federation.sites=[{','.join(SITES)}]",
    "data.train_size=24",
    "training.batch_size=4",
    "training.rounds=3",
    "training.local_epochs=1",
    "training.learning_rate=5e-3",
)


@pytest.fixture(scope="module")
def learners(sections, tmp_path_factory):
    """Function from a class of learners and settings to one of each site."""

    def build(kind, *settings):
        folder = tmp_path_factory.mktemp(kind.__name__)
        job = sections(*RUN, *settings)
        return {site: kind.from_sections(job, site=site, folder=folder / site) for site in SITES}

    return build


@pytest.fixture(scope="module")
def fedavg(learners):
    """The rounds of FedAvg."""
    return list(federate(learners(Learner)))


@pytest.fixture
def peers(benchmark):
    return benchmark("peers")


def with_strength(kind, strength):
    """A class of learners with another strength."""
    return type(kind.__name__, (kind,), {"strength": strength})


def assert_same_global_adapters(rounds, others, **tolerance):
    assert len(rounds) == len(others)
    for one, other in zip(rounds, others, strict=True):
        torch.testing.assert_close(one.state, other.state, **(tolerance or {"rtol": 0, "atol": 0}))


def measured(result, site):
    return {
        key: value for key, value in result.updates[site].metrics.items() if key not in ("validation", "below_constant")
    }


def test_every_step_in_the_block_is_pulled_and_none_after_it(benchmark):
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    learner = SimpleNamespace(trainable=SimpleNamespace(parameters=lambda: {"w": weight}))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.zeros(1)
    with benchmark("peers").held_near(learner, optimizer, {"w": torch.zeros(1), "other": torch.zeros(1)}, 0.5):
        optimizer.step()
    assert weight.item() == 1.0  # 2 - 0.5 (2 - 0)
    weight.grad = torch.zeros(1)
    optimizer.step()
    assert weight.item() == 1.0


def test_fedprox_without_a_pull_is_fedavg(peers, learners, fedavg):
    rounds = list(federate(learners(with_strength(peers.FedProx, 0.0))))
    assert_same_global_adapters(rounds, fedavg)
    for result, expected in zip(rounds, fedavg, strict=True):
        assert all(result.updates[site].metrics == expected.updates[site].metrics for site in SITES)


def test_fedprox_trains_less_far_from_the_global_adapter(peers, learners):
    sgd = ("training.optimizer=sgd", "training.learning_rate=1e-2", "training.decay=none", "training.warmup=0")

    def distance(strength):
        learner = learners(with_strength(peers.FedProx, strength), *sgd)[SITES[0]]
        before = learner.trainable.state()
        sent = learner.train_round(1, {}).state
        return max((sent[key] - before[key]).abs().max().item() for key in sent)

    free, held = distance(0.0), distance(100.0)  # rate times strength is 1: each step starts from the global adapter
    assert 0 < held < free / 2


def test_dittos_global_adapter_is_fedavgs(peers, learners, fedavg):
    rounds = list(federate(learners(peers.Ditto)))
    assert_same_global_adapters(rounds, fedavg)
    assert any(measured(rounds[-1], site) != measured(fedavg[-1], site) for site in SITES)


@pytest.mark.parametrize("kept", ["keep", "reset"])
def test_dittos_own_model_without_a_pull_is_trained_alone(peers, learners, kept):
    settings = f"training.optimizer_state={kept}"
    rounds = federate(learners(with_strength(peers.Ditto, 0.0), settings))
    alone = federate(learners(Learner, settings, "method.aggregation=none"))
    for result, expected in zip(rounds, alone, strict=True):
        assert all(measured(result, site) == measured(expected, site) for site in SITES)


@pytest.mark.parametrize(("strength", "stays"), [(1e6, True), (0.0, False)])
def test_dittos_own_model_is_drawn_to_the_global_adapter(peers, learners, strength, stays):
    sgd = ("training.optimizer=sgd", "training.learning_rate=1e-6", "training.decay=none", "training.warmup=0")
    learner = learners(with_strength(peers.Ditto, strength), *sgd)[SITES[0]]
    first = learner.train_round(1, {}).state
    received = {key: tensor + 0.1 for key, tensor in first.items()}
    learner.train_round(2, received)
    own, _, _ = learner._personal
    distance = max((own[key] - received[key]).abs().max().item() for key in received)
    assert distance < 1e-5 if stays else distance > 0.09


def test_fedala_whose_weights_stay_1_starts_from_the_global_adapter(peers, learners, fedavg, monkeypatch):
    monkeypatch.setattr(peers.FedALA, "rate", 0.0)
    built = learners(peers.FedALA)
    started, integrate = [], peers.FedALA.integrate

    def recorded(learner, number, own, received, agreement=None):
        finish = integrate(learner, number, own, received, agreement)
        started.append((learner.trainable.state(), received or learner.values.first))
        return finish

    monkeypatch.setattr(peers.FedALA, "integrate", recorded)
    rounds = list(federate(built))
    assert len(started) == len(SITES) * len(rounds)
    for state, received in started:
        torch.testing.assert_close(state, received, rtol=0, atol=1e-7)  # own + (global - own) is rounded
    assert all(bool((weights == 1).all()) for one in built.values() for weights in one._weights.values())
    assert_same_global_adapters(rounds, fedavg, rtol=0, atol=1e-4)


def test_fedalas_weights_leave_1_and_stay_between_0_and_1(peers, learners, monkeypatch):
    monkeypatch.setattr(peers.FedALA, "rate", 1e5)
    built = learners(peers.FedALA, "training.rounds=2")
    list(federate(built))
    for learner in built.values():
        weights = torch.cat([tensor.flatten() for tensor in learner._weights.values()])
        assert weights.min() == 0
        assert weights.max() == 1
        assert 0 < (weights < 1).float().mean() < 1
