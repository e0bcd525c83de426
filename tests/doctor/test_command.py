# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The whole visit: every group is made whatever happens in another, and the exit code says how it went."""

import io

import pytest
from rich.console import Console

from fedpeft import cli
from fedpeft.core.errors import FedpeftError
from fedpeft.doctor import Finding, examine, open_context, print_findings


def printed(context, *, terminal=False):
    out = io.StringIO()
    try:
        print_findings(context, console=Console(file=out, force_terminal=terminal, width=80))
    except FedpeftError as error:
        out.write(f"ERROR {error}")
    return out.getvalue()


@pytest.mark.slow
def test_a_laptop_passes(make_job, tmp_path):
    shown = printed(open_context(make_job(), workspace=tmp_path / "workspace"))
    for group in ("versions", "job", "allow-list", "data", "backbone", "memory", "disk"):
        assert f"  {group} " in shown
    assert "ERROR" not in shown


@pytest.mark.slow
def test_a_site_without_the_allow_list_fails(make_kit, make_job):
    shown = printed(open_context(make_job(), startup_kit=make_kit("site", port=1, local={})))
    assert "FLARE may not load" in shown
    assert "does not answer" in shown
    assert "4 of " in shown.splitlines()[-1]


@pytest.mark.slow
def test_without_a_job_it_says_what_is_missing(make_kit):
    assert "Name a job's folder" in printed(open_context(startup_kit=make_kit("admin", port=1)))


@pytest.mark.parametrize("terminal", [False, True])
def test_what_comes_from_outside_is_no_markup(terminal, monkeypatch):
    found = [("group", Finding("fail", "[red]/data/[bold]x[/]"))]
    monkeypatch.setattr("fedpeft.doctor.examine", lambda context, during: found)
    assert "[red]/data/[bold]x[/]" in printed(open_context(), terminal=terminal)


def test_a_check_that_raises_is_reported_and_hides_no_other(monkeypatch):
    from fedpeft.doctor import machine

    monkeypatch.setattr(machine, "check_versions", lambda context: 1 / 0)
    found = list(examine(open_context()))
    assert "this check itself failed (ZeroDivisionError" in found[0][1].sentence
    assert found[-1][0] == "disk"


def test_the_exit_code_is_1_where_a_check_fails_and_0_after_warnings(make_kit, capsys, monkeypatch):
    monkeypatch.setattr("fedpeft.doctor.examine", lambda context, during: [("a", Finding("warn", "so so"))])
    assert cli.main(["doctor"]) == 0
    assert "0 passed, 1 warning, 0 failed" in capsys.readouterr().out
    monkeypatch.setattr("fedpeft.doctor.examine", lambda context, during: [("a", Finding("fail", "no"))])
    assert cli.main(["doctor", "--startup-kit", str(make_kit("site"))]) == 1
    assert cli.main(["doctor", "nothing"]) == 1
    assert "is not a FLARE job folder" in capsys.readouterr().err
