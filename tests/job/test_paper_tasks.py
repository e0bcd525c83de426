# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The tasks of the papers are listed from their jobs and from what the data sets declare."""

from pathlib import Path

import pytest

from fedpeft import cli, data
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import TITLES
from fedpeft.data.registry import DATASETS
from fedpeft.job.catalog import paper_tasks
from fedpeft.job.composing import CONFIGS, PACKAGED, compose, configs_of, default_configs, recipes
from fedpeft.job.federation import site_data
from fedpeft.job.folder import job_folder, locate_job
from fedpeft.report.catalogs import task_tables

ROOT = Path(__file__).parents[2]
OWN = {"manifest", "hugging_face", "class_folders"}  # data that a site has itself


@pytest.fixture(scope="module")
def tasks():
    return list(paper_tasks(ROOT / "app_configs"))


@pytest.mark.slow
def test_all_fifteen_have_clients_a_metric_data_and_a_job(tasks):
    assert len(tasks) == len({task.title for task in tasks}) == 15
    jobs = recipes(ROOT / "app_configs")
    for task in tasks:
        sections = compose(ROOT / "app_configs", task.recipe)
        assert list(task.sites) == sections["federation"]["sites"]
        assert task.metrics
        assert set(task.metrics) <= set(TITLES)
        assert len(task.origins) == len(task.datasets)
        assert task.embedded in {"", *jobs}
    assert tasks[0].embedded == "fedpia_task1"


def test_what_the_papers_say_of_a_task(tasks):
    by_title = {task.title: task for task in tasks}
    assert (len(by_title["FedPIA 4"].sites), by_title["FedPIA 4"].partition) == (10, "dirichlet 0.5")
    assert by_title["FedPIA 5"].metrics == by_title["F3OCUS 6"].metrics == ("macro_f1",), "FedPIA, table 4"
    assert by_title["ViT, Caltech101"].metrics == ("balanced_accuracy",)
    assert by_title["F3OCUS 3"].metrics == ("accuracy",)


def test_the_jobs_of_mimic_take_as_many_samples_as_the_papers():
    """FedPIA: 73,348 in task 4; in task 5 34,323 less those of SLAKE, VQA-RAD, VQA-Med 2019 and Open-I; each 80 %."""
    of_mimic = {"fedpia_task4": 73_348, "fedpia_task5": 34_323 - 4_919 - 1_799 - 14_792 - 2_837}
    for name, samples in {**of_mimic, "f3ocus_task5": 73_348, "f3ocus_task6": of_mimic["fedpia_task5"]}.items():
        sections = compose(ROOT / "app_configs", f"paper/{name}")
        own = site_data(sections["data"], sections["federation"]["sites"][-1])
        assert (own["dataset"], own["split"], 0.8 * own["samples"]) == ("mimic_cxr_jpg", "image_disjoint", samples)


@pytest.mark.parametrize("backbone", ["llava", "blip2"])
@pytest.mark.parametrize("task", range(1, 7))
def test_the_large_models_have_a_linear_head_and_batches_of_4(task, backbone):
    """F3OCUS, supplement, implementation details; the kernel of the outputs is its score."""
    sections = compose(ROOT / "app_configs", f"paper/f3ocus_task{task}_{backbone}")
    training = sections["training"]
    assert (training["answering"], training["head"], training["batch_size"]) == ("classification", "linear", 4)
    assert (training["learning_rate"], training["rounds"]) == (1e-4, 30)
    assert sections["schedule"]["score_settings"]["target"] == "logits"


@pytest.mark.parametrize("name", data.names())
def test_a_published_data_set_says_where_it_is_had_and_by_what_it_is_measured(name):
    declared = DATASETS.get(name)
    published = name not in OWN and not declared.procedural
    assert (declared.origin is not None) == published
    assert declared.metric in TITLES or not published
    assert not declared.origin or all((declared.origin.title, declared.origin.address, declared.origin.terms))


@pytest.mark.slow
def test_the_command_prints_every_task_and_every_data_set_from_any_folder(tasks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["tasks"]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed, "nothing is cut off in a terminal of 80 columns"
    for task in tasks:
        assert task.title in printed
        assert f"jobs/{task.recipe}" in printed
        assert all(origin.title in printed for origin in task.origins)
    assert len(task_tables(tasks)[1].rows) == len({origin for task in tasks for origin in task.origins})


def test_the_configuration_comes_with_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_configs() == PACKAGED
    assert recipes(PACKAGED) == recipes(ROOT / "app_configs")
    assert {file.suffix for file in PACKAGED.rglob("*") if file.is_file()} == {".yml"}  # of which the wheel has all
    for name in ("vqa_rad", "jobs/vqa_rad"):
        assert (job_folder(Path(name), [], tmp_path) / "meta.json").is_file()


def test_a_folder_of_ones_own_goes_before_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (CONFIGS / "tasks").mkdir(parents=True)
    (CONFIGS / "tasks" / "phantom.yml").write_text((PACKAGED / "tasks" / "phantom.yml").read_text() + "  threads: 1\n")
    (CONFIGS / "jobs.yml").write_text(
        "mine: [tasks/phantom, backbones/tiny_vilt, methods/fedpia, deployments/laptop]\n"
    )
    assert default_configs() == CONFIGS
    assert compose(CONFIGS, "mine")["training"]["threads"] == 1
    assert compose(CONFIGS, "vqa_rad")["data"]["dataset"] == "vqa_rad"
    assert configs_of(Path("jobs/deep/mine")) == tmp_path / CONFIGS


@pytest.mark.parametrize("out", ["variants", "jobs/variants"])
def test_a_jobs_folder_may_lie_anywhere(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / CONFIGS).mkdir()
    (tmp_path / CONFIGS / "jobs.yml").write_text("{}")
    assert cli.main(["jobs", "cases/one_shot", "--out", out]) == 0
    folder = Path(out) / "cases" / "one_shot"
    assert locate_job(folder)[1] == "cases/one_shot"
    folder.rename(moved := Path(out) / "paper")
    assert locate_job(moved)[1] == "cases/one_shot"
    server = moved / "app" / "config" / "config_fed_server.json"
    written = server.read_text()
    server.write_text(written.replace('"quorum": 0', '"quorum": 1'))
    with pytest.raises(FedpeftError, match=r"config_fed_server\.json is not what .* name cases/one_shot instead"):
        locate_job(moved)
    server.write_text(written.replace('"job": "cases/one_shot",', ""))
    with pytest.raises(FedpeftError, match="has no server configuration with a job's name"):
        locate_job(moved)
    server.write_text(written.replace('"cases/one_shot"', '"mine"'))
    with pytest.raises(FedpeftError, match=r"is job 'mine', which .*jobs.yml does not have"):
        locate_job(moved)


def test_what_is_neither_a_folder_nor_a_job_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["simulate", "jobs/vqa_rat"]) == 1
    error = capsys.readouterr().err
    assert "jobs/vqa_rat is not a FLARE job folder" in error
    assert "did you mean 'vqa_rad'" in error
