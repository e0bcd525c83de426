# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site that lies about its size or sends a huge update: what it cannot do to the others' adapter."""

import json

import pytest
import torch
from harness import LAYERS, SCHEDULE, SCHEMA, SITES, Harness, assigned, but, introduction, reply, scheduled
from nvflare.app_common.abstract.fl_model import FLModel

from fedpeft.flare.aggregator import REPORT, PIAAggregator
from fedpeft.methods.settings import MethodSettings
from fedpeft.server import checkpoint
from fedpeft.server.update_check import UpdateCheck

DOWN = "layer.0.output.down.weight"


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
    assert list(UpdateCheck(MethodSettings()).outlying(states, previous)) == ["far"]


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
    found = UpdateCheck(MethodSettings()).outlying(states, {DOWN: torch.zeros(2, 3)})
    assert list(found) == [f"site-{k}" for k in refused]


def rounds_of(check, ways, numbers):
    """Feed rounds of two-number adapters to the check: by site, a function of (round, global, own) to what is sent."""
    center, own, refused = {DOWN: torch.zeros(2, 3)}, dict.fromkeys(ways, torch.zeros(2, 3)), []
    for number in numbers:
        sent = {site: {DOWN: way(number, center[DOWN], own[site])} for site, way in ways.items()}
        out = check.outlying(sent, center)
        refused.append(list(out))
        sent = {site: state for site, state in sent.items() if site not in out}
        merged = {DOWN: torch.stack([state[DOWN] for state in sent.values()]).mean(0)}
        check.end_round(sent, center, merged)
        center = merged
        own |= {site: state[DOWN] for site, state in sent.items()}
    return refused, center[DOWN]


AGREEMENT = {"aggregation": "pia", "pia": {"share": "agreement", "integration": "merge"}}


def follows(number, center, own):
    """A site that takes the global adapter and trains; late in the run it learns hardly anything."""
    return center + 0.5**number


def keeps(number, center, own):
    """A site that keeps most of its own adapter, and learns the opposite."""
    return 0.3 * center + 0.7 * own - 0.5**number


def test_a_site_that_keeps_its_own_adapter_is_not_taken_for_one_that_trains_too_far():
    ways = {"follows": follows, "follows too": follows, "keeps": keeps}
    assert rounds_of(UpdateCheck(MethodSettings(**AGREEMENT)), ways, range(1, 30))[0] == [[]] * 29
    assert any(rounds_of(UpdateCheck(MethodSettings(aggregation="fedavg")), ways, range(1, 30))[0])


def test_a_site_that_pretends_to_keep_its_own_adapter_gets_no_further_than_a_bounded_distance():
    """With 0.7 kept, at most factor / 0.3 times the others' training, however many rounds it tries."""
    check = UpdateCheck(MethodSettings(**AGREEMENT))

    def pushes(number, center, own):
        allowed = 0.999 * 10 * 1.0 + 0.7 * check.distances.get("pushes", 0.0)
        return center + allowed

    def trains(number, center, own):
        return center + (-1.0) ** number

    refused, _ = rounds_of(check, {"a": trains, "b": trains, "pushes": pushes}, range(1, 40))
    assert refused == [[]] * 39
    assert check.distances["pushes"] < 10 / (1 - 0.7)


def test_the_check_goes_on_in_a_resumed_run_as_it_would_have():
    ways = {"follows": follows, "follows too": follows, "keeps": keeps}
    first = UpdateCheck(MethodSettings(**AGREEMENT))
    rounds_of(first, ways, range(1, 5))
    again = UpdateCheck(MethodSettings(**AGREEMENT), json.loads(json.dumps(first.distances)))
    assert again.distances == first.distances != {}


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
