# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A whole job in FLARE's simulator, as a user runs it."""

import hashlib
import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import ViltModel

from fedpeft import data
from fedpeft.core.settings import build
from fedpeft.federate import federate
from fedpeft.job.federation import site_data
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.simulator


def kept(run, site):
    """The folder of what a site kept after round 2."""
    (folder,) = run.workspace.with_name(f"{run.workspace.name}_state").glob(f"{site}/*/round-00002")
    return folder


def manifest(run):
    return json.loads((run.results / "manifest.json").read_text())


def test_it_ends_with_table_picture_adapters_and_manifest(five_sites):
    assert five_sites.code == 0, five_sites.text
    found = manifest(five_sites)
    assert found["status"] == "completed"
    assert found["rounds"] == 2
    assert len(found["sites"]) == 5
    for name, digest in found["files"].items():
        assert hashlib.sha256((five_sites.results / name).read_bytes()).hexdigest() == digest
    assert {
        "report/convergence.svg",
        "report/report.html",
        "report/tables.md",
        "history.json",
        "global.safetensors",
    } <= set(found["files"])
    assert str(five_sites.results) in five_sites.text
    for site in found["sites"]:
        assert site in five_sites.text
    assert "procedural" in five_sites.text


def test_each_site_logs_that_the_simulator_uses_the_jobs_values(five_sites):
    assert five_sites.text.count("the simulator uses the job's values") == 5


def test_no_pickle_is_left_behind(five_sites):
    kinds = {path.suffix for path in five_sites.workspace.rglob("*") if path.is_file()}
    assert not kinds & {".pt", ".pth", ".pkl", ".pickle", ".bin", ".npy", ".npz"}


def test_a_recipe_with_one_thread_and_simulate_with_two_give_the_same_bytes(two_at_once, one_at_a_time):
    assert one_at_a_time.code == 0, one_at_a_time.text
    assert f"result: {one_at_a_time.workspace}\n" in one_at_a_time.text
    for name in ("global.safetensors", "adapter/adapter_model.safetensors"):
        assert (two_at_once.results / name).read_bytes() == (one_at_a_time.results / name).read_bytes()
    for site in manifest(two_at_once)["sites"]:
        for part in ("adapter", "head", "optimizer"):
            name = f"{part}.safetensors"
            one, other = (kept(run, site) / name for run in (two_at_once, one_at_a_time))
            assert one.read_bytes() == other.read_bytes(), f"{name} of {site}"


def test_the_filter_of_a_privacy_json_lets_every_reply_through(one_at_a_time):
    """In a process for every task."""
    rounds = json.loads((one_at_a_time.results / "history.json").read_text())["rounds"]
    sites = manifest(one_at_a_time)["sites"]
    assert [sorted(one["sites"]) for one in rounds] == [sorted(sites)] * 2
    for site in sites:
        folder = one_at_a_time.workspace / site / "simulate_job" / "fedpeft"
        assert (folder / "outgoing" / "announced.json").is_file()
        assert not (folder / "problem.json").exists()


def test_the_loop_without_flare_gives_the_same_adapter(five_sites, sections, tmp_path):
    sites = sections()["federation"]["sites"]
    learners = {s: Learner.from_sections(sections(), site=s, folder=tmp_path / s) for s in sites}
    *_, last = federate(learners)
    saved = load_file(five_sites.results / "global.safetensors")
    assert saved.keys() == last.state.keys()
    assert all(torch.equal(saved[key], last.state[key]) for key in saved)


def test_peft_reads_the_adapter(five_sites, tiny_source):
    model = PeftModel.from_pretrained(ViltModel.from_pretrained(tiny_source), five_sites.results / "adapter")
    inside = {name: p for name, p in model.named_parameters() if "houlsby" in name}
    saved = load_file(five_sites.results / "global.safetensors")
    assert sum(p.numel() for p in inside.values()) == sum(t.numel() for t in saved.values())
    assert any(torch.equal(p, saved["layer.1.output.up.weight"]) for p in inside.values())


def test_nothing_private_is_in_any_message(five_sites, sections):
    frames = b"".join(file.read_bytes() for file in sorted(five_sites.frames.glob("*.frames")))
    uploaded = load_file(kept(five_sites, "slake") / "adapter.safetensors")
    assert all(t.numpy().tobytes() in frames for t in uploaded.values()), "the recorder must see the adapters"
    for site in sections()["federation"]["sites"]:
        head = load_file(kept(five_sites, site) / "head.safetensors")
        for name, tensor in head.items():
            assert tensor.numpy().tobytes()[:64] not in frames, f"{name} of {site}"
        examples = data.load(build(data.DataSettings, site_data(sections()["data"], site), section="data"))
        for example in (e for split in examples.splits().values() for e in split):
            assert example.question.encode() not in frames
            assert example.image.tobytes()[1000:1064] not in frames
        # a short answer such as "no" occurs in any bytes; the long ones are unmistakable
        for answer in {e.answer for e in examples.train if len(e.answer) > 6}:
            assert answer.encode() not in frames, answer
