# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`learning.py --study`: which runs a command starts, what is kept, and what it refuses; nothing is trained."""

import re
import sys

import pytest


@pytest.fixture
def learning(benchmark, in_this_process):
    return benchmark("learning")


@pytest.fixture
def study(benchmark):
    return benchmark("study")


@pytest.fixture
def started(learning, monkeypatch):
    """(method, seed, overrides) of each run that was started."""
    calls = []

    def run(method, seed, overrides):
        calls.append((method, seed, list(overrides)))
        rounds = int(dict(setting.split("=") for setting in overrides)["training.rounds"])
        site = {"overall": 0.5, "open": 0.25, "closed": 0.75}
        return {"method": method, "seed": seed, "rounds": [{"slake": site}] * rounds, "refused": 0, "seconds": 1.0}

    monkeypatch.setattr(learning, "run", run)
    return calls


@pytest.fixture
def command(learning, monkeypatch):
    """Function that calls `learning.py --study` with more arguments."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["learning.py", "--study", *map(str, arguments)])
        learning.main()

    return call


@pytest.fixture
def published(study, monkeypatch, tmp_path):
    """A file in the place of the published results."""
    monkeypatch.setattr(study, "RESULTS", tmp_path / "study.jsonl")
    return study.RESULTS


def as_started(runs):
    return [(run.method, run.seed, run.overrides) for run in runs]


@pytest.mark.slow
def test_without_seeds_all_of_the_study_run(study, command, started, published):
    command()
    assert started == as_started(study.runs())


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(0, 1, 2), (4,)])
def test_the_seeds_that_are_named_run_and_no_other(study, command, started, published, seeds):
    command("--seeds", *seeds)
    assert started == as_started(study.runs(seeds))


@pytest.mark.slow
def test_what_is_in_the_file_is_not_run_again(study, command, started, published, benchmark):
    command("--seeds", 0)
    first, lines = started[:], published.read_text().splitlines()
    started.clear()
    command("--seeds", 0, 1)
    assert started == [one for one in as_started(study.runs([0, 1])) if one not in first]
    assert published.read_text().splitlines()[: len(lines)] == lines
    found = benchmark("json_lines").read(published)
    assert {(line["dialects"], line["method"], line["seed"], len(line["rounds"])) for line in found} == {
        (run.dialects, run.method, run.seed, run.rounds) for run in study.runs([0, 1])
    }
    assert found[0]["rounds"][0] == {"slake": {"overall": 0.5}}


def test_the_option_methods_selects_rows_of_the_study(study, command, started, published, capsys):
    command("--seeds", 1, "--methods", "ours", study.RANDOM)
    expected = [run for run in study.runs([1]) if run.method in ("ours", study.RANDOM)]
    # two worlds of twelve rounds at both rates and of thirty at three, the one in the middle; four layers
    assert len(expected) == 12
    assert started == as_started(expected)
    assert study.RANDOM in capsys.readouterr().out


def test_runs_with_other_settings_are_marked_and_kept_apart(command, started, published, tmp_path, benchmark):
    other, changed = tmp_path / "other.jsonl", ("--set", "training.batch_size=8")
    arguments = ("--methods", "fedpia, two branches, no server", "--seeds", 0, "--out", other)
    command(*arguments, *changed)
    command(*arguments, *changed)
    assert [overrides[-1] for _, _, overrides in started] == ["training.batch_size=8"] * 2  # two worlds
    command(*arguments)
    command(*arguments)
    assert len(started) == 4
    lines = benchmark("json_lines").read(other)
    assert [line.get("overrides") for line in lines] == [["training.batch_size=8"]] * 2 + [None] * 2
    assert not published.exists()


def test_a_row_with_a_rate_of_its_own_is_run_anew_and_stands_in_another_table(
    study, learning, command, started, published, benchmark, monkeypatch
):
    arguments = ("--methods", study.FROZEN_HALF, "--seeds", 0)
    monkeypatch.delitem(study.RATES, (study.FROZEN_HALF, study.LONG))
    command(*arguments)
    ran = len(started)
    monkeypatch.setitem(study.RATES, (study.FROZEN_HALF, study.LONG), "8e-3")
    command(*arguments)
    command(*arguments)
    assert [overrides[-1] for _, _, overrides in started[ran:]] == ["training.learning_rate=8e-3"] * 2  # two worlds
    lines = benchmark("json_lines").read(published)
    assert [line.get("rate") for line in lines[ran:]] == ["8e-3"] * 2
    assert study.alike(lines) == [line for line in lines if "rate" not in line]
    assert study.tuned(lines) == [line for line in lines if "rate" in line]
    for row in study.METHODS:
        rate = dict(setting.split("=") for setting in learning.settings_of(row))["training.learning_rate"]
        assert rate == study.HEADS.get(row, study.RATE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--own"], "--own is another comparison than --study: leave out one of them"),
        (["--layers"], "--layers is another comparison than --study: leave out one of them"),
        (
            ["--methods", "fedpia, gamma 0"],
            "'fedpia, gamma 0' of --methods is no row of the study: leave out --study, or name some of",
        ),
        (["--methods", "all"], "'all' of --methods is no row of the study"),
        (["--set", "training.batch_size=8"], "--set training.batch_size=8 with --study .* another file with --out"),
        (["--set", "training.batch_size=8", "--out", "{published}"], "another file with --out"),
        (["--set", "data.dialects=3", "--out", "{folder}/other.jsonl"], "--set data.dialects=3 changes what makes"),
        (["--set", "data.seed=3", "--out", "{folder}/other.jsonl"], "--set data.seed=3 changes what makes"),
    ],
)
def test_what_the_study_does_not_have_is_refused(command, started, published, capsys, arguments, message):
    places = {"published": published.parent / "." / "x" / ".." / published.name, "folder": published.parent}
    with pytest.raises(SystemExit) as error:
        command(*(argument.format(**places) for argument in arguments))
    assert error.value.code == 2
    words = " ".join(capsys.readouterr().err.split())
    assert re.search(message, words)
    assert not started
    assert list(published.parent.iterdir()) == []


def test_help_is_printed(command, capsys):
    with pytest.raises(SystemExit) as error:
        command("--help")
    assert error.value.code == 0
    assert "keeping 20 % of the own" in " ".join(capsys.readouterr().out.split())
