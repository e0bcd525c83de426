# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The study's tables and picture, from results that are made up."""

import json

import pytest


@pytest.fixture
def study(benchmark):
    return benchmark("study")


def runs(method, by_seed, *, dialects=7, rounds=4):
    """Runs whose last three rounds have these accuracies, in percent."""
    return [
        {
            "method": method,
            "dialects": dialects,
            "seed": seed,
            "rounds": [{"a": {"overall": 0.0}}] + [{"a": {"overall": value / 100}}] * (rounds - 1),
        }
        for seed, value in enumerate(by_seed)
    ]


def test_differences_are_paired_by_seed(study):
    (group,) = study.groups(runs("fedavg", [60, 70, 80]) + runs("ours", [62, 73, 81]))
    assert group.rows[0][:2] == ("fedavg", "70.0")
    assert group.rows[1] == ("ours", "72.0", "+2.0 ± 2.5", "3")  # t(0.975, 2) = 4.303, standard error 0.577


def test_a_seed_without_its_baseline_counts_in_the_mean_alone(study):
    (group,) = study.groups(runs("fedavg", [60, 70]) + runs("ours", [62, 72, 90]))
    assert group.rows[1][1:] == ("74.7", "+2.0 ± 0.0", "3")


def test_what_is_kept_of_a_run_has_the_same_figure(study):
    (run,) = runs("ours", [62.34567])
    kept = study.compact({**run, "seconds": 3.21})
    assert study.figure(kept) == pytest.approx(study.figure(run), abs=0.01)
    assert all(set(site) == {"overall"} for sites in kept["rounds"] for site in sites.values())


def test_markdown_has_one_line_a_method(study):
    (group,) = study.groups(runs("fedavg", [60]))
    assert group.markdown().splitlines()[2] == "| fedavg | 60.0 |  | 1 |"


def test_the_picture_is_drawn_from_the_file(benchmark, monkeypatch, tmp_path, capsys):
    picture = benchmark("study_picture")
    results = tmp_path / "study.jsonl"
    lines = [*runs("fedavg", [60, 70]), *runs("ours", [62, 72]), *runs("fedavg", [80], dialects=0)]
    lines += runs("ours", [81], dialects=0)
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "study.png"
    monkeypatch.setattr("sys.argv", ["x", "--results", str(results), "--rounds", "4", "--out", str(out)])
    picture.main()
    assert out.stat().st_size > 10_000
    assert "7 of 7 pairs swapped, 4 rounds" in capsys.readouterr().out
