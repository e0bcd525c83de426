# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What MLflow and W&B get of a run, read back from what their own libraries wrote; and what a failure costs."""

import getpass
import platform
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
from harness import introduction
from histories import FIVE, record
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build
from fedpeft.doctor import content as doctor
from fedpeft.doctor import open_context
from fedpeft.flare.tracking import start_tracking
from fedpeft.job import federation
from fedpeft.job.composing import compose, default_configs, write_job
from fedpeft.job.federation import TRACKERS, FederationSettings, Tracker, reason_of
from fedpeft.server.run_recorder import RunRecorder

ENVIRONMENT = ("MLFLOW_TRACKING_URI", "WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT")


@pytest.fixture
def fl_ctx(tmp_path):
    workspace = SimpleNamespace(get_run_dir=lambda job: str(tmp_path / "run"))
    made = FLContext()
    made.set_prop(ReservedKey.ENGINE, SimpleNamespace(get_workspace=lambda: workspace))
    made.set_prop(ReservedKey.RUN_NUM, "job-1")
    return made


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """Function: the server's environment, with these variables and without those of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "")  # so that what the receivers set is undone
        monkeypatch.delenv(name)

    def change(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return change


class Receiver:
    """A receiver of FLARE's that fails in the calls that `fails` names."""

    def __init__(self):
        self.fails, self.values, self.ended = set(), {}, 0

    def initialize(self, fl_ctx):
        self._call("initialize")

    def save(self, fl_ctx, shareable, record_origin):
        self._call("save")
        data = from_shareable(shareable).data
        self.values.setdefault(data["global_step"], {}).update(data["track_value"])

    def finalize(self, fl_ctx):
        self.ended += 1
        self._call("finalize")

    def _call(self, name):
        if name in self.fails:
            raise OSError(f"no answer of https://user:secret@host/{name}\nmore")


@pytest.fixture
def receiver(monkeypatch):
    """The receiver of a tracker `own` that stands in for a plugin's."""
    made = Receiver()
    own = Tracker(title="Own", library="json", extra="own", check=lambda: None, receiver=lambda job, folder: made)
    monkeypatch.setitem(TRACKERS._own, "own", own)
    return made


@pytest.mark.parametrize("value", ["https://collect.example", "sqlite:////tmp/x.db", "MLFLOW", ""])
def test_a_job_names_a_service_and_no_address(value):
    with pytest.raises(FedpeftError, match=r"tracking is '.*', allowed are none, mlflow, wandb"):
        build(FederationSettings, {"sites": ["a"], "tracking": value}, section="federation")


@pytest.mark.parametrize("value", [{"path": "os.system"}, ["mlflow"], 1])
def test_a_service_is_a_text(value):
    with pytest.raises(FedpeftError, match="it must be a text"):
        build(FederationSettings, {"sites": ["a"], "tracking": value}, section="federation")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variables", "expected"),
    [
        ("mlflow", {}, r"the server's environment has no MLFLOW_TRACKING_URI: set it there"),
        ("wandb", {}, r"the server has no key of W&B: set WANDB_API_KEY"),
        ("wandb", {"WANDB_API_KEY": "short"}, r"W&B cannot be used from the server .*: check its key"),
        ("wandb", {"WANDB_MODE": "dryrun"}, r"WANDB_MODE is 'dryrun' at the server: set it to online or offline"),
    ],
)
def test_a_server_without_address_or_key_begins_no_run(name, variables, expected, environment, tmp_path, fl_ctx):
    pytest.importorskip(name)
    environment(**variables)
    with pytest.raises(FedpeftError, match=rf"{expected}.*\.$"):
        start_tracking(name, "job", tmp_path, fl_ctx)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("found", [None, SimpleNamespace(origin=None)], ids=["nothing", "a folder of W&B's runs"])
def test_a_library_that_is_missing_is_named_with_its_extra(found, monkeypatch, tmp_path, fl_ctx):
    monkeypatch.setattr(federation, "find_spec", lambda name: found)
    with pytest.raises(
        FedpeftError, match=r"wandb is not installed at the server: pip install 'flare-fedpeft\[wandb\]'"
    ):
        start_tracking("wandb", "job", tmp_path, fl_ctx)


@pytest.mark.slow
def test_mlflow_has_rounds_as_steps_and_sites_in_the_names(environment, tmp_path, fl_ctx):
    client = pytest.importorskip("mlflow.tracking").MlflowClient
    uri = (tmp_path / "mlruns").as_uri()
    environment(MLFLOW_TRACKING_URI=uri, MLFLOW_ALLOW_FILE_STORE="true")
    made = record(rounds=3)["rounds"]
    tracking = start_tracking("mlflow", "small", tmp_path, fl_ctx)
    tracking.update(made[:2], {})
    tracking.update(made, {"slake": "macro_f1"})
    tracking.close(completed=True)
    (experiment,) = client(tracking_uri=uri).search_experiments(filter_string="name = 'fedpeft'")
    (run,) = client(tracking_uri=uri).search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert "small" in run.info.run_name
    assert run.data.params == {}

    def history(name):
        return [(one.step, one.value) for one in client(tracking_uri=uri).get_metric_history(run.info.run_id, name)]

    for site in FIVE[1:]:
        assert history(f"accuracy/overall/{site}") == [(n, made[n - 1]["sites"][site]["overall"]) for n in (1, 2, 3)]
    assert [step for step, _ in history("macro_f1/overall/slake")] == [3]
    assert [step for step, _ in history("accuracy/overall/server")] == [1, 2, 3]


@pytest.mark.slow
def test_wandb_writes_metrics_and_nothing_of_the_machine(environment, tmp_path, fl_ctx):
    pytest.importorskip("wandb")
    environment(WANDB_MODE="offline")
    tracking = start_tracking("wandb", "small", tmp_path, fl_ctx)
    tracking.update(record(rounds=2)["rounds"], {})
    tracking.close(completed=True)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    for name in ("small", "accuracy/overall/slake", "accuracy/overall/server", "loss/last epoch/vqa-rad"):
        assert name.encode() in content
    for name in (str(tmp_path), platform.node(), getpass.getuser(), "pytest", ".py"):
        assert len(name) < 3 or name.encode() not in content
    assert not list(tmp_path.glob("wandb/offline-run-*/files/*"))
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]


WRITER = """
import os, sys
from fedpeft.core.processes import end_with_parent
server = os.getpid()
if not os.fork():
    end_with_parent(server)
print("forked", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_the_process_that_writes_for_wandb_ends_with_the_server():
    with subprocess.Popen([sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout.readline() == b"forked\n"
        server.kill()
        assert server.stdout.read() == b""  # ends when no process has it open


def test_a_failure_costs_nothing_and_is_made_good(receiver, tmp_path, fl_ctx, caplog):
    made = record(rounds=4)["rounds"]
    tracking = start_tracking("own", "small", tmp_path, fl_ctx)
    tracking.update(made[:1], {})
    receiver.fails = {"save"}
    tracking.update(made[:2], {})
    tracking.update(made[:3], {})
    assert [one.message.split(":")[0] for one in caplog.records] == ["Own may lack the rounds after 1 (OSError"]
    assert "secret" not in caplog.text
    receiver.fails = {"finalize"}
    tracking.update(made, {})
    assert sorted(receiver.values) == [1, 2, 3, 4]
    tracking.close(completed=True)
    tracking.close(completed=True)
    assert receiver.ended == 1
    assert len(caplog.records) == 2


def test_names_and_numbers_that_a_service_could_refuse_are_cut_to_size(receiver, tmp_path, fl_ctx):
    sites = [f"site {number}" for number in range(400)] + ["../up", "é"]
    one = {"round": 1, "sites": {site: {"overall": 0.5, "loss": 1.0} for site in sites}}
    tracking = start_tracking("own", "small", tmp_path, fl_ctx)
    tracking.update([one], {})
    assert len(receiver.values[1]) == 2 * 402 + 3
    assert {"accuracy/overall/site_7", "accuracy/overall/__up", "accuracy/overall/_"} <= set(receiver.values[1])


@pytest.mark.parametrize("fails", [set(), {"save", "finalize"}])
def test_a_job_ends_as_without_a_tracker(fails, receiver, run):
    receiver.fails = fails
    _, manifest, history = run(tracking="own")
    assert manifest["status"] == "completed"
    assert sorted(receiver.values) == ([] if fails else [one["round"] for one in history["rounds"]])
    assert receiver.ended == 1


def test_a_resumed_job_without_rounds_left_sends_those_that_it_has(receiver, run, monkeypatch):
    def killed(recorder):
        raise SystemExit("killed")

    with monkeypatch.context() as until:
        until.setattr(RunRecorder, "complete", killed)
        with pytest.raises(SystemExit):
            run(rounds=2)
    _, manifest, _ = run(partial(introduction, finished=2), rounds=2, resume_from="latest", tracking="own")
    assert manifest["status"] == "completed", manifest.get("reason")
    assert sorted(receiver.values) == [1, 2]


def test_a_job_whose_tracker_does_not_answer_ends_before_its_first_round(receiver, run):
    receiver.fails = {"initialize"}
    harness, manifest, history = run(tracking="own")
    assert manifest["status"] == "failed"
    assert harness.panics == [manifest["reason"]]
    assert manifest["reason"] == (
        "Own cannot be used from the server (OSError, the server's log has more): correct the server's environment, or "
        "leave federation.tracking out."
    )
    assert not history
    assert receiver.ended == 1


@pytest.mark.parametrize(
    "text",
    [
        "unsupported URI 'user:secret@host:5000'",
        "http://user:secret@host:5000 is away",
        "HTTPConnectionPool(host='secret', port=5000)",
        "no answer of secret-host",
    ],
)
def test_an_error_in_the_log_has_no_address_and_no_value_of_a_variable(text, environment):
    environment(MLFLOW_TRACKING_URI="secret-host")
    assert "secret" not in reason_of(OSError(text))


@pytest.mark.parametrize(
    ("setting", "uri", "expected"),
    [
        ("none", "", []),
        ("mlflow", "sqlite:///x.db", ["federation.tracking: MLflow is installed and configured."]),
        ("mlflow", "", "has no MLFLOW_TRACKING_URI"),
    ],
)
def test_doctor_looks_where_the_server_will_run(setting, uri, expected, environment, tmp_path):
    pytest.importorskip("mlflow")
    environment(MLFLOW_TRACKING_URI=uri)
    sections = compose(default_configs(), "fedpia_task1", [f"federation.tracking={setting}"])
    write_job(tmp_path / "job", "job", sections)
    assert not list(doctor.check_tracking(open_context(tmp_path / "job", site="slake")))
    context = open_context(tmp_path / "job")
    if isinstance(expected, str):
        with pytest.raises(FedpeftError, match=expected):
            list(doctor.check_tracking(context))
    else:
        assert [finding.sentence for finding in doctor.check_tracking(context)] == expected
