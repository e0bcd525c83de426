# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A job with method.secure_sum: the server gets the mean of all sites, or the round is lost and says by whom."""

import dataclasses
import json
import sys

import pytest
import torch
from harness import SCHEMA, SITES, introduction, reply

from fedpeft.core.errors import FedpeftError, LocalError, SecureSumError
from fedpeft.core.settings import build
from fedpeft.job.site_policy import SitePolicy
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol import secure_sum
from fedpeft.protocol.differential_privacy import LEDGER, PrivacySettings
from fedpeft.protocol.fields import BLOCKED
from fedpeft.protocol.signed_keys import Kit
from fedpeft.protocol.types import TrainOrder
from fedpeft.site.sum_member import SumMember

METHOD = {"aggregation": "fedavg", "secure_sum": True}
JOB = "small-1"
NOISED = build(SitePolicy, {"sum_with": SITES, "sum_noise": {"clip": 1, "noise": 0.01}}, section="site")


def plain(site, round):
    return {key: torch.full(shape, float(SITES.index(site) + round)) for key, shape in SCHEMA.items()}


class Consortium:
    """Sites that mask what they send, each with a folder of its own."""

    def __init__(self, folder):
        self.folder, self.orders, self.sent = folder, {}, {}
        self.members = {site: SumMember(site=site, method=MethodSettings(**METHOD), settings="same") for site in SITES}

    def introduce(self, site):
        start = {key: torch.zeros(shape) for key, shape in SCHEMA.items()} if site == SITES[0] else {}
        key = self.members[site].offer(self.folder / site, job=JOB, round=1, facts={})
        return introduction(site, sum_key=key, state=start)

    def train(self, site, order):
        self.orders[site, order.round] = order
        member, folder, round = self.members[site], self.folder / site, order.round
        order = dataclasses.replace(order, lineage=JOB)
        sent = member.upload(plain(site, round), folder, order, samples=5, received=order.state)
        self.sent[site, round] = sent
        return reply(site, order, state=sent, sum_key=member.offer(folder, job=JOB, round=round + 1, facts={}))


@pytest.fixture
def consortium(tmp_path):
    return Consortium(tmp_path / "sites")


@pytest.mark.slow
def test_the_server_gets_the_mean_and_nothing_else(run, consortium):
    harness, manifest, history = run(consortium.introduce, consortium.train, method=METHOD)
    assert manifest["status"] == "completed"
    for round, saved in enumerate(harness.saved, 1):
        for key in SCHEMA:
            mean = torch.stack([plain(site, round)[key] for site in SITES]).mean(dim=0)
            assert torch.allclose(saved[key], mean, rtol=0, atol=1e-9)
            assert saved[key].dtype == torch.float32
    for sent in consortium.sent.values():
        assert all(tensor.dtype == torch.int64 for tensor in sent.values())
        numbers = torch.cat([tensor.flatten() for tensor in sent.values()])
        assert len(numbers.unique()) == len(numbers)
    assert [set(entry["sites"]) for entry in history["rounds"]] == [set(SITES)] * 2


@pytest.mark.slow
def test_every_round_has_keys_of_its_own_and_the_same_for_all_sites(run, consortium):
    run(consortium.introduce, consortium.train, method=METHOD)
    for round in (1, 2):
        first, *others = (consortium.orders[site, round].sum_keys for site in SITES)
        assert all(keys == first for keys in others)
    keys = {tuple(consortium.orders["slake", round].sum_keys[site]["public"]) for round in (1, 2) for site in SITES}
    assert len(keys) == 2 * len(SITES)


LOST = {
    "silence": (lambda site, order: None, "site chest sent no usable reply in round 2"),
    "a plain adapter": (reply, "site chest sent .* without a mask in a secure sum"),
    "a mask but no key for the next round": (
        lambda site, order: reply(site, order, state={k: torch.ones(s, dtype=torch.int64) for k, s in SCHEMA.items()}),
        "the key of site chest is malformed",
    ),
    "a refusal": (
        lambda site, order: reply(site, order, problem="secure-sum-refused", state={}),
        "site chest could not finish round 2: it does not take part in the secure sum",
    ),
}


@pytest.mark.parametrize(("fault", "reason"), LOST.values(), ids=LOST)
def test_without_one_member_the_round_is_lost_by_name_and_earlier_ones_stay(run, consortium, fault, reason):
    def train(site, order):
        return (fault if (site, order.round) == ("chest", 2) else consortium.train)(site, order)

    harness, manifest, history = run(consortium.introduce, train, method=METHOD)
    assert manifest["status"] == "failed"
    assert len(harness.saved) == len(history["rounds"]) == 1
    (panic,) = harness.panics
    assert "round 2 ended with too few valid replies (2, the quorum is 3)" in panic
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(panic)


@pytest.mark.parametrize("key", [{}, {"public": ["00"], "certificate": [], "signature": []}], ids=["none", "short"])
def test_a_site_without_a_proper_key_is_named_in_the_handshake(run, consortium, key):
    def introduce(site):
        introduced = consortium.introduce(site)
        return dataclasses.replace(introduced, sum_key=key) if site == "chest" else introduced

    harness, _, _ = run(introduce, consortium.train, method=METHOD)
    assert not consortium.orders
    assert "site chest" in harness.panics[0]
    assert "key" in harness.panics[0]


@pytest.mark.slow
def test_a_sum_whose_masks_do_not_cancel_becomes_no_global_adapter(run, consortium):
    consortium.members[SITES[1]] = SumMember(site=SITES[1], method=MethodSettings(**METHOD), settings="other")
    harness, manifest, _ = run(consortium.introduce, consortium.train, method=METHOD)
    assert (manifest["status"], harness.saved) == ("failed", [])
    assert "masks do not cancel" in manifest["reason"]


def nobody(site):
    raise AssertionError(f"site {site} was sent a message")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schedule": {"solver": "own", "budget": 1}}, "schedule.solver='all'"),
        ({"schedule": {"clients_per_round": 2}}, "schedule.clients_per_round to 0"),
        ({"schedule": {"joins": {"chest": 2}}}, "leave schedule.joins out"),
        ({"quorum": 2}, "federation.quorum to 0"),
    ],
)
def test_what_a_secure_sum_cannot_do_is_refused_before_any_site_is_contacted(run, changes, reason):
    harness, manifest, _ = run(nobody, method=METHOD, **changes)
    assert manifest["status"] == "failed"
    assert reason in harness.panics[0]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"aggregation": "none"}, "they send nothing"),
        ({"aggregation": "pia"}, "method.pia.aligned_at to 'site'"),
        ({"initialization": "own"}, "initialization='shared'"),
        ({"robust": {"average": "median"}}, "leave out method.robust"),
        ({"robust": {"max_share": 0.4}}, "leave out method.robust"),
    ],
)
def test_a_method_that_must_see_single_adapters_is_refused(settings, reason):
    with pytest.raises(FedpeftError, match=reason):
        MethodSettings(**{**METHOD, **settings})
    MethodSettings(aggregation="pia", pia={"aligned_at": "site"}, secure_sum=True)


def order(**changes):
    values = {"lineage": JOB, "round": 1, "base": 0, "version": 0, "layers": None, "scored": False, "state": {}}
    return TrainOrder(**{**values, **changes})


@pytest.mark.parametrize("changes", [{"layers": [0]}, {"scored": True}, {"sum_keys": {}}])
def test_a_site_refuses_an_order_that_would_show_more_than_the_sum(consortium, changes):
    for site in SITES:
        consortium.introduce(site)
    with pytest.raises(FedpeftError) as refused:
        consortium.members["chest"].upload(
            plain("chest", 1), consortium.folder / "chest", order(**changes), samples=5, received={}
        )
    assert refused.value.code == "secure-sum-refused"


def test_a_site_of_a_consortium_needs_its_certificate_and_sums_with_the_sites_of_its_file(tmp_path):
    method, policy = MethodSettings(**METHOD), SitePolicy(sum_with=tuple(SITES))
    with pytest.raises(FedpeftError, match="a secure sum needs the start-up kit"):
        SumMember.of("chest", method, policy, {}, job=JOB, startup=tmp_path)
    simulated = SumMember.of("chest", method, None, {}, job=JOB, startup=tmp_path)
    assert (simulated.kit, simulated.members) == (None, None)
    without = SumMember.of("chest", MethodSettings(aggregation="fedavg"), SitePolicy(), {}, job=JOB, startup=tmp_path)
    assert without.offer(tmp_path, job=JOB, round=1, facts={}) == {}


def test_the_member_of_a_site_has_the_noise_of_its_file_and_is_refused_without_an_accountant(tmp_path, monkeypatch):
    monkeypatch.setattr(Kit, "load", lambda startup: None)
    member = SumMember.of("chest", MethodSettings(**METHOD), NOISED, {}, job=JOB, startup=tmp_path)
    assert member.noised == PrivacySettings(clip=1, noise=0.01)
    assert (member.members, member.policy["sum_noise"]["noise"]) == (tuple(SITES), 0.01)
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(FedpeftError, match="opacus"):
        SumMember.of("chest", MethodSettings(**METHOD), NOISED, {}, job=JOB, startup=tmp_path)


def test_a_site_clips_and_noises_what_it_masks_where_its_file_says_so(tmp_path):
    """The sum of three: one update of norm 1 for each, noise of all, and a line in each site's ledger."""
    members = {
        site: SumMember(site=site, method=MethodSettings(**METHOD), settings="same", noised=NOISED.noise_of_sums)
        for site in SITES
    }
    folders = {site: tmp_path / site / JOB for site in SITES}
    keys = {site: member.offer(folders[site], job=JOB, round=1, facts={}) for site, member in members.items()}
    received = {key: torch.zeros(shape) for key, shape in SCHEMA.items()}
    sent = [
        member.upload(plain(site, 9), folders[site], order(sum_keys=keys), samples=1, received=received)
        for site, member in members.items()
    ]
    mean = secure_sum.mean(sent, [1] * len(SITES), dict.fromkeys(SCHEMA, torch.float32))
    numbers = torch.cat([tensor.flatten() for tensor in mean.values()])
    assert len(numbers.unique()) == len(numbers), "noise on each"
    assert abs(float(numbers.norm()) - 1) < 0.2
    for site in SITES:
        (line,) = (tmp_path / site / LEDGER).read_text().splitlines()
        assert {"job": JOB, "round": 1, "noise": 0.01, "bound": 1.0}.items() <= json.loads(line).items()


@pytest.fixture
def noising(tmp_path):
    """Function: a site that noises what it masks sends its adapter of the first round; returns its ledger."""
    folders = {site: tmp_path / site / JOB for site in SITES}
    made = {site: SumMember(site=site, method=MethodSettings(**METHOD), settings="same") for site in SITES}
    keys = {site: member.offer(folders[site], job=JOB, round=1, facts={}) for site, member in made.items()}
    received = {key: torch.zeros(shape) for key, shape in SCHEMA.items()}

    def send(**changes):
        member = dataclasses.replace(made["chest"], noised=dataclasses.replace(NOISED.noise_of_sums, **changes))
        member.upload(plain("chest", 9), folders["chest"], order(sum_keys=keys), samples=1, received=received)

    send.ledger = tmp_path / "chest" / LEDGER
    return send


def test_a_repeated_order_costs_a_site_nothing(noising):
    """The key is gone, so nothing would leave."""
    noising()
    written = noising.ledger.read_bytes()
    with pytest.raises(SecureSumError, match="no unused key"):
        noising()
    assert noising.ledger.read_bytes() == written


def unusable(ledger):
    ledger.mkdir(parents=True)


@pytest.mark.parametrize(
    ("harm", "changes", "reason"),
    [
        (None, {"limit": 1.0}, "over the limit of 1"),
        (None, {"noise": 1e-160}, "have no finite epsilon"),
        (unusable, {}, "the ledger of releases .* cannot be used"),
    ],
    ids=["limit", "noise", "ledger"],
)
def test_a_sum_that_the_ledger_refuses_is_blocked(noising, harm, changes, reason):
    """As a single reply is, and not called a state that cannot be used."""
    if harm:
        harm(noising.ledger)
    with pytest.raises(LocalError, match=reason) as refused:
        noising(**changes)
    assert refused.value.code == BLOCKED


def test_sites_that_were_sent_different_jobs_do_not_mask_alike(tmp_path):
    """A server that has the others train with a rate of nothing would read one site off the sum."""
    method = MethodSettings(**METHOD)
    rates = ({"training": {"learning_rate": rate}} for rate in (1e-3, 1e-3, 1e-30))
    members = [SumMember.of("chest", method, None, rate, job=JOB, startup=tmp_path) for rate in rates]
    one, same, other = (member.settings for member in members)
    assert one == same != other
