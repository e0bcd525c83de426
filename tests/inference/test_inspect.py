# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`fedpeft inspect`: what a site's own page shows, where it may be written, and what is refused."""

import json
import re
import shutil
import stat
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedpeft.answering.answering import Scored
from fedpeft.cli import main
from fedpeft.data.schema import Example
from fedpeft.inference import site_page
from fedpeft.inference import site_subject as feature_map
from fedpeft.inference.export import export
from fedpeft.inference.kept_model import find
from fedpeft.inference.predictor import Prediction
from fedpeft.inference.site_page import answered_as, confusion, recognized

IMAGE = np.zeros((2, 2, 3), dtype=np.uint8)


@pytest.mark.slow
def test_the_page_draws_the_losses_of_the_rounds_where_the_run_measured_them(of_tables, tmp_path):
    folder = tmp_path / "state"
    shutil.copytree(of_tables["classes"][0], folder)
    assert "Losses by round" not in page_of(folder, tmp_path / "plain.html")
    file = sorted(folder.glob("round-*"))[-1] / "model.json"
    model = json.loads(file.read_text())
    for one in model["rounds"]:
        one |= {"loss_start": 2.0, "loss_end": 1.0}
    file.write_text(json.dumps(model))
    assert "Losses by round" in page_of(folder, tmp_path / "measured.html")
    save_file({f"{one['round']:05d}": torch.ones(20) for one in model["rounds"]}, file.with_name("losses.safetensors"))
    page = page_of(folder, tmp_path / "steps.html")
    assert "in the course of every round" in page
    assert "at the start and the end of every round" not in page


def test_losses_stand_at_the_rounds_in_which_the_site_took_part(monkeypatch):
    drawn = []
    monkeypatch.setattr(site_page, "panels_figure", lambda panels, title: drawn.append(panels[""]["north"]))
    monkeypatch.setattr(site_page, "svg", lambda figure, title: b"<svg/>")
    rounds = tuple({"round": number, "loss_start": 1.0, "loss_end": 0.5} for number in (1, 5))
    kept = SimpleNamespace(record=SimpleNamespace(site="north", rounds=rounds), state=SimpleNamespace(losses={}))
    site_page._losses(SimpleNamespace(kept=kept))
    (losses,) = drawn
    assert np.isnan(losses).all(axis=1).tolist() == [False, True, True, True, False]


def page_of(folder, out):
    assert main(["inspect", str(folder), "--out", str(out)]) == 0
    return out.read_text()


@pytest.fixture
def inspect(of_tables, tmp_path, capsys, monkeypatch):
    """Function: run the command on a site's folder; exit code, output, error, and the page if there is one."""
    monkeypatch.setattr("fedpeft.inference.site_page.projected", lambda vectors: vectors[:, :2])
    monkeypatch.setattr("fedpeft.inference.site_page.has_projection", lambda: True)

    def run(kind, *arguments, out=tmp_path / "new" / "page.html"):
        code = main(["inspect", str(of_tables[kind][0]), "--out", str(out), *map(str, arguments)])
        return code, *capsys.readouterr(), out

    return run


def answered(own, first, *, alternatives=(), same=None):
    example = Example(IMAGE, "what ?", own, closed=False, image_id="i", alternatives=alternatives)
    return Prediction(example=example, known=True, answers=[Scored(first, 0.9)], same=same or {})


def labelled(own, applies, unknown=()):
    example = Example(IMAGE, "", "", closed=False, image_id="i", labels=own, unknown_labels=unknown)
    return Prediction(example=example, known=True, answers=[], applies=applies)


def by_name(table):
    return {row[0]: row[1:] for row in table.rows}


def test_precision_recall_and_f1_of_each_answer():
    predictions = [answered("a", "a"), answered("a", "b"), answered("b", "b"), answered("b", "b"), answered("c", "a")]
    table = by_name(recognized("answer", [p.example for p in predictions[:2]], predictions, {}))
    assert table == {
        "a": ("2", "2", "2", "50.0", "50.0", "50.0"),
        "b": ("0", "2", "3", "66.7", "100.0", "80.0"),
        "c": ("0", "1", "0", "–", "0.0", "0.0"),
    }


def test_an_accepted_alternative_counts_as_the_answer():
    (row,) = recognized("answer", [], [answered("ct", "ct scan", alternatives=("ct scan",))], {}).rows
    assert row == ("ct", "0", "1", "1", "100.0", "100.0", "100.0")


@pytest.mark.parametrize(
    ("own", "alternatives", "first", "right"),
    [
        ("x-ray", (), "x ray", True),
        ("x ray", (), "x ray", True),
        ("radiograph", ("x-ray",), "x ray", True),
        ("ct", (), "x ray", False),
        ("x-ray", (), "ct", False),
    ],
)
def test_an_answer_of_the_same_tokens_as_the_one_that_is_ranked_counts_as_it(own, alternatives, first, right):
    prediction = answered(own, first, alternatives=alternatives, same={"x-ray": "x ray"})
    assert prediction.right == right
    assert answered_as(prediction) == (own if right else first,)


def test_a_label_that_is_unknown_for_an_image_counts_nowhere():
    predictions = [labelled(("x",), ("x", "y"), unknown=("y",)), labelled((), ("x",)), labelled(("y",), ())]
    table = by_name(recognized("label", [], predictions, {"x": 0.5, "y": 0.25}))
    assert table["x"] == ("0", "1", "2", "50.0", "100.0", "66.7", "0.5")
    assert table["y"] == ("0", "1", "0", "–", "0.0", "0.0", "0.25")


def test_a_small_threshold_is_not_shown_as_zero():
    table = by_name(recognized("label", [], [labelled(("x",), ("x",))], {"x": 0.00398}))
    assert table["x"][-1] == "0.00398"


def test_an_answer_of_nothing_is_no_missing_label():
    assert "right: a</span><span>predicted: (nothing) (0.90)" in site_page._card(answered("a", ""))
    assert "right: no label</span><span>predicted: no label<" in site_page._card(labelled((), ()))
    assert "(nothing)" in by_name(recognized("answer", [], [answered("a", "")], {}))


def test_a_label_that_training_has_had_since_has_no_threshold():
    example = labelled(("new",), ()).example
    table = by_name(recognized("label", [example], [labelled(("x",), ("x",))], {"x": 0.5}))
    assert table["new"] == ("1", "0", "0", "–", "–", "–", "–")


def test_every_example_is_in_the_confusion_and_rare_answers_are_one_row():
    names = [f"n{number:02}" for number in range(15)]
    predictions = [answered(own, names[0]) for own in names for _ in range(2)]
    table = confusion("answer", predictions)
    counts = np.array([list(map(int, row[1:])) for row in table.rows])
    assert counts.sum() == len(predictions)
    assert counts[:, 0].tolist() == [2] * 10 + [10]
    assert [row[0] for row in table.rows][:1] == ["1 n00"]
    assert all(shades[0] == 0 and set(shades[1:]) == {4} for shades in table.shades)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["questions", "classes", "labels"])
def test_the_page_has_the_figures_of_the_run_and_no_image_unless_they_are_wanted(kind, inspect, of_tables):
    code, printed, _, out = inspect(kind)
    assert code == 0
    text = out.read_text()
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert "stays at the site" in text
    assert "say nothing about medicine" in text  # the backbone is tiny
    figure = re.search(r"<dl class=.figures.><div><dt>overall</dt><dd>([0-9.]+)<i>", text)[1]
    assert figure == f"{100 * of_tables[kind][1]['overall']:.1f}"
    assert f" {figure} %" in printed
    assert text.count("<img") == 2  # how often each occurs, and the map
    assert ("Confusion matrix" in text) == (kind != "labels")
    assert "http" not in re.sub(r"base64,[^\"]+", "", text).replace("http-equiv", "")


@pytest.mark.slow
def test_the_mean_f1_of_the_labels_is_the_figure_of_the_run(inspect, of_tables):
    inspect("labels")
    kept = find(of_tables["labels"][0], site=None)
    from rich.console import Console

    from fedpeft.inference.site_subject import subject_of

    subject = subject_of(kept, console=Console())
    rows = recognized("label", subject.data.train, subject.predictions, subject.thresholds).rows
    scores = [float(row[6]) for row in rows if row[2] != "0"]
    assert np.mean(scores) == pytest.approx(100 * subject.figures["overall"], abs=0.06)


@pytest.mark.slow
def test_examples_show_images_only_when_they_are_wanted(inspect):
    code, _, _, out = inspect("questions", "--examples", 3)
    text = out.read_text()
    assert code == 0
    assert "shows images, questions and answers" in text
    cards = re.findall(r"right: (\S+)</span><span>predicted: (\S+) ", text)
    right, wrong = re.findall(r"<h3>Answered \w+: (\d) of", text)
    assert len(cards) == int(right) + int(wrong) == text.count("<img") - 2
    assert [own == predicted for own, predicted in cards] == [True] * int(right) + [False] * int(wrong)


@pytest.mark.slow
def test_without_scikit_learn_the_page_says_what_is_missing(inspect, monkeypatch):
    for module in ("site_page", "site_subject"):
        monkeypatch.setattr(f"fedpeft.inference.{module}.has_projection", lambda: False)
    code, printed, _, out = inspect("classes")
    assert code == 0
    assert "flare-fedpeft[inspect]" in printed
    assert "flare-fedpeft[inspect]" in out.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--site", "north"], "not of north"),
        (["--round", "9"], "kept the rounds"),
        (["--examples", "51"], "from 0 to 50"),
        (["--examples", "-1"], "from 0 to 50"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(arguments, sentence, inspect):
    code, _, error, out = inspect("classes", *arguments)
    assert code == 1
    assert sentence in error
    assert error.count("\n") == 1
    assert not out.exists()


@pytest.mark.slow
def test_a_file_that_is_there_another_kind_and_the_servers_folder_are_refused(inspect, tmp_path):
    there = tmp_path / "there.html"
    there.write_text("mine")
    server = tmp_path / "server"
    server.mkdir()
    (server / "history.json").touch()
    for out, sentence in (
        (there, "nothing is replaced"),
        (tmp_path / "page.pdf", "must end in .html"),
        (server / "page.html", "what the server keeps"),
    ):
        code, _, error, _ = inspect("classes", out=out)
        assert code == 1
        assert sentence in error
    assert there.read_text() == "mine"


@pytest.mark.slow
def test_an_export_does_not_say_where_data_are(of_tables, tmp_path, capsys):
    export(find(of_tables["classes"][0], site=None), tmp_path / "exported", merged=False)
    assert main(["inspect", str(tmp_path / "exported"), "--out", str(tmp_path / "p.html")]) == 1
    assert "name the run's workspace" in capsys.readouterr().err


@pytest.mark.slow
def test_the_map_is_the_same_each_time_and_keeps_neighbors():
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    vectors = np.concatenate([rng.normal(center, 0.1, (12, 6)) for center in (0, 5)])
    points = feature_map.projected(vectors)
    assert points.shape == (24, 2)
    assert np.array_equal(points, feature_map.projected(vectors))
    first, second = points[:12], points[12:]
    apart = np.linalg.norm(first.mean(0) - second.mean(0))
    assert apart > max(np.linalg.norm(part - part.mean(0), axis=1).max() for part in (first, second))
