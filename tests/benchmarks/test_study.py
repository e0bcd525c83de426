# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The study's tables and picture, from results that are made up."""

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
    # t(0.975, 2) = 4.303, standard error 0.577
    (group,) = study.groups(runs("fedavg", [60, 70, 80]) + runs("ours", [62, 73, 81]))
    assert group.rows[0] == (
        "fedavg",
        "70.0",
        "",
        "+2.0 ± 2.5",
        "5e-3",
        "3",
    )  # t(0.975, 2) = 4.303, standard error 0.577
    assert group.rows[1] == ("ours", "72.0", "+2.0 ± 2.5", "", "5e-3", "3")


def test_a_seed_without_its_baseline_counts_in_the_mean_alone(study):
    (group,) = study.groups(runs("fedavg", [60, 70]) + runs("ours", [62, 72, 90]))
    assert group.rows[1][1:] == ("74.7", "+2.0 ± 0.0, two seeds", "", "5e-3", "3")


def test_without_runs_of_ours_its_column_is_empty(study):
    (group,) = study.groups(runs("fedavg", [60, 70]) + runs("local", [50, 61]))
    assert [row[3] for row in group.rows] == ["", ""]


def test_what_is_kept_of_a_run_has_the_same_figure(study):
    (run,) = runs("ours", [62.34567])
    kept = study.compact({**run, "refused": 1, "seconds": 3.21})
    assert kept["refused"] == 1
    assert study.figure(kept) == pytest.approx(study.figure(run), abs=0.01)
    assert all(set(site) == {"overall"} for sites in kept["rounds"] for site in sites.values())


def test_markdown_has_one_line_a_method(study):
    (group,) = study.groups(runs("fedavg", [60]))
    assert group.markdown().splitlines()[2] == "| fedavg | 60.0 |  |  | 5e-3 | 1 |"


def test_rows_are_compared_at_one_rate_and_those_with_a_rate_of_their_own_at_that(study):
    results = [run for row in ("fedavg", "ditto", "classifier") for run in runs(row, [60, 70, 80], rounds=12)]
    better = [{**run, "rate": "8e-3"} for run in runs("fedavg", [62, 72, 82], rounds=12)]
    long = [{**run, "rate": "8e-3"} for run in runs(study.WEIGHT_SPACE, [60], rounds=30)]
    unsearched = runs(study.WEIGHT_SPACE, [1], rounds=30) + runs("ditto", [1], rounds=30)
    others = [{**run, "rate": "9e-3"} for run in runs("fedavg", [1], rounds=12)]
    given = results + unsearched + better + long + others
    assert study.alike(given) == results + unsearched
    assert study.tuned(given) == results[6:] + better + long
    (table, _) = study.groups(study.tuned(given))
    assert [(row[0], row[1], row[4]) for row in table.rows] == [
        ("classifier", "70.0", "3e-2"),
        ("fedavg", "72.0", "8e-3"),
    ]


@pytest.mark.parametrize("results", [[], runs("fedavg", [60, 70, 80], rounds=12), runs("fedavg", [60], rounds=30)])
def test_the_headline_of_a_study_that_has_just_begun_has_no_rows(study, results):
    lines = study.headline(results, 12).markdown().splitlines()
    assert lines[0].startswith("| method | accuracy %, 0 swapped |")
    assert [set(line) for line in lines[1:]] == [set("| -:")]


def test_the_headline_has_the_methods_with_enough_seeds_in_both_worlds(study, monkeypatch):
    results = [
        run
        for world, (fedavg, ours) in {0: ([60, 70, 80], [61, 70, 81]), 7: ([50, 60, 70], [54, 63, 74])}.items()
        for run in (*runs("fedavg", fedavg, dialects=world, rounds=12), *runs("ours", ours, dialects=world, rounds=12))
    ]
    group = study.headline(results + runs("local", [40, 50], rounds=12), 12)
    assert [row[0] for row in group.rows] == ["fedavg", "ours"]
    assert group.rows[1][1:] == ("70.7", "+0.7 ± 1.4", "63.7", "+3.7 ± 1.4", "5e-3", "3")
    monkeypatch.setattr(study, "HEADLINE_SEEDS", 2)
    short = [run for run in results if (run["method"], run["dialects"], run["seed"]) != ("ours", 0, 2)]
    assert study.headline(short, 12).rows[1][1:] == (
        "65.5",
        "+0.5 ± 6.4, two seeds",
        "63.7",
        "+3.7 ± 1.4",
        "5e-3",
        "2 and 3",
    )


def test_the_picture_has_a_panel_for_each_world_and_length(benchmark):
    results = [
        run
        for world, rounds in ((0, 12), (7, 12), (0, 30))
        for method in ("fedavg", "ours")
        for run in runs(method, [60, 70], dialects=world, rounds=rounds)
    ]
    figure = benchmark("study_picture").draw(results)
    above, below = figure.subfigs
    titles = [[panel.get_title(loc="left") for panel in row.axes] for row in above.subfigs]
    assert titles == [
        ["0 of 7 pairs swapped, 2 seeds", "7 of 7 pairs swapped, 2 seeds"],
        ["0 of 7 pairs swapped, 2 seeds"],
    ]
    names = [[label.get_text() for label in axes.get_yticklabels()] for axes in below.axes]
    assert names == [["0 swapped\n2 methods", "7 swapped\n2 methods"], ["0 swapped\n2 methods"]]
    assert not [patch for axes in below.axes for patch in axes.patches]  # the two are alike


def test_the_best_method_leads_clearly_where_the_interval_says_so(benchmark):
    best = benchmark("study_picture").best
    fedavg, other = {0: 70.0, 1: 72.0, 2: 71.0}, {0: 60.0, 1: 90.0, 2: 60.0}
    assert best({"fedavg": fedavg}) == ("fedavg", None, False)
    assert best({"fedavg": {0: 50.0}, "other": {1: 49.0}}) == ("fedavg", 1.0, False)
    assert best({"fedavg": fedavg, "other": other}) == ("fedavg", 1.0, False)
    ours = {seed: value + 2 + seed / 10 for seed, value in fedavg.items()}
    assert best({"fedavg": fedavg, "ours": ours, "other": other}) == ("ours", pytest.approx(2.1), True)


def test_the_layers_rows_are_compared_with_random_layers_and_the_score_alone(study):
    results = [
        *runs("fedavg", [80, 82], dialects=0, rounds=12),
        *runs("f3ocus, exact", [75, 76], dialects=0, rounds=12),
        *runs(study.RANDOM, [70, 73], dialects=0, rounds=12),
        *runs(study.OUTPUTS, [76, 76], dialects=0, rounds=12),
    ]
    methods, layers = study.groups(results)
    assert [row[0] for row in methods.rows] == ["fedavg"]
    assert layers.title.startswith("4 of 12 layers")
    assert layers.heads[3:6] == tuple(f"minus {row}, 95 %" for row in (study.RANDOM, study.ALONE, study.OUTPUTS))
    assert layers.rows[0] == (
        "f3ocus, exact",
        "75.5",
        "-5.5 ± 6.4, two seeds",
        "+4.0 ± 12.7, two seeds",
        "",
        "-0.5 ± 6.4, two seeds",
        "",
        "2",
    )
    assert [(row[0], row[3], row[5]) for row in layers.rows[1:]] == [
        (study.OUTPUTS, "+4.5 ± 19.1, two seeds", ""),
        (study.RANDOM, "", "-4.5 ± 19.1, two seeds"),
    ]


SCHEDULES = {  # row -> by seed, the layers that two sites train in two rounds
    "4 layers, first_k": [[([0, 1], [0, 1]), ([0, 1], [0, 1])]] * 2,
    "4 layers, fishmask": [[([0, 1], [0, 1]), ([0, 1], [0, 1])]] * 2,
    "4 layers, random, fixed": [[([0, 2], [1, 3]), ([0, 2], [1, 3])], [([3, 4], [1, 2]), ([3, 4], [1, 2])]],
    "4 layers, random": [[([0, 2], [1, 3]), ([1, 2], [1, 3])]] * 2,
    "4 layers, snip": [[([0, 2], [1, 3]), ([1, 2], [1, 3])], [([0, 1], [1, 3]), ([1, 2], [1, 3])]],
    "4 layers, fedselect": [[([0, 2], [1, 3]), ([1, 2], [1, 3])], []],
    "4 layers, last_k": [[], []],
    "4 layers, lntk_squared": [[], []],
}


ACCURACIES = {  # of rows that kept no schedule: as first_k in both seeds, and in one of them
    "4 layers, first_k": [80, 81],
    "4 layers, lntk_squared": [80, 81],
    "4 layers, last_k": [80, 60],
}


def test_the_table_says_which_rows_are_one_choice_of_layers_from_their_schedules(study):
    results = [
        {**run, "layers": [dict(zip("ab", sites, strict=True)) for sites in schedule]}
        for name, schedules in SCHEDULES.items()
        for run, schedule in zip(
            runs(name, ACCURACIES.get(name, [70, 71]), dialects=0, rounds=12), schedules, strict=True
        )
    ]
    said = study.trained_layers(results)
    assert {name: said[name] for name in SCHEDULES} == {
        "4 layers, first_k": "always 0, 1",
        "4 layers, fishmask": "always 0, 1, as 4 layers, first_k",
        "4 layers, random, fixed": "one choice a run",
        "4 layers, random": "changing",
        "4 layers, snip": "changing",
        "4 layers, fedselect": "changing, as 4 layers, random (1 of 2 seeds)",
        "4 layers, last_k": "",
        "4 layers, lntk_squared": "as 4 layers, first_k by all figures",
    }
    table = list(study.groups(results))[-1]
    assert {row[0]: row[6] for row in table.rows}["4 layers, fishmask"] == "always 0, 1, as 4 layers, first_k"


@pytest.mark.slow
def test_a_run_keeps_the_layers_that_each_site_trained(study, benchmark):
    few = ["training.rounds=2", "training.local_epochs=1", "schedule.score_samples=2", "method.probe_samples=2"]
    few += [f"data.{split}_size=6" for split in ("train", "validation", "test")]
    kept = study.compact(benchmark("learning").run("4 layers, first_k", 0, few))
    assert [set(map(tuple, sites.values())) for sites in kept["layers"]] == [{(0, 1, 2, 3)}] * 2


def test_every_row_of_the_study_is_a_method_that_can_run(study, benchmark):
    assert set(study.ROWS) <= set(benchmark("learning").KNOWN)
    every = list(study.runs())
    assert len(every) == len(set(every))
    assert {run.method for run in every} == set(study.ROWS)


def test_the_published_results_are_runs_of_the_study_without_other_settings(study, benchmark):
    lines = benchmark("json_lines").read(study.RESULTS)
    assert not [line for line in lines if "overrides" in line]
    runs = list(map(study.run_of, lines))
    assert len(runs) == len(set(runs))
    assert set(runs) <= set(study.runs())


def test_aims_are_the_paired_differences_of_their_rows(study):
    results = [
        *runs("fedavg", [80, 82], dialects=7, rounds=12),
        *runs("ours", [83, 85], dialects=7, rounds=12),
        *runs("ours", [90, 91], dialects=7, rounds=30),
    ]
    assert study.aims(results).rows == [("ours 3 points or more above FedAvg", "7", "+3.0 ± 0.0, two seeds", "", "")]


def test_long_runs_are_shown_by_round(study):
    run = {"dialects": 7, "method": "ours", "seed": 0}
    accuracies = [{"a": {"overall": number / 100}, "b": {"overall": 0}} for number in range(1, 31)]
    rows = study.by_round([{**run, "rounds": accuracies}, {**run, "rounds": accuracies[:12]}]).rows
    assert rows == [("ours", "7", "5e-3", "5.0", "7.5", "10.0", "12.5", "15.0", "1")]


def test_rows_of_several_rates_are_compared_at_each(study):
    def run(method, seed, figure, rate=""):
        rounds = [{"a": {"overall": figure}}] * study.SHORT
        return [{"method": method, "seed": seed, "dialects": d, "rounds": rounds, "rate": rate} for d in study.WORLDS]

    runs = [
        *(one for seed in (0, 1) for one in run("fedavg", seed, 0.5) + run("fedavg", seed, 0.6, "8e-3")),
        *(one for seed in (0, 1) for one in run(study.OURS, seed, 0.5) + run(study.OURS, seed, 0.7, "8e-3")),
        *run("local", 0, 0.4),
    ]
    rows = [row[:6] for row in study.at_each_rate(runs).rows]
    assert [row[:4] for row in rows] == [
        ("fedavg", "12", "5e-3", "50.0"),
        ("fedavg", "12", "8e-3", "60.0"),
        (study.OURS, "12", "5e-3", "50.0"),
        (study.OURS, "12", "8e-3", "70.0"),
    ]
    assert [row[4].split(" ")[0] for row in rows] == ["", "+10.0", "", "+20.0"]
    assert [row[5].split(" ")[0] for row in rows] == ["", "", "+0.0", "+10.0"]


def test_a_row_that_ran_at_a_rate_in_one_world_only_has_empty_cells_for_the_other(study):
    def run(dialects, seed, rate):
        rounds = [{"a": {"overall": 0.5}}] * study.SHORT
        return {"method": "fedavg", "seed": seed, "dialects": dialects, "rounds": rounds, "rate": rate}

    only, other = study.WORLDS
    rows = study.at_each_rate([run(only, seed, rate) for seed in (0, 1) for rate in ("", "8e-3")]).rows
    assert [row[2:4] + row[6:] for row in rows] == [(rate, "50.0", "", "", "", "2") for rate in ("5e-3", "8e-3")]
    rows = study.at_each_rate([run(other, seed, rate) for seed in (0, 1) for rate in ("", "8e-3")]).rows
    assert [row[2:7] + row[9:] for row in rows] == [(rate, "", "", "", "50.0", "2") for rate in ("5e-3", "8e-3")]
