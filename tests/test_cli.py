# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The command line ends in one sentence, and takes a workspace wherever it takes a run."""

import json
import os
import subprocess
import sys

import pytest

from fedpeft import cli

SITE = {"overall": 0.5, "open": None, "closed": 0.5, "loss": 1.0, "samples": 4}
HISTORY = {
    "job": "small",
    "method": "FedPIA",
    "procedural": True,
    "source": "phantom",
    "rounds": [{"round": 1, "sites": {"slake": SITE}}],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "named", ["ws", "ws/server/simulate_job/fedpeft", "ws/server/simulate_job/fedpeft/history.json"]
)
def test_report_takes_a_workspace_a_run_or_its_history(named, tmp_path):
    run = tmp_path / "ws" / "server" / "simulate_job" / "fedpeft"
    run.mkdir(parents=True)
    (run / "history.json").write_text(json.dumps(HISTORY))
    assert cli.main(["report", str(tmp_path / named)]) == 0
    assert (run / "report" / "report.html").is_file()


@pytest.mark.slow
def test_report_says_of_a_failed_run_that_it_has_failed(tmp_path, capsys):
    (tmp_path / "history.json").write_text(json.dumps(HISTORY))
    (tmp_path / "manifest.json").write_text(json.dumps({"status": "failed", "reason": "the run was cut off."}))
    assert cli.main(["report", str(tmp_path)]) == 0
    assert "the run was cut off" in capsys.readouterr().out
    assert "the run was cut off" in (tmp_path / "report" / "report.html").read_text()


def test_report_shows_no_other_file_than_the_named_one(tmp_path, capsys):
    for name in ("history.json", "old.json"):
        (tmp_path / name).write_text(json.dumps(HISTORY))
    assert cli.main(["report", str(tmp_path / "old.json")]) == 1
    assert "old.json is no history.json: name the folder of a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "{file}/nothing"],
        ["jobs", "small", "--configs", "{file}/configs"],
        ["jobs", "--configs", "{configs}", "--out", "{file}/out"],
        ["verify", "{file}"],
        ["status", "{file}"],
    ],
)
def test_a_file_where_a_folder_should_be_is_one_sentence(arguments, tmp_path, capsys, request):
    (tmp_path / "file").touch()
    places = {"file": tmp_path / "file", "configs": request.config.rootpath / "app_configs"}
    assert cli.main([argument.format(**places) for argument in arguments]) == 1
    error_text = capsys.readouterr().err
    assert error_text.startswith("fedpeft: ")
    assert error_text.endswith(".\n")
    assert str(tmp_path / "file") in error_text
    assert error_text.count("\n") == 1


HEAVY = ("torch", "numpy", "peft", "transformers", "rich", "PIL", "scipy", "matplotlib", "nvflare")


@pytest.mark.slow
def test_the_command_line_starts_without_heavy_libraries():
    code = f"import sys, fedpeft.cli; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_fault_of_a_file():
    read, write = os.pipe()
    os.close(read)  # as `| head` does after its lines
    command = [sys.executable, "-m", "fedpeft.cli", "jobs", "--check"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("command", [["tasks"], ["jobs"]])  # that writes no file, that writes some
def test_another_pipe_that_breaks_is_a_fault(command, monkeypatch, capsys):
    def fails(_):
        raise BrokenPipeError(32, "Broken pipe")  # of a worker that died

    monkeypatch.setattr(cli, f"_{command[0]}", fails)
    assert cli.main(command) == 1
    assert capsys.readouterr().err.startswith("fedpeft: a file cannot be used (Broken pipe)")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "goes_on"), [("tasks", False), ("jobs", True)])
def test_a_command_that_writes_files_goes_on_where_neither_output_nor_errors_are_read(command, goes_on, tmp_path):
    code = f"""if True:
        import sys
        from pathlib import Path
        from fedpeft import cli

        def run(_):
            print("a warning", file=sys.stderr, flush=True)
            print("a line", flush=True)
            Path("done").touch()

        cli._{command} = run
        sys.exit(cli.main(["{command}"]))"""
    read, write = os.pipe()
    os.close(read)  # as `2>&1 | head` does
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=write, cwd=tmp_path, check=False)
    os.close(write)
    assert (done.returncode, (tmp_path / "done").exists()) == (141, goes_on)
