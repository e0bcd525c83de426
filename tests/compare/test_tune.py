# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A search over settings: its grid, its steps, what it chooses and what it writes into the job."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from fedpeft.backbones import BACKBONES
from fedpeft.cli import main
from fedpeft.compare import experiment
from fedpeft.compare.experiment import RUNS, check_read, earlier, run_missing
from fedpeft.compare.grid import axis_of, points
from fedpeft.compare.outcome import Outcome
from fedpeft.compare.tune import FACTORS, RATE, Search, Step, rates, run_steps, table_of
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY
from fedpeft.job.admission import admit_folder
from fedpeft.job.composing import compose, write_job
from fedpeft.job.writing import find_job, write_settings
from fedpeft.job.yaml_values import write

CONFIGS = Path(__file__).parents[2] / "app_configs"
JOB = "fedpia_task1"


@pytest.fixture(autouse=True)
def in_threads(monkeypatch, tmp_path):
    monkeypatch.setattr(experiment, "ProcessPoolExecutor", lambda count, **_: ThreadPoolExecutor(1))
    monkeypatch.chdir(tmp_path)


def search(*over, job=JOB, overrides=(), **changed):
    found = find_job(Path(job), CONFIGS)
    axes = [axis_of(text, option="--over") for text in over] or [rates(found.sections)]
    return Search(job=found, axes=axes, points=points(axes), overrides=overrides, **changed)


def reached(run, figure, samples=100):
    sites = {"slake": figure, "vqa-rad": figure}
    return Outcome(
        task=run.task,
        method=run.method,
        seed=run.seed,
        settings=run.settings,
        figures=(dict.fromkeys(sites, 1 - figure),),  # of the test split, by which nothing may be chosen
        sent=(),
        metrics=dict.fromkeys(sites, ACCURACY),
        seconds=1,
        procedural=True,
        tiny=True,
        validation=(sites,),
        validated=dict.fromkeys(sites, samples),
    )


def peaked(run):
    """Best at 0.015; a large rate is not found to be bad in few rounds, and diverges in the first of seed 1."""
    rate, rounds = run.sections["training"]["learning_rate"], run.sections["training"]["rounds"]
    if rate > 0.04 and run.seed:
        raise FedpeftError("the training loss became nan")
    return reached(run, 0.9 - 0.1 * abs(math.log10(rate / 0.015)) - 0.2 / rounds)


def counted(monkeypatch, carried=peaked, ends_after=math.inf):
    ran = []

    def carry(run):
        if len(ran) >= ends_after:
            raise KeyboardInterrupt
        ran.append((run.method, run.seed, run.sections["training"]["rounds"]))
        return carried(run)

    monkeypatch.setattr(experiment, "carry_out", carry)
    return ran


def test_a_setting_that_lacks_a_site_stands_below_those_that_have_all():
    """Its rate threw one site off, whose replies the check of updates refused: without it the mean is higher."""
    made = search("training.learning_rate=0.01,0.03")
    good, bad = (made.runs(label, 9)[0] for label in made.points)
    whole = replace(reached(good, 0.65), validation=({"slake": 0.8, "vqa-rad": 0.5},))
    part = replace(reached(bad, 0.85), validation=({"slake": 0.85},), refused=9)
    step = Step(rounds=9, outcomes={good.method: [whole], bad.method: [part]}, failed={})
    assert step.ranked == [good.method, bad.method]
    notes = table_of(made, [step]).notes
    assert f"{bad.method} has no figure of vqa-rad after 9 rounds, and stands below those that have all." in notes
    assert f"{bad.method}, after 9 rounds: missing or refused, and in no figure: 9 replies." in notes


def test_a_setting_of_the_search_that_changes_nothing_is_refused():
    made = search("training.learning_rate=0.01,0.03", overrides=["training.moon_temperature=0.3"])
    with pytest.raises(FedpeftError, match=r"training\.moon_temperature changes nothing"):
        run_steps(made, Path("out"), processes=1)


def test_a_setting_that_one_of_the_points_reads_is_none_of_these():
    overrides = ["method.server_tau=1e-3", "method.aggregation=fedavg"]
    made = search("method.server_optimizer=none,adam", overrides=overrides)
    check_read(made.overrides, [made.runs(label, 1)[0] for label in made.points])


@pytest.mark.parametrize(
    ("over", "overrides", "steps"),
    [
        ([], [], [(5, 2), (2, 5)]),
        ([], ["training.rounds=30"], [(5, 10), (2, 30)]),
        (["training.batch_size=8,16"], [], [(2, 5)]),
        (
            [f"{RATE}=1e-3,2e-3,3e-3,4e-3,5e-3", "training.batch_size=4,8,16"],
            ["training.rounds=18"],
            [(15, 2), (5, 6), (2, 18)],
        ),
        ([], ["training.rounds=9", "schedule.joins={slake: 7}"], [(5, 7), (2, 9)]),
    ],
)
def test_a_third_goes_on_with_three_times_the_rounds(over, overrides, steps):
    assert search(*over, overrides=overrides).steps() == steps


def test_the_default_grid_lies_around_the_rate_that_the_backbone_declares():
    declared = BACKBONES.get("tiny-vilt").learning_rate
    values = rates(compose(CONFIGS, JOB)).values
    assert [value / declared for value in values] == pytest.approx([0.1, 0.3, 1, 3, 10])
    assert search().points[f"learning_rate={declared:g}"].overrides == (f"{RATE}={declared}",)


def own_job(folder, *, comments="# Written by `fedpeft new`.\n", inside="", shared=False):
    """A job of a task of its own, as `fedpeft new` writes it."""
    configs = folder / "app_configs"
    (configs / "tasks").mkdir(parents=True)
    sections = {
        "data": {"dataset": "phantom"},
        "federation": {"sites": ["slake", "vqa-rad"]},
        "training": {"rounds": 5, "learning_rate": 0.5},
    }
    (configs / "tasks" / "own.yml").write_text(comments + write(sections) + inside)
    parts = ["backbones/tiny_vilt", "methods/fedavg", "deployments/laptop", "tasks/own"]
    jobs = {"own": parts} | ({"other": parts} if shared else {})
    (configs / "jobs.yml").write_text(write(jobs))
    write_job(folder / "jobs" / "own", "own", compose(configs, "own", ["training.batch_size=4"]))
    return configs


@pytest.mark.slow
def test_a_search_finds_the_best_writes_it_and_goes_on_after_a_cut(monkeypatch, tmp_path, capsys):
    configs = own_job(tmp_path)
    ran = counted(monkeypatch, ends_after=4)
    assert main(["tune", "own", "--seeds", "2"]) == 130
    assert len((tmp_path / "tuning" / "own" / RUNS).read_text().splitlines()) == len(ran) == 4
    again = counted(monkeypatch)
    assert main(["tune", "own", "--seeds", "2"]) == 0
    assert set(ran) & set(again) == set()
    assert sorted({rounds for _, _, rounds in again}) == [2, 5]
    assert {name for name, _, rounds in again if rounds == 5} == {"learning_rate=0.005", "learning_rate=0.015"}
    said = capsys.readouterr().out
    task = configs / "tasks" / "own.yml"
    assert f"wrote    {task.relative_to(tmp_path)}: {RATE}=0.015\n" in said
    assert f"wrote    jobs/own: {RATE}=0.015\n" in said
    assert "learning_rate=0.05 failed: learning_rate=0.05, seed 1: the training loss became nan" in said
    assert "of the grid" not in said
    assert task.read_text().startswith("# Written by `fedpeft new`.\n")
    assert compose(configs, "own")["training"]["learning_rate"] == 0.015
    assert admit_folder(tmp_path / "jobs" / "own").sections == compose(configs, "own")
    once_more = counted(monkeypatch)
    assert main(["tune", "own", "--seeds", "2"]) == 0
    assert {name for name, *_ in once_more} == {"learning_rate=0.05"}  # a run that failed is tried again
    table = (tmp_path / "tuning" / "own" / "tuning.csv").read_text().splitlines()
    assert table[0] == f"{RATE},after 2 rounds (%),after 5 rounds (%)"
    assert table[1].endswith(",")


@pytest.mark.parametrize(
    ("changed", "rewritten"),
    [({}, True), ({"inside": "# why\n"}, False), ({"shared": True}, False), ({"comments": ""}, True)],
)
def test_a_task_gets_the_values_where_nothing_else_changes(changed, rewritten, tmp_path):
    configs = own_job(tmp_path, **changed)
    task = configs / "tasks" / "own.yml"
    before = task.read_text()
    said = write_settings(find_job(Path("own")), [f"{RATE}=0.015"])
    assert (task.read_text() != before) == rewritten
    assert any("writes this folder again" in sentence for sentence in said) != rewritten
    assert admit_folder(tmp_path / "jobs" / "own").sections == compose(configs, "own", [f"{RATE}=0.015"])


def test_a_folder_keeps_the_settings_that_only_it_has(tmp_path):
    own_job(tmp_path)
    write_settings(find_job(Path("jobs/own")), [f"{RATE}=0.015"])
    training = admit_folder(tmp_path / "jobs" / "own").sections["training"]
    assert (training["batch_size"], training["learning_rate"]) == (4, 0.015)


def test_a_packaged_job_gets_a_folder_here(tmp_path):
    said = write_settings(find_job(Path(JOB)), [f"{RATE}=0.015"])
    again = f"`fedpeft jobs {JOB} --set {RATE}=0.015` writes this folder again."
    assert said == [f"wrote    jobs/{JOB}: {RATE}=0.015", f"no file of app_configs is only of this job: {again}"]
    assert admit_folder(tmp_path / "jobs" / JOB).sections["training"]["learning_rate"] == 0.015


OTHER = "backbone.name=tiny-vilt,vilt"


@pytest.mark.parametrize("folder", [False, True], ids=["by name", "by its folder"])
def test_another_backbone_brings_the_settings_that_it_declares(folder, tmp_path):
    configs = own_job(tmp_path)
    write_job(tmp_path / "jobs" / "own", "own", compose(configs, "own"))
    found, axes = find_job(Path("jobs/own" if folder else "own")), [axis_of(OTHER, option="--over")]
    chosen = Search(job=found, axes=axes, points=points(axes))
    of_point = {label: chosen.runs(label, 5)[0].sections for label in chosen.points}
    more = ["training.rounds=5", "training.validate=true", "training.seed=0"]
    assert compose(configs, "own")["training"]["learning_rate"] == 0.5  # of another backbone
    rates_of = {name: f"{RATE}={BACKBONES.get(name).learning_rate}" for name in ("tiny-vilt", "vilt")}
    for name, rate in rates_of.items():
        assert of_point[f"name={name}"] == compose(configs, "own", [*more, f"backbone.name={name}", rate])
    both = [*axes, axis_of(f"{RATE}=0.1,0.2", option="--over")]
    rated = Search(job=found, axes=both, points=points(both))
    assert set(rated.settings("name=vilt, learning_rate=0.2")) == {
        'backbone.name="vilt"',
        f"{RATE}=0.2",
    }
    read_nowhere = ["method.name=classifier", "method.aggregation=none", "training.head_learning_rate=0.1"]
    assert replace(chosen, overrides=read_nowhere).settings("name=vilt") == ('backbone.name="vilt"',)
    given = replace(chosen, overrides=[f"{RATE}=0.3"])
    assert given.settings("name=vilt") == ('backbone.name="vilt"',)
    assert of_point["name=tiny-vilt"]["method"]["settings"]["houlsby"] == {"reduction_factor": 4}
    assert "settings" not in of_point["name=vilt"]["method"]
    said = write_settings(found, chosen.settings("name=vilt"))
    expected = compose(configs, "own", ["backbone.name=vilt", rates_of["vilt"]])
    assert admit_folder(tmp_path / "jobs" / "own").sections == expected
    assert "app_configs/tasks/own.yml: backbone.name=" in said[0]


def test_the_default_grid_is_that_of_the_backbone_of_the_search(monkeypatch, tmp_path):
    own_job(tmp_path)
    ran = counted(monkeypatch)
    assert main(["tune", "own", "--set", "backbone.name=vilt"]) == 0
    rates_of_vilt = {f"learning_rate={BACKBONES.get('vilt').learning_rate * factor:g}" for factor in FACTORS}
    assert {name for name, *_ in ran} == rates_of_vilt


@pytest.mark.parametrize("options", [["--over", OTHER], ["--set", "backbone.name=vilt"]])
@pytest.mark.parametrize("configs", [True, False], ids=["of other settings", "from elsewhere"])
def test_a_folder_with_settings_of_its_own_gets_no_other_backbone(options, configs, tmp_path, capsys):
    made = own_job(tmp_path)
    if not configs:
        made.rename(tmp_path / "other")
    assert main(["tune", "jobs/own", *options]) == 1
    assert (
        "backbone.name is 'vilt', and jobs/own has settings that tiny-vilt declares: leave" in capsys.readouterr().err
    )


def step(rounds, samples=100, **figures):
    runs = {name: search("training.batch_size=8,16,32").runs(f"batch_size={name[1:]}", rounds)[0] for name in figures}
    found = {run.method: [reached(run, figures[name], samples)] for name, run in runs.items()}
    return Step(rounds=rounds, outcomes=found, failed={})


@pytest.mark.parametrize(
    ("figures", "samples", "note"),
    [
        ({"b8": 0.5, "b16": 0.9}, 1000, ""),
        ({"b8": 0.5, "b32": 0.9}, 1000, "training.batch_size=32 is the largest of the grid: name some beyond it as"),
        ({"b8": 0.9, "b32": 0.5}, 1000, "training.batch_size=8 is the smallest of the grid"),
        ({"b8": 0.82, "b16": 0.8}, 50, "batch_size=8 and batch_size=16 are 2.0 points apart, within the noise of 100"),
    ],
)
def test_a_best_value_at_the_end_of_the_grid_or_within_noise_is_said(figures, samples, note):
    table = table_of(search("training.batch_size=8,16,32"), [step(5, samples, **figures)])
    assert any(one.startswith(note) for one in table.notes) if note else table.notes == ()


def test_what_is_said_of_a_search_does_not_depend_on_which_run_ended_first(monkeypatch, tmp_path):
    made = search("training.batch_size=8,16", seeds=2)
    counted(monkeypatch, carried=lambda run: reached(run, 0.8 - 0.3 * run.seed, samples=50))
    first = table_of(made, run_steps(made, tmp_path, processes=1)).notes
    lines = (tmp_path / RUNS).read_text().splitlines(keepends=True)
    (tmp_path / RUNS).write_text("".join(reversed(lines)))
    assert table_of(made, run_steps(made, tmp_path, processes=1)).notes == first
    assert any("within the noise of 100 validation samples (11.1)" in note for note in first)


@pytest.mark.parametrize("last", [[], ["slake"]])
def test_the_noise_is_that_of_every_sites_last_figure_wherever_it_was_last_drawn(last):
    every, drawn = step(5, 50, b8=0.82, b16=0.8), step(5, 50, b8=0.82, b16=0.8)
    for label, (one,) in drawn.outcomes.items():
        now = {site: one.validation[-1][site] for site in last}
        drawn.outcomes[label] = [replace(one, validation=(*one.validation, now))]
    tables = [table_of(search("training.batch_size=8,16,32"), [one]) for one in (every, drawn)]
    assert tables[0].notes[-1] == tables[1].notes[-1]
    assert "within the noise of 100 validation samples (10.9)" in tables[1].notes[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "'nowhere' is not a job"),
        ([JOB, "--over", "training.learnig_rate=1,2"], "learnig_rate is not a setting: did you mean 'learning_rate'"),
        ([JOB, "--over", "training.batch_size=8"], "training.batch_size has 1 value: name two or more"),
        ([JOB, "--over", "training.batch_size=8,8"], "has the value 8 twice"),
        ([JOB, "--over", "batch_size=8,16"], "is not of the form section.name=value,value"),
        ([JOB, "--over", "training.batch_size=8,[16"], "has a value that cannot be used"),
        ([JOB, "--over", "training.batch_size=8,0"], "batch_size is 0, it must be at least 1"),
        ([JOB, "--over", "method.settings.lora.r=2,4"], f"method.settings.lora changes nothing in {JOB}"),
        ([JOB, "--over", "schedule.budget=2,4"], f"schedule.budget changes nothing in {JOB}"),
        (
            [JOB, "--over", "training.rounds=2,4"],
            "a search cannot choose it, because its steps have rounds of their own",
        ),
        ([JOB, "--over", "training.thresholds=half,share"], "because they are fitted to the split on which settings"),
        ([JOB, "--over", "training.validate=true,false"], "because its runs validate in every round; leave it out"),
        (
            [JOB, "--over", "data.metric=accuracy,macro_f1"],
            "because runs would not be measured alike (fedpeft compare --sweep",
        ),
        (
            [JOB, "--over", "federation.resume_from=latest,a"],
            "because it says who takes part and how a run goes on, not how",
        ),
        (
            [
                JOB,
                "--over",
                "method.settings.lora.r=2,4",
                "--set",
                "method.name=lora",
                "--set",
                "method.aggregation=svd",
            ],
            f"{JOB} could not get r=2 afterwards: method.settings.lora changes nothing in {JOB}, whose method is "
            "houlsby: set method.name=lora as well, or change those of houlsby. What --set says (method.name=lora, "
            "method.aggregation=svd) is only for the search: write it into the job first.",
        ),
        (
            [JOB, "--over", "method.aggregation=svd,stack", "--set", "method.name=lora"],
            f"{JOB} could not get aggregation=svd afterwards: ",
        ),
        ([JOB, *2 * ["--over", "training.batch_size=8,16"]], "training.batch_size is named twice"),
        ([JOB, "--seeds", "0"], "--seeds is 0"),
    ],
)
def test_wrong_input_gives_one_sentence(arguments, message, capsys, monkeypatch):
    ran = counted(monkeypatch)
    assert main(["tune", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not ran


@pytest.mark.parametrize(
    ("carried", "message"),
    [
        (lambda run: reached(run, math.nan), "has a figure that is none"),
        (lambda run: replace(reached(run, 0.5, 0), validation=({},)), f"no site of {JOB} has a validation split"),
        (lambda run: replace(reached(run, 0.5), validation=({},)), "a validation split (slake, vqa-rad) has a figure"),
    ],
)
def test_a_search_without_validation_figures_ends(carried, message, monkeypatch, capsys):
    counted(monkeypatch, carried)
    assert main(["tune", JOB]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_search_on_the_tiny_job_finds_the_best_of_the_whole_grid(tmp_path):
    few = ["data.train_size=32", "data.validation_size=24", "data.test_size=4", "training.rounds=3"]
    tried = search(
        f"{RATE}=5e-4,5e-3,2e-2",
        overrides=[*few, "federation.sites=[slake, vqa-rad]", "training.local_epochs=1", "method.probe_samples=8"],
    )
    steps = run_steps(tried, tmp_path, processes=1)
    assert [step.rounds for step in steps] == [1, 3]
    every = [run for label in tried.points for run in tried.runs(label, 3)]
    run_missing(tmp_path, every, processes=1, finished=lambda one: None)
    whole = {one.method: one.validation_figure() for one in earlier(tmp_path, every)}
    best = steps[-1].ranked[0]
    assert set(whole) == set(tried.points)
    assert whole[best] == steps[-1].figure(best) == max(whole.values())


@pytest.mark.parametrize("setting", ["federation.resume_from=latest", "federation.tracking=mlflow"])
def test_what_a_search_would_not_do_is_refused(setting):
    with pytest.raises(
        FedpeftError, match=f"{setting.partition('=')[0]} is .*and here .*: (set it to 'none'|add --set)"
    ):
        search(overrides=[setting]).runs("learning_rate=0.001", 1)
