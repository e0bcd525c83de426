# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`choices.py`: which runs its questions have, and what its tables say; nothing is trained."""

import sys

import pytest

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.job.composing import compose


@pytest.fixture
def choices(benchmark, in_this_process):
    return benchmark("choices")


@pytest.fixture
def study(benchmark):
    return benchmark("study")


def line(value, dialects, seed, accuracy, rounds=12):
    sites = {"slake": {"overall": accuracy}}
    return {"value": value, "dialects": dialects, "seed": seed, "rounds": [sites] * rounds}


def test_the_first_value_of_a_question_is_that_of_the_study(choices, study):
    for title, values in choices.QUESTIONS.values():
        default, *others = values.values()
        assert default.method in study.METHODS, title
        assert default.overrides == (), title
        assert all(value.overrides for value in others), title


@pytest.mark.slow
def test_the_value_that_is_named_is_the_one_that_the_study_has(choices, benchmark):
    learning = benchmark("learning")
    for _, values in choices.QUESTIONS.values():
        name, default = next(iter(values.items()))
        other = next(value for value in values.values() if value != default)
        setting = other.overrides[0].partition("=")[0]
        root = learning.ROOT / "app_configs"
        settings = learning.settings_of(default.method)
        composed, named = (compose(root, learning.JOB, [*settings, *more]) for more in ([], [f"{setting}={name}"]))
        composed["training"].setdefault("decay", TrainingSettings.decay)
        named["training"].setdefault("decay", TrainingSettings.decay)
        assert composed == named


def test_every_value_is_run_once_in_each_world_on_the_first_seed(choices):
    runs = list(choices.runs(list(choices.QUESTIONS), choices.SEEDS, []))
    assert len({run.key for run in runs}) == len(runs)
    wanted = {
        (value.key, dialects, choices.SEEDS[0], value.rounds)
        for _, values in choices.QUESTIONS.values()
        for value in values.values()
        for dialects in value.worlds
    }
    assert {run.key for run in runs} == wanted


MU = "fedprox training.proximal_mu="


def test_on_the_other_seeds_run_the_studys_value_and_the_best_of_the_others(choices):
    lines = [line("fedprox", world, 100, 0.1) for world in (0, 7)]
    lines += [line(MU + mu, 0, 100, accuracy) for mu, accuracy in (("0.001", 0.6), ("0.1", 0.9), ("1", 0.5))]
    lines += [line(MU + mu, 7, 100, accuracy) for mu, accuracy in (("0.001", 0.6), ("0.1", 0.5))]
    assert list(choices.runs(["mu"], [101], lines)) == []  # 1 lacks a world: nothing is known yet
    lines += [line(MU + "1", 7, 100, 0.6)]
    keys = [run.key for run in choices.runs(["mu"], [101, 102], lines)]
    assert keys == [
        (value, world, seed, 12) for seed in (101, 102) for value in ("fedprox", MU + "0.1") for world in (0, 7)
    ]


def test_a_row_of_a_table_has_its_seeds_and_differs_from_the_first_on_those_that_both_have(choices):
    other = "fedavg training.learning_rate=8e-3"
    lines = [line("fedavg", world, seed, 0.8) for world in (0, 7) for seed in (100, 101, 102)]
    lines += [line(other, 0, 100, 0.9), line(other, 0, 101, 0.8), line(other, 7, 101, 0.7), line(other, 7, 100, 0.7)]
    lines += [line(other, 0, 102, 0.1), line(other, 0, 103, 0.85), line(other, 7, 103, 0.7)]  # 102 lacks a world
    lines += [line("fedavg training.learning_rate=3e-3", 0, 100, 0.1)]  # not in both worlds yet
    (table,) = choices.tables(lines)
    assert table.heads[:3] == ("value", "accuracy %, 0 swapped", "minus 5e-3, 0 swapped")
    default, best = table.rows
    assert default == ("5e-3", "80.0", "", "80.0", "", "3")
    assert (best[:2], best[2][:5], best[3], best[4][:5], best[5]) == (("8e-3", "85.0"), "+5.0 ", "70.0", "-10.0", "3")
    assert all(len(row) == len(table.heads) for row in table.rows)


def test_the_best_rate_is_that_of_the_highest_mean_over_worlds_of_those_with_most_seeds(choices):
    def runs(rate, world, *accuracies):
        value = f"fedavg training.learning_rate={rate}" if rate != "5e-3" else "fedavg"
        return [line(value, world, 100 + number, accuracy, 30) for number, accuracy in enumerate(accuracies)]

    lines = [*runs("5e-3", 0, 0.8), *runs("5e-3", 7, 0.6)]
    assert choices.best_rates(lines, 30) == {}  # nothing to compare with
    lines += [*runs("8e-3", 0, 0.7), *runs("8e-3", 7, 0.75), *runs("1.2e-2", 0, 0.99)]  # the last in one world only
    assert choices.best_rates(lines, 30) == {"fedavg": "8e-3"}
    assert choices.best_rates(lines, 12) == {}
    lines += [line(one["value"], one["dialects"], 101, 0.1, 30) for one in lines if "8e-3" not in one["value"]]
    assert choices.best_rates(lines, 30) == {"fedavg": "5e-3"}  # the one of two seeds, whatever they are


@pytest.mark.slow
def test_the_study_has_the_rates_that_were_found_for_its_rows(choices, study, benchmark):
    lines = benchmark("json_lines").read(choices.RESULTS)
    for rounds in choices.LENGTHS:
        found = choices.best_rates(lines, rounds)
        assert {row: rate for (row, length), rate in study.RATES.items() if length == rounds} == found


def test_a_seed_that_the_study_reports_is_refused(choices, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["choices.py", "--seeds", "100", "3"])
    with pytest.raises(SystemExit):
        choices.main()
    assert "--seeds 3: the study reports it" in capsys.readouterr().err


def test_what_is_in_the_results_is_not_run_again(choices, monkeypatch, benchmark, tmp_path, capsys):
    started = []

    def run_with(settings, method, seed, overrides):
        started.append((method, seed))
        return {"method": method, "seed": seed, "rounds": [{"slake": {"overall": 0.5}}] * 12, "refused": 0}

    monkeypatch.setattr(benchmark("learning"), "run_with", run_with)
    command = ["choices.py", "--questions", "mu", "--out", str(tmp_path / "results.jsonl")]
    monkeypatch.setattr(sys, "argv", [*command, "--seeds", "100"])
    choices.main()
    assert started == [("fedprox", 100)] * 8
    started.clear()
    monkeypatch.setattr(sys, "argv", [*command, "--seeds", "100", "101"])
    choices.main()
    assert started == [("fedprox", 101)] * 4  # the study's value and one more
    assert "mu of FedProx" in capsys.readouterr().out
