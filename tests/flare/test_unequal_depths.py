# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's rounds with sites whose backbones differ in depth."""

import pytest
import torch
from harness import SITES, introduction, reply

from fedpeft.core.keys import layers_of

METHOD = {"aggregation": "fedavg", "matched_layers": 3, "robust": {"update_factor": 0}}
OWN = {"slake": (0, 2), "vqa-rad": (0, 1, 2), "chest": (2,)}
DEEP = "vqa-rad"


def schema(layers):
    return {f"layer.{n}.output.{name}.weight": [2, 2] for n in layers for name in ("down", "up")}


def brings(site, **changes):
    own = schema(OWN[site])
    state = {key: torch.zeros(shape) for key, shape in own.items()} if site == DEEP else {}
    return introduction(site, **{"schema": own, "state": state, **changes})


def trains(site, order):
    assert set(order.state) == set(schema(OWN[site]))  # the server sends a site its own layers, and all of them
    value = 10.0 ** SITES.index(site)
    return reply(site, order, state={key: tensor + value for key, tensor in order.state.items()})


def mean_of_layers(state):
    return [float(state[f"layer.{layer}.output.up.weight"].mean()) for layer in range(3)]


def test_a_layer_is_the_mean_over_the_sites_that_have_it(run):
    harness, manifest, _ = run(brings, trains, method=METHOD)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert {site: entry["layers"] for site, entry in manifest["sites"].items()} == {
        "slake": 2,
        "vqa-rad": 3,
        "chest": 1,
    }
    assert mean_of_layers(harness.saved[-1]) == [11.0, 20.0, 74.0]


@pytest.mark.parametrize("absent", SITES)
def test_without_a_site_the_others_go_on_and_a_layer_that_none_has_stays(run, absent):
    def gone(site, order):
        return None if site == absent and order.round == 2 else trains(site, order)

    harness, manifest, _ = run(brings, gone, method=METHOD, quorum=2)
    assert manifest["status"] == "completed", manifest.get("reason")
    before, after = map(mean_of_layers, harness.saved[-2:])
    changed = [after[layer] != before[layer] for layer in range(3)]
    assert changed == [any(layer in OWN[site] for site in SITES if site != absent) for layer in range(3)]


@pytest.mark.slow
def test_a_resumed_job_ends_like_an_uninterrupted_one(run):
    def killed(site, order):
        if order.round == 3:
            raise SystemExit("killed")
        return trains(site, order)

    whole, _, _ = run(brings, trains, method=METHOD, rounds=4)
    with pytest.raises(SystemExit):
        run(brings, killed, method=METHOD, rounds=4)

    def back(site):
        return brings(site, finished=2, state={})

    again, manifest, _ = run(back, trains, method=METHOD, rounds=4, resume_from="latest")
    assert manifest["status"] == "completed", manifest.get("reason")
    assert mean_of_layers(again.saved[-1]) == mean_of_layers(whole.saved[-1])


def test_another_number_of_layers_is_no_resumed_job(run):
    def killed(site, order):
        raise SystemExit("killed") if order.round == 2 else None

    with pytest.raises(SystemExit):
        run(brings, lambda site, order: trains(site, order) if order.round < 2 else killed(site, order), method=METHOD)
    _, manifest, _ = run(brings, trains, method={**METHOD, "matched_layers": 4}, resume_from="latest")
    assert "method.matched_layers is 4, it was 3 in the job to resume" in manifest["reason"]


def test_without_a_site_of_all_layers_the_job_says_who_is_missing(run):
    _, manifest, _ = run(lambda site: None if site == DEEP else brings(site), trains, method=METHOD, quorum=2)
    assert "has all 3 layers of method.matched_layers" in manifest["reason"]
    assert "site vqa-rad did not answer within" in manifest["reason"]


LIES = {
    "a layer too many": {"state": {key: torch.zeros(2, 2) for key in schema((0, 1, 2))}},
    "a layer too few": {"state": {key: torch.zeros(2, 2) for key in schema((0,))}},
    "another layer": {"state": {key: torch.zeros(2, 2) for key in schema((0, 1))}},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_site_sends_the_layers_that_it_announced_or_nothing(run, lie):
    def lying(site, order):
        return reply(site, order, **LIES[lie]) if site == "slake" else trains(site, order)

    harness, manifest, history = run(brings, lying, method=METHOD, quorum=2)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert all("site slake" in entry["rejected"]["slake"] for entry in history["rounds"])
    assert layers_of(harness.saved[-1]) == [0, 1, 2]


def test_a_site_that_announces_more_layers_than_the_job_has_takes_no_part(run):
    deeper = {"slake": {"schema": schema(range(9))}}
    _, manifest, _ = run(lambda site: brings(site, **deeper.get(site, {})), trains, method=METHOD, quorum=2)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert "site slake has 9 layers, and method.matched_layers is 3" in manifest["sites"]["slake"]["problem"]
