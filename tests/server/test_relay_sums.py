# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Sums that relays make in parts: the same as the mean of all, whoever stands where, and what is refused."""

import itertools
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest
import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.job.settings import ServerJob
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.secure_sum import encode, encode_unmasked, masked, new_secret, public_key
from fedpeft.protocol.types import METRICS, Introduction, PartialSum, SumOrder, TrainReply, Upload
from fedpeft.server import relay_sums
from fedpeft.server.aggregation import Aggregator, aggregate
from fedpeft.server.relay_sums import GroupSum, RelaySums
from fedpeft.server.rounds import Rounds
from fedpeft.server.update_check import update_length

KEY = "layer.0.output.down.weight"
START = {KEY: torch.zeros(3, 4)}
SCHEMA = {KEY: [3, 4]}
SITES = {f"site-{number}": 10 * number + 37 for number in range(6)}  # of no three has one more than half
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

    def relays_of(self, sites):
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


def reply(site, state, round=1):
    return TrainReply(
        round=round,
        samples=SITES[site],
        metrics=dict.fromkeys(METRICS),
        scores=[],
        seconds=1.0,
        problem="",
        state=state,
    )


def round_of(groups, method=FEDAVG, *, send=trained, refused=(), lost=(), mask=True):
    """The mean of a round, how far sites at relays moved, and who is left out."""
    relays = LocalRelays(groups, lost)
    sums = RelaySums(relays, method, introductions())
    places, problems = sums.begin(1, list(SITES), START)
    states = {site: send(site) for site in places}
    if method.secure_sum and mask:
        states = {site: encode_unmasked(state, SITES[site], method, sites=6) for site, state in states.items()}
    for site, place in places.items():
        if place:
            relays.sums[place].take(site, Upload(round=1, state=states[site]))
    lengths, others = sums.measured(site for site, place in places.items() if place)
    problems |= others
    problems |= sums.add_up(site for site in lengths if site not in refused)
    in_mean = [site for site in places if site not in problems and site not in refused]
    accepted = {site: reply(site, {} if places[site] else states[site]) for site in in_mean}
    return sums.mean(accepted, START)[KEY], lengths, problems


def test_masks_cancel_across_relays_and_a_relay_sees_no_adapter():
    secrets = {site: new_secret() for site in SITES}
    keys = {site: public_key(secret) for site, secret in secrets.items()}

    def send(site):
        numbers = encode(trained(site), SITES[site], len(SITES))
        return masked(numbers, site=site, secret=secrets[site], keys=keys, context=b"round 1")

    groups = {"a": ["site-0", "site-1"], "b": ["site-2"]}
    assert torch.equal(round_of(groups, SECURE, send=send, mask=False)[0], ALL_DIRECT)
    part = GroupSum(order(weights={"site-2": SITES["site-2"]}, together=6, masked=True))
    part.take("site-2", Upload(round=1, state=send("site-2")))
    plain = encode_unmasked(trained("site-2"), SITES["site-2"], SECURE, sites=6)
    assert not torch.isclose(part.total(["site-2"]).state[KEY].double(), plain[KEY].double(), rtol=0.1).any()


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


def test_no_site_outweighs_all_others_whatever_number_of_samples_it_announces(monkeypatch):
    monkeypatch.setitem(SITES, "site-2", 10**6)
    expected, _ = aggregate({site: (trained(site), SITES[site]) for site in SITES}, FEDAVG, previous=START)
    mean, _, problems = round_of({"a": list(SITES)[:3]})
    assert problems == {}
    assert torch.allclose(mean, expected[KEY], atol=1e-6)
    apart = mean - trained("site-2")[KEY]
    assert apart.norm() > 0.4 * trained("site-2")[KEY].norm()


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


def test_a_sum_in_which_half_of_an_adapter_is_left_is_none(monkeypatch):
    state = {key: torch.ones(3, 4) for key in (KEY, KEY.replace("layer.0", "layer.1"))}
    one = GroupSum(order(weights={"site-0": 1, "site-1": 1}, together=2, state=state))
    one.take("site-0", Upload(round=1, state=state))
    calls = itertools.count()

    def poor(*arguments):
        if next(calls):
            raise MemoryError
        return encode(*arguments)

    monkeypatch.setattr(relay_sums, "encode", poor)
    with pytest.raises(MemoryError):
        one.take("site-1", Upload(round=1, state=state))
    monkeypatch.setattr(relay_sums, "encode", encode)
    assert set(one.measured().lengths) == {"site-0"}
    with pytest.raises(FedpeftError, match="no sum of this round can be used"):
        one.total(["site-0"])
    with pytest.raises(FedpeftError, match="a sum of 2 sites is asked for, 1 have sent"):
        one.total(["site-0", "site-1"])


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


@pytest.mark.parametrize("closes", [lambda one: one.measured(), lambda one: one.total(["a"])])
def test_an_upload_that_is_still_checked_changes_no_sum(monkeypatch, closes):
    own, one, alone, told = {KEY: torch.full((3, 4), 0.5)}, GroupSum(order()), GroupSum(order()), []
    one.take("a", Upload(round=1, state=own))
    alone.take("a", Upload(round=1, state=own))

    def slow(*arguments):
        told.append(closes(one))
        return update_length(*arguments)

    monkeypatch.setattr(relay_sums, "update_length", slow)
    with pytest.raises(FedpeftError, match="came too late"):
        one.take("b", Upload(round=1, state={KEY: torch.ones(3, 4)}))
    sums = [told[0] if isinstance(told[0], PartialSum) else one.total(["a"]), alone.total(["a"])]
    assert torch.equal(sums[0].state[KEY], sums[1].state[KEY])
    assert sums[0].state[KEY].any()
    with pytest.raises(FedpeftError, match="was given already"):
        one.total(["a"])


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
        ("method", {"aggregation": "fedavg", "robust": {"average": "median"}}, "compares sites"),
        ("method", {"aggregation": "pia", "pia": {"aligned_at": "site", "share": 0.5}}, "sent last"),
        ("method", {"aggregation": "fedavg", "initialization": "own"}, "one order"),
        ("schedule", {"solver": "exact", "budget": 4}, "same layers"),
        ("schedule", {"joins": {"slake": 2}}, "leave schedule.joins out"),
        ("method", {"name": "lora", "aggregation": "svd"}, "single adapters"),
        ("method", {"aggregation": "none"}, "single adapters"),
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


class Federation(LocalRelays):
    """Sites and relays of a job in this process.

    Args:
        groups: as above.
        send: from a site and the global adapter to the one that it trains.
        changed: of a site's reply.
        lost: by relay, the kinds of messages that it does not answer in round 1.
        lies: by relay, from its answer to the one that it gives.
    """

    def __init__(self, groups, *, send=None, changed=None, lost=None, lies=None):
        super().__init__(groups)
        self.send = send or (lambda site, state: {KEY: state[KEY] + trained(site)[KEY]})
        self.changed, self.stages, self.lies = changed or (lambda site, one: one), lost or {}, lies or {}

    def ask(self, relay, order, kind):
        stage = "order" if isinstance(order, SumOrder) else kind.__name__
        if order.round == 1 and stage in self.stages.get(relay, ()):
            raise FedpeftError(f"relay {relay} does not answer.")
        return self.lies.get(relay, lambda answer: answer)(super().ask(relay, order, kind))

    def collect(self, task, orders, read, *, round, needed):
        replies, problems = {}, {}
        for site, order in orders.items():
            at_relay = self.sums[order.relay] if order.relay else None
            state = self.send(site, (at_relay.start(site) if at_relay else order).state)
            if at_relay:
                with suppress(FedpeftError):
                    at_relay.take(site, Upload(round=round, state=state))
                state = {}
            try:
                replies[site] = read(self.changed(site, reply(site, state, round)), site)
            except FedpeftError as error:
                problems[site] = str(error)
        return replies, problems


def rounds_of(sections, federation, *settings, sites=SITES, needed=1):
    job = sections("method.aggregation=fedavg", "training.rounds=2", *settings)
    job["federation"] = {**job["federation"], "sums_at_relays": True}
    settings = ServerJob.from_sections(job)
    announced = {site: replace(one, state=START) for site, one in introductions().items() if site in sites}
    return Rounds(
        settings,
        announced,
        federation,
        Aggregator(settings.method),
        lineage="",
        needed=needed,
        sums=RelaySums(federation, settings.method, announced),
    )


BOTH = {"a": ["site-0", "site-1", "site-2"], "b": ["site-3", "site-4"]}
ONE = "site-1"


def only_one(act):
    return lambda site, value: act(value) if site == ONE else {KEY: value[KEY] + trained(site)[KEY]}


def far(answer):
    """A sum of the same sites that lies far from the global adapter."""
    state = getattr(answer, "state", None)
    return replace(answer, state={KEY: state[KEY] + 2**50}) if state else answer


HOSTILE = {
    "a site sends NaN": ({"send": only_one(lambda s: {KEY: s[KEY] * torch.nan})}, [ONE], "NaN"),
    "a site sends another shape": ({"send": only_one(lambda s: {KEY: s[KEY].T})}, [ONE], "shape"),
    "a site sends nothing": ({"send": only_one(lambda s: {})}, [ONE], "lacks"),
    "a site goes far": ({"send": only_one(lambda s: {KEY: s[KEY] + 1e4})}, [ONE], "update"),
    "a site claims another weight": (
        {"changed": lambda site, one: replace(one, samples=10**5) if site == ONE else one},
        [ONE],
        "samples",
    ),
    "a site sends its adapter to the server as well": (
        {"changed": lambda site, one: replace(one, state=START) if site == ONE else one},
        [ONE],
        "keys",
    ),
    "a relay is away before the round": ({"lost": {"b": ["order"]}}, BOTH["b"], "relay b"),
    "a relay ends while its sites train": ({"lost": {"b": ["Measured"]}}, BOTH["b"], "relay b"),
    "a relay ends before it adds up": ({"lost": {"b": ["PartialSum"]}}, BOTH["b"], "relay b"),
    "a relay sends a sum of its own": ({"lies": {"b": far}}, BOTH["b"], "cannot have"),
    "a relay sends a sum of fewer": (
        {"lies": {"b": lambda one: replace(one, sites=one.sites[:1]) if hasattr(one, "sites") else one}},
        BOTH["b"],
        "other sites",
    ),
    "a relay sends what is no sum": (
        {"lies": {"b": lambda one: replace(one, state=START) if hasattr(one, "state") else one}},
        BOTH["b"],
        "no sum of the announced",
    ),
    "a relay sends what nobody can read": ({"lies": {"b": lambda one: None}}, BOTH["b"], "cannot be read"),
    "a relay answers for another round": ({"lies": {"b": lambda one: replace(one, round=7)}}, BOTH["b"], "round 7"),
    "a relay measures what no update is": (
        {"lies": {"b": lambda one: replace(one, lengths={"site-3": float("nan")}) if hasattr(one, "lengths") else one}},
        BOTH["b"],
        "did not reach",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_whoever_misbehaves_misses_the_round_and_the_mean_is_that_of_all_others(sections, case):
    behavior, missing, words = HOSTILE[case]
    one = next(iter(rounds_of(sections, Federation(BOTH, **behavior))))
    assert set(one.rejected) == set(missing)
    assert all(words in reason for reason in one.rejected.values()), one.rejected
    rest = [site for site in SITES if site not in missing]
    alone = next(iter(rounds_of(sections, Federation({}), sites=rest)))
    assert torch.equal(one.state[KEY], alone.state[KEY])


def test_a_job_goes_on_when_a_relay_returns(sections):
    """And comes where all rounds would have come without the relays, from the round that it missed on."""
    first, second = rounds_of(sections, Federation(BOTH, lost={"b": ["Measured"]}))
    assert set(first.accepted) == set(SITES) - set(BOTH["b"])
    assert set(second.accepted) == set(SITES)
    direct = list(rounds_of(sections, Federation({}, send=lambda s, g: {KEY: g[KEY] + trained(s)[KEY]})))
    through = list(rounds_of(sections, Federation(BOTH)))
    assert all(torch.equal(one.state[KEY], other.state[KEY]) for one, other in zip(direct, through, strict=True))


@pytest.mark.parametrize(("method", "width"), [(FEDAVG, 4), (SECURE, 8)])
def test_the_history_counts_what_sites_send_to_their_relays(method, width):
    assert RelaySums(LocalRelays({}), method, introductions()).size == 3 * 4 * width


def test_a_round_without_enough_sites_is_not_begun(sections):
    federation = Federation(BOTH, lost={"a": ["order"], "b": ["order"]})
    with pytest.raises(FedpeftError, match=r"quorum is 4.*relay a does not answer"):
        next(iter(rounds_of(sections, federation, needed=4)))


@pytest.mark.parametrize(
    "settings",
    [
        ["method.aggregation=fedavg"],
        ["method.aggregation=fedavg", "method.server_optimizer=adam"],
        ["method.aggregation=fedavg", "schedule.clients_per_round=1"],
        ["method.pia.aligned_at=site", "method.pia.client=false"],
        ["method.pia.aligned_at=site", "method.robust.update_factor=0"],
        ["method.aggregation=fedavg", "method.secure_sum=true", "federation.sites=[slake, vqa-rad, vqa-med-2019]"],
        ["method.pia.aligned_at=site", "method.secure_sum=true", "federation.sites=[slake, vqa-rad, vqa-med-2019]"],
    ],
    ids=" ".join,
)
def test_what_is_a_mean_can_be_added_up(sections, settings):
    assert ServerJob.from_sections(sections(*settings, "federation.sums_at_relays=true")).method.sums


@pytest.mark.parametrize("uncapped", ["", "method.robust.max_share=1", "method.pia.weighting=uniform"])
def test_a_site_that_takes_its_part_off_the_mean_must_know_that_part(sections, uncapped):
    """At relays samples are capped over the sites of the round, and the server tells those that answered their part."""
    settings = ["method.pia.aligned_at=site", "method.pia.share=agreement", "method.robust.update_factor=0"]
    settings += [uncapped] * bool(uncapped)
    refused = pytest.raises(FedpeftError, match=r"set method\.robust\.max_share to 1")
    with nullcontext() if uncapped else refused:
        assert ServerJob.from_sections(sections(*settings, "federation.sums_at_relays=true")).method.sums


def test_an_upload_of_another_round_does_not_cost_a_site_this_one():
    one = GroupSum(order(round=2))
    with pytest.raises(FedpeftError, match="sent its adapter of round 1 in round 2"):
        one.take("a", Upload(round=1, state=START))
    one.take("a", Upload(round=2, state=START))
    assert "a" in one.measured().lengths
    assert "a" not in one.measured().refused


def test_a_number_that_no_sum_can_hold_costs_a_site_that_sends_to_the_server_itself_its_round(sections, monkeypatch):
    monkeypatch.setitem(SITES, "site-5", 1_000_000)

    def send(site, state):
        return {key: tensor + (200 if site == "site-5" else 0.01) for key, tensor in state.items()}

    federation = Federation({"a": ["site-0", "site-1"]}, send=send)
    settings = ["method.robust.update_factor=0", "method.robust.max_share=1"]
    one = next(iter(rounds_of(sections, federation, *settings)))
    assert "site-5" not in one.accepted
    assert len(one.accepted) == len(SITES) - 1
    assert one.rejected["site-5"].startswith("site site-5: ")
