# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site that lies about its size or sends a huge update: what it cannot do to the others' adapter."""

import json

import pytest
import torch
from harness import LAYERS, SCHEDULE, SCHEMA, SITES, Harness, assigned, but, introduction, reply, scheduled
from nvflare.app_common.abstract.fl_model import FLModel

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.flare.aggregator import REPORT, PIAAggregator
from fedpeft.methods.settings import MethodSettings
from fedpeft.server import checkpoint
from fedpeft.server.update_check import UpdateCheck

DOWN = "layer.0.output.down.weight"
TRAINING = TrainingSettings(rounds=30)


def moved(site, order, *, by):
    """Every site moves on from the adapter it was sent by about one."""
    step = 1 + 0.1 * SITES.index(site)
    start = order.state or {key: torch.zeros(shape) for key, shape in SCHEMA.items()}
    return reply(site, order, state={key: tensor + step * by for key, tensor in start.items()})


def honest(site, order):
    return moved(site, order, by=1.0)


def spoilt_in(number, by, spoilt="chest"):
    return lambda site, order: moved(site, order, by=by if (site, order.round) == (spoilt, number) else 1.0)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("by", [1e5, -1e5, 30.0])
def test_an_update_far_longer_than_the_others_is_refused_by_name(run, number, by):
    _, manifest, history = run(train=spoilt_in(number, by), quorum=2)
    assert manifest["status"] == "completed", manifest.get("reason")
    (fault,) = manifest["faults"]
    assert (fault["site"], fault["round"]) == ("chest", number)
    assert fault["what"].startswith("site chest moved its adapter by ")
    assert "method.robust.update_factor" in fault["what"]
    assert "chest" not in history["rounds"][number - 1]["sites"]


@pytest.mark.parametrize("settings", [{"update_factor": 0}, {"update_factor": 1e6}])
def test_the_factor_is_a_setting(run, settings):
    method = {"aggregation": "fedavg", "robust": settings}
    _, manifest, _ = run(train=spoilt_in(2, 1e3), method=method)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert manifest["faults"] == []


def test_sites_with_few_layers_are_measured_like_those_with_many(run):
    """One layer of three or all of them: the same step is the same length."""
    states = {
        "one": {key: torch.ones(2, 2) for key in LAYERS if key.startswith("layer.0.")},
        "all": {key: torch.ones(2, 2) for key in LAYERS},
        "far": {key: torch.full((2, 2), 20.0) for key in LAYERS},
    }
    previous = {key: torch.zeros(2, 2) for key in LAYERS}
    assert list(UpdateCheck(MethodSettings(), TRAINING).outlying(states, previous, dict.fromkeys(states, 16), 1)) == [
        "far"
    ]


@pytest.mark.parametrize(
    ("steps", "refused"),
    [
        ([1.0, 1.0], []),
        ([1.0, 50.0], [1]),
        ([0.0, 0.0, 50.0], []),  # nobody else moved: there is nothing to compare with
        ([1.0, 50.0, 50.0], []),  # most sites moved that far
        ([1.0, 1.0, 50.0, 50.0], [2, 3]),
        ([1e-6, 1.0, 1.0], []),  # a tiny update cannot make the others outliers
    ],
)
def test_the_median_is_the_lower_one_of_the_sites_that_moved(steps, refused):
    states = {f"site-{k}": {DOWN: torch.full((2, 3), step)} for k, step in enumerate(steps)}
    found = UpdateCheck(MethodSettings(), TRAINING).outlying(
        states, {DOWN: torch.zeros(2, 3)}, dict.fromkeys(states, 16), 1
    )
    assert list(found) == [f"site-{k}" for k in refused]


SHAPE = (40, 40)  # directions of training are nearly orthogonal


def rounds_of(check, ways, numbers):
    """Feed rounds to the check: by site, a function of (round, global, own, noise) to the adapter that it sends."""
    generator = torch.Generator().manual_seed(0)
    center, own, refused = torch.zeros(SHAPE), dict.fromkeys(ways, torch.zeros(SHAPE)), []
    for number in numbers:
        noise = {site: torch.randn(SHAPE, generator=generator) for site in ways}
        sent = {site: {DOWN: way(number, center, own[site], noise[site])} for site, way in ways.items()}
        out = check.outlying(sent, {DOWN: center}, dict.fromkeys(sent, 16), number)
        refused.append(list(out))
        sent = {site: state for site, state in sent.items() if site not in out}
        check.accept(sent)
        center = torch.stack([state[DOWN] for state in sent.values()]).mean(0)
        own |= {site: state[DOWN] for site, state in sent.items()}
    return refused, center


AGREEMENT = {"aggregation": "pia", "pia": {"share": "agreement", "integration": "weight_space"}}


def follows(number, center, own, noise):
    """A site that takes the global adapter and trains; late in the run it learns hardly anything."""
    return center + 0.5**number * noise


def keeps(number, center, own, noise):
    """A site that keeps most of its own adapter, and learns something else than the others."""
    return 0.3 * center + 0.7 * own + 0.5**number * (noise - 1)


def test_a_site_that_keeps_its_own_adapter_is_not_taken_for_one_that_trains_too_far():
    ways = {"follows": follows, "follows too": follows, "keeps": keeps}
    assert rounds_of(UpdateCheck(MethodSettings(**AGREEMENT), TRAINING), ways, range(1, 20))[0] == [[]] * 19
    assert any(rounds_of(UpdateCheck(MethodSettings(aggregation="fedavg"), TRAINING), ways, range(1, 20))[0])


@pytest.mark.parametrize("kept", [0.0, 0.7])
def test_who_pretends_to_keep_its_own_adapter_moves_the_mean_by_no_more_from_round_to_round(kept):
    """Honest sites that keep a part do not seem to train more for it: the limit does not grow with the drift."""

    def trains(number, center, own, noise):
        return (1 - kept) * center + kept * own + 0.1 * noise

    def pushes(number, center, own, noise):
        return center + 0.7 * (own - center) + 0.9 * 10**0.5 * 0.1

    def drift(rounds):
        ways = {**{f"honest {k}": trains for k in range(4)}, "pushes": pushes}
        refused, center = rounds_of(UpdateCheck(MethodSettings(**AGREEMENT), TRAINING), ways, range(1, rounds + 1))
        assert refused == [[]] * rounds
        return float(center.mean())

    early, late = drift(10) - drift(8), drift(24) - drift(22)
    assert 0 < late < 1.1 * early


def test_more_than_the_limit_beyond_what_may_be_kept_is_refused():
    def trains(number, center, own, noise):
        return center + 0.1 * noise

    def boosts(number, center, own, noise):
        return center + 0.7 * (own - center) + (1.1 if number == 5 else 0.1) * noise

    ways = {"a": trains, "b": trains, "boosts": boosts}
    refused, _ = rounds_of(UpdateCheck(MethodSettings(**AGREEMENT), TRAINING), ways, range(1, 8))
    assert refused == [[], [], [], [], ["boosts"], [], []]


def test_a_site_that_moves_neurons_while_nobody_trains_much_is_not_refused():
    """Its start is the global adapter in another order, merged with its own one: that is no training."""

    def moves(number, center, own, noise):
        return 0.3 * center.flip(0) + 0.7 * own + 0.5**number * noise

    ways = {"follows": follows, "follows too": follows, "moves": moves}
    assert rounds_of(UpdateCheck(MethodSettings(**AGREEMENT), TRAINING), ways, range(1, 20))[0] == [[]] * 19


def test_a_resumed_run_has_what_the_sites_sent_last(tmp_path):
    first = UpdateCheck(MethodSettings(**AGREEMENT), TRAINING)
    rounds_of(first, {"a/1": follows, "b": keeps}, range(1, 4))
    facts = {"job": "small", "lineage": "small-1", "round": 3, "state": {}, "scores": {}, "settings": {}, "history": {}}
    checkpoint.save(
        tmp_path / "small-1", checkpoint.Checkpoint(**facts, submitter="", own=first.own, median=first.median), keep=1
    )
    found = checkpoint.find(tmp_path, "small-1", job="small", submitter="")
    own = found.own
    assert found.median == first.median > 0
    assert {site: list(state) for site, state in own.items()} == {"a/1": [DOWN], "b": [DOWN]}
    assert all(torch.equal(own[site][DOWN], state[DOWN]) for site, state in first.own.items())


def test_no_announced_number_of_samples_outweighs_all_the_others(run):
    """At most half of the adapter is one site's, whatever it announces."""

    def introduce(site):
        train = 1_000_000 if site == "chest" else 5
        return introduction(site, samples={"train": train, "validation": 1, "test": 2})

    def train(site, order):
        value = 3.0 if site == "chest" else 1.0
        samples = 1_000_000 if site == "chest" else 5
        return reply(site, order, samples=samples, state={k: torch.full(s, value) for k, s in SCHEMA.items()})

    harness, manifest, _ = run(introduce, train, rounds=1)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert torch.equal(harness.saved[-1][DOWN], torch.full((2, 3), 2.0))


@pytest.mark.parametrize("average", ["median", "trimmed_mean", "krum", "multi_krum", "geometric_median"])
@pytest.mark.parametrize("aggregation", ["pia", "fedavg"])
def test_a_robust_average_is_a_setting_of_the_job(run, average, aggregation):
    method = {"aggregation": aggregation, "robust": {"average": average, "update_factor": 0}}
    harness, manifest, _ = run(train=spoilt_in(1, 1e3), method=method, rounds=1)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert float(harness.saved[-1][DOWN].abs().max()) < 2


def test_layers_of_a_schedule_have_robust_averages_too(run):
    method = {"aggregation": "fedavg", "robust": {"average": "median", "update_factor": 0}}

    def train(site, order):
        sent = assigned(site, order)
        value = 1000.0 if site == "chest" else 1.0
        return reply(site, order, state={key: torch.full((2, 2), value) for key in sent.state})

    greedy = {**SCHEDULE, "weight_diversity": 0.0}
    harness, manifest, _ = run(scheduled, train, schedule=greedy, method=method, rounds=1)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert torch.equal(harness.saved[-1]["layer.0.output.up.weight"], torch.ones(2, 2))


class Exploding(PIAAggregator):
    """Integrates as it should, but for round 2."""

    value, rounds = float("nan"), 0

    def aggregate_model(self):
        self.rounds += 1
        merged = super().aggregate_model()
        if self.rounds < 2:
            return merged
        return FLModel(params={key: tensor * self.value for key, tensor in merged.params.items()}, meta={REPORT: {}})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e12])
def test_a_global_adapter_that_explodes_is_neither_saved_nor_the_newest_checkpoint(run, tmp_path, value):
    harness = Harness(train=honest, rounds=3)
    harness.aggregator = Exploding({"aggregation": "fedavg"})
    harness.aggregator.value = value
    harness.run()
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert "the new global adapter has" in manifest["reason"]
    assert harness.panics == [manifest["reason"]]
    assert len(harness.saved) == manifest["rounds"] == 1
    newest = checkpoint.find(tmp_path / "state", "latest", job="test", submitter="")
    assert newest.round == 1
    assert torch.equal(newest.state[DOWN], harness.saved[0][DOWN])


def test_the_global_adapter_keeps_its_dtype(run):
    harness, manifest, _ = run(
        train=but("chest", lambda s, o: reply(s, o, state={k: torch.ones(n).double() for k, n in SCHEMA.items()})),
        quorum=2,
    )
    assert manifest["status"] == "completed", manifest.get("reason")
    assert {tensor.dtype for tensor in harness.saved[-1].values()} == {torch.float32}
    assert "as torch.float64, announced was float32" in manifest["faults"][0]["what"]
