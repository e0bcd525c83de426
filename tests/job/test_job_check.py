# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What sites would find out when they start is found out before a simulated job begins."""

import json
from pathlib import Path

import pytest

from fedpeft.core.errors import FedpeftError
from fedpeft.core.workspace import DATA_VARIABLE
from fedpeft.job import folder
from fedpeft.job.composing import compose
from fedpeft.job.folder import check_sites
from fedpeft.run.simulate import simulate

CONFIGS = Path(__file__).parents[2] / "app_configs"
TASK = "fedpia_task1"
WITHOUT_HEAD = ("backbone.name=tiny-albef-decoder", "training.answering=ranking", "method.name=classifier")
NARROW = "{reduction_factor: 32}"
MISFITS = {
    "width": (("method.name=compacter", f"method.settings={{compacter: {NARROW}}}"), "not a multiple of blocks=4"),
    "rank": (("method.name=dvpt", "method.settings={dvpt: {tokens: 4}}"), "rank is 8, but prompts of shape"),
    "head": (WITHOUT_HEAD, "trains the head alone, and with training.answering='ranking' there is none"),
    "source": (("backbone.name=llava", "backbone.source=/nowhere"), "'/nowhere', neither a folder here nor a hub name"),
}


def checked(job, overrides=()):
    sections = compose(CONFIGS, job, overrides)
    check_sites(sections, sections["federation"]["sites"])


@pytest.mark.parametrize("name", MISFITS)
def test_a_method_that_does_not_fit_in_the_backbone_of_a_site_is_refused(name):
    overrides, sentence = MISFITS[name]
    with pytest.raises(FedpeftError, match=sentence) as caught:
        checked(TASK, overrides)
    assert "\n" not in str(caught.value)
    assert "site " not in str(caught.value)  # it is all of them


@pytest.mark.slow
def test_a_misfit_of_one_site_is_one_of_the_job():
    other = "backbone.sites={vqa-rad: {name: llava, source: /nowhere}}"
    with pytest.raises(FedpeftError, match=r"^site vqa-rad: .* '/nowhere', neither a folder here"):
        checked(TASK, ["method.aggregation=none", other])


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ((), "^site head: No data folder for 'vqa_rad': set the environment variable FEDPEFT_DATA"),
        (("data.root=/nowhere",), "^site head: The data folder /nowhere of 'vqa_rad' does not exist"),
        (("data.root=nowhere",), "^site head: data.root is 'nowhere', and the sites run in other folders: write /"),
    ],
)
def test_a_data_folder_that_is_not_there_is_refused(overrides, sentence, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(FedpeftError, match=sentence):
        checked("vqa_rad", overrides)


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"dataset": "manifest"}, "data.sites.south.root."),
        ({"dataset": "class_folders", "root": "ROOT"}, "data.sites.south.root, or let data.partition share"),
        ({"dataset": "class_folders", "root": "ROOT", "partition": "iid", "parts": 2}, ""),
        ({"dataset": "manifest", "sites": {"south": {"root": "ROOT/other"}}}, ""),
        ({"dataset": "manifest", "sites": {"south": {"exclude": ["scan-1"]}}}, ""),
    ],
)
def test_two_sites_do_not_both_have_all_of_one_folder(settings, remedy, tmp_path, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "manifest.csv").touch()
    given = json.loads(json.dumps(settings).replace("ROOT", str(tmp_path)))
    sections = compose(CONFIGS, TASK) | {"data": given}
    if not remedy:
        return check_sites(sections, ["north", "south"])
    with pytest.raises(FedpeftError, match=f"^sites north and south would both have .* {tmp_path}: .*{remedy}"):
        check_sites(sections, ["north", "south"])


def test_the_method_is_checked_for_each_way_of_answering(monkeypatch):
    """Labels are answered in a way of their own, so that a method may fit there and not beside questions."""
    checked = []
    monkeypatch.setattr(folder, "_check_method", lambda job: checked.append(job.site))
    sections = compose(CONFIGS, TASK)
    of_sites = {
        "labels": {"dataset": "nih_cxr14"},
        "more labels": {"dataset": "nih_cxr14"},
        "questions": {"dataset": "slake"},
    }
    sections["data"] |= {"sites": of_sites}
    monkeypatch.setattr(folder, "check_root", lambda job, part: None)
    monkeypatch.setattr(folder, "check_shared", lambda jobs: None)
    check_sites(sections, of_sites)
    assert checked == ["labels", "questions"]


def test_a_relative_source_is_refused_with_the_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    with pytest.raises(FedpeftError, match=f"backbone.source is 'model', .*: write {tmp_path}/model"):
        checked(TASK, ["backbone.name=llava", "backbone.source=model"])


@pytest.mark.slow
@pytest.mark.parametrize("job", [TASK, "fedpia_task5", "fedpia_task1_albef", "vit_ham10000", "f3ocus_task1"])
def test_the_embedded_jobs_fit(job):
    checked(job)


def test_nothing_of_a_workspace_is_touched_where_a_job_does_not_fit(tmp_path):
    with pytest.raises(FedpeftError, match="does not fit"):
        simulate(CONFIGS.parent / "jobs" / TASK, workspace=tmp_path / "w", threads=1, overrides=MISFITS["width"][0])
    assert not list(tmp_path.iterdir())
