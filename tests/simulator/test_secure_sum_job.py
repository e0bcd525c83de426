# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A job with method.secure_sum in FLARE's simulator, every message recorded."""

import json

import pytest
import torch
from safetensors.torch import load_file
from simulator_runs import simulate, workspace_for_tests, write

from fedpeft.federate import federate
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.simulator

SITES = ("slake", "vqa-rad", "vqa-med-2019")


def test_the_server_learns_the_mean_that_the_bare_loop_computes_and_no_adapter(tmp_path, sections):
    chosen = sections(f"federation.sites=[{', '.join(SITES)}]", "method.pia.aligned_at=site", "method.secure_sum=true")
    frames = tmp_path / "frames"
    frames.mkdir()
    done = simulate(write(tmp_path / "job", chosen, frames=frames), workspace_for_tests(tmp_path / "ws"), threads=3)
    assert done.code == 0, done.text
    assert json.loads((done.results / "manifest.json").read_text())["status"] == "completed"

    learners = {site: Learner.from_sections(chosen, site=site, folder=tmp_path / "bare" / site) for site in SITES}
    rounds = list(federate(learners))
    saved = load_file(done.results / "global.safetensors")
    assert saved.keys() == rounds[-1].state.keys()
    assert all(torch.equal(saved[key], rounds[-1].state[key]) for key in saved)

    sent = b"".join(file.read_bytes() for file in sorted(frames.glob("*.frames")))
    first = rounds[0].state["layer.1.output.down.weight"]
    assert first.numpy().tobytes() in sent, "the recorder must see the mean that the server sends"
    for result in rounds:
        for site, update in result.updates.items():
            for key, tensor in update.state.items():
                assert tensor.numpy().tobytes()[:64] not in sent, f"{key} of {site} in round {result.round}"
