# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FedProx and server optimizers beside methods and schedules: equal to an independent form, and to FedAvg at 0."""

import pytest
import torch
from small_federations import FEDAVG, LAYERS, RUN, SITES, assert_same, learner_builder

from fedpeft.core.errors import FedpeftError
from fedpeft.federate import federate
from fedpeft.job.settings import CommonSettings
from fedpeft.site.fedprox import held_near
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.slow

MERGED = ("method.aggregation=pia", "method.pia.integration=weight_space")
BESIDE = ("method.aggregation=pia", "method.pia.integration=two_branches")


@pytest.fixture(scope="module")
def learners(sections, tmp_path_factory):
    return learner_builder(sections, tmp_path_factory)


class FedProxByLoss(Learner):
    """FedProx as it is published, with the square beside the loss of every step."""

    mu = 0.3

    def fit(self, optimizer, round):
        parameters = self.parameters() if self.method.federates_head else self.trainable.parameters()
        near = {key: parameter.detach().clone() for key, parameter in parameters.items()}

        def add(*_):
            trained = {key: parameter for key, parameter in parameters.items() if parameter.grad is not None}
            squares = sum((parameter - near[key]).square().sum() for key, parameter in trained.items())
            (self.mu / 2 * squares).backward()

        hook = optimizer.register_step_pre_hook(add)
        try:
            return super().fit(optimizer, round)
        finally:
            hook.remove()


HEADS = [(FEDAVG, "method.head=federated", f"method.name={name}") for name in ("houlsby", "classifier")]


@pytest.mark.parametrize("method", [(FEDAVG,), (FEDAVG, "method.name=lora"), LAYERS, *HEADS])
def test_fedprox_is_its_loss(learners, method):
    rounds = list(federate(learners(*method, "training.proximal_mu=0.3")))
    assert_same(rounds, list(federate(learners(*method, kind=FedProxByLoss))), rtol=0, atol=1e-7)
    plain = list(federate(learners(*method)))
    assert any(not torch.equal(rounds[-1].state[key], tensor) for key, tensor in plain[-1].state.items())


@pytest.mark.parametrize("method", [(FEDAVG,), MERGED, BESIDE], ids=["fedavg", "merged", "beside"])
def test_a_large_mu_leaves_the_global_adapter_where_it_is(learners, method):
    """Also where a site starts from another adapter: what it is held near is the global one, in its own order."""
    sgd = ("training.optimizer=sgd", "training.learning_rate=1e-2", "training.decay=none", "training.warmup=0")
    one = {}
    for mu in (0.0, 100.0):  # rate times mu is 1: each step starts from the global adapter
        learner = learners(*method, *sgd, f"training.proximal_mu={mu:g}", "method.pia.solver=identity")[SITES[0]]
        first = learner.train_round(1, {}).state
        received = {key: tensor + 0.05 for key, tensor in first.items()}
        learner.train_round(2, received)
        trained = learner.trainable.state()
        one[mu] = max((trained[key] - received[key]).abs().max().item() for key in received)
    assert one[100.0] < 0.02
    assert one[0.0] > (0 if method == (FEDAVG,) else 0.02)


@pytest.mark.parametrize("own", [f"schedule.joins={{{SITES[0]}: 2}}", "method.initialization=own"])
def test_a_site_is_not_held_near_initial_values_of_its_own(learners, own):
    sgd = ("training.optimizer=sgd", "training.learning_rate=0.05", "training.warmup=0", "method.aggregation=fedavg")
    first = {}
    for mu in (0.0, 15.0):
        rounds = list(federate(learners(*sgd, own, f"training.proximal_mu={mu:g}")))
        joined = next(one for one in rounds if SITES[0] in one.updates)
        first[mu] = joined.updates[SITES[0]].state
    assert all(torch.equal(tensor, first[15.0][key]) for key, tensor in first[0.0].items())


def test_a_step_without_a_gradient_is_left_alone():
    weights = {name: torch.nn.Parameter(torch.tensor([2.0])) for name in ("pulled", "frozen", "other")}
    optimizer = torch.optim.SGD(weights.values(), lr=1.0)
    for name in ("pulled", "other"):
        weights[name].grad = torch.zeros(1)
    with held_near(weights, optimizer, {"pulled": torch.zeros(1), "frozen": torch.zeros(1)}, 0.5):
        optimizer.step()
    optimizer.step()  # the gradient is still there, and adds what the first one did
    assert {name: weight.item() for name, weight in weights.items()} == {"pulled": 0.0, "frozen": 2.0, "other": 2.0}


@pytest.mark.parametrize("method", [(FEDAVG,), MERGED, (FEDAVG, "schedule.budget=1")], ids=["fedavg", "pia", "layers"])
@pytest.mark.parametrize("name", ["momentum", "yogi"])
def test_a_server_optimizer_goes_with_alignment_and_schedules(learners, method, name):
    plain = list(federate(learners(*method)))
    rounds = list(federate(learners(*method, f"method.server_optimizer={name}", "training.proximal_mu=0.01")))
    assert any(not torch.equal(rounds[-1].state[key], tensor) for key, tensor in plain[-1].state.items())
    if rounds[0].assignment:  # as with gradients that are None
        trained = {layer for round in rounds for layers in round.assignment.layers.values() for layer in layers}
        before = learners(*method)[SITES[0]].first_state()
        still = [key for key in before if torch.equal(rounds[-1].state[key], before[key])]
        assert all(f"layer.{layer}." not in key for layer in trained for key in still if "bias" not in key)


def test_momentum_without_memory_is_fedavg(learners):
    settings = ("method.server_optimizer=momentum", "method.server_momentum=0")
    assert_same(list(federate(learners(FEDAVG, *settings))), list(federate(learners(FEDAVG))), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (("method.aggregation=none",), "'none' makes no global adapter"),
        (("method.name=lora", "method.aggregation=stack"), "'stack' adds its factors to the frozen weights"),
    ],
)
def test_a_pull_towards_nothing_is_refused(sections, settings, reason):
    job = sections(*RUN)
    for setting in (*settings, "training.proximal_mu=0.1"):
        section, _, rest = setting.partition(".")
        name, _, value = rest.partition("=")
        job[section][name] = float(value) if name == "proximal_mu" else value
    with pytest.raises(FedpeftError, match=reason) as caught:
        CommonSettings.from_sections(job)
    assert caught.value.setting == "training.proximal_mu"
