# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`fedpeft predict` as a user types it: what it prints and writes, and what it refuses in one sentence."""

import csv
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pydicom.data
import pytest
from histories import record, write
from PIL import Image
from trained_sites import trained

from fedpeft.answering.answering import Scored
from fedpeft.cli import main
from fedpeft.core.errors import FedpeftError, UnreadableImage
from fedpeft.data.images import EncodedImage, as_array
from fedpeft.data.settings import Window
from fedpeft.inference.commands import _draw_heatmap, facts
from fedpeft.inference.examples import _is_known, check_grays, read_images, read_split, read_table, window_at
from fedpeft.inference.export import export
from fedpeft.inference.kept_model import find
from fedpeft.job.site_policy import SitePolicy
from fedpeft.run.simulate import set_aside

HUNDREDS = {"center": 500, "width": 1000}


@pytest.fixture
def predict(of_tables, capsys):
    """Function: run the command on a site's folder; exit code, standard output and error."""

    def run(kind, *arguments):
        code = main(["predict", str(of_tables[kind][0]), *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def read(file):
    with file.open(newline="") as table:
        return list(csv.DictReader(table))


def test_one_question_about_one_image(predict, tables):
    image = tables["questions"] / "test-0.png"
    code, out, _ = predict("questions", "--image", image, "--question", "how dark is it ?", "--top", 2)
    assert code == 0
    assert "round 2" in out
    assert "say nothing about medicine" in out  # the backbone is tiny
    assert sum(answer in out for answer in ("dark", "gray", "light")) == 2


def test_a_second_image_is_refused(predict, tables):
    image = tables["questions"] / "test-0.png"
    code, _, error = predict("questions", "--image", image, "--image", image, "--question", "how dark is it ?")
    assert code == 1
    assert "--image is given 2 times: name one image or folder, or list the images in a table" in error


def test_an_image_whose_name_is_not_utf_8_is_refused(predict, tables, tmp_path):
    image = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xfcber.png"))
    shutil.copy(tables["questions"] / "test-0.png", image)
    for named in (image, tmp_path):
        code, _, said = predict("questions", "--image", named, "--question", "why ?", "--out", tmp_path / "out.csv")
        assert code == 1
        assert r"\xfcber.png has a name that is not UTF-8: rename it" in said


def test_a_question_that_is_cut_is_said(predict, tables):
    image = tables["questions"] / "test-0.png"
    code, out, _ = predict("questions", "--image", image, "--question", "how dark " * 30)
    assert code == 0
    assert "1 of 1 texts are longer than backbone.text_length=40 tokens" in out


def test_a_folder_of_images_without_answers(predict, tables, tmp_path):
    out = tmp_path / "new" / "out.csv"
    code, printed, _ = predict("classes", "--image", tables["classes"], "--out", out)
    assert out.stat().st_mode & 0o077 == 0
    assert code == 0
    assert "measured" not in printed
    rows = read(out)
    assert len(rows) == 31
    assert all(row["right"] == row["answer"] == row["question"] == "" for row in rows)
    assert all(float(row["probability"]) >= float(row["probability_2"]) for row in rows)


def test_dicom_files_of_a_folder_are_not_left_out_without_a_word(predict, tables, tmp_path):
    (tmp_path / "scans").mkdir()
    shutil.copy(tables["questions"] / "test-0.png", tmp_path / "scans" / "a.png")
    shutil.copy(pydicom.data.get_testdata_file("MR_small.dcm", download=False), tmp_path / "scans" / "b.dcm")
    (tmp_path / "scans" / "notes.txt").write_text("no image")
    code, out, error = predict(
        "questions", "--image", tmp_path / "scans", "--question", "how dark is it ?", "--out", tmp_path / "out.csv"
    )
    assert code == 0, error
    assert "1 DICOM or NIfTI files of the folder were left out: use a command for each, or a manifest." in out
    assert [row["image"] for row in read(tmp_path / "out.csv")] == ["a.png"]


def test_a_table_with_some_answers_is_measured_on_these(predict, tables, tmp_path):
    folder = shutil.copytree(tables["questions"], tmp_path / "table")
    rows = ["image,question,answer", "test-0.png,how dark is it ?,dark", "test-1.png,how dark is it ?,"]
    (folder / "manifest.csv").write_text("\n".join([*rows, "test-2.png,how dark is it ?,never heard of"]))
    code, printed, _ = predict("questions", "--manifest", folder, "--out", tmp_path / "out.csv")
    assert code == 0
    assert "on 2 examples" in printed
    assert [row["right"] for row in read(tmp_path / "out.csv")][1:] == ["", "no"]


def test_figures_of_too_few_images_are_said_to_be_not_measured(of_tables):
    record = find(of_tables["classes"][0], site=None).record
    _, line = facts(record, 2, dict.fromkeys(("overall", "open", "closed")), 1)
    assert "not measured, of no class or label are enough images known here" in line
    assert "%" not in line


def test_texts_that_training_had_or_lacked_get_a_sentence(of_tables, tables, tmp_path):
    kept = find(of_tables["labels"][0], site=None)
    trained_with = replace(kept, record=replace(kept.record, reads_text=True))
    unknown = replace(kept, record=replace(kept.record, reads_text=None))  # of an earlier version
    assert kept.record.reads_text is False
    folder = shutil.copytree(tables["labels"], tmp_path / "table")
    (folder / "manifest.csv").write_text("image,text,labels\ntest-0.png,a report,gray\ntest-1.png,,\n")
    lacking = "1 of 2 images have no text, and this site's training had texts beside images: give each with"
    unusual = "1 of 2 images have a text, and this site's training had none beside images"
    for one, texts, remark in (
        (kept, ["a report", ""], unusual),
        (trained_with, ["a report", ""], lacking),
        (unknown, ["a report", ""], None),
    ):
        wanted = read_table(folder, one)
        assert [example.question for example in wanted.examples] == texts
        assert [line.startswith(remark) for line in wanted.remarks] == [True] if remark else wanted.remarks == ()
    image = folder / "test-0.png"
    assert read_images(image, None, kept.record).remarks == read_images(image, None, unknown.record).remarks == ()
    assert read_images(image, "a report", trained_with.record).remarks == ()
    (line,) = read_images(image, "a report", kept.record).remarks
    assert line.startswith("1 of 1 images have a text")
    assert read_images(image, "a report", unknown.record).examples[0].question == "a report"
    (line,) = read_images(image, None, trained_with.record).remarks
    assert line.startswith("1 of 1 images have no text")


def test_a_class_may_be_called_as_a_missing_value_is(of_tables):
    record = replace(find(of_tables["classes"][0], site=None).record, answers=("na", "pos"))
    assert [_is_known(cell, record) for cell in ("NA", "pos", "null", "\u200b", None)] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_table_without_answers_has_none_for_a_model_that_answers_none(of_tables, tables, tmp_path):
    kept = find(of_tables["questions"][0], site=None)
    kept = replace(kept, record=replace(kept.record, answers=("none", *kept.record.answers)))
    shutil.copy(tables["questions"] / "test-0.png", tmp_path)
    (tmp_path / "manifest.csv").write_text("image,question\ntest-0.png,how dark is it ?\n")
    assert read_table(tmp_path, kept).known == (False,)
    (tmp_path / "manifest.csv").write_text("image,question,answer\ntest-0.png,how dark is it ?,None\n")
    assert read_table(tmp_path, kept).known == (True,)


def test_every_label_has_its_column(predict, tables, tmp_path):
    code, printed, _ = predict("labels", "--manifest", tables["labels"], "--out", tmp_path / "out.csv")
    assert code == 0
    assert "macro-F1" in printed
    for row in read(tmp_path / "out.csv"):
        assert all(0 <= float(row[f"probability of {label}"]) <= 1 for label in ("Gray", "Light"))
        for column in ("predicted", "answer"):
            assert set(filter(None, row[column].split("|"))) <= {"Gray", "Light"}
    assert {label for row in read(tmp_path / "out.csv") for label in row["answer"].split("|")} == {"Gray", "Light", ""}


@pytest.mark.slow
def test_classes_are_called_as_the_site_writes_them(predict, of_tables, tables, tmp_path):
    kept, exported = find(of_tables["classes"][0], site=None), tmp_path / "exported"
    export(kept, exported)
    backbone = ["--backbone", kept.record.sections["backbone"]["source"]]
    for run, more in ((of_tables["classes"][0], []), (exported, backbone)):
        arguments = ["--manifest", tables["classes"], "--out", tmp_path / "out.csv", *more]
        assert main(["predict", str(run), *map(str, arguments)]) == 0
        rows = read(tmp_path / "out.csv")
        assert {row["answer"] for row in rows} == {"Dark", "Gray", "Light"}
        assert {row[f"predicted{rank}"] for row in rows for rank in ("", "_2", "_3")} == {"Dark", "Gray", "Light"}
        assert all((row["right"] == "yes") is (row["answer"] == row["predicted"]) for row in rows)
    _, printed, _ = predict("classes", "--image", tables["classes"] / "test-0.png")
    assert sum(name in printed for name in ("Dark", "Gray", "Light")) == 3


def test_what_a_spreadsheet_would_compute_is_text(predict, tables, tmp_path):
    folder = shutil.copytree(tables["questions"], tmp_path / "table")
    (folder / "manifest.csv").write_text("image,question\ntest-0.png,=1+1\n")
    assert predict("questions", "--manifest", folder, "--out", tmp_path / "out.csv")[0] == 0
    assert read(tmp_path / "out.csv")[0]["question"] == "'=1+1"


@pytest.mark.parametrize(
    ("kind", "arguments", "sentence"),
    [
        ("questions", ["--image", "IMAGES/test-0.png"], "give one with --question"),
        ("classes", ["--image", "IMAGES/test-0.png", "--question", "why ?"], "leave --question out"),
        ("classes", ["--image", "IMAGES/none.png"], "does not exist"),
        ("classes", ["--image", "IMAGES/manifest.csv"], "cannot be decoded"),
        ("classes", ["--image", "EMPTY"], "holds no image"),
        ("classes", ["--manifest", "EMPTY"], "holds neither 'manifest.csv'"),
        ("classes", ["--manifest", "EMPTY/table.csv"], "table.csv is not a folder; name the one that holds the table"),
        ("classes", ["--split", "test", "--question", "why ?"], "belongs to --image"),
        ("classes", ["--split", "test", "--top", "0"], "it must be from 1 to 1,000"),
        ("classes", ["--split", "test", "--out", "out.txt"], "must end in .csv"),
        ("classes", ["--split", "test", "--heatmap", "out.txt"], "must end in .png"),
        ("classes", ["--split", "test", "--heatmap", "out.png"], "there are 9"),
        ("classes", ["--split", "test", "--site", "north"], "is of site slake"),
        ("classes", ["--split", "test", "--round", "7"], "kept the rounds 1, 2"),
        ("classes", ["--split", "test", "--round", "first"], "name one of them, last or best"),
    ],
)
def test_wrong_input_is_one_sentence(predict, tables, tmp_path, kind, arguments, sentence):
    (tmp_path / "empty").mkdir()
    places = {"IMAGES": str(tables[kind]), "EMPTY": str(tmp_path / "empty")}
    for name, place in places.items():
        arguments = [argument.replace(name, place) for argument in arguments]
    code, _, error = predict(kind, *arguments)
    assert code == 1
    assert error.startswith("fedpeft: ")
    assert error.count("\n") == 1
    assert sentence in error


@pytest.mark.slow
def test_the_best_round_is_kept_and_predicted_with(sections, tmp_path, capsys):
    """With a learning rate of almost nothing all rounds are equally good, and the first is the best."""
    still = "training.learning_rate=1e-12"
    chosen = sections("training.rounds=6", "training.keep=best", "method.aggregation=none", still)
    folder, _ = trained(chosen, tmp_path, sites=("slake",))["slake"]
    assert len(find(folder, site=None).record.rounds) == 6
    assert find(folder, site=None, round="best").state.round == 1
    assert len(list(folder.glob("round-*"))) == 5
    shutil.rmtree(folder / "round-00001")
    assert main(["predict", str(folder), "--split", "test", "--round", "best"]) == 1
    assert "the best round by validation is 1" in capsys.readouterr().err


def test_a_label_that_the_model_does_not_have_is_refused(predict, tables, tmp_path):
    folder = shutil.copytree(tables["labels"], tmp_path / "table")
    (folder / "manifest.csv").write_text("image,labels\ntest-0.png,gray|cyan\n")
    code, _, error = predict("labels", "--manifest", folder)
    assert code == 1
    assert "line 2" in error
    assert "'cyan' is not one of this model's 2" in error


@pytest.mark.parametrize("key", ["image", "question"])
def test_a_row_without_what_the_model_needs_is_named(predict, tables, tmp_path, key):
    folder = shutil.copytree(tables["questions"], tmp_path / "table")
    (folder / "manifest.csv").unlink()
    rows = [{"image": "test-0.png", "question": "how dark is it ?"}, {"image": "test-1.png", "question": "why ?"}]
    del rows[1][key]
    (folder / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, _, error = predict("questions", "--manifest", folder)
    assert code == 1
    assert f"line 2: {key!r} is missing" in error


def test_a_table_without_a_column_that_the_model_needs_is_refused_once(predict, tables, tmp_path):
    folder = shutil.copytree(tables["questions"], tmp_path / "table")
    (folder / "manifest.csv").write_text("image,prompt\ntest-0.png,why ?\ntest-1.png,why ?\n")
    code, _, error = predict("questions", "--manifest", folder)
    assert code == 1
    assert error.count("\n") == 1
    assert "has no column 'question', which this model needs, and has 'image', 'prompt': add it" in error


def test_data_that_changed_since_training_are_mentioned(predict, of_tables, tables, tmp_path, capsys):
    folder = shutil.copytree(of_tables["classes"][0], tmp_path / "slake")
    data = shutil.copytree(tables["classes"], tmp_path / "data")
    lines = (data / "manifest.csv").read_text().splitlines()
    (data / "manifest.csv").write_text("\n".join(lines[:-1]))
    for file in folder.glob("round-*/model.json"):
        record = json.loads(file.read_text())
        record["sections"]["data"]["root"] = str(data)
        file.write_text(json.dumps(record))
    assert main(["predict", str(folder), "--split", "test"]) == 0
    assert "are not those that the model was trained with" in capsys.readouterr().out


@pytest.mark.slow
def test_a_split_is_read_where_the_site_policy_says_that_the_data_are(of_tables, tables, small_policy, monkeypatch):
    monkeypatch.delenv("FEDPEFT_DATA", raising=False)
    kept = find(of_tables["classes"][0], site=None)
    sections = {**kept.record.sections, "data": {"dataset": "manifest"}}  # a job of a consortium names no folder
    policy = SitePolicy(**small_policy, roots={"manifest": str(tables["classes"])})
    at_site = replace(kept, policy=policy, record=replace(kept.record, sections=sections))
    assert read_split("test", at_site).examples == read_split("test", kept).examples


@pytest.mark.parametrize("place", [("--out", "out.csv"), ("--heatmap", "heat.png")])
def test_predictions_are_not_written_into_a_folder_of_the_server(predict, tables, tmp_path, place):
    option, name = place
    server = tmp_path / "server"
    server.mkdir()
    (server / "history.json").touch()
    code, _, error = predict("classes", "--image", tables["classes"] / "test-0.png", option, server / name)
    assert code == 1
    assert "predictions show the site's answers and images: name a place of the site's own" in error
    assert [file.name for file in server.iterdir()] == ["history.json"]


@pytest.fixture
def workspace(of_tables, tmp_path, monkeypatch):
    """A simulator's workspace whose site slake has finished a run."""
    monkeypatch.delenv("FEDPEFT_STATE", raising=False)
    run = tmp_path / "ws" / "server" / "simulate_job" / "fedpeft"
    run.mkdir(parents=True)
    manifest = {"status": "completed", "files": {}, "rounds": 2, "lineage": "small-1", "sites": {"slake": {}}}
    (run / "manifest.json").write_text(json.dumps(manifest))
    shutil.copytree(of_tables["classes"][0], tmp_path / "ws_state" / "slake" / "small-1")
    return tmp_path / "ws"


def test_a_run_is_found_where_its_state_lies(workspace, tmp_path, monkeypatch):
    state = tmp_path / "ws_state" / "slake" / "small-1"
    assert find(workspace, site="slake").folder == state / "round-00002"
    earlier = tmp_path / "ws_runs" / "20260101-small"
    earlier.parent.mkdir()
    workspace.rename(earlier)
    assert find(earlier, site="slake").folder == state / "round-00002"
    shutil.copytree(tmp_path / "ws_state" / "slake", earlier / "slake" / "fedpeft")  # as plain nvflare simulator has it
    (tmp_path / "ws_state").rename(tmp_path / "elsewhere")
    assert find(earlier, site="slake").folder.is_relative_to(earlier)
    monkeypatch.setenv("FEDPEFT_STATE", str(tmp_path / "elsewhere"))
    assert find(earlier, site="slake").folder.is_relative_to(tmp_path / "elsewhere")


def test_rounds_of_another_run_are_not_taken_for_those_of_this_one(workspace, tmp_path):
    """A job that goes on from an earlier round replaces the later ones in the state that both use."""
    state, history = tmp_path / "ws_state" / "slake" / "small-1", record(("slake",), 2)
    for entry, own in zip(history["rounds"], find(workspace, site="slake").record.rounds, strict=True):
        entry["sites"]["slake"] |= {name: own[name] for name in ("overall", "loss")}
    file = write(workspace / "server" / "simulate_job" / "fedpeft", history)
    shutil.copytree(state / "round-00002", state / "round-00003")  # a later job went on
    assert find(workspace, site="slake").folder == state / "round-00002"
    history["rounds"][1]["sites"]["slake"]["loss"] += 0.1
    file.write_text(json.dumps(history))
    for round in ("last", "best", "2"):
        with pytest.raises(FedpeftError, match="round-00002 is of another run"):
            find(workspace, site="slake", round=round)
    assert find(workspace, site="slake", round="1").folder == state / "round-00001"
    shutil.rmtree(state / "round-00002")
    for round in ("last", "best"):
        with pytest.raises(FedpeftError, match="no longer keeps round 2 of that run"):
            find(workspace, site="slake", round=round)
    assert find(workspace, site="slake", round="1").folder == state / "round-00001"


def test_a_round_that_was_refused_is_known_by_those_before(workspace, tmp_path):
    history = record(("slake",), 2)
    del history["rounds"][1]["sites"]["slake"]
    history["rounds"][1]["rejected"] = {"slake": "NaN"}
    first = find(workspace, site="slake").record.rounds[0]
    history["rounds"][0]["sites"]["slake"] |= {"overall": first["overall"], "loss": first["loss"]}
    file = write(workspace / "server" / "simulate_job" / "fedpeft", history)
    assert find(workspace, site="slake").state.round == 2
    history["rounds"][0]["sites"]["slake"]["loss"] += 0.1
    file.write_text(json.dumps(history))
    with pytest.raises(FedpeftError, match="is of another run"):
        find(workspace, site="slake")


def test_what_is_missing_is_named(workspace, tmp_path, capsys):
    shutil.move(tmp_path / "ws_state", tmp_path / "gone")
    for arguments, sentence in (
        ([], "--site is missing: name one of slake"),
        (["--site", "north"], "--site is 'north': name one of slake"),
        (["--site", "slake"], "was removed"),
    ):
        assert main(["predict", str(workspace), "--split", "test", *arguments]) == 1
        assert sentence in capsys.readouterr().err


def test_a_site_that_never_took_part_is_told_from_one_whose_state_is_lost(workspace, tmp_path):
    file = workspace / "server" / "simulate_job" / "fedpeft" / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"sites": {"slake": {}, "north": {}}}))
    write(file.parent, record(("slake",), 2))
    with pytest.raises(FedpeftError, match=r"north took part in no round of the run in .*: name another site"):
        find(workspace, site="north")
    (tmp_path / "ws_state").rename(tmp_path / "gone")
    with pytest.raises(FedpeftError, match=r"what slake kept of the run .* was removed"):
        find(workspace, site="slake")


@pytest.mark.parametrize("site", [None, "slake"])
def test_an_earlier_run_that_was_cut_off_names_the_folder_of_its_sites_state(workspace, tmp_path, site):
    file = workspace / "server" / "simulate_job" / "fedpeft" / "manifest.json"
    file.unlink()
    write(file.parent, record(("slake",), 2))
    earlier = set_aside(workspace)
    with pytest.raises(FedpeftError, match=rf"name the folder of a site's state, {tmp_path}/ws_state/SITE/LINEAGE\.$"):
        find(earlier, site=site)
    assert find(tmp_path / "ws_state" / "slake" / "small-1", site="slake").state.round == 2


def test_a_policy_beside_a_folder_of_runs_is_none_of_their_sites(workspace, tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "fedpeft.json").write_text('{"min_class_images": 3}')
    earlier = tmp_path / "ws_runs" / "20260101-small"
    earlier.parent.mkdir()
    workspace.rename(earlier)
    assert find(earlier, site="slake").policy is None
    lineage = shutil.copytree(tmp_path / "ws_state" / "slake" / "small-1", tmp_path / "fedpeft" / "small-1")
    assert find(lineage, site="slake").policy.min_class_images == 3


def test_a_site_of_a_consortium_has_its_models_in_its_workspace(of_tables, tmp_path, capsys, monkeypatch):
    site = tmp_path / "slake"
    first = shutil.copytree(of_tables["classes"][0], site / "fedpeft" / "small-1")
    assert find(site, site=None).folder == first / "round-00002"
    second = shutil.copytree(of_tables["classes"][0], site / "fedpeft" / "small-2")
    assert main(["predict", str(site), "--split", "test"]) == 1
    assert "the models of 2 jobs" in capsys.readouterr().err
    assert find(second, site=None).folder == second / "round-00002"
    assert find(second, site=None).policy is None
    (site / "local").mkdir()
    (site / "local" / "fedpeft.json").write_text('{"min_class_images": 3}')
    kept = find(second, site=None)
    assert kept.policy.min_class_images == 3
    monkeypatch.setenv("FEDPEFT_STATE", str(tmp_path / "state"))
    moved = tmp_path / "state" / "slake" / "small-3"
    shutil.copytree(second, moved)
    (moved / "job.json").write_text('{"submitter": "ana (hospital)"}')
    in_site = find(site / "fedpeft" / "small-3", site=None)
    assert (in_site.folder, in_site.policy.min_class_images) == (moved / "round-00002", 3)
    with pytest.raises(FedpeftError, match=r"fedpeft.json is not beside it, .*: name WORKSPACE/fedpeft/small-3"):
        find(moved, site=None)
    shutil.rmtree(site / "fedpeft")
    (site / "startup").mkdir()
    shutil.copytree(moved, moved.parent / "small-4")
    with pytest.raises(FedpeftError, match=rf"the models of 2 jobs: name one, the newest is {site}/fedpeft/small-"):
        find(site, site=None)
    for number in range(3):  # a class that the site has not seen counts from 3 images on, as in a run
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
        names = [f"{one}.png,unheard of" for one in range(number + 1)]
        (tmp_path / "manifest.csv").write_text("\n".join(["image,label", *names]))
        assert read_table(tmp_path, kept).unseen == (number == 2)


def test_a_servers_checkpoints_are_no_model(tmp_path, capsys):
    (tmp_path / "server" / "fedpeft" / "small-1" / "round-00001").mkdir(parents=True)
    assert main(["predict", str(tmp_path / "server"), "--split", "test"]) == 1
    assert "no job has finished a round at this site" in capsys.readouterr().err


def test_a_damaged_round_is_named(of_tables, tmp_path, capsys):
    folder = shutil.copytree(of_tables["classes"][0], tmp_path / "slake")
    (folder / "round-00002" / "head.safetensors").write_bytes(b"none")
    assert main(["predict", str(folder), "--split", "test"]) == 1
    assert "round-00002 cannot be read" in capsys.readouterr().err
    record = json.loads((folder / "round-00001" / "model.json").read_text())
    for changes in ({"metric": "luck"}, {"thresholds": [0.5]}, {"answers": []}, {"rounds": [{}]}, {"labelled": "no"}):
        (folder / "round-00001" / "model.json").write_text(json.dumps({**record, **changes}))
        assert main(["predict", str(folder), "--split", "test", "--round", "1"]) == 1
        assert "round-00001 cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--manifest", "FOLDER", "--out", "FOLDER/manifest.csv"),
        ("--split", "test", "--out", "FOLDER/manifest.csv"),
        ("--image", "SCAN", "--heatmap", "SCAN"),
        ("--image", "SCAN", "--heatmap", "FOLDER/test-1.png"),
    ],
)
def test_nothing_that_is_read_is_written_over(predict, tables, tmp_path, arguments):
    folder = shutil.copytree(tables["classes"], tmp_path / "own")
    places = {"FOLDER": str(folder), "SCAN": str(folder / "test-2.png")}
    for name, place in places.items():
        arguments = [argument.replace(name, place) for argument in arguments]
    before = {file: file.read_bytes() for file in folder.iterdir()}
    code, _, error = predict("classes", *arguments)
    assert (code, before) == (1, {file: file.read_bytes() for file in folder.iterdir()})
    assert re.search("which is (there already|no table of predictions): name", error)


@pytest.mark.slow
def test_the_pixels_of_a_heat_map_add_up_to_what_the_answer_gained(of_tables, tables, predict, tmp_path):
    pytest.importorskip("captum")
    from fedpeft.inference.heatmap import evidence
    from fedpeft.inference.predictor import Predictor

    image = tables["classes"] / "test-2.png"
    kept = find(of_tables["classes"][0], site=None)
    predictor = Predictor(kept)
    (example,) = read_images(image, None, kept.record).examples
    for answer in kept.record.answers:
        found = evidence(predictor, example, answer)
        assert found.values.shape == found.pixels.shape[:2]
        assert found.values.sum() == pytest.approx(found.gained, abs=0.05)
    assert np.allclose(found.pixels.mean(), np.asarray(Image.open(image)).mean() / 255, atol=0.02)
    picture = tmp_path / "heat.png"
    assert predict("classes", "--image", image, "--heatmap", picture)[0] == 0
    assert Image.open(picture).size[0] > 600


def test_an_answer_of_nothing_has_no_heat_map(tmp_path):
    with pytest.raises(FedpeftError, match=r"wrote no answer to this image, .*: leave --heatmap out"):
        _draw_heatmap(tmp_path / "heat.svg", None, SimpleNamespace(answers=[Scored("", 0.9)]))
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 64])
def test_a_frozen_image_encoder_has_a_heat_map(kept, encoders, tables, sections, tmp_path):
    pytest.importorskip("captum")
    from fedpeft.inference.heatmap import evidence
    from fedpeft.inference.predictor import Predictor

    own = {"dataset": "manifest", "root": str(tables["classes"])}
    settings = sections("training.rounds=1", "method.aggregation=fedavg", f"training.features_mib={kept}")
    folder, _ = trained({**settings, "backbone": encoders, "data": own}, tmp_path / "state", sites=("slake",))["slake"]
    found = find(folder, site=None)
    (example,) = read_images(tables["classes"] / "test-2.png", None, found.record).examples
    map_of = evidence(Predictor(found), example, found.record.answers[0])
    assert map_of.values.shape == map_of.pixels.shape[:2]
    assert map_of.values.sum() == pytest.approx(map_of.gained, abs=0.05)
    assert np.abs(map_of.values).sum() > 0


@pytest.mark.slow
def test_an_image_is_shown_through_the_window_of_training(of_tables, tables, sections, tmp_path, tiny_source):
    kept = find(of_tables["classes"][0], site=None)
    assert window_at(kept) is None
    own = {"dataset": "manifest", "root": str(tables["classes"]), "sites": {"slake": {"window": HUNDREDS}}}
    chosen = {**sections("training.rounds=1", "method.aggregation=none"), "data": own}
    folder, _ = trained(chosen, tmp_path / "state", sites=("slake",))["slake"]
    at_hospital = find(folder, site=None)
    assert window_at(at_hospital) == Window(0, 1000)
    export(at_hospital, tmp_path / "out")
    assert window_at(find(tmp_path / "out", site=None, backbone=tiny_source)) == Window(0, 1000)
    deep = np.arange(12, dtype=np.uint16).reshape(3, 4) * 100
    Image.fromarray(deep).save(tmp_path / "deep.png")
    (tmp_path / "manifest.csv").write_text("image\ndeep.png\n")
    alone = read_images(tmp_path / "deep.png", None, kept.record)
    in_table = EncodedImage("t.parquet, deep.png", (tmp_path / "deep.png").read_bytes)
    for wanted in (alone, replace(alone, examples=(replace(alone.examples[0], image=in_table),))):
        with pytest.raises(UnreadableImage, match=r"deep\.png has more than 8 bits .*; save it with 8 bits, shown as"):
            check_grays(wanted, kept.record)
    check_grays(read_table(tmp_path, at_hospital), at_hospital.record)
    shown = Window(0, 1000).grays(deep)[..., None]
    for wanted in (
        read_images(tmp_path / "deep.png", None, kept.record, window=window_at(at_hospital)),
        read_table(tmp_path, at_hospital),
    ):
        assert (as_array(wanted.examples[0].image) == shown).all()


@pytest.mark.slow
def test_an_image_of_16_bits_is_predicted_through_the_window_of_training_alone(of_tables, tmp_path, capsys):
    folder = shutil.copytree(of_tables["classes"][0], tmp_path / "slake")
    Image.fromarray(np.arange(1024, dtype=np.uint16).reshape(32, 32)).save(tmp_path / "deep.png")
    command = ["predict", str(folder), "--image", str(tmp_path / "deep.png")]
    assert main(command) == 1
    assert "the model was trained without data.window" in capsys.readouterr().err
    for file in folder.glob("round-*/model.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "window": HUNDREDS}))
    assert main(command) == 0
    assert "site slake, round 2" in capsys.readouterr().out
