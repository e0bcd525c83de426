# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A job whose sites take turns in a few processes: the bytes of the loop without processes, and what a crash costs."""

import json
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from simulator_runs import write
from undrawn import leave_pictures_out
from warm_python import TRUE_PYTHON

from fedpeft.core.errors import FedpeftError
from fedpeft.core.workspace import OF_SIMULATOR, seed
from fedpeft.federate import federate
from fedpeft.flare.policy import default_scope
from fedpeft.report.status import read_progress, run_folder
from fedpeft.run.simulate import simulate
from fedpeft.site.connection import Lost, WorkerProcess
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.simulator
SITES = ("slake", "vqa-rad", "vqa-med-2019")
JOB = (f"federation.sites=[{', '.join(SITES)}]", "data.train_size=8", "data.validation_size=2", "data.test_size=4")
HALVES = ("method.pia.share=0.5", "method.pia.accept=false")  # which goes with any schedule
SCHEDULED = (*HALVES, "schedule.solver=nsga2", "schedule.score_samples=4")
KINDS = {
    "merged": ["method.pia.share=agreement", "method.pia.accept=true"],
    "scheduled, some clients": [*SCHEDULED, "schedule.clients_per_round=2"],
    "secure sum": [
        "method.aggregation=fedavg",
        "method.secure_sum=true",
        "method.name=feddat_houlsby",
    ],
    "stacked": ["method.name=lora", "method.aggregation=stack"],
    "joins": [*HALVES, "schedule.joins={vqa-rad: 2}"],
    "ditto": [
        "method.pia.client=false",
        "method.server_optimizer=yogi",
        "training.proximal_mu=0.1",
        "training.personalization=ditto",
    ],
    "fedala": ["method.aggregation=fedavg", "training.personalization=fedala", "training.ala_rate=1e5"],
    "prompts": ["method.name=vpt", "method.aggregation=fedavg"],
    "of PEFT": ["method.name=ia3", "method.aggregation=fedavg"],
    "tensors of the backbone": ["method.name=layernorm", "method.aggregation=fedavg"],
    "fused adapters": ["method.name=adapterfusion", "method.aggregation=fedavg"],
}


@pytest.fixture
def run(tmp_path, monkeypatch, warm_python):
    """Function: run a job in the pool, whose processes have their imports already; returns its results folder."""
    leave_pictures_out(monkeypatch.setattr)

    def start(chosen, name="run", threads=2, workspace="ws", engine="pool"):
        job = write(tmp_path / f"job-{name}", chosen)
        return simulate(job, workspace=tmp_path / workspace, threads=threads, engine=engine)

    return start


def same(file: Path, state):
    saved = load_file(file)
    return saved.keys() == state.keys() and all(torch.equal(saved[key], state[key]) for key in saved)


@pytest.mark.parametrize("kind", KINDS)
def test_it_gives_the_bytes_of_the_loop_in_one_process(kind, run, sections, tmp_path):
    chosen = sections(*JOB, *KINDS[kind])
    results = run(chosen)
    *_, last = federate({s: Learner.from_sections(chosen, site=s, folder=tmp_path / s) for s in SITES})
    assert same(results / "global.safetensors", last.state)
    history = json.loads((results / "history.json").read_text())
    for site, update in last.updates.items():
        assert history["rounds"][-1]["sites"][site]["overall"] == update.metrics["overall"]
    assert read_progress(run_folder(tmp_path / "ws")).ended
    written = {file.relative_to(tmp_path).parts[0] for file in tmp_path.rglob("*") if file.is_file()}
    assert written - {*SITES} == {"job-run", "ws", "ws_runs", "ws_state"}
    assert json.loads((results / "manifest.json").read_text())["status"] == "completed"


def test_a_connector_has_the_bytes_of_that_loop_in_the_pool_and_in_flare(run, sections, encoders, tmp_path):
    chosen = sections(*JOB, "method.aggregation=fedavg") | {"backbone": {**encoders, "projection": "trained"}}
    *_, last = federate({s: Learner.from_sections(chosen, site=s, folder=tmp_path / s) for s in SITES})
    for engine in ("pool", "flare"):
        results = run(chosen, name=engine, workspace=engine, engine=engine)
        assert same(results / "global.safetensors", last.state)
        written = load_file(results / "adapter" / "connector.safetensors")["projection"]
        assert torch.equal(written, last.state["connector.projection"])


@pytest.fixture
def kill(monkeypatch):
    """Function: let a site's training process be killed as often as given, by site, request and moment: when it has got
    the request, or when it has answered and nobody has read that."""
    send, receive, left, sent = WorkerProcess.send, WorkerProcess.receive, {}, {}

    def due(process, moment):
        key = (*sent[process], moment)
        left[key] = left.get(key, 0) - 1
        return left[key] >= 0

    def sending(process, header, tensors=None):
        sent[process] = header.get("site"), header["do"], header.get("round", 0)
        send(process, header, tensors)
        if due(process, "sent"):
            process.kill()

    def receiving(process, *callbacks):
        answer = receive(process, *callbacks)
        if due(process, "answered"):
            process.end()
            raise Lost("was killed before its answer was read")
        return answer

    monkeypatch.setattr(WorkerProcess, "send", sending)
    monkeypatch.setattr(WorkerProcess, "receive", receiving)
    return left.update


MOMENTS = {
    "introduction": ("slake", "introduce", 0, "sent"),
    "order": ("vqa-rad", "train", 2, "sent"),
    "answer": ("vqa-med-2019", "train", 2, "answered"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_process_that_is_killed_is_started_again_and_changes_nothing(moment, run, kill, sections, tmp_path):
    chosen, killed = sections(*JOB, "federation.quorum=2"), MOMENTS[moment]
    kill({killed: 1})
    results = run(chosen)
    *_, last = federate({s: Learner.from_sections(chosen, site=s, folder=tmp_path / s) for s in SITES})
    assert same(results / "global.safetensors", last.state)
    faults = json.loads((results / "manifest.json").read_text())["faults"]
    assert [(one["site"], one["round"]) for one in faults] == [(killed[0], 2)] * (killed[1] == "train")


def test_a_site_whose_process_is_killed_twice_misses_the_round(run, kill, sections):
    kill({("slake", "train", 1, "sent"): 2})
    results = run(sections(*JOB, "federation.quorum=2"))
    history = json.loads((results / "history.json").read_text())
    assert [sorted(one["sites"]) for one in history["rounds"]] == [sorted(SITES[1:]), sorted(SITES)]
    assert "ended before it answered" in history["rounds"][0]["rejected"]["slake"]


def test_it_resumes_with_the_same_bytes_after_kill_9(run, sections, tmp_path):
    chosen = sections(*JOB, "training.rounds=4", *SCHEDULED)
    whole = run(chosen, "whole", workspace="whole")
    job = write(tmp_path / "job", chosen)
    command = [os.environ[TRUE_PYTHON], "-m", "fedpeft.cli", "simulate", str(job), "-w", str(tmp_path / "ws")]
    process = subprocess.Popen([*command, "-t", "2", "--engine", "pool"], stdout=subprocess.DEVNULL)
    history = tmp_path / "ws" / "server" / "simulate_job" / "fedpeft" / "history.json"
    while process.poll() is None and not (history.exists() and json.loads(history.read_text())["rounds"]):
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert not psutil.wait_procs(workers, timeout=60)[1]
    results = run({**chosen, "federation": {**chosen["federation"], "resume_from": "latest"}}, "again")
    assert same(results / "global.safetensors", load_file(whole / "global.safetensors"))
    assert json.loads((results / "manifest.json").read_text())["resumed"]["sites_with_other_state"] == {}
    for file in tmp_path.rglob("completed.json"):
        file.unlink()  # as if the process had ended between the last round and the results
    results = run({**chosen, "federation": {**chosen["federation"], "resume_from": "latest"}}, "at the end")
    manifest = json.loads((results / "manifest.json").read_text())
    assert (manifest["status"], manifest["resumed"]["after_round"]) == ("completed", 4)
    assert same(results / "global.safetensors", load_file(whole / "global.safetensors"))


def test_a_resumed_job_that_is_refused_in_the_handshake_costs_no_site_its_rounds(run, kill, sections, tmp_path):
    chosen = sections(*JOB, "training.rounds=3")
    name = json.loads((run(chosen, "whole") / "manifest.json").read_text())["lineage"]
    (state,) = {path.parents[2] for path in tmp_path.rglob(f"slake/{name}/round-00003")}
    kill({("vqa-med-2019", "introduce", 0, "sent"): 2})
    back = {**chosen, "federation": {**chosen["federation"], "resume_from": f"{name}/round-00001"}}
    with pytest.raises(FedpeftError, match="the handshake ended with too few valid replies"):
        run(back, "refused")
    folders = [state / site / name for site in SITES]
    assert [len(list(folder.glob("round-*"))) for folder in folders] == [3, 3, 3]
    results = run(back, "again")
    assert json.loads((results / "manifest.json").read_text())["resumed"]["sites_with_other_state"] == {}
    assert [len(list((folder / "set-aside").iterdir())) for folder in folders] == [2, 2, 2]


def test_what_needs_flare_is_refused(run, sections, tmp_path):
    """It is refused before an earlier run in the workspace is moved."""
    seed(tmp_path / "ws")
    (earlier := tmp_path / "ws" / "server" / OF_SIMULATOR / "manifest.json").parent.mkdir(parents=True)
    earlier.write_text("{}")
    with pytest.raises(FedpeftError, match="mlflow"):
        run(sections(*JOB, "federation.tracking=mlflow"))
    assert earlier.is_file()
    (tmp_path / "ws" / "local").mkdir(parents=True, exist_ok=True)
    (tmp_path / "ws" / "local" / "privacy.json").write_text(json.dumps(default_scope()))
    with pytest.raises(FedpeftError, match=r"filters task_data_filters, filters task_result_filters.*--engine flare"):
        run(sections(*JOB))
    assert earlier.is_file()
