# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD: as the paper has it with a server, from a site's disk, with PIA at the server and scheduled layers, and
refused where nothing global can be compared."""

from typing import ClassVar

import pytest
import torch
from small_federations import FEDAVG, LAYERS, SITES, assert_same, learner_builder

from fedpeft.core.errors import FedpeftError
from fedpeft.federate import federate
from fedpeft.job.settings import CommonSettings
from fedpeft.site.learner import Learner
from fedpeft.site.scaffold import ControlVariates

pytestmark = pytest.mark.slow

SCAFFOLD = "training.scaffold=true"
SGD = ("training.optimizer=sgd", "training.learning_rate=0.5", "training.head_learning_rate=0.1")
SERVER_PIA = ("method.aggregation=pia", "method.pia.client=false")
HEAD = ("method.head=federated",)


class Published(Learner):
    """Algorithm 1 with option II: gradients are corrected before a step, and the server has the mean of all c_k."""

    server: ClassVar[dict] = {}
    _own: dict | None = None

    def fit(self, optimizer, round):
        parameters = {key: parameter for key, parameter in self.parameters().items() if self._shared(key)}
        zeros = {key: torch.zeros_like(parameter) for key, parameter in parameters.items()}
        own, c = self._own or zeros, self._mean(round, zeros)
        x = {key: parameter.detach().clone() for key, parameter in parameters.items()}
        rates = dict.fromkeys((True, False), 0.0)

        def correct(*_):
            for group in optimizer.param_groups:
                for key, parameter in zip(group["names"], group["params"], strict=True):
                    if key in parameters and parameter.grad is not None:
                        parameter.grad += c[key] - own[key]
            for head in rates:
                rates[head] += next(
                    g["lr"] for g in optimizer.param_groups if g["names"][0].startswith("head.") == head
                )

        hook = optimizer.register_step_pre_hook(correct)
        losses = super().fit(optimizer, round)
        hook.remove()
        self._own = {
            key: own[key] - c[key] + (x[key] - parameter.detach()) / rates[key.startswith("head.")]
            for key, parameter in parameters.items()
        }
        self.server.setdefault(round, {})[self.site] = self._own
        return losses

    def _shared(self, key):
        return self.method.federates_head or not key.startswith("head.")

    def _mean(self, round, zeros):
        sites = self.server.get(round - 1)
        return {key: sum(own[key] for own in sites.values()) / len(sites) for key in zeros} if sites else zeros


@pytest.fixture(scope="module")
def learners(sections, tmp_path_factory):
    return learner_builder(sections, tmp_path_factory)


@pytest.mark.parametrize("method", [(), ("method.name=lora",), HEAD, ("training.local_epochs=2",)])
def test_numbers_are_those_of_the_paper_where_all_sites_take_as_many_steps(learners, method, monkeypatch):
    settings = (FEDAVG, *SGD, "training.weight_decay=0", *method)
    monkeypatch.setattr(Published, "server", {})
    rounds = list(federate(learners(*settings, SCAFFOLD)))
    published = list(federate(learners(*settings, kind=Published)))
    plain = list(federate(learners(*settings)))
    assert_same(rounds[:1], plain[:1])  # nothing is known before the first round
    for one, other, without in zip(rounds, published, plain, strict=True):
        for site in SITES:
            mine, theirs, uncorrected = (result.updates[site].state for result in (one, other, without))
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
            apart = max((mine[key] - uncorrected[key]).abs().max() for key in mine)
            assert apart > 2e-5 or one.round == 1


@pytest.mark.parametrize("method", [(FEDAVG,), SERVER_PIA, LAYERS])
def test_a_run_goes_on_from_the_sites_disks(learners, method, tmp_path):
    settings = (*method, SCAFFOLD)
    rounds = list(federate(learners(*settings)))
    first, *_ = federate(learners(*settings, folder=tmp_path))
    again = learners(*settings, folder=tmp_path)
    layers = rounds[1].assignment.layers if rounds[1].assignment else dict.fromkeys(SITES)
    for site in SITES:
        update = again[site].train_round(2, first.state, layers[site])
        torch.testing.assert_close(update.state, rounds[1].updates[site].state, rtol=0, atol=0)
    plain = list(federate(learners(*method)))
    assert any(not torch.equal(rounds[-1].state[key], tensor) for key, tensor in plain[-1].state.items())


def test_the_correction_takes_off_the_own_steps_and_adds_those_of_all():
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    idle = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([{"params": [weight, idle], "names": ["a", "b"]}], lr=0.5)

    def trained(near, kept, rounds, gradient):
        control = ControlVariates(near, kept, rounds=rounds)
        with torch.no_grad():
            weight.copy_(near["a"])
        with control.correcting({"a": weight, "b": idle}, optimizer):
            for _ in range(2):
                weight.grad = torch.tensor([gradient])
                optimizer.step()
        return control.kept

    near = {"a": torch.tensor([1.0]), "b": torch.tensor([1.0])}
    kept = trained(near, {}, 1, 3.0)  # S = 1; the site went from 1 to -2: c_k = 3
    assert (weight.item(), kept["own/a"].item(), idle.item()) == (-2.0, 3.0, 1.0)
    later = {"a": torch.tensor([-1.0]), "b": torch.tensor([1.0])}
    kept = trained(later, kept, 2, 3.0)  # all went from 1 to -1 in two rounds: c = 1, each step takes 3 - 3 + 1
    assert (weight.item(), kept["own/a"].item()) == (-2.0, 3.0)


@pytest.mark.parametrize(
    ("method", "training", "reason"),
    [
        ({"aggregation": "none"}, {}, "'none' makes no global adapter"),
        ({"name": "lora", "aggregation": "stack"}, {}, "'stack' adds its factors to the frozen weights"),
        ({"name": "lora", "aggregation": "svd"}, {}, "'svd' makes new factors in every round"),
        ({"aggregation": "pia"}, {}, "set method.pia.client to false"),
        ({"aggregation": "fedavg", "server_optimizer": "adam"}, {}, "leave method.server_optimizer out"),
        ({"name": "feddat_houlsby", "aggregation": "fedavg"}, {}, "use 'houlsby'"),
        ({"aggregation": "fedavg"}, {"personalization": "ditto"}, "personalization='ditto'"),
    ],
)
def test_it_is_refused_where_the_global_adapter_says_nothing_of_the_steps(method, training, reason):
    sections = {"method": {"name": "houlsby", **method}, "training": {"rounds": 2, "scaffold": True, **training}}
    with pytest.raises(FedpeftError, match=reason) as caught:
        CommonSettings.from_sections(sections)
    assert caught.value.setting == "training.scaffold"
