# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Folders of strangers, a run that was downloaded or an export: every command ends, in a table or in one sentence."""

import copy
import hashlib
import itertools
import json
import os
import shutil

import pytest
from histories import complete
from mutations import TERMINAL, VALUES, places, renamed, replaced, text
from undrawn import leave_pictures_out

from fedpeft.cli import main
from fedpeft.compare import page as picture
from fedpeft.core.files import MAX_HASHED
from fedpeft.inference.export import export
from fedpeft.inference.kept_model import find
from fedpeft.report.page_parts import Picture
from fedpeft.serve.pages import WorkspacePages, find_runs

CODES = "\x1b\x07\r\u202e\u200b\x9b"
NAMES = ("", TERMINAL, "a\nfedpeft: complete", "x" * 5000)


def history():
    """One with every field."""
    made = complete(2)
    made["settings"]["training"] = {"rounds": 4, "seed": 0}
    made["metrics"] = {"a": "accuracy", "b": "accuracy"}
    made["tested"] = {"a": {"samples": 9, "baseline": 0.3}}
    made["rounds"][0]["schedule"] |= {"importance": 1.0, "variance": 1.0}
    made["rounds"][1]["rejected"] = {"b": "late"}
    return made


MANIFEST = {
    "job": "j",
    "status": "completed",
    "rounds": 2,
    "files": {"history.json": "0"},
    "sites": {"a": {}, "b": {"problem": "p"}},
    "lineage": "l-1",
    "reason": "why",
    "ended_early": {"after_round": 2, "best_round": 1, "patience": 1},
}


def run(folder, *, said=None, manifest=MANIFEST):
    """A run's folder with these texts, or with sound ones."""
    folder.mkdir(parents=True, exist_ok=True)
    said = text(history()) if said is None else said
    (folder / "history.json").write_text(said)
    if isinstance(manifest, dict):
        manifest = text(manifest | {"files": {"history.json": hashlib.sha256(said.encode()).hexdigest()}})
    (folder / "manifest.json").write_text(manifest)
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    leave_pictures_out(monkeypatch.setattr)
    monkeypatch.setattr(picture, "picture", lambda _: Picture(b""))


@pytest.fixture
def verbs(tmp_path, capsys):
    """Function: read a run's folder with every command that does; their exit codes."""
    other = run(tmp_path / "runs" / "other", said=text(history() | {"method": "other"}))

    def read(folder):
        codes = {}
        for verb, *more in (
            ("status",),
            ("status", "--follow"),
            ("verify",),
            ("report", "--out", tmp_path / "report"),
            ("compare", other, "--out", tmp_path / "comparison"),
        ):
            code = main([verb, *map(str, (folder, *more))])
            printed, error = capsys.readouterr()
            assert not set(CODES) & set(printed + error), verb
            assert code == 0 or (error.startswith("fedpeft: ") and error.endswith("\n")), (verb, error)
            assert error.count("\n") <= 1 + ("Finished rounds" in error), (verb, error)
            assert len(error) < 4000, (verb, error)
            codes[verb] = code
        pages = WorkspacePages(tmp_path / "runs")
        for path in ("/", *(f"/run/{key}" for key in find_runs(tmp_path / "runs"))):
            page, _ = pages.page(path)
            assert not set(CODES) & set(page)
        return codes

    return read


@pytest.mark.slow
def test_a_sound_run_is_read_by_every_command(undrawn, verbs, tmp_path):
    assert set(verbs(run(tmp_path / "runs" / "r")).values()) == {0}


def every(made, *, step):
    """Each value of a file replaced by each of VALUES, and each name by each of NAMES; of all one in `step`."""
    values = itertools.product(places(made), VALUES.values())
    names = itertools.product((path for path in places(made) if path and isinstance(path[-1], str)), NAMES)
    cases = itertools.chain(
        (lambda path=path, value=value: replaced(made, path, value) for path, value in values),
        (lambda path=path, name=name: renamed(made, path, name) for path, name in names),
    )
    return [case() for case in itertools.islice(cases, 0, None, step)]


@pytest.mark.slow
def test_no_value_of_a_history_ends_a_command_with_a_traceback(undrawn, verbs, tmp_path):
    for said in every(history(), step=13):
        verbs(run(tmp_path / "runs" / "r", said=said))


@pytest.mark.slow
def test_no_value_of_a_manifest_ends_a_command_with_a_traceback(undrawn, verbs, tmp_path):
    for manifest in every(MANIFEST, step=5):
        verbs(run(tmp_path / "runs" / "r", manifest=manifest))


@pytest.mark.slow
@pytest.mark.parametrize("figure", [1e39, 1e-320])
def test_the_largest_figures_that_are_read_can_be_drawn(verbs, tmp_path, figure):
    made = history()
    made["rounds"][1]["sites"]["a"]["loss"] = made["rounds"][1]["alignment"]["a"] = figure
    assert set(verbs(run(tmp_path / "runs" / "r", said=text(made))).values()) == {0}


def pipe(file):
    os.mkfifo(file)


def device(file):
    file.symlink_to("/dev/zero")


def itself(file):
    file.symlink_to(file.name)


def folder(file):
    file.mkdir()


def large(file):
    with file.open("wb") as hole:
        hole.truncate(2 * MAX_HASHED)


SPECIAL = (pipe, device, itself, folder, large)


@pytest.mark.slow
@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize("name", ["history.json", "manifest.json", "global.safetensors"])
def test_what_is_no_regular_file_is_never_waited_for(undrawn, verbs, tmp_path, make, name):
    made = run(tmp_path / "runs" / "r", manifest=MANIFEST)
    manifest = json.loads((made / "manifest.json").read_text())
    (made / "manifest.json").write_text(json.dumps(manifest | {"files": {name: "0"}}))
    (made / name).unlink(missing_ok=True)
    make(made / name)
    codes = verbs(made)
    assert codes["verify"] == 1


def test_a_manifest_leads_to_no_file_outside_its_run(tmp_path, capsys):
    made = run(tmp_path / "runs" / "r")
    (tmp_path / "secret").write_text("secret")
    digest = hashlib.sha256(b"secret").hexdigest()
    for name in ("../../secret", str(tmp_path / "secret"), "\0"):
        (made / "manifest.json").write_text(json.dumps(MANIFEST | {"files": {name: digest}}))
        assert main(["verify", str(made)]) == 1
        assert "is missing or not what the server wrote" in capsys.readouterr().err


@pytest.fixture(scope="module")
def exported(of_tables, tmp_path_factory):
    """A sound export of a model of classes."""
    out = tmp_path_factory.mktemp("exported") / "out"
    export(find(of_tables["classes"][0], site=None), out)
    return out


@pytest.fixture
def predict(tables, tiny_source, capsys):
    """Function: predict with an exported folder; exit code and all that was printed."""

    def run(folder):
        image = str(tables["classes"] / "test-0.png")
        code = main(["predict", str(folder), "--image", image, "--backbone", tiny_source])
        printed, error = capsys.readouterr()
        assert not set(CODES) & set(printed + error)
        assert code == 0 or (error.startswith("fedpeft: ") and error.count("\n") == 1), error
        assert len(error) < 2000
        return code, printed + error

    return run


@pytest.mark.slow
def test_what_a_stranger_wrote_into_an_export_steers_no_terminal(exported, predict, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "out")
    record = json.loads((folder / "model.json").read_text())
    record["record"] |= {"site": f"site {TERMINAL}", "source": TERMINAL}
    answers = [f"{answer}\n{TERMINAL}" for answer in json.loads((folder / "answers.json").read_text())]
    (folder / "model.json").write_text(json.dumps(record))
    (folder / "answers.json").write_text(json.dumps(answers))
    code, printed = predict(folder)
    assert code == 0
    assert sum("[2J" in line for line in printed.splitlines()) >= len(answers)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "step"), [("model.json", 97), ("answers.json", 7), ("adapter_config.json", 23)])
def test_no_value_of_an_export_ends_predict_with_a_traceback(exported, predict, tmp_path, name, step):
    folder = shutil.copytree(exported, tmp_path / "out")
    made = json.loads((folder / name).read_text())
    for content in every(copy.deepcopy(made), step=step):
        (folder / name).write_text(content)
        predict(folder)


@pytest.mark.parametrize("make", [*SPECIAL[:3], SPECIAL[4]])
@pytest.mark.parametrize("name", ["model.json", "head.safetensors", "adapter_model.safetensors", "beside"])
def test_an_export_of_special_files_is_refused(exported, predict, tmp_path, name, make):
    folder = shutil.copytree(exported, tmp_path / "out")
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    code, _ = predict(folder)
    assert code == 1 or name == "beside"
