# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The outgoing filter in real simulator runs keeps a leak at its site; what it lets through is in test_small_job.py."""

import json

import pytest
import torch
from safetensors.torch import load_file

from fedpeft.flare.policy import default_scope
from fedpeft.protocol import PrivacySettings, epsilon

pytestmark = pytest.mark.simulator
SECRET = "adenocarcinoma of the left lobe"
OWN = "{}/*/round-00002/adapter.safetensors"
ORDERED = "simulator_server/*/round-00001/global.safetensors"  # what round 2 begins from
LEAK = {"faulty_site": "vqa-rad", "round": 2, "secret": SECRET}


def kept(run, site, name):
    return run.workspace / site / "simulate_job" / "fedpeft" / name


def history(run):
    return json.loads((run.results / "history.json").read_text())


def test_a_leak_stays_at_its_site_by_name_and_the_job_goes_on(filtered):
    run = filtered(default_scope(), "federation.quorum=1", leak=LEAK)
    assert run.code == 0, run.text
    last = history(run)["rounds"][1]
    assert sorted(last["sites"]) == ["slake"]
    assert "site vqa-rad could not finish round 2: its own filter blocked the reply" in last["rejected"]["vqa-rad"]
    assert "field 'comment'" in json.loads(kept(run, "vqa-rad", "problem.json").read_text())["problem"]
    assert SECRET.encode() not in run.frames


def test_a_leak_below_the_quorum_ends_the_job_by_name(filtered):
    run = filtered(default_scope(), leak=LEAK)
    assert run.code == 1
    assert "round 2 ended with too few valid replies (1, the quorum is 2)" in run.error
    assert "field 'comment'" in run.error
    assert SECRET.encode() not in run.frames


def test_only_noised_adapters_leave_and_epsilon_is_reported(filtered):
    privacy = PrivacySettings(clip=1.0, noise=2.0, score_clip=1.0, score_noise=2.0)
    run = filtered(default_scope(privacy), "method.aggregation=fedavg", "schedule.solver=exact", "schedule.budget=1")
    assert run.code == 0, run.text
    states = run.workspace.with_name(f"{run.workspace.name}_state")
    (ordered,) = map(load_file, states.glob(ORDERED))
    for site in ("slake", "vqa-rad"):
        spent = json.loads(kept(run, site, "spent.json").read_text())
        assert spent["releases"] == spent["releases_of_job"] == 4  # adapter and scores, two rounds
        assert spent["epsilon"] == pytest.approx(epsilon([2.0] * 4, 1e-5))
        released = load_file(kept(run, site, "outgoing/release_train.safetensors"))
        released.pop("scores")
        (trained,) = map(load_file, states.glob(OWN.format(site)))
        sent = {key.removeprefix("adapter."): tensor for key, tensor in released.items()}
        moved = [key for key in sent if not torch.equal(trained[key], ordered[key])]  # noise may leave a unit dead
        assert moved
        assert not any(trained[key].contiguous().numpy().tobytes() in run.frames for key in moved)
        for key, tensor in sent.items():
            assert tensor.contiguous().numpy().tobytes() in run.frames
            assert not torch.equal(tensor, trained[key])
        noise = torch.cat([(tensor - trained[key]).flatten() for key, tensor in sent.items()])
        assert noise.std() > 1  # 2 is added, of a few tensors alone it may be less
    assert all(site["overall"] is None for one in history(run)["rounds"] for site in one["sites"].values())
    assert f"epsilon {epsilon([2.0] * 4, 1e-5):.3g} at delta 1e-05 after 4 releases" in run.text
