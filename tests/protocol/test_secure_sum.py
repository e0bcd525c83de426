# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A secure sum between real sites with certificates as FLARE issues them, and a server that tries everything."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key

from fedpeft.core.errors import FedpeftError, SecureSumError
from fedpeft.core.states import equal
from fedpeft.job.settings import digest_of
from fedpeft.protocol import secure_sum, signed_keys
from fedpeft.protocol import secure_sum as fixed_point
from fedpeft.protocol.signed_keys import Kit

SITES = ("berlin", "paris", "rome", "wien")
WEIGHTS = {"berlin": 78, "paris": 5, "rome": 1234, "wien": 1}
JOB = "small-1"
SECTIONS = {"training": {"learning_rate": 1e-3}, "data": {"dataset": "manifest"}}
SHAPES = {"layer.0.output.down.weight": (6, 16), "layer.0.output.down.bias": (6,), "shared.rule": (2, 2, 2), "s": ()}
RECEIVED = {key: torch.full(shape, 0.25) for key, shape in SHAPES.items()}


def authority(name="consortium"):
    """A certificate authority, and a function from a name (and role) to the kit of a participant."""
    key, public = generate_keys()
    root = generate_cert(Identity(name), Identity(name), key, public, ca=True)

    def kit(folder, site, role=None):
        folder.mkdir(parents=True, exist_ok=True)
        own, public = generate_keys()
        certificate = generate_cert(Identity(site, "org", role), Identity(name), key, public)
        (folder / "client.key").write_bytes(serialize_pri_key(own))
        (folder / "client.crt").write_bytes(serialize_cert(certificate))
        (folder / "rootCA.pem").write_bytes(serialize_cert(root))
        return Kit.load(folder)

    return kit


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    folder, kit = tmp_path_factory.mktemp("kits"), authority()
    foreign = authority()(folder / "foreign", "paris")
    lead, client = (kit(folder / role, "paris", role=role) for role in ("lead", "client"))
    own = {site: kit(folder / site, site) for site in SITES}
    return SimpleNamespace(**own, foreign=foreign, lead=lead, client=client, folder=folder)


def adapter(seed, scale=0.1, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    return {key: (scale * torch.randn(shape, generator=rng)).to(dtype) for key, shape in SHAPES.items()}


class Round:
    """One round of a few sites: every site has offered a key, nothing is sent yet."""

    def __init__(self, folder, kits=None, sites=SITES, *, round=1, job=JOB):
        self.folder, self.kits, self.sites, self.round, self.job = folder, kits, sites, round, job
        self.offered = {site: self.offer(site) for site in sites}

    def kit(self, site):
        return getattr(self.kits, site) if self.kits else None

    def member(self, site, **changes):
        how = {"job": self.job, "round": self.round, "site": site, "kit": self.kit(site), "members": self.sites}
        return secure_sum.SumRound(**{**how, **changes})

    def offer(self, site, start=b"", **changes):
        return self.member(site, **changes).offer(self.folder / site, start)

    def send(self, site, state, **changes):
        of_member = {name: changes.pop(name) for name in ("job", "round", "members") if name in changes}
        how = {
            "settings": digest_of(SECTIONS, job="1"),
            "weight": WEIGHTS[site],
            "offered": self.offered,
            "received": RECEIVED,
        }
        return self.member(site, **of_member).upload(state, self.folder / site, **{**how, **changes})


def total(uploads):
    return fixed_point.wrapped_sum(list(uploads))


@pytest.mark.slow
@pytest.mark.parametrize("sites", [SITES[:3], SITES])
def test_the_masks_cancel_exactly(tmp_path, kits, sites):
    chosen = Round(tmp_path, kits, sites)
    states = {site: adapter(number) for number, site in enumerate(sites)}
    uploads = {site: chosen.send(site, state) for site, state in states.items()}
    plain = [fixed_point.encode(states[site], WEIGHTS[site], len(sites)) for site in sites]
    for key, numbers in total(uploads.values()).items():
        expected = sum((one[key] for one in plain[1:]), start=plain[0][key])
        assert np.array_equal(numbers, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_mean_is_the_weighted_mean(tmp_path, dtype):
    chosen = Round(tmp_path)
    states = {site: adapter(number, dtype=dtype) for number, site in enumerate(SITES)}
    uploads = [chosen.send(site, states[site]) for site in SITES]
    found = secure_sum.mean(uploads, [WEIGHTS[site] for site in SITES], dict.fromkeys(SHAPES, dtype))
    for key, tensor in found.items():
        exact = sum(WEIGHTS[site] * states[site][key].double() for site in SITES) / sum(WEIGHTS.values())
        assert tensor.dtype == dtype
        assert (tensor.double() - exact).abs().max() <= max(2**-33, torch.finfo(dtype).eps * float(exact.abs().max()))


def test_the_mean_is_taken_one_tensor_after_the_other(tmp_path):
    chosen, stored = Round(tmp_path), []
    uploads = [chosen.send(site, adapter(number)) for number, site in enumerate(SITES)]
    weights, dtypes = [WEIGHTS[site] for site in SITES], dict.fromkeys(SHAPES, torch.float32)
    found = secure_sum.mean(uploads, weights, dtypes, store=lambda part: stored.append(dict(part)) or dict(part))
    assert [list(part) for part in stored] == [[key] for key in SHAPES]
    assert equal(found, secure_sum.mean(uploads, weights, dtypes))


def test_one_sites_upload_looks_uniform_whatever_it_holds(tmp_path):
    """Zeros and an adapter: bytes of both are spread evenly, and two uploads of one adapter have nothing in common."""
    shape = {"layer.0.output.down.weight": (128, 256)}
    zeros = {key: torch.zeros(size) for key, size in shape.items()}
    seen = []
    for number in range(2):
        sent = Round(tmp_path / str(number)).send("paris", zeros)
        seen.append(fixed_point.from_wire(sent["layer.0.output.down.weight"]).ravel())
    for words in (*seen, seen[0] - seen[1], seen[0] ^ seen[1]):
        counts = np.bincount(words.view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        chi_squared = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi_squared - 255) < 6 * math.sqrt(2 * 255)
        assert len(np.unique(words)) == len(words)


@pytest.mark.parametrize("missing", SITES)
def test_without_one_member_the_sum_is_noise(tmp_path, missing):
    chosen = Round(tmp_path)
    uploads = {site: chosen.send(site, adapter(0)) for site in SITES if site != missing}
    plain = [fixed_point.encode(adapter(0), WEIGHTS[site], len(SITES)) for site in uploads]
    rest = total(uploads.values())
    for key in SHAPES:
        left = rest[key] - sum((one[key] for one in plain[1:]), start=plain[0][key])
        assert np.all(left), "no number is in the clear"
        assert not SHAPES[key] or np.median(np.abs(left.view(np.int64)).astype(float)) > 2**58  # one may be small


CHANGES = {
    "another global adapter": {"received": {key: tensor + 1 for key, tensor in RECEIVED.items()}},
    "no global adapter": {"received": {}},
    "a job that trains nothing": {"settings": digest_of({**SECTIONS, "training": {"learning_rate": 1e-30}}, job="1")},
    "other data": {"settings": digest_of({**SECTIONS, "data": {"sites": {"rome": {"seed": 1}}}}, job="1")},
    "another job": {"settings": digest_of(SECTIONS, job="2")},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_masks_that_do_not_cancel_make_no_mean(tmp_path, change):
    """With many samples uniform numbers are small enough to pass as an adapter."""
    chosen, many = Round(tmp_path), 10**6
    uploads = [chosen.send(site, adapter(0), weight=many, **(change if site == "rome" else {})) for site in SITES]
    with pytest.raises(FedpeftError, match="masks do not cancel"):
        secure_sum.mean(uploads, [many] * len(SITES), dict.fromkeys(SHAPES, torch.float32))


@pytest.mark.parametrize("public", ["00" * 32, "01" + "00" * 31], ids=["zero", "one"])
def test_a_key_that_makes_no_secret_is_refused(public):
    offered = {"public": [public], "start": [], "certificate": [], "signature": []}
    with pytest.raises(SecureSumError, match="the key of site rome is malformed"):
        signed_keys.read(offered, site="rome")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_sites_that_do_not_see_the_same_thing_reveal_nothing(tmp_path, change):
    """Otherwise a server could send all sites but one a model that makes their updates vanish."""
    chosen = Round(tmp_path)
    uploads = [chosen.send(site, adapter(0), **(change if site == "rome" else {})) for site in SITES]
    plain = [fixed_point.encode(adapter(0), WEIGHTS[site], len(SITES)) for site in SITES]
    for key, numbers in total(uploads).items():
        left = numbers - sum((one[key] for one in plain[1:]), start=plain[0][key])
        assert np.all(left), "no number is in the clear"
        assert not SHAPES[key] or np.median(np.abs(left.view(np.int64)).astype(float)) > 2**58  # one may be small


def test_a_key_serves_one_upload(tmp_path, kits):
    chosen = Round(tmp_path, kits)
    chosen.send("paris", adapter(1))
    with pytest.raises(FedpeftError, match="no unused key for round 1"):
        chosen.send("paris", adapter(2))
    assert not list((tmp_path / "paris").iterdir())


def test_a_key_is_used_up_by_an_upload_that_fails(tmp_path, kits):
    chosen = Round(tmp_path, kits)
    with pytest.raises(FedpeftError, match="cannot hold"):
        chosen.send("paris", adapter(1, scale=1e9))
    with pytest.raises(FedpeftError, match="no unused key"):
        chosen.send("paris", adapter(1))


def test_the_private_key_is_for_the_sites_user_alone(tmp_path):
    Round(tmp_path)
    assert (tmp_path / "paris" / secure_sum.KEY_FILE).stat().st_mode & 0o077 == 0


def replaced(chosen, kits, kind):
    """What a server passes on in place of the key of paris."""
    own = chosen.offered["paris"]
    if kind == "unsigned":
        return {**own, "signature": [], "certificate": []}
    if kind == "of the server's own making":
        return {**own, "public": Round(chosen.folder / "x", None).offered["paris"]["public"]}
    if kind == "of another authority":
        return chosen.member("paris", kit=kits.foreign).offer(chosen.folder / "x")
    if kind == "of a person":
        return chosen.member("paris", kit=kits.lead).offer(chosen.folder / "x")
    if kind == "of another site":
        return chosen.member("paris", kit=kits.rome).offer(chosen.folder / "x")
    if kind == "of another round":
        return chosen.offer("paris", round=2)
    if kind == "of another job":
        return chosen.offer("paris", job="small-0")
    assert kind == "malformed"
    return {**own, "public": [own["public"][0][:-2]]}


REPLACED = {
    "unsigned": "certificate of site paris was not issued by this consortium's authority",
    "of the server's own making": "key of site paris is not signed by it for round 1 of this job",
    "of another authority": "certificate of site paris was not issued by this consortium's authority",
    "of a person": "certificate of site paris belongs to another participant",
    "of another site": "certificate of site paris belongs to another participant",
    "of another round": "key of site paris is not signed by it for round 1 of this job",
    "of another job": "key of site paris is not signed by it for round 1 of this job",
    "malformed": "key of site paris is malformed",
}


@pytest.mark.parametrize(("kind", "reason"), REPLACED.items(), ids=REPLACED)
def test_a_key_that_is_not_the_sites_own_is_refused(tmp_path, kits, kind, reason):
    chosen = Round(tmp_path, kits)
    chosen.offered["paris"] = replaced(chosen, kits, kind)
    with pytest.raises(FedpeftError, match=reason):
        chosen.send("berlin", adapter(0))


def test_a_certificate_that_calls_its_owner_a_client_is_that_of_a_site(tmp_path, kits):
    """`nvflare cert` writes this role for a site."""
    chosen = Round(tmp_path, kits)
    chosen.offered["paris"] = chosen.offer("paris", kit=kits.client)
    assert chosen.send("berlin", adapter(0)).keys() == SHAPES.keys()


def test_the_servers_version_of_a_sites_own_key_is_refused(tmp_path, kits):
    chosen = Round(tmp_path, kits)
    before = chosen.offered["paris"]
    chosen.offered["paris"] = chosen.offer("paris")
    chosen.send("paris", adapter(0))
    chosen.offer("paris")
    chosen.offered["paris"] = before
    with pytest.raises(FedpeftError, match="passes on another key of site paris than it offered"):
        chosen.send("paris", adapter(0))


def test_what_training_starts_from_is_signed_with_the_key(tmp_path, kits):
    """A server that passed on an older digest would have the other members repeat what they have sent before."""
    chosen = Round(tmp_path, kits)
    chosen.offered = {site: chosen.offer(site, start=bytes([number]) * 32) for number, site in enumerate(SITES)}
    verify = chosen.member("berlin").verified
    assert {site: offer.start[0] for site, offer in verify(chosen.offered).items()} == {
        site: number for number, site in enumerate(SITES)
    }
    for start in (["07" * 32], []):
        with pytest.raises(FedpeftError, match="key of site paris is not signed by it for round 1 of this job"):
            verify({**chosen.offered, "paris": {**chosen.offered["paris"], "start": start}})
    with pytest.raises(FedpeftError, match="key of site paris is malformed"):
        verify({**chosen.offered, "paris": {**chosen.offered["paris"], "start": ["07" * 31]}})


@pytest.mark.parametrize("left", [SITES[:3], SITES[1:], SITES[:1]])
def test_a_sum_of_other_sites_than_the_sites_file_names_is_refused(tmp_path, kits, left):
    """With one site less in a second sum, the difference of the two would be that site's adapter."""
    chosen = Round(tmp_path, kits)
    offered = {site: chosen.offered[site] for site in left}
    with pytest.raises(FedpeftError, match="another group of sites"):
        chosen.send("berlin", adapter(0), offered=offered)


@pytest.mark.parametrize("sites", [SITES[:1], SITES[:2], ("paris", "rome", "wien")])
def test_a_sum_of_fewer_than_three_or_without_this_site_is_refused(tmp_path, sites):
    chosen = Round(tmp_path, sites=sites)
    with pytest.raises(FedpeftError, match="needs this site and at least 3 sites"):
        chosen.send("berlin", adapter(0), members=None)


def test_one_key_for_two_sites_is_refused(tmp_path):
    chosen = Round(tmp_path)
    chosen.offered["paris"] = chosen.offered["rome"]
    with pytest.raises(FedpeftError, match="two sites have the same key"):
        chosen.send("berlin", adapter(0))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e9])
def test_a_number_that_the_sum_cannot_hold_is_refused_by_key(tmp_path, value):
    state = adapter(0)
    state["shared.rule"][0, 0, 0] = value
    with pytest.raises(FedpeftError, match=r"shared\.rule has a number that a sum of 4 sites cannot hold"):
        Round(tmp_path).send("rome", state)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["client.key", "client.crt", "rootCA.pem"])
def test_a_kit_without_its_certificate_is_refused(tmp_path, name):
    authority()(tmp_path, "paris")
    (tmp_path / name).write_text("nothing")
    with pytest.raises(FedpeftError, match="a secure sum needs the start-up kit"):
        Kit.load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FedpeftError, match="a secure sum needs the start-up kit"):
        Kit.load(tmp_path)
