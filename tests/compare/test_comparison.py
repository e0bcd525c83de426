# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The table of a comparison: figures, differences, cost, the papers' figures, and its forms."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from html import escape, unescape
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from fedpeft.compare.outcome import Outcome, from_json
from fedpeft.compare.page import _figure, losses, losses_file, page, picture, picture_file, seeds_of
from fedpeft.compare.table import OTHER_SEEDS, compared, csv_of, grids, interval, latex, markdown
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1, pooled_balanced_accuracy
from fedpeft.report.page_parts import Picture
from fedpeft.report.wording import DASH, FEWER_SITES, Alignment


def outcome(method, seed, *rounds, task="vqa_rad", sent=1e6, metrics=None, **changed):
    figures = tuple(dict(zip(("north", "south"), one, strict=True)) for one in rounds)
    values = {
        "task": task,
        "method": method,
        "seed": seed,
        "figures": figures,
        "sent": tuple(dict.fromkeys(("north", "south"), sent) for _ in rounds),
        "metrics": metrics or {"north": ACCURACY, "south": ACCURACY},
        "seconds": 10.0 + seed,
        "procedural": False,
        "tiny": False,
    }
    return Outcome(**{**values, **changed})


RUNS = [
    outcome("fedavg", 0, (0.2, 0.4), (0.4, 0.6)),
    outcome("fedavg", 1, (0.2, 0.4), (0.5, 0.7)),
    outcome("ours", 0, (0.2, 0.4), (0.5, 0.7)),
    outcome("ours", 1, (0.2, 0.4), (0.6, 1.0), sent=0.0),
]


def cells(table, column):
    return [row[table.columns.index(column)] for row in table.rows]


def test_a_difference_is_of_figures_in_one_metric():
    mixed = outcome("f1", 0, (0.9, 0.4), metrics={"north": MACRO_F1, "south": ACCURACY})
    assert mixed.minus(RUNS[0], ACCURACY) == pytest.approx(-20)  # of south alone
    assert math.isnan(mixed.minus(RUNS[0], MACRO_F1))
    assert math.isnan(RUNS[0].minus(mixed, MACRO_F1))


def test_the_figure_of_a_run_is_the_mean_of_its_sites_over_the_last_rounds():
    assert RUNS[0].figure(ACCURACY) == pytest.approx(50)
    assert RUNS[0].figure(ACCURACY, last=2) == pytest.approx(40)
    assert RUNS[0].curve(ACCURACY) == pytest.approx([30, 50])
    assert math.isnan(RUNS[0].figure(MACRO_F1))


def test_a_run_of_fewer_rounds_is_not_the_best_of_more():
    short, long = (
        outcome("short", 0, (0.5, 0.5), (0.5, 0.5)),
        outcome("long", 0, *[(x, x) for x in (0.2, 0.3, 0.4, 0.5)]),
    )
    table = compared([short, long], baseline="short", last=3)
    assert cells(table, "mean accuracy (%)") == ["50.0*", "40.0"]
    assert cells(table, "minus short") == ["–", "-5.0, one seed*"]
    assert not table.best
    assert "Differences are over the sites and rounds that both runs have." in table.notes
    alike = compared([short, replace(short, method="other")], baseline="short", last=3)
    assert cells(alike, "mean accuracy (%)") == ["50.0", "50.0"]
    assert cells(alike, "minus short") == ["–", "+0.0, one seed"]


def test_no_difference_is_a_negative_zero():
    one, other = outcome("one", 0, (0.503333333333, 0.5)), outcome("other", 0, (0.503333333331, 0.5))
    table = compared([one, other], baseline="one")
    assert cells(table, "minus one") == ["–", "+0.0, one seed"]
    assert "-0" not in csv_of(table)


def test_megabytes_are_those_of_one_site_and_add_up_over_rounds():
    assert RUNS[0].megabytes() == pytest.approx([1, 2])


def test_a_run_comes_back_from_its_line():
    assert from_json(RUNS[0].as_json(), origin="runs.jsonl") == RUNS[0]


@pytest.mark.parametrize(
    "changed",
    [
        {"figures": [{"north": 2.0}]},
        {"figures": []},
        {"metrics": {}},
        {"metrics": {"north": "luck"}},
        {"extra": 1},
        {"pooled": [2.0]},
        {"seed": "x"},
        {"seed": math.inf},
        {"samples": {"north": -1}},
        {"alignment": {"places": 1, "moved": 2}},
        {"alignment": {"places": "many"}},
    ],
)
def test_a_damaged_line_is_refused_with_its_place(changed):
    with pytest.raises(FedpeftError, match=r"^runs\.jsonl, line 3 .*remove the line\.$"):
        from_json({**RUNS[0].as_json(), **changed}, origin="runs.jsonl, line 3")


@pytest.mark.parametrize(
    ("third", "bold"),
    [((0.1, 0.1), [1]), ((0.45, 0.55), [1]), ((0.6, 0.7), [2]), ((0.5, 0.6), []), ((0.50001, 0.6), [])],
)
def test_a_figure_that_two_methods_share_is_not_bold(third, bold):
    """The third example ends at 55 at both sites, as ours does; the fourth differs in what is not shown."""
    runs = [outcome("fedavg", 0, (0.2, 0.2)), outcome("ours", 0, (0.5, 0.6)), outcome("third", 0, third)]
    table = compared(runs, baseline="fedavg")
    assert [row for row, column in table.best if table.columns[column] == "mean accuracy (%)"] == bold
    if not bold:
        assert not any(name in text for text in (markdown(table), latex(table)) for name in ("**", "textbf"))


@pytest.mark.parametrize(
    ("seeds", "cell", "warned"),
    [(1, "+20.0, one seed", False), (2, "+15.0 ± 63.5, two seeds", True), (3, "+13.3 ± 14.3", False)],
)
def test_an_interval_of_two_seeds_says_so_where_it_stands_and_below(seeds, cell, warned):
    gained = (0.2, 0.1, 0.1)[:seeds]
    runs = [outcome("fedavg", seed, (0.2, 0.2)) for seed in range(seeds)]
    runs += [outcome("ours", seed, (0.2 + more, 0.2 + more)) for seed, more in enumerate(gained)]
    table = compared(runs, baseline="fedavg")
    assert cells(table, "minus fedavg") == ["–", cell]
    shown = page(table, Picture(b""), runs)
    for text in (" ".join(table.notes), markdown(table), latex(table), shown):
        assert ("one degree of freedom" in text) == warned
    assert (" two seeds" in printed(table, 80)) == warned


def printed(table, width):
    console = Console(width=width, file=io.StringIO())
    console.print(*grids(table, width))
    return console.file.getvalue()


def test_differences_are_paired_by_seed_and_the_best_mean_is_bold():
    table = compared(RUNS, baseline="fedavg")
    mean, half = interval([10, 20])
    assert cells(table, "minus fedavg") == ["–", f"{mean:+.1f} ± {half:.1f}, two seeds"]
    assert cells(table, "mean accuracy (%) ± sd") == ["55.0 ± 7.1", "70.0 ± 14.1"]
    assert table.best == {(1, table.columns.index(name)) for name in ("north", "south", "mean accuracy (%) ± sd")}
    assert cells(table, "north") == ["45.0", "55.0"]
    assert cells(table, "MB a round") == ["1.00", "0.50"]
    assert cells(table, "seeds") == ["2", "2"]


def test_what_each_alignment_moved_stands_below_the_table():
    """Two methods that say the same share a line; one that aligned nothing has none."""
    stayed = {"alignment": Alignment(places=300)}
    runs = [outcome("local", seed, (0.2, 0.4)) for seed in (0, 1)]
    runs += [outcome(name, seed, (0.2, 0.4), **stayed) for name in ("fedpia", "more") for seed in (0, 1)]
    of_own = Alignment(places=600, moved=120, last=1, apart=True)
    runs.append(outcome("own", 0, (0.2, 0.4), alignment=of_own))
    lines = [
        "fedpia, more: 0 of 600 places moved: sites that start from one adapter stay aligned.",
        "own: 120 of 600 places moved, the last in round 1.",
    ]
    table = compared(runs, baseline="local")
    assert [note for note in table.notes if "places" in note] == lines
    shown = page(table, Picture(b""), runs)
    for line in lines:
        assert all(line in text for text in (markdown(table), latex(table), shown))


def test_the_balanced_accuracy_of_all_images_is_not_the_mean_of_the_sites():
    north, south = {"nevus": (8, 8), "melanoma": (2, 0)}, {"nevus": (2, 0), "keratosis": (4, 3)}
    assert pooled_balanced_accuracy([north, south]) == pytest.approx((8 / 10 + 0 + 3 / 4) / 3)
    assert pooled_balanced_accuracy([{}, {}]) is None


def test_each_metric_has_a_mean_of_its_own():
    metrics = {"north": ACCURACY, "south": MACRO_F1}
    runs = [outcome(name, 0, (0.2, value), metrics=metrics) for name, value in (("fedavg", 0.4), ("ours", 0.3))]
    table = compared(runs, baseline="fedavg")
    assert cells(table, "mean accuracy (%)") == ["20.0", "20.0"]
    assert cells(table, "mean macro-F1 (%)") == ["40.0", "30.0"]
    assert cells(table, "minus fedavg, macro-F1") == ["–", "-10.0, one seed"]


def test_of_a_hundred_sites_none_has_a_column():
    sites = [f"client-{n}" for n in range(100)]
    run = outcome(
        "fedavg",
        0,
        figures=(dict.fromkeys(sites, 0.5),),
        sent=(dict.fromkeys(sites, 1.0),),
        metrics=dict.fromkeys(sites, ACCURACY),
    )
    assert not set(sites) & set(compared([run], baseline="fedavg").columns)


@pytest.mark.parametrize(("procedural", "mark"), [(True, "†"), (False, "")])
def test_published_figures_are_marked_where_ours_cannot_be_compared(procedural, mark):
    rows = {"whole": "full", "fedavg": ""}  # the name of a row is the user's, its recipe is not
    runs = [
        outcome(
            name,
            0,
            (0.2, 0.4),
            task="paper/fedpia_task2",
            procedural=procedural,
            recipe=recipe,
            samples={"north": 30_000, "south": 4_000},
        )
        for name, recipe in rows.items()
    ]
    table = compared(runs, baseline="whole")
    assert cells(table, "published (%)") == [f"89.0{mark}", "–"]
    assert any("not comparable" in note for note in table.notes) == procedural
    assert any("nothing about medicine" in note for note in table.notes) == procedural


def test_a_run_that_does_not_say_its_samples_is_not_comparable():
    runs = [outcome("full", 0, (0.2, 0.4), task="paper/fedpia_task2", recipe="full", samples={"north": 34_026})]
    assert any("do not say on how many samples" in note for note in compared(runs, baseline="full").notes)


def test_balanced_accuracy_of_all_sites_together_has_a_column_and_is_what_the_paper_prints():
    changed = {
        "task": "paper/vit_ham10000",
        "metrics": dict.fromkeys(("north", "south"), BALANCED_ACCURACY),
        "samples": dict.fromkeys(("north", "south"), 4_006),
    }
    runs = [
        outcome("vpt", 0, (0.2, 0.4), (0.4, 0.6), recipe="vpt", pooled=(0.1, 0.7), **changed),
        outcome("lora", 0, (0.2, 0.4), (0.4, 0.6), pooled=(0.1, 0.6), **changed),
    ]
    table = compared(runs, baseline="lora")
    assert cells(table, "mean balanced accuracy (%)") == ["50.0", "50.0"]
    assert cells(table, "pooled balanced accuracy (%)") == ["70.0", "60.0"]
    assert (0, table.columns.index("pooled balanced accuracy (%)")) in table.best
    assert cells(table, "published (%)") == ["78.9", "–"]
    assert cells(compared(runs, baseline="lora", last=2), "pooled balanced accuracy (%)") == ["40.0", "35.0"]
    assert from_json(runs[0].as_json(), origin="runs.jsonl") == runs[0]
    assert any(note.startswith("pooled: on the test images of all sites together") for note in table.notes)


@pytest.mark.parametrize(
    ("pooled", "last", "cell"),
    [((0.1, None), 1, DASH), ((None, 0.7), 1, "70.0"), ((0.1, None), 2, "10.0"), ((0.2, None, 0.6), 3, "40.0")],
    ids=str,
)
def test_a_round_without_a_pooled_figure_takes_none_of_an_older_round(pooled, last, cell):
    of = {"fedavg": (0.5,) * len(pooled), "ours": pooled}
    metrics = dict.fromkeys(("north", "south"), BALANCED_ACCURACY)
    runs = [outcome(name, 0, *[(0.2, 0.4)] * len(pooled), metrics=metrics, pooled=of[name]) for name in of]
    assert cells(compared(runs, baseline="fedavg", last=last), "pooled balanced accuracy (%)") == ["50.0", cell]
    assert [from_json(json.loads(json.dumps(run.as_json())), origin="a") for run in runs] == runs


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_metric_without_a_figure_is_a_dash(seeds):
    metrics = {"north": ACCURACY, "south": MACRO_F1}
    figures = ({"north": 0.5},)
    runs = [outcome(name, seed, metrics=metrics, figures=figures) for name in ("fedavg", "ours") for seed in seeds]
    table = compared(runs, baseline="fedavg")
    assert set(cells(table, next(name for name in table.columns if "macro-F1 (%)" in name))) == {"–"}
    assert not any("nan" in cell for row in table.rows for cell in row)


def test_a_mean_over_fewer_sites_is_marked():
    partial = outcome("ours", 0, figures=({"north": 0.9},), sent=({"north": 1.0},))
    table = compared([RUNS[0], partial], baseline="fedavg")
    assert cells(table, "mean accuracy (%)") == ["50.0", "90.0*"]
    assert any(note.startswith("*") for note in table.notes)


def test_a_site_of_another_metric_that_is_away_marks_no_other_figure():
    metrics = {"north": ACCURACY, "south": MACRO_F1}
    partial = outcome("ours", 0, metrics=metrics, figures=({"north": 0.9},))
    table = compared([outcome("fedavg", 0, (0.4, 0.6), metrics=metrics), partial], baseline="fedavg")
    assert cells(table, "mean accuracy (%)") == cells(table, "north") == ["40.0", "90.0"]
    assert {(1, table.columns.index(name)) for name in ("north", "mean accuracy (%)")} <= table.best
    assert not cells(table, "minus fedavg, accuracy")[1].endswith("*")
    assert not {column for _, column in table.best} & {table.columns.index("south")}
    partial = outcome("ours", 0, metrics=metrics, figures=({"south": 0.9},))
    table = compared([outcome("fedavg", 0, (0.4, 0.6), metrics=metrics), partial], baseline="fedavg")
    assert cells(table, "mean accuracy (%)") == ["40.0", DASH]
    assert "\n\\* of some sites" in markdown(table)


def test_a_row_that_never_had_a_site_of_other_rows_is_marked_and_not_ranked():
    """The site is not even among its metrics, as in a finished run of fewer sites."""
    alone = outcome("ours", 0, figures=({"north": 0.9},), metrics={"north": ACCURACY})
    table = compared([outcome("fedavg", 0, (0.8, 0.2)), alone], baseline="fedavg")
    assert cells(table, "mean accuracy (%)") == ["50.0", "90.0*"]
    assert cells(table, "minus fedavg") == [DASH, "+10.0, one seed*"]
    assert cells(table, "south") == ["20.0", DASH]
    assert table.best == {(1, table.columns.index("north"))}  # which both have
    assert FEWER_SITES in table.notes


@pytest.mark.parametrize(("seeds", "said"), [((0, 1), False), ((0, 2), True), ((2, 3), True), ((0,), True)], ids=str)
def test_of_methods_with_different_seeds_none_is_the_best(seeds, said):
    runs = [*RUNS[:2], *(outcome("ours", seed, (0.5, 0.9)) for seed in seeds)]
    table = compared(runs, baseline="fedavg")
    assert (not table.best) == said
    assert (OTHER_SEEDS in table.notes) == said
    assert ("**" in markdown(table)) != said


@pytest.mark.parametrize(
    ("seeds", "cell", "said"),
    [((0, 1), "+15.0 ± 63.5, two seeds", True), ((0, 2), "+20.0, one seed", False), ((2, 3), DASH, False)],
    ids=str,
)
def test_the_note_on_paired_differences_stands_where_a_pair_has_two_seeds(seeds, cell, said):
    runs = [outcome("fedavg", seed, (0.2, 0.2)) for seed in (0, 1)]
    runs += [outcome("ours", seed, (f, f)) for seed, f in zip(seeds, (0.4, 0.3), strict=True)]
    table = compared(runs, baseline="fedavg")
    assert cells(table, "minus fedavg") == [DASH, cell]
    assert any("paired seed by seed" in note for note in table.notes) == said


def test_the_seeds_of_a_comparison_are_those_of_one_method():
    runs = [outcome("fedavg", 0, (0.2, 0.4)), outcome("ours", 1, (0.2, 0.4))]
    assert seeds_of(runs) == "one seed"
    assert seeds_of([*runs, outcome("ours", 5, (0.2, 0.4))]).startswith("2 seeds, ")
    ends = {"loss_start": ({"north": 2.0},), "loss_end": ({"north": 1.0},)}
    shown = page(compared(runs, baseline="ours"), Picture(b""), [replace(run, **ends) for run in runs])
    assert "means over seeds" not in shown


def test_differences_are_of_the_sites_and_rounds_that_both_runs_have():
    """South, the harder site, is away in some of the other method's rounds, which is one point worse everywhere."""
    runs, away = [], {0: [], 1: [1], 2: [0, 1]}
    for seed in (0, 1, 2):
        whole = [{"north": 0.8, "south": 0.3}, {"north": 0.84, "south": 0.2}]
        less = [{site: value - 0.01 for site, value in one.items()} for one in whole]
        for number in away[seed]:
            del less[number]["south"]
        runs += [outcome("fedavg", seed, figures=tuple(whole)), outcome("worse", seed, figures=tuple(less))]
    table = compared(runs, baseline="fedavg", last=2)
    assert cells(table, "minus fedavg") == [DASH, "-1.0 ± 0.0*"]
    assert cells(table, "south") == ["25.0", "26.5*"]
    assert cells(table, "mean accuracy (%) ± sd")[1].endswith("*")
    assert table.best == {(0, 1)}  # of north, which is never away; they have figures of other sites


def test_a_site_that_is_away_counts_as_much_as_the_others():
    one = outcome("fedavg", 0, figures=({"north": 0.9}, {"north": 0.9}, {"north": 0.9, "south": 0.3}))
    assert one.figure(ACCURACY, last=3) == pytest.approx(60)


def test_an_unknown_baseline_is_refused():
    with pytest.raises(FedpeftError, match="'theirs' is none of fedavg, ours"):
        compared(RUNS, baseline="theirs")


def test_the_forms_hold_every_cell():
    runs = [outcome("a|b_c & 50 %", seed, (0.2, 0.4)) for seed in (0, 1)] + RUNS[2:]
    table = compared(runs, baseline="ours")
    assert "**" in markdown(table)
    assert "a\\|b_c" in markdown(table)
    assert "a|b\\_c \\& 50 \\%" in latex(table)
    assert "\\textbf{70.0 $\\pm$ 14.1}" in latex(table)


def test_a_name_in_a_cell_or_a_note_is_no_image_and_no_link_in_markdown():
    evil = "![](https://evil.example/p.png)"
    runs = [outcome(evil, 0, (0.2, 0.4), alignment=Alignment(places=3)), outcome("ours", 0, (0.3, 0.5))]
    table = compared(runs, baseline=evil)
    assert any(evil in note for note in table.notes)
    shown = MarkdownIt("commonmark").enable("table").render(markdown(table))
    assert shown.count(evil) == 3  # head, cell and note
    assert not re.search(r"<img|<a ", shown)


def test_the_csv_has_numbers_alone():
    table = compared([*RUNS, outcome("third", 0, (0.2, 0.4), (0.1, 0.3))], baseline="fedavg")
    first, second, third = csv.DictReader(io.StringIO(csv_of(table)))
    mean, half = interval([10, 20])
    assert second["method"] == "ours"
    assert float(second["mean accuracy (%)"]) == 70
    assert float(second["sd accuracy (%)"]) == pytest.approx(math.sqrt(200), abs=1e-3)
    assert float(second["minus fedavg"]) == pytest.approx(mean)
    assert float(second["minus fedavg, half of the 95 % interval"]) == pytest.approx(half, abs=1e-3)
    assert (second["minus fedavg, seeds"], third["minus fedavg, seeds"]) == ("2", "1")
    assert first["minus fedavg"] == third["sd accuracy (%)"] == ""
    for row in (first, second, third):
        assert all(math.isfinite(float(cell)) for name, cell in row.items() if name != "method" and cell)


def test_no_name_in_the_csv_is_computed_by_a_spreadsheet():
    table = compared([outcome("=1+1", 0, (0.2, 0.4)), outcome("-ours", 0, (0.6, 1.0))], baseline="=1+1")
    heads, *rows = csv.reader(io.StringIO(csv_of(table)))
    assert [row[0] for row in rows] == ["'=1+1", "'-ours"]
    differences = rows[1][heads.index("minus =1+1")], rows[0][heads.index("minus =1+1")]
    assert differences == ("50.0", "")


def test_processor_time_is_shown_where_it_was_measured():
    assert not any("seconds" in column for column in compared(RUNS, baseline="fedavg").columns)
    runs = [*RUNS[:2], *(outcome("ours", seed, (0.5, 0.7), cpu_seconds=9.0 + seed) for seed in (0, 1))]
    table = compared(runs, baseline="fedavg")
    assert cells(table, "CPU seconds a run") == ["–", "10"]
    assert any(note.startswith("CPU seconds") for note in table.notes)


@pytest.mark.parametrize("width", [200, 80, 60, 40])
@pytest.mark.parametrize("methods", [2, 9])
def test_the_terminal_shows_every_site_of_every_method_at_any_width(width, methods):
    sites = [f"hospital-{number}" for number in range(5)]
    names = [f"method-{number}" for number in range(methods)]
    runs = []
    for number, name in enumerate(names):
        figures = {site: (10 * number + place) / 100 for place, site in enumerate(sites, 1)}
        of_all = {"figures": (figures,), "metrics": dict.fromkeys(sites, ACCURACY)}
        runs += [outcome(name, seed, sent=(), **of_all) for seed in (0, 1)]
    table = compared(runs, baseline=names[0])
    shown = printed(table, width)
    assert max(map(len, shown.splitlines())) <= width
    for number in range(methods):
        for place in (1, 2, 4, 5):  # the third is the mean
            assert shown.split().count(f"{10 * number + place}.0") == 1
    assert all(name in shown for name in (*sites, *names))
    assert shown.count(table.title) == 1


def test_a_comparison_of_many_sites_says_that_they_have_no_columns():
    for count, said in ((12, False), (13, True)):
        sites = [f"client-{n}" for n in range(count)]
        run = outcome(
            "fedavg", 0, sent=(), figures=(dict.fromkeys(sites, 0.5),), metrics=dict.fromkeys(sites, ACCURACY)
        )
        assert any("no columns of their own" in note for note in compared([run], baseline="fedavg").notes) == said


@pytest.mark.slow
@pytest.mark.parametrize(
    "runs",
    [
        RUNS[:1],
        [outcome("local", 0, (0.5, 0.5), sent=0.0), *(outcome(f"m{n}", 0, (0.2, 0.4)) for n in range(20))],
        RUNS,
    ],
)
def test_the_picture_is_an_svg_in_both_forms(runs):
    for file in (picture(runs).svg, picture_file(runs)):
        assert ElementTree.fromstring(file.decode()).tag.endswith("}svg")


def heights(axes, at):
    """Return where each line or marker of the axes is at a point, on paper in points."""
    points = [line.get_transform().transform(line.get_xydata())[at][1] for line in axes.lines]
    return sorted(point * 72 / axes.figure.dpi for point in points)


@pytest.mark.parametrize("rounds", [[(0.2, 0.4), (0.4, 0.6)], [(0.2, 0.4)]], ids=["lines", "markers"])
def test_methods_with_the_same_figures_are_all_seen(rounds):
    runs = [outcome(name, seed, *rounds) for name in ("fedavg", "fedpia", "agreement") for seed in (0, 1)]
    runs += [outcome(name, 0, (0.9, 0.9), (0.9, 0.9), sent=0.0) for name in ("local", "alone")]
    by_round, by_sent = _figure(runs).axes
    for axes in (by_round, by_sent):
        assert len(axes.lines) == 5
        assert min(b - a for a, b in pairwise(heights(axes, -1))) > 1.3
        for line in axes.lines[:3]:
            assert np.allclose(line.get_ydata(), [100 * sum(one) / 2 for one in rounds])


@pytest.mark.slow
def test_the_page_says_task_and_caution_once_and_the_file_has_them_too(monkeypatch):
    drawn = []
    monkeypatch.setattr("fedpeft.compare.page.svg", lambda figure, text: drawn.append(figure) or b"")
    picture(RUNS)
    assert len(drawn) == 1
    assert not drawn[0].texts
    picture_file(RUNS)
    assert "vqa_rad, 2 seeds" in drawn[-1].texts[0].get_text()


def test_losses_at_both_ends_of_the_rounds_have_a_panel_for_each_method_that_measured_them(monkeypatch):
    def ends(scale):
        return {
            "loss_start": ({"north": 4 * scale}, {"north": 3 * scale}),
            "loss_end": ({"north": 2 * scale}, {"north": scale}),
        }

    runs = [outcome("fedavg", seed, (0.2, 0.4), (0.4, 0.6), **ends(seed + 1)) for seed in (0, 1)] + RUNS[2:]
    assert losses_file(RUNS) is None
    drawn = []
    monkeypatch.setattr("fedpeft.compare.page.svg", lambda figure, text: drawn.append(figure) or b"a picture")
    assert losses_file([replace(one, procedural=True, tiny=True) for one in runs])
    assert [text.get_text() for text in drawn.pop().texts] == [
        "vqa_rad, means of 2 seeds",
        "Loss on the probe samples, at the start and the end of every round",
        "Procedural data, tiny backbone: these figures say nothing about medicine.",
    ]
    assert {name: {site: v.tolist() for site, v in of.items()} for name, of in losses(runs).items()} == {
        "fedavg": {"north": [[6, 3], [4.5, 1.5]]}
    }
    text = page(compared(runs, baseline="ours"), Picture(b"a picture"), runs)
    assert text.count("<img") == 2
    assert "the start of the next: fedavg +1.500" in text
    assert [from_json(one.as_json(), origin="a") for one in runs] == runs


def test_the_course_of_the_losses_stands_in_place_of_the_ends(monkeypatch):
    course = ({"north": 4.0}, {"north": 3.0}), ({"north": 3.0}, {"north": 1.0}), ({"north": 2.0}, {"north": 0.5})
    runs = [outcome("fedavg", 0, (0.2, 0.4), (0.4, 0.6), loss_course=course), *RUNS[2:]]
    drawn = []
    monkeypatch.setattr("fedpeft.compare.page.svg", lambda figure, text: drawn.append(figure) or b"a picture")
    assert losses_file(runs)
    (axes,) = drawn[-1].axes
    assert axes.lines[0].get_ydata().tolist() == [4, 3, 2, 3, 1, 0.5]
    assert axes.lines[0].get_xdata().tolist() == [0, 0.5, 1, 1, 1.5, 2]
    assert drawn[-1].texts[1].get_text() == "Loss of the training batches, in the course of every round"
    assert "Twenty points a round" in unescape(page(compared(runs, baseline="ours"), Picture(b"a"), runs))
    assert [from_json(json.loads(json.dumps(one.as_json())), origin="a") for one in runs] == runs
    ends = outcome("local", 0, (0.2, 0.4), (0.4, 0.6), loss_start=({"north": 4.0},) * 2, loss_end=({"north": 2.0},) * 2)
    assert list(losses([*runs, ends])) == ["fedavg"]


@pytest.mark.slow
def test_the_picture_has_the_same_bytes_each_time():
    assert picture(RUNS[:1]) == picture(RUNS[:1])


def test_the_page_holds_every_cell_and_note_once_with_the_best_mean_bold():
    runs = [outcome("<a & b>", seed, (0.2, 0.4), procedural=True) for seed in (0, 1)] + RUNS[2:]
    table = compared(runs, baseline="ours")
    text = page(table, Picture(b"a picture"), runs).replace("&nbsp;", " ")
    for cell in (*table.columns, *(cell for row in table.rows for cell in row), *table.notes[1:]):
        assert escape(cell) in text
    assert text.lower().count("nothing about medicine") == 1  # at the top, and not again below the table
    assert re.findall(r"<strong>(.*?)</strong>", text) == ["55.0", "85.0", "70.0 ± 14.1"]
    assert "<a & b>" not in text
    assert text.count("<img") == 1
