# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Ditto and FedALA: as another implementation has them, from a site's disk, and FedAvg or alone at their ends."""

import pytest
import torch
from peers import Ditto, FedALA
from small_federations import EXACT, FEDAVG, LAYERS, SITES, assert_same, learner_builder

from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import layer_of
from fedpeft.core.settings import build
from fedpeft.federate import federate
from fedpeft.job.settings import CommonSettings
from fedpeft.job.site_policy import SitePolicy
from fedpeft.site import fedala, site_state
from fedpeft.site.learner import Learner
from fedpeft.site.loop import parts_of

pytestmark = pytest.mark.slow

DITTO, ALA = "training.personalization=ditto", "training.personalization=fedala"
SERVER_PIA = ("method.aggregation=pia", "method.pia.client=false")
SGD = ("training.optimizer=sgd", "training.learning_rate=1e-6", "training.decay=none", "training.warmup=0")


@pytest.fixture(scope="module")
def learners(sections, tmp_path_factory):
    return learner_builder(sections, tmp_path_factory)


@pytest.fixture(scope="module")
def fedavg(learners):
    """The rounds of FedAvg."""
    return list(federate(learners(FEDAVG)))


def measured(result, site):
    """The figures of a round that both implementations have."""
    return {k: v for k, v in result.updates[site].metrics.items() if k not in ("validation", "below_constant")}


def kept(learner, round=3):
    return site_state.load(learner.folder / f"round-{round:05d}")


def with_values(kind, **values):
    return type(kind.__name__, (kind,), values)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ((DITTO,), Ditto),
        ((DITTO, "training.optimizer_state=reset", "training.ditto_lambda=2"), with_values(Ditto, strength=2.0)),
        ((ALA,), FedALA),
        ((ALA, "training.ala_rate=1e4"), with_values(FedALA, rate=1e4)),
    ],
    ids=["ditto", "ditto, reset", "fedala", "fedala, other shares"],
)
def test_numbers_are_those_of_another_implementation(learners, settings, kind):
    rounds = list(federate(learners(FEDAVG, *settings)))
    others = list(federate(learners(FEDAVG, *settings[1:], "training.personalization=none", kind=kind)))
    assert_same(rounds, others, rtol=0, atol=1e-7)
    for one, other in zip(rounds, others, strict=True):
        assert all(measured(one, site) == pytest.approx(measured(other, site), abs=1e-6) for site in SITES)


@pytest.mark.parametrize("settings", [(DITTO,), (ALA, "training.ala_rate=1e4")], ids=["ditto", "fedala"])
@pytest.mark.parametrize("method", [(FEDAVG,), SERVER_PIA, LAYERS], ids=["", "pia", "layers"])
def test_a_site_goes_on_from_its_disk(learners, tmp_path, settings, method):
    """With alignment at the server and with scheduled layers as well; what was measured is what is kept."""
    site = SITES[0]
    layers = [0] if method == LAYERS else None
    one = learners(*method, *settings)[site]
    ends = []
    for fresh in (False, True):
        received, folder = {}, tmp_path / str(fresh)
        for number in (1, 2, 3):
            if number == 1 or fresh:
                one = learners(*method, *settings, folder=folder)[site]
            update = one.train_round(number, received, layers)
            received = {**one.first_state(), **{key: tensor + 0.01 for key, tensor in update.state.items()}}
        ends.append((update, kept(one)))
    (update, state), (other, again) = ends
    torch.testing.assert_close(update.state, other.state, **EXACT)
    torch.testing.assert_close(vars(state)["personal"], vars(again)["personal"], **EXACT)
    assert update.metrics == other.metrics
    one.model.restore(again)
    assert one.evaluate()["overall"] == update.metrics["overall"]
    with pytest.raises(FedpeftError, match="there is no example to measure"):
        one.evaluate([])


def test_dittos_global_adapter_is_fedavgs_and_another_model_is_measured(learners, fedavg):
    built = learners(FEDAVG, DITTO)
    rounds = list(federate(built))
    assert_same(rounds, fedavg)
    assert any(measured(rounds[-1], site) != measured(fedavg[-1], site) for site in SITES)
    state = kept(built[SITES[0]])
    assert state.exchanged.keys() == {f"head.{name}" for name in state.head}
    assert any(not torch.equal(tensor, state.exchanged[f"head.{name}"]) for name, tensor in state.head.items())


@pytest.mark.parametrize("moments", ["keep", "reset"])
def test_dittos_own_model_without_a_pull_is_trained_alone(learners, moments):
    settings = f"training.optimizer_state={moments}"
    rounds = federate(learners(FEDAVG, DITTO, "training.ditto_lambda=0", settings))
    alone = federate(learners("method.aggregation=none", settings))
    for result, expected in zip(rounds, alone, strict=True):
        assert all(measured(result, site) == measured(expected, site) for site in SITES)


@pytest.mark.parametrize(("strength", "stays"), [(1e6, True), (0.0, False)])
def test_dittos_own_model_is_drawn_to_the_global_adapter(learners, strength, stays):
    learner = learners(FEDAVG, DITTO, f"training.ditto_lambda={strength}", *SGD)[SITES[0]]
    first = learner.train_round(1, {}).state
    received = {key: tensor + 0.1 for key, tensor in first.items()}
    learner.train_round(2, received)
    state = kept(learner, 2)
    own = state.trained or state.adapter
    distance = max((own[key] - received[key]).abs().max().item() for key in received)
    assert distance < 1e-5 if stays else distance > 0.09


def test_fedala_whose_shares_stay_1_is_fedavg(learners, fedavg):
    built = learners(FEDAVG, ALA, "training.ala_rate=0")
    assert_same(list(federate(built)), fedavg, rtol=0, atol=1e-4)  # own + (global - own) is rounded
    assert all(bool((shares == 1).all()) for one in built.values() for shares in kept(one).personal.values())


def test_fedalas_shares_leave_1_and_stay_between_0_and_1(learners):
    built = learners(FEDAVG, ALA, "training.ala_rate=1e7")
    list(federate(built))
    for learner in built.values():
        shares = torch.cat([tensor.flatten() for tensor in kept(learner).personal.values()])
        assert shares.min() == 0
        assert shares.max() == 1
        assert 0 < (shares < 1).float().mean() < 1


def test_fedala_mixes_no_layer_that_is_not_trained(learners):
    """Its shares were learned in a round before; the layer's own values are old by now."""
    one = learners(*LAYERS, ALA, "training.ala_rate=1e6")[SITES[0]]
    received = one.first_state()
    for number, layers in ((1, [0]), (2, [0]), (3, [1])):
        one.train_round(number, received, layers)
        if number < 3:
            received = {key: tensor + 0.01 for key, tensor in received.items()}
    first = [key for key in received if layer_of(key) == 0]
    assert min(kept(one).personal[key].min().item() for key in first) < 1
    state = one.trainable.state()
    assert all(torch.equal(state[key], received[key]) for key in first)


def test_fedalas_shares_do_not_depend_on_how_many_samples_are_evaluated_at_once(learners):
    rounds = [
        list(federate(learners(FEDAVG, ALA, "training.ala_rate=1e4", f"training.evaluation_batch_size={size}")))
        for size in (3, 64)
    ]
    assert_same(*rounds)


@pytest.mark.parametrize(("samples", "largest"), [(102, 9), (9, 8)], ids=["81 of 102", "7 of 9"])
def test_no_step_of_fedala_is_over_fewer_samples_than_the_site_wants(
    sections, small_policy, tmp_path, monkeypatch, samples, largest
):
    """Also where 80 % are fewer; and a joined batch is computed whole, of which a backbone may have no single rows."""
    made = sections(FEDAVG, ALA, "training.batch_size=8", f"data.train_size={samples}")
    policy = build(SitePolicy, {**small_policy, "min_train_images": 1, "min_batch_size": 8}, section="site")
    learner = Learner.from_sections(made, site=SITES[0], folder=tmp_path, policy=policy)
    sizes, parts = [], []

    def divided(batch, *how):
        sizes.append(len(batch.target))
        parts.append(parts_of(batch, *how))
        return parts[-1]

    monkeypatch.setattr(fedala, "parts_of", divided)
    update = learner.train_round(1, learner.first_state())
    learner.train_round(2, {key: tensor + 0.01 for key, tensor in update.state.items()})
    assert min(sizes) >= policy.min_batch_size
    assert max(sizes) == largest
    assert {len(one) for one in parts} == {1}


@pytest.mark.parametrize("scheme", ["ditto", "fedala"])
@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ({"aggregation": "none"}, "'none' makes no global adapter"),
        ({"name": "lora", "aggregation": "stack"}, "'stack' adds its factors to the frozen weights"),
        ({"name": "lora", "aggregation": "svd"}, "'svd' makes new factors in every round"),
        ({"aggregation": "pia"}, "set method.pia.client to false"),
        ({"aggregation": "pia", "pia": {"client": False, "reference": "largest"}}, "'largest' may reorder the global"),
        ({"aggregation": "fedavg", "initialization": "own"}, "use 'shared'"),
        ({"name": "feddat_houlsby"}, "keeps tensors of the site's own already: use 'houlsby'"),
        ({"name": "classifier", "head": "federated"}, "exchanges no adapter"),
    ],
)
def test_what_means_nothing_together_is_refused(scheme, method, reason):
    sections = {"method": method, "training": {"rounds": 2, "personalization": scheme}}
    with pytest.raises(FedpeftError, match=reason) as caught:
        CommonSettings.from_sections(sections)
    assert caught.value.setting == "training.personalization"
