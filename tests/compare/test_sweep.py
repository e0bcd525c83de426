# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A sweep: which runs it makes, its table, its picture, and what it refuses."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.lines import Line2D

from fedpeft.backbones import BACKBONES
from fedpeft.cli import main
from fedpeft.compare import experiment, grid
from fedpeft.compare.experiment import RUNS, plan
from fedpeft.compare.grid import axis_of, points, shown
from fedpeft.compare.outcome import Outcome
from fedpeft.compare.runs import variant_of, variants
from fedpeft.compare.sweep import _figure, page, picture, sweep_of, table
from fedpeft.compare.table import csv_of
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY, MACRO_F1
from fedpeft.job.composing import compose, parse_overrides
from fedpeft.job.settings import SiteJob
from fedpeft.job.yaml_values import write
from fedpeft.report.wording import FEWER_SITES

CONFIGS = Path(__file__).parents[2] / "app_configs"
SHARES = "data.train_share=0.2,0.5,1"


def planned(text, *methods, task="fedpia_task1", seeds=(0, 1), overrides=()):
    axis = axis_of(text, option="--sweep")
    return axis, plan(CONFIGS, task, variants(methods), seeds, overrides, axis)


def done(run, figure, metrics=None):
    sites = list(run.sections["federation"]["sites"])
    metrics = metrics or dict.fromkeys(sites, ACCURACY)
    return Outcome(
        task=run.task,
        method=run.method,
        seed=run.seed,
        settings=run.settings,
        figures=(dict.fromkeys(sites, figure),),
        sent=(),
        metrics=metrics,
        seconds=1,
        procedural=True,
        tiny=True,
    )


def learned(run):
    share = run.sections["data"]["train_share"]
    return done(run, 0.4 * share + 0.1 * (run.method == "fedavg") * (share > 0.3) + 0.02 * run.seed)


@pytest.mark.slow
def test_a_figure_of_fewer_seeds_is_marked_and_counted():
    axis, runs = planned(SHARES, "local", "fedavg", seeds=(0, 1, 2))
    ended = [run for run in runs if run.seed == 2 or run.sections["data"]["train_share"] > 0.2]
    made = table(sweep_of(axis, runs, [learned(run) for run in ended]))
    assert made.rows[1] == ("fedavg", "12.0†", "32.0 ± 2.0", "52.0 ± 2.0")
    assert "† of fewer seeds than other figures: some of its runs did not end." in made.notes
    assert csv_of(made).splitlines()[0] == (
        "method,data.train_share=0.2 (%),sd data.train_share=0.2 (%),seeds data.train_share=0.2,"
        "data.train_share=0.5 (%),sd data.train_share=0.5 (%),data.train_share=1 (%),sd data.train_share=1 (%)"
    )


def test_figures_of_other_sites_are_marked_and_none_of_them_is_the_best():
    axis, runs = planned(SHARES, "local", "fedavg")
    ended = [learned(run) for run in runs]
    whole = table(sweep_of(axis, runs, ended))
    assert whole.best == {(1, 2), (1, 3)}
    lacking = next(
        n for n, run in enumerate(runs) if (run.method, run.sections["data"]["train_share"]) == ("fedavg", 1)
    )
    first, *others = ended[lacking].figures[0]
    ended[lacking] = replace(ended[lacking], figures=(dict.fromkeys(others, 0.9),))
    made = table(sweep_of(axis, runs, ended))
    assert made.best == {(1, 2)}
    assert made.rows[1][3].endswith("*")
    assert made.rows[0][3] == whole.rows[0][3]
    assert any(note.startswith("* of some sites") for note in made.notes)
    alike = [replace(one, figures=({s: f for s, f in one.figures[0].items() if s != first},)) for one in ended]
    assert table(sweep_of(axis, runs, alike)).best == {(1, 2), (1, 3)}


def test_none_is_the_best_at_a_value_where_methods_have_other_seeds():
    axis, runs = planned(SHARES, "local", "fedavg")
    gone = {("fedavg", 0.5, 0), ("local", 1, 0), ("fedavg", 1, 1)}
    ended = [run for run in runs if (run.method, run.sections["data"]["train_share"], run.seed) not in gone]
    made = table(sweep_of(axis, runs, [done(run, 0.6 if run.method == "fedavg" else 0.5) for run in ended]))
    assert made.best == {(1, 1)}


def test_a_row_that_never_had_a_site_of_other_rows_is_marked_and_not_ranked():
    axis, runs = planned(SHARES, "local", "fedavg", seeds=(0,))
    assert (runs[-1].method, runs[-1].sections["data"]["train_share"]) == ("fedavg", 1)
    *ended, last = map(learned, runs)
    ended.append(replace(last, figures=({"slake": 0.9},), metrics={"slake": ACCURACY}))
    made = table(sweep_of(axis, runs, ended))
    assert made.best == {(1, 2)}
    assert made.rows[1][3] == "90.0*"
    assert FEWER_SITES in made.notes


def test_large_values_are_told_apart():
    axis = axis_of("data.train_size=1000000,1000001,0.1,1e-3", option="--sweep")
    assert [shown(value) for value in axis.values] == ["1e+06", "1000001", "0.1", "0.001"]


def test_a_number_beyond_all_floats_is_shown_with_its_digits():
    axis = axis_of(f"training.batch_size=8,{10**400}", option="--sweep")
    assert axis.values == (8, 10**400)
    assert [shown(value) for value in axis.values] == ["8", str(10**400)]


@pytest.mark.parametrize(
    ("text", "task", "method", "where"),
    [
        (SHARES, "fedpia_task1", "local", lambda s: s["data"]["train_share"]),
        ("training.learning_rate=1e-3,1e-2", "fedpia_task1", "fedavg", lambda s: s["training"]["learning_rate"]),
        ("training.batch_size=8,16", "fedpia_task1", "fedavg", lambda s: s["training"]["batch_size"]),
        ("schedule.clients_per_round=2,4", "fedpia_task1", "fedavg", lambda s: s["schedule"]["clients_per_round"]),
        ("schedule.budget=2,4", "f3ocus_task1", "pfeiffer+f3ocus", lambda s: s["schedule"]["budget"]),
        (
            "schedule.solver_settings.population=10,25",
            "f3ocus_task1",
            "pfeiffer+f3ocus",
            lambda s: s["schedule"]["solver_settings"]["population"],
        ),
        (
            "method.settings.houlsby.reduction_factor=4,8",
            "fedpia_task1",
            "fedavg",
            lambda s: s["method"]["settings"]["houlsby"]["reduction_factor"],
        ),
        ("federation.sites=2,4", "fedpia_task1", "fedavg", lambda s: len(s["federation"]["sites"])),
        ("federation.sites=2,9", "vit_caltech101", "fedavg", lambda s: s["data"]["parts"]),
    ],
)
def test_any_setting_can_be_swept(text, task, method, where):
    axis, runs = planned(text, method, task=task, seeds=(0,))
    assert [where(run.sections) for run in runs] == list(axis.values)
    assert len({run.settings for run in runs}) == len(axis.values)
    assert {run.recipe for run in runs} == {""}


def test_another_backbone_brings_the_rate_that_it_declares(tmp_path):
    (tmp_path / "tasks").mkdir()
    rateless = {"data": {}, "federation": {"sites": ["slake", "vqa-rad"]}, "training": {"rounds": 2}}
    (tmp_path / "tasks" / "rateless.yml").write_text(write(rateless))
    parts = ["tasks/rateless", "backbones/tiny_vilt", "methods/fedavg", "deployments/laptop"]
    (tmp_path / "jobs.yml").write_text(write({"rateless": parts}))
    axis = axis_of("backbone.name=tiny-vilt,vilt", option="--sweep")
    runs = plan(tmp_path, "rateless", variants(["fedavg"]), (0,), [], axis)
    declared = [BACKBONES.get(name).learning_rate for name in axis.values]
    assert [run.sections["training"]["learning_rate"] for run in runs] == declared
    assert len(set(declared)) == 2
    job = SiteJob.from_sections(runs[0].sections, site="slake")
    assert (job.dataset, [part.dataset for part in job.parts]) == ("phantom", ["phantom"]), "the default"


def test_a_site_that_pools_others_has_their_data_sets():
    of_sites = {"slake": {"dataset": "slake"}, "vqa-rad": {"dataset": "vqa_rad"}}
    sections = compose(CONFIGS, "fedpia_task1") | {"data": {"pool": ["slake", "vqa-rad"], "sites": of_sites}}
    job = SiteJob.from_sections(sections, site="center")
    assert (job.dataset, [part.dataset for part in job.parts]) == ("slake", ["slake", "vqa_rad"])


def test_a_text_of_any_letters_stays_as_it_is():
    point, _ = points([axis_of("backbone.source=/w/\U0002000b,/w/b", option="--over")]).values()
    assert parse_overrides(point.overrides) == {"backbone": {"source": "/w/\U0002000b"}}


def test_sites_of_a_shared_data_set_have_its_names_and_other_sites_are_the_first_ones():
    _, shared = planned("federation.sites=2,9", "fedavg", task="vit_caltech101", seeds=(0,))
    assert shared[1].sections["federation"]["sites"] == [f"client-{number}" for number in range(1, 10)]
    more = [
        "schedule.joins={vqa-med-2021: 2, slake: 3}",
        "data.sites={slake: {train_size: 9}, vqa-med-2019: {train_size: 8}}",
    ]
    _, named = planned("federation.sites=2,5", "fedavg", seeds=(0,), overrides=more)
    assert named[0].sections["federation"]["sites"] == ["slake", "vqa-rad"]
    assert named[0].sections["schedule"]["joins"] == {"slake": 3}
    assert named[0].sections["data"]["sites"] == {"slake": {"train_size": 9}}
    assert len(named[1].sections["data"]["sites"]) == 2


def test_more_sites_than_a_job_may_have_get_no_names(monkeypatch):
    monkeypatch.setattr(grid, "range", None, raising=False)  # names would be made with it
    (point, _) = points([axis_of("federation.sites=1000000000,2", option="--sweep")]).values()
    with pytest.raises(FedpeftError, match="a job has at most 1,000 sites: name fewer"):
        point.sections(partial(compose, CONFIGS, "vit_caltech101"))


@pytest.mark.parametrize(
    ("task", "name"),
    [("fedpia_task1", "fedpia_agreement"), ("paper/f3ocus_task1", "pfeiffer+f3ocus+kernel_of_outputs")],
)
def test_without_methods_the_jobs_own_is_swept(task, name):
    assert variant_of(CONFIGS, task).method == name
    assert plan(CONFIGS, task, [variant_of(CONFIGS, task)], (0,), [])[0].method == name


def swept(*methods, metrics=None):
    axis, runs = planned(SHARES, *methods)
    return sweep_of(axis, runs, [done(run, learned(run).figures[0]["slake"], metrics) for run in runs])


def test_the_table_has_a_column_for_each_value():
    made = table(swept("local", "fedavg"))
    assert made.columns == ("method, % by data.train_share", "0.2", "0.5", "1")
    assert made.rows[1] == ("fedavg", "9.0 ± 1.4", "31.0 ± 1.4", "51.0 ± 1.4")
    assert made.best == {(1, 2), (1, 3)}  # none where methods share a figure
    assert csv_of(made).splitlines()[2] == "fedavg,9.0,1.4142,31.0,1.4142,51.0,1.4142"


@pytest.mark.slow
def test_figures_of_made_up_data_say_so_below_the_table_and_once_on_the_page():
    sweep = swept("local", "fedavg")
    caution, *others = table(sweep).notes
    assert "say nothing about medicine" in caution
    assert not any("medicine" in note for note in others)
    assert page(sweep).count("say nothing about medicine") == 1


@pytest.mark.slow
def test_each_metric_has_rows_and_a_panel_of_its_own():
    sites = compose(CONFIGS, "fedpia_task1")["federation"]["sites"]
    sweep = swept("local", "fedavg", metrics={site: MACRO_F1 if site == "slake" else ACCURACY for site in sites})
    made = table(sweep)
    assert [row[:2] for row in made.rows] == [
        (method, metric) for metric in ("macro-F1", "accuracy") for method in ("local", "fedavg")
    ]
    assert len(_figure(sweep, framed=False).axes) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "scale", "where"),
    [
        (SHARES, "linear", [0.2, 0.5, 1]),
        ("training.learning_rate=1e-4,1e-3,1e-2", "log", [1e-4, 1e-3, 1e-2]),
        ("training.decay=linear,none", "linear", [0, 1]),
    ],
)
def test_the_picture_has_a_line_for_each_method_at_the_values(text, scale, where):
    axis, runs = planned(text, "local", "fedavg", seeds=(0,))
    sweep = sweep_of(axis, runs, [done(run, 0.5) for run in runs])
    (axes,) = _figure(sweep, framed=True).axes
    assert axes.get_xscale() == scale
    lines = [line for line in axes.lines if isinstance(line, Line2D)]
    assert [line.get_label() for line in lines] == ["local", "fedavg"]
    assert all(list(line.get_xdata()) == where for line in lines)
    assert {line.get_linestyle() == "None" for line in lines} == {not axis.numbers}
    assert ElementTree.fromstring(picture(sweep)).tag.endswith("svg")
    assert page(sweep) == page(sweep)


def test_settings_of_a_mapping_stand_below_the_axis_without_its_marks():
    axis, runs = planned("method.settings.lora={r: 4, lora_alpha: 8},{r: 8, lora_alpha: 4}", "lora_svd", seeds=(0,))
    (axes,) = _figure(sweep_of(axis, runs, [done(run, 0.5) for run in runs]), framed=False).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["r=4, lora_alpha=8", "r=8, lora_alpha=4"]


def test_a_value_at_which_no_run_ended_is_a_gap():
    axis, runs = planned(SHARES, "local", "fedavg", seeds=(0,))
    sweep = sweep_of(axis, runs, [learned(run) for run in runs if run.method == "fedavg" and "0.2" not in run.point])
    assert table(sweep).rows == (("local", "–", "–", "–"), ("fedavg", "–", "30.0", "50.0"))
    assert [line.get_label() for line in _figure(sweep, framed=False).axes[0].lines] == ["fedavg"]


@pytest.mark.slow
def test_the_command_runs_what_is_missing_and_writes_table_picture_and_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(experiment, "ProcessPoolExecutor", lambda count, **_: ThreadPoolExecutor(1))
    monkeypatch.setattr(experiment, "carry_out", learned)
    monkeypatch.chdir(tmp_path)
    command = ["compare", "fedpia_task1", "--configs", str(CONFIGS), "--methods", "local,fedavg", "--seeds", "2"]
    assert main([*command, "--sweep", "data.train_share=0.2,1"]) == 0
    out = tmp_path / "comparison" / "fedpia_task1" / "data.train_share"
    assert sorted(file.suffix for file in out.iterdir()) == [".csv", ".html", ".jsonl", ".md", ".svg", ".tex"]
    assert "fedavg, train_share=0.2, seed 1: 10.0 %" in capsys.readouterr().err
    assert main([*command, "--sweep", SHARES]) == 0
    assert len((out / RUNS).read_text().splitlines()) == 2 * 2 * 3
    assert "| local | 9.0 ± 1.4" in (out / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sweep", "data.train_shar=0.2,1"], "did you mean 'train_share'"),
        (["--sweep", "data.train_share=1"], "has 1 value: name two or more"),
        (["--sweep", "data.train_share=0,1"], "train_share=0.0 must be above 0"),
        (["--sweep", "data.seed=0,1"], "are those of --seeds"),
        (["--sweep", "method.settings.lora.r=2,4"], "changes nothing in row 'fedpia_agreement'"),
        (["--sweep", "schedule.budget=2,4"], "schedule.budget changes nothing in row 'fedpia_agreement'"),
        (["--sweep", "federation.sites=2,6"], "federation.sites=6, and the job has 5 sites"),
        (["--sweep", "federation.sites=0,2"], "is no number of sites"),
        (["--sweep", SHARES, "--set", "data.train_share=0.3"], "sets what the grid varies"),
        (["--sweep", SHARES, "--variant", "x: local data.train_share=0.3"], "sets what the grid varies"),
        (["--sweep", SHARES, "--baseline", "local"], "a sweep has no differences"),
        (
            ["--methods", "local", "--variant", "f1: fedavg data.metric=macro_f1"],
            "the row f1 has data.metric='macro_f1' and local '', and rows of a table are measured alike: set it",
        ),
        (
            ["--methods", "local", "--variant", "x: fedavg data.test_size=6"],
            "the row x has data.test_size=6 and local ",
        ),
        (
            ["--methods", "local", "--variant", "x: fedavg data.sites.slake.test_size=6"],
            "the row x has data.test_size=6 and local ",
        ),
    ],
)
def test_wrong_input_gives_one_sentence(options, message, capsys):
    assert main(["compare", "fedpia_task1", "--configs", str(CONFIGS), *options]) == 1
    assert message in capsys.readouterr().err


def test_a_job_without_a_method_part_is_swept_with_named_methods_alone(tmp_path):
    (tmp_path / "jobs.yml").write_text("bare: [backbones/tiny_vilt]\n")
    with pytest.raises(FedpeftError, match="names no method of app_configs/methods: name some with --methods"):
        variant_of(tmp_path, "bare")
