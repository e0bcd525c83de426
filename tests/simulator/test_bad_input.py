# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Bad input at the command line: one clear sentence, a non-zero exit."""

import pytest
from simulator_runs import simulate, write

from fedpeft.cli import main

pytestmark = pytest.mark.simulator


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["jobs/nothing"], "jobs/nothing is not a FLARE job folder"),
        (["jobs/fedpia_task1", "-t", "9"], "-t 9 is more than the 5 sites"),
        (["jobs/fedpia_task1", "-t", "0"], "-t is 0"),
        (["jobs/fedpia_task1", "--set", "method.name=houlsbi"], "houlsbi"),
    ],
)
def test_arguments_are_checked_before_anything_starts(arguments, message, tmp_path, capsys, monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    assert main(["simulate", *arguments, "-w", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


def test_a_site_without_data_is_named_with_the_remedy(tmp_path, sections):
    chosen = sections("federation.sites=[head, abd-a]")
    chosen["data"] = {"dataset": "vqa_rad"}
    run = simulate(write(tmp_path / "job", chosen), tmp_path / "ws", threads=2, environment={"FEDPEFT_DATA": ""})
    assert run.code == 1
    assert "site head: No data folder for 'vqa_rad': set the environment variable FEDPEFT_DATA" in run.error
    assert not (tmp_path / "ws").exists()


def test_a_flare_variable_is_refused_before_anything_starts(tmp_path, sections):
    chosen = sections("federation.sites=[slake, vqa-rad]")
    chosen["training"] |= {"learning_rate": "{learning_rate}"}
    run = simulate(write(tmp_path / "job", chosen), tmp_path / "ws", threads=2)
    assert run.code == 1
    assert "training.learning_rate is '{learning_rate}', and FLARE would read a brace as a variable" in run.error
