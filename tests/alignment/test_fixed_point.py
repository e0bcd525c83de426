# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's round with `reference: fixed_point`, and with a margin below which no neuron moves."""

import pytest
import torch
from grids import each
from samples import PLACES, at, generator, largest_difference, noisy, same_bytes, shuffled_state, state

from fedpeft.alignment import PIASettings, align_upload, barycenter, common_order, integrate
from fedpeft.core.errors import FedpeftError

FIXED_POINT = PIASettings(reference="fixed_point", gamma=0.0)
FEDAVG = PIASettings(server=False)
WEIGHTS_STD = 0.3  # of the samples' adapters


def drifted(kind, sites, noise, *, shuffle=False):
    """The start, and the adapters of sites that trained away from it by a share of its weights."""
    start = state(kind, generator(1))
    states = [noisy(start, generator(10 + k), noise * WEIGHTS_STD) for k in range(sites)]
    return start, [shuffled_state(kind, s, generator(30 + k)) for k, s in enumerate(states)] if shuffle else states


@pytest.mark.slow
@each("sites", range(2, 9))
@each("noise", [2e-4, 0.02, 0.1])
def test_shuffled_copies_come_back_as_near_as_in_their_true_order(kind, sites, noise):
    start, states = drifted(kind, sites, noise)
    true, _ = integrate(states, [1] * sites, FEDAVG)
    merged, _ = integrate(drifted(kind, sites, noise, shuffle=True)[1], [1] * sites, FIXED_POINT)
    allowed = 1.2 * largest_difference(kind, true, start) + 1e-5
    assert largest_difference(kind, merged, start) <= allowed
    assert largest_difference(kind, merged, true) <= 1e-4


def test_sites_in_one_order_are_averaged_as_they_stand(kind):
    _, states = drifted(kind, 4, 0.05)
    counts = [5, 3, 9, 1]
    merged, report = integrate(states, counts, FIXED_POINT)
    assert same_bytes(merged, integrate(states, counts, FEDAVG)[0])
    assert {tuple(row.values()) for row in report["decisions"].values()} == {(0, len(PLACES), 0)}


def test_a_site_in_another_order_is_the_one_that_moves():
    _, states = drifted("houlsby", 4, 0.05)
    states[2] = shuffled_state("houlsby", states[2], generator(7))
    _, report = integrate(states, [1, 1, 1, 1], FIXED_POINT, sites=list("abcd"))
    moved = {site: row["moved"] for site, row in report["decisions"].items()}
    assert moved == {"a": 0, "b": 0, "c": len(PLACES), "d": 0}
    assert report["sites"]["c"]["after"] < 0.5 * report["sites"]["c"]["before"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_list_of_sites_may_have_any_order(shuffle):
    _, states = drifted("houlsby", 5, 1.0, shuffle=shuffle)
    counts, names = [4, 4, 2, 2, 1], list("abcde")
    merged, report = integrate(states, counts, PIASettings(reference="fixed_point"), sites=names)
    listed = [3, 0, 4, 2, 1]
    again, other = integrate(
        *([values[k] for k in listed] for values in (states, counts)),
        PIASettings(reference="fixed_point"),
        sites=[names[k] for k in listed],
    )
    for key, tensor in merged.items():
        torch.testing.assert_close(again[key], tensor, rtol=0, atol=1e-6)
    assert other["decisions"] == report["decisions"]


def test_passes_belong_to_the_fixed_point_alone(monkeypatch):
    received = []
    original = common_order.common_order
    monkeypatch.setattr(common_order, "common_order", lambda *args: received.append(args[-1]) or original(*args))
    _, states = drifted("houlsby", 3, 0.5, shuffle=True)
    paper, _ = integrate(states, [1, 2, 3])
    assert same_bytes(integrate(states, [1, 2, 3], PIASettings(reference="fedavg", passes=1))[0], paper)
    distances = []
    for passes in (1, 2, 20):
        _, report = integrate(states, [1, 2, 3], PIASettings(reference="fixed_point", passes=passes))
        distances.append(sum(row["after"] for row in report["sites"].values()))
    assert distances[-1] <= distances[0] * (1 + 1e-6)
    assert list(dict.fromkeys(received)) == [1, 2, 20]


def test_plans_that_move_nothing_leave_fedavg_to_the_bit():
    _, states = drifted("houlsby", 3, 0.5, shuffle=True)
    settings = PIASettings(reference="fixed_point", solver="identity", gamma=0.0)
    assert same_bytes(integrate(states, [1, 2, 3], settings)[0], integrate(states, [1, 2, 3], FEDAVG)[0])


def test_a_narrower_site_is_aligned_to_the_fixed_point_of_the_others():
    start, states = drifted("houlsby", 3, 0.02, shuffle=True)
    narrow = {}
    for key, tensor in start.items():
        name = key.rpartition("output.")[2].rpartition("attention.")[2]
        axis = {"down.weight": 0, "down.bias": 0, "up.weight": 1}.get(name)
        narrow[key] = tensor if axis is None else tensor.narrow(axis, 0, 8)
    merged, report = integrate([*states, narrow], [3, 3, 3, 1], FIXED_POINT, sites=list("abcd"))
    assert {key: t.shape for key, t in merged.items()} == {key: t.shape for key, t in start.items()}
    assert report["decisions"]["d"] == {"moved": 0, "stayed": 0, "held": 0}
    assert report["sites"]["d"]["moved"] is None


def test_the_barycenter_of_single_adapters_has_the_same_settings():
    _, states = drifted("houlsby", 2, 0.05, shuffle=True)
    tables = [at(s, PLACES[0]) for s in states]
    merged = barycenter(tables, reference="fixed_point", gamma=0.0)
    expected = at(integrate(states, [1, 1], FIXED_POINT)[0], PLACES[0])
    assert all(torch.equal(tensor, expected[name]) for name, tensor in merged.items())
    with pytest.raises(FedpeftError, match="margin is 2"):
        barycenter(tables, margin=2)


@pytest.mark.parametrize("reference", ["fedavg", "largest", "fixed_point"])
def test_a_margin_holds_what_gains_little_and_lets_pass_what_gains_much(reference):
    _, unclear = drifted("houlsby", 4, 4.0)
    counts = [4, 3, 2, 1]
    _, moved = integrate(unclear, counts, PIASettings(reference=reference, gamma=0.0))
    assert any(row["moved"] for row in moved["decisions"].values())
    assert all(row["held"] == 0 for row in moved["decisions"].values())
    held, report = integrate(unclear, counts, PIASettings(reference=reference, gamma=0.0, margin=0.9))
    assert same_bytes(held, integrate(unclear, counts, FEDAVG)[0])
    for site, row in report["decisions"].items():
        assert row == {"moved": 0, "stayed": len(PLACES), "held": moved["decisions"][site]["moved"]}
    _, clear = drifted("houlsby", 4, 0.01, shuffle=True)
    if reference != "fedavg":  # the mean of unrelated orders is far from every site, moved or not
        settings = {margin: PIASettings(reference=reference, margin=margin) for margin in (0.0, 0.5)}
        assert same_bytes(integrate(clear, counts, settings[0.5])[0], integrate(clear, counts, settings[0.0])[0])


def test_a_site_that_aligns_before_it_sends_keeps_the_margin_too():
    start = state("houlsby", generator(1))
    trained = noisy(start, generator(2), 4 * WEIGHTS_STD)
    assert not same_bytes(align_upload(trained, start, PIASettings(aligned_at="site")), trained)
    assert same_bytes(align_upload(trained, start, PIASettings(aligned_at="site", margin=0.9)), trained)
    turned = shuffled_state("houlsby", start, generator(3))
    assert same_bytes(align_upload(turned, start, PIASettings(aligned_at="site", margin=0.9)), start)
