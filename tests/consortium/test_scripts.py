# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`make poc` and `make consortium`: their exit codes, and that they leave nothing behind."""

import os
import signal
import socket
import subprocess
from types import SimpleNamespace

import pytest
from kits import ROOT, TRUE_ENVIRONMENT, free_port, processes_below, project

pytestmark = pytest.mark.consortium


@pytest.fixture
def script(tmp_path, small_job, small_policy):
    """Function: run one of the scripts with two sites, and interrupt it where it says a certain thing."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def run(name, *, port=None, interrupt_at=None):
        port = port or free_port()
        settings = {
            "PROJECT": str(project(tmp_path / "project.yml", port=port, policy=small_policy)),
            "RESULTS": str(tmp_path / "results"),
            "TMPDIR": str(scratch),
            "PORT": str(port),
            "TIMEOUT": "900",
        }
        process = subprocess.Popen(
            [ROOT / "provisioning" / f"{name}.sh", small_job],
            env={**TRUE_ENVIRONMENT, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # a test run in the background ignores it, and a shell cannot trap what was ignored when it began
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        lines = []
        for line in process.stdout:
            lines.append(line)
            if interrupt_at and interrupt_at in line:
                os.killpg(process.pid, signal.SIGINT)
        return SimpleNamespace(code=process.wait(), text="".join(lines), scratch=scratch, results=tmp_path / "results")

    return run


def assert_nothing_is_left(run):
    assert not list(run.scratch.iterdir())
    assert not processes_below(run.scratch)


def test_poc_ends_with_the_table_and_nothing_is_left(script):
    run = script("poc")
    assert run.code == 0, run.text
    assert "Accuracy (%) after round 2" in run.text
    assert list(run.results.glob("*/workspace/fedpeft/manifest.json"))
    assert_nothing_is_left(run)


def test_an_interrupted_consortium_leaves_nothing(script):
    run = script("consortium", interrupt_at="$ nvflare job wait")
    assert run.code == 130, run.text
    assert (run.results / "logs" / "server.txt").is_file()
    assert_nothing_is_left(run)


def test_a_taken_port_is_refused_in_one_sentence(script):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = script("consortium", port=port)
    assert run.code == 1
    assert run.text == f"consortium: port {port} is taken: name a free one, e.g. PORT=9002 make consortium.\n"
    assert_nothing_is_left(run)
