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
from fedpeft.site import site_state
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
    corrected, published = learners(*settings, SCAFFOLD), learners(*settings, kind=Published)
    rounds = list(federate(corrected))
    assert_same(rounds, list(federate(published)), rtol=0, atol=1e-6)
    uncorrected = learners(*settings)
    assert_same(rounds[:1], list(federate(uncorrected))[:1])  # nothing is known before the first round
    for site in SITES:
        mine, theirs, without = (one[site].trainable.state() for one in (corrected, published, uncorrected))
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
        assert max((mine[key] - without[key]).abs().max() for key in mine) > 2e-5


@pytest.mark.parametrize("method", [(FEDAVG,), SERVER_PIA, LAYERS, (FEDAVG, "schedule.clients_per_round=1")])
def test_a_run_goes_on_from_the_sites_disks(learners, method, tmp_path):
    settings = (*method, SCAFFOLD, "training.rounds=4")
    rounds = list(federate(learners(*settings)))
    first, second, *_ = federate(learners(*settings, folder=tmp_path))
    again = learners(*settings, folder=tmp_path)
    layers = rounds[2].assignment.layers if rounds[2].assignment else {}
    for site, expected in rounds[2].updates.items():
        update = again[site].train_round(3, second.state, layers.get(site))
        torch.testing.assert_close(update.state, expected.state, rtol=0, atol=0)
    assert first.round == 1
    assert all(tensor.isfinite().all() for tensor in rounds[-1].state.values())


class Site:
    """A site whose loss is `(x - optimum)^2 / 2` in each tensor."""

    def __init__(self, optimum, keys=("a",)):
        self.optimum, self.kept = optimum, {}
        self.weights = {key: torch.nn.Parameter(torch.zeros(1)) for key in keys}

    def sent(self, x, keys=None, *, steps=4, passed=1.0, lr=0.1):
        """What it sends of these tensors after a round from x."""
        trained = {key: self.weights[key] for key in keys or self.weights}
        control = ControlVariates(x, self.kept, passed=passed)
        optimizer = torch.optim.SGD([{"params": list(trained.values()), "names": list(trained)}], lr=lr)
        with torch.no_grad():
            for key, weight in self.weights.items():
                weight.copy_(x[key])
        with control.correcting(optimizer):
            for _ in range(steps):
                for weight in trained.values():
                    weight.grad = weight.detach() - self.optimum
                optimizer.step()
        self.kept = control.kept
        return control.uncorrected({key: weight.detach().clone() for key, weight in trained.items()})


def mean(sent):
    return {key: sum(one[key] for one in sent) / len(sent) for key in sent[0]}


def test_what_is_sent_is_the_start_minus_the_own_steps():
    site, x = Site(0.0), {"a": torch.tensor([1.0])}
    first = site.sent(x, steps=1, lr=0.5)["a"]  # one step of rate 1/2 along 1: c_k is 1
    assert (first.item(), site.kept["own/a"].item()) == (0.5, 1.0)
    control = ControlVariates({"a": torch.tensor([0.0])}, site.kept)  # all went from 1 to 0 with S = 1/2: c is 2
    weight = torch.nn.Parameter(torch.zeros(1))
    idle = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [weight, idle], "names": ["a", "b"]}], lr=0.5)
    with control.correcting(optimizer):
        weight.grad = torch.tensor([3.0])
        optimizer.step()
    assert weight.item() == -0.5 * (3 - 1 + 2)
    assert control.uncorrected({"a": weight.detach()})["a"].item() == -0.5 * 3
    assert (control.kept["own/a"].item(), idle.item()) == (3.0, 0.0)
    assert {key for key in control.kept if key.endswith("b")} == set()


def test_an_odd_global_adapter_is_made_good_like_any_start():
    sites, x = [Site(0.0), Site(2.0)], {"a": torch.zeros(1)}
    for number in range(60):
        x = mean([site.sent(x) for site in sites])
        if number == 20:
            x = {"a": x["a"] + 5.0}
    assert x["a"].item() == pytest.approx(1.0, abs=1e-3)


def test_sites_that_are_drawn_come_to_the_mean_of_their_optima():
    sites, x, last = [Site(float(optimum)) for optimum in range(4)], {"a": torch.zeros(1)}, [0] * 4
    found = []
    for number in range(1, 400):
        chosen = (number % 4, (number // 4 + number + 1 + (number % 4 == 0)) % 4)
        sent = [sites[one].sent(x, passed=number - last[one] if last[one] else 1.0) for one in set(chosen)]
        for one in chosen:
            last[one] = number
        x = mean(sent)
        found.append(x["a"].item())
    settled = found[200:]
    assert sum(settled) / len(settled) == pytest.approx(1.5, abs=0.05)
    assert 0.5 < min(settled) < max(settled) < 2.5


def test_tensors_that_pause_or_are_trained_by_sites_in_turn_go_where_they_go_without_it():
    pausing, x = Site(10.0, ("a", "b")), {"a": torch.zeros(1), "b": torch.zeros(1)}
    for number in range(30):
        x = {**x, **pausing.sent(x, ("a",) if number % 2 else ("b",))}
    assert [x[key].item() for key in "ab"] == pytest.approx([10.0, 10.0], abs=0.05)
    sites, moved, x = [Site(1e6) for _ in range(5)], [], {"a": torch.zeros(1)}
    for number in range(20):
        after = sites[number % 5].sent(x, passed=5.0 if number >= 5 else 1.0, lr=1e-7)
        moved.append(after["a"].item() - x["a"].item())
        x = after
    assert moved == pytest.approx([0.4] * 20, rel=0.01)


@pytest.mark.parametrize(
    ("method", "training", "reason"),
    [
        ({"aggregation": "none"}, {}, "'none' makes no global adapter"),
        ({"name": "lora", "aggregation": "stack"}, {}, "'stack' makes new factors in every round"),
        ({"name": "lora", "aggregation": "svd"}, {}, "'svd' makes new factors in every round"),
        ({"aggregation": "pia"}, {}, "set method.pia.client to false"),
        ({"aggregation": "pia", "pia": {"client": False, "reference": "largest"}}, {}, "may reorder"),
        ({"aggregation": "pia", "pia": {"client": False, "output_axis": "matched"}}, {}, "use 'fixed'"),
        ({"aggregation": "fedavg", "initialization": "own"}, {}, "use 'shared'"),
        ({"aggregation": "fedavg", "server_optimizer": "adam"}, {}, "leave method.server_optimizer out"),
        ({"name": "feddat_houlsby", "aggregation": "fedavg"}, {}, "use 'houlsby'"),
        ({"name": "classifier", "aggregation": "fedavg", "head": "federated"}, {}, "exchanges no adapter"),
        ({"aggregation": "fedavg"}, {"personalization": "ditto"}, "personalization='ditto'"),
    ],
)
def test_it_is_refused_where_the_global_adapter_says_nothing_of_the_steps(method, training, reason):
    sections = {"method": {"name": "houlsby", **method}, "training": {"rounds": 2, "scaffold": True, **training}}
    with pytest.raises(FedpeftError, match=reason) as caught:
        CommonSettings.from_sections(sections)
    assert caught.value.setting == "training.scaffold"


@pytest.mark.slow
def test_of_scheduled_layers_those_of_the_round_before_alone_are_corrected(sections, tmp_path):
    """In a round that the site missed nobody may have trained its layers, and c would be taken for less than it was."""
    job = sections("training.scaffold=true", FEDAVG, "schedule.solver=drawn", "schedule.budget=1", "training.rounds=4")
    learner = Learner.from_sections(job, site="slake", folder=tmp_path / "slake")
    near = learner.first_state()
    learner.train_round(1, near, [0])
    states = [site_state.load_before(learner.folder, 2)]
    for round in (2, 3):
        control = ControlVariates.start_round(learner, round, states[0], near)
        assert bool(control._change) == (round == 2)
