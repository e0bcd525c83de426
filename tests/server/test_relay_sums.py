# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Sums that relays make in parts: the same as the mean of all, whoever stands where, and what is refused."""

import pytest
import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.job.settings import ServerJob
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.secure_sum import without_masks
from fedpeft.protocol.types import METRICS, Introduction, SumOrder, TrainReply, Upload
from fedpeft.server.aggregation import aggregate
from fedpeft.server.relay_sums import GroupSum, RelaySums

KEY = "layer.0.output.down.weight"
START = {KEY: torch.zeros(3, 4)}
SCHEMA = {KEY: [3, 4]}
SITES = {f"site-{number}": 10 * number + 7 for number in range(6)}
FEDAVG = MethodSettings(aggregation="fedavg")
SECURE = MethodSettings(aggregation="fedavg", secure_sum=True)


def trained(site):
    return {KEY: torch.randn(3, 4, generator=torch.Generator().manual_seed(SITES[site]))}


class LocalRelays:
    """Relays in this process.

    Args:
        groups: by relay, the sites behind it.
        lost: relays that do not answer.
    """

    def __init__(self, groups, lost=()):
        self.groups, self.lost, self.sums = groups, lost, {}

    def behind(self, sites):
        of = {site: relay for relay, group in self.groups.items() for site in group}
        return {site: of.get(site, "") for site in sites}

    def ask(self, relay, order, kind):
        if relay in self.lost:
            raise FedpeftError(f"relay {relay} does not answer.")
        if isinstance(order, SumOrder):
            self.sums[relay] = GroupSum(order)
            return kind(round=order.round)
        one = self.sums[relay]
        return one.total(order.sites) if kind.__name__ == "PartialSum" else one.measured()


def introductions(schemas=None):
    return {
        site: Introduction(version="", schema=(schemas or {}).get(site, SCHEMA), samples={"train": samples})
        for site, samples in SITES.items()
    }


def reply(site, state):
    return TrainReply(
        round=1,
        samples=SITES[site],
        metrics=dict.fromkeys(METRICS),
        scores=[],
        seconds=1.0,
        problem="",
        state=state,
    )


def round_of(groups, method=FEDAVG, *, send=trained, refused=(), lost=()):
    """The mean of a round, how far sites at relays moved, and who is left out."""
    relays = LocalRelays(groups, lost)
    sums = RelaySums(relays, method, introductions())
    places, problems = sums.begin(1, list(SITES), START)
    states = {site: send(site) for site in places}
    if method.secure_sum:
        states = {site: without_masks(state, SITES[site], method, sites=6) for site, state in states.items()}
    for site, place in places.items():
        if place:
            relays.sums[place].take(site, Upload(round=1, state=states[site]))
    lengths, others = sums.measured(site for site, place in places.items() if place)
    problems |= others
    problems |= sums.add_up(site for site in lengths if site not in refused)
    in_mean = [site for site in places if site not in problems and site not in refused]
    accepted = {site: reply(site, {} if places[site] else states[site]) for site in in_mean}
    return sums.mean(accepted, START)[KEY], lengths, problems


ALL_DIRECT = round_of({})[0]
GROUPS = {
    "two relays of three": {"a": list(SITES)[:3], "b": list(SITES)[3:]},
    "one relay of all": {"a": list(SITES)},
    "one site behind a relay": {"a": ["site-4"]},
    "every site behind its own": {site: [site] for site in SITES},
}


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("method", [FEDAVG, SECURE], ids=["plain", "secure sum"])
def test_the_mean_is_the_same_to_the_bit_wherever_sites_stand(groups, method):
    assert torch.equal(round_of(groups, method)[0], ALL_DIRECT)


def test_the_mean_is_that_of_a_server_that_sees_all_adapters():
    expected, _ = aggregate({site: (trained(site), SITES[site]) for site in SITES}, FEDAVG, previous=START)
    assert torch.allclose(ALL_DIRECT, expected[KEY], atol=1e-6)


def test_a_site_that_the_server_refuses_is_not_in_the_sum():
    mean, _, problems = round_of({"a": list(SITES)[:3]}, refused=("site-1",))
    rest = {site: (trained(site), SITES[site]) for site in SITES if site != "site-1"}
    assert problems == {}
    assert torch.allclose(mean, aggregate(rest, FEDAVG, previous=START)[0][KEY], atol=1e-6)


def test_relays_measure_the_length_that_the_servers_check_compares():
    lengths = round_of({"a": list(SITES)})[1]
    assert lengths == pytest.approx({site: float(trained(site)[KEY].square().mean().sqrt()) for site in SITES})


def test_the_sites_of_a_lost_relay_miss_the_round():
    problems = round_of({"a": ["site-0", "site-1"], "b": ["site-2"]}, lost=("a",))[2]
    assert set(problems) == {"site-0", "site-1"}
    assert all("relay a" in reason for reason in problems.values())


def order(**changed):
    values = {"round": 1, "weights": {"a": 3, "b": 4}, "together": 2, "dtype": "float32", "masked": False}
    return SumOrder(**{**values, "state": START, **changed})


LARGE = {KEY: torch.full((3, 4), 9e5)}
BAD = {
    "another shape": ({KEY: torch.zeros(4, 3)}, "shape"),
    "another key": ({"layer.1.output.down.weight": torch.zeros(3, 4)}, "lacks"),
    "NaN": ({KEY: torch.full((3, 4), float("nan"))}, "NaN"),
    "another dtype": ({KEY: torch.zeros(3, 4, dtype=torch.float16)}, "float16"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_relay_takes_only_what_was_announced_and_says_why(case):
    state, words = BAD[case]
    one = GroupSum(order())
    with pytest.raises(FedpeftError, match=words):
        one.take("a", Upload(round=1, state=state))
    one.take("b", Upload(round=1, state=START))
    measured = one.measured()
    assert set(measured.lengths) == {"b"}
    assert words in measured.refused["a"]


def test_a_number_that_no_sum_can_hold_costs_its_site_alone():
    one = GroupSum(order(weights={"a": 2000, "b": 1}))
    with pytest.raises(FedpeftError, match="cannot hold"):
        one.take("a", Upload(round=1, state=LARGE))
    one.take("b", Upload(round=1, state=LARGE))
    assert set(one.measured().lengths) == {"b"}


REFUSED_UPLOADS = {
    "of a site that is not in the sum": ("c", 1),
    "of another round": ("b", 2),
    "a second one": ("a", 1),
}


@pytest.mark.parametrize("case", REFUSED_UPLOADS)
def test_an_upload_is_refused(case):
    site, round = REFUSED_UPLOADS[case]
    one = GroupSum(order())
    one.take("a", Upload(round=1, state=START))
    with pytest.raises(FedpeftError):
        one.take(site, Upload(round=round, state=START))
    assert one.total(["a"]).sites == ["a"]


def test_what_comes_after_the_measurement_is_not_used():
    one = GroupSum(order())
    one.take("a", Upload(round=1, state=START))
    one.measured()
    with pytest.raises(FedpeftError):
        one.take("b", Upload(round=1, state=START))


@pytest.mark.parametrize("sites", [[], ["a", "a"], ["a", "b"]])
def test_a_sum_of_others_than_those_that_came_is_refused(sites):
    one = GroupSum(order())
    one.take("a", Upload(round=1, state=START))
    with pytest.raises(FedpeftError):
        one.total(sites)


def test_sites_with_adapters_of_different_shapes_cannot_be_added_up():
    with pytest.raises(FedpeftError, match="different shapes"):
        RelaySums(LocalRelays({}), FEDAVG, introductions({"site-2": {KEY: [6, 4]}}))


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("method", {"aggregation": "pia"}, "single adapters"),
        ("method", {"aggregation": "fedavg", "robust": {"average": "median"}}, "compare sites"),
        ("method", {"aggregation": "pia", "pia": {"aligned_at": "site", "share": 0.5}}, "sent last"),
        ("method", {"aggregation": "fedavg", "initialization": "own"}, "one order"),
        ("schedule", {"solver": "exact", "budget": 4}, "same layers"),
    ],
)
def test_a_job_that_needs_single_adapters_at_the_server_is_refused(sections, section, values, words):
    job = sections("method.aggregation=fedavg")
    job["federation"] = {**job["federation"], "sums_at_relays": True}
    ServerJob.from_sections(job)
    job[section] = (
        {**{k: v for k, v in job[section].items() if k != "aggregation"}, "aggregation": "fedavg", **values}
        if section == "method"
        else values
    )
    with pytest.raises(FedpeftError, match=words):
        ServerJob.from_sections(job)
