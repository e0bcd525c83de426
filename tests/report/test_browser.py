# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""All pages in a browser: nothing on the console, nothing requested, every picture shown, none wider than a phone."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from browser import Browser, find_chromium
from histories import complete, gaps, record, write
from PIL import Image, ImageColor
from serving import serving

from fedpeft.answering.answering import Scored
from fedpeft.compare.outcome import Outcome, outcome_of
from fedpeft.compare.page import page as comparison_page
from fedpeft.compare.page import picture
from fedpeft.compare.table import compared
from fedpeft.core.metrics import ACCURACY
from fedpeft.data.schema import Example, SiteData
from fedpeft.inference.predictor import Prediction
from fedpeft.inference.site_page import page as site_page
from fedpeft.inference.site_subject import Subject
from fedpeft.report import render
from fedpeft.report.history_reader import parse
from fedpeft.report.page_parts import Picture
from fedpeft.report.palette import DARK, LIGHT
from fedpeft.serve import pages

pytestmark = pytest.mark.slow

WIDTHS = (400, 700, 1200)
LONG = "an answer that is as long as a sentence and/or-has-no-place-at-which-it-could-be-broken"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_chromium()
    if program is None:
        pytest.skip("there is no Chromium: install one, or name its program in CHROMIUM")
    opened = Browser(program, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def run_page(folder, made):
    render(write(folder / "run", made), folder / "report")
    return (folder / "report" / "report.html").read_text()


def run_with_everything(folder):
    return run_page(folder, complete())


def run_of_many_sites(folder):
    return run_page(folder, gaps())


def comparison(folder):
    del folder
    methods = ("FedPIA, Houlsby adapters", f"FedAvg ({LONG})", "local")
    runs = [outcome_of(parse(complete(), origin="h"), method=method) for method in methods]
    return comparison_page(compared(runs, baseline=methods[0]), picture(runs), runs)


def own_page(folder):
    del folder
    answers = ["yes", "no", LONG, *(f"answer {number}" for number in range(12))]
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    test = tuple(
        Example(pixels, f"is it {LONG} ?", answers[n % len(answers)], closed=False, image_id=f"{n}-{LONG}")
        for n in range(30)
    )
    predictions = tuple(
        Prediction(example=one, known=True, answers=[Scored(answers[n % 4], 0.5)]) for n, one in enumerate(test)
    )
    ends = [{"round": n, "loss_start": 1.0 / n, "loss_end": 0.9 / n} for n in (1, 2, 3)]
    record = SimpleNamespace(
        site="north", labelled=False, asks=True, metric=ACCURACY, procedural=True, tiny=True, rounds=ends
    )
    subject = Subject(
        kept=SimpleNamespace(record=record, state=SimpleNamespace(round=3, losses={})),
        data=SiteData(site="north", train=test, validation=(), test=test, source=f"{LONG}."),
        predictions=predictions,
        figures={"overall": 0.5, "open": 0.5, "closed": None},
        thresholds={},
        mapped=test,
        features=np.random.default_rng(0).normal(size=(30, 4)),
    )
    return site_page(subject, examples=3)


@pytest.fixture(scope="module", params=[run_with_everything, run_of_many_sites, comparison, own_page])
def page(request, tmp_path_factory):
    """The address of each page, as a file."""
    folder = tmp_path_factory.mktemp("page")
    file = folder / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedpeft.inference.site_page.projected", lambda vectors: vectors[:, :2])
        patch.setattr("fedpeft.inference.site_page.has_projection", lambda: True)
        file.write_text(request.param(folder), encoding="utf-8")
    return file.as_uri()


CORNER = "(b => [b.left + scrollX, b.top + scrollY])(document.querySelector('figure img').getBoundingClientRect())"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"/>'
DRAWN = Picture(SVG, section="Convergence", described="curves")


def check(browser, address, seen, *, pictures=True):
    assert browser.complaints == []
    assert {request for request in browser.requests if not request.startswith("data:")} == {address}
    assert seen["wide"] <= seen["window"]
    assert all(seen["pictures"])
    assert bool(seen["pictures"]) == pictures
    assert seen["text"].strip()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_a_page_opens_whole_and_quiet(browser, page, width, dark):
    check(browser, page, browser.open(page, width=width, dark=dark))


def test_a_page_fits_on_paper(browser, page):
    check(browser, page, browser.open(page, width=794, media="print"))  # A4 at 96 dots per inch


def test_a_picture_is_light_on_a_light_page_and_on_paper_and_dark_on_a_dark_one(browser, page):
    """The color of the picture's paper, just inside its corner, is that of the page around it."""
    for dark, media, color in ((False, "", LIGHT.paper), (True, "", DARK.paper), (False, "print", LIGHT.paper)):
        browser.open(page, dark=dark, media=media)
        left, top = browser.measure(CORNER)
        shot = Image.open(io.BytesIO(browser.screenshot())).convert("RGB")
        for place in ((int(left) + 4, int(top) + 4), (4, 4)):
            assert np.allclose(shot.getpixel(place), ImageColor.getrgb(color), atol=8)  # its edges are smoothed


def test_a_served_comparison_opens_whole_and_quiet(browser, tmp_path):
    for name in ("one", "two"):
        write(tmp_path / name, complete() | {"method": name, "job": "j"})
        (tmp_path / name / "manifest.json").write_text(json.dumps({"job": "j", "status": "completed"}))
    with serving(tmp_path) as server:
        (key,) = server.pages.page("/")[0].split('href="/compare/')[1:]
        address = f"{server.url}compare/{key[:16]}"
        check(browser, address, browser.open(address, width=400))


def test_the_served_pages_open_whole_and_quiet(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "pictures", lambda _: {"curves": DRAWN})
    write(tmp_path / "a run", complete())
    with serving(tmp_path) as server:
        check(browser, server.url, browser.open(server.url, width=400), pictures=False)
        (key,) = server.pages.page("/")[0].split('href="/run/')[1:]
        address = f"{server.url}run/{key[:16]}"
        check(browser, address, browser.open(address, width=400))


def test_a_wide_confusion_is_whole_on_a_phone(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpeft.inference.site_page.has_projection", lambda: False)
    file = tmp_path / "page.html"
    file.write_text(own_page(tmp_path), encoding="utf-8")
    seen = browser.open(file.as_uri(), width=400)
    assert "Confusion matrix" in seen["text"]
    assert max(seen["hidden"]) <= 0


# heights of what holds words, as it is and where no word may break inside; breaks after hyphens stay
BROKEN = """(() => {
  const cells = [...document.querySelectorAll(".rows td, .rows tbody th, .shaded tbody th")];
  const heights = () => cells.map(cell => cell.getBoundingClientRect().height);
  const before = heights(), style = document.createElement("style");
  style.textContent = "* { overflow-wrap: normal !important }";
  document.head.append(style);
  const after = heights();
  style.remove();
  return cells.filter((_, n) => before[n] !== after[n]).map(cell => `${cell.dataset.head}: ${cell.innerText}`);
})()"""
WORDS = ("ultrasonography", "otorhinolaryngology", "Universitätsklinikum")


def compared_words(folder):
    del folder
    runs = [
        Outcome(
            task="j",
            method=method,
            seed=seed,
            figures=(dict.fromkeys(WORDS, 0.5),),
            sent=(),
            metrics=dict.fromkeys(WORDS, ACCURACY),
            seconds=1,
            procedural=False,
            tiny=False,
        )
        for method in WORDS
        for seed in (0, 1)
    ]
    return comparison_page(compared(runs, baseline=WORDS[0]), DRAWN, runs)


def run_with_words(folder):
    made = complete()
    text = json.dumps(made).replace('"a"', f'"{WORDS[0]}"').replace('"b"', f'"{WORDS[1]}"')
    return run_page(folder, json.loads(text))


@pytest.mark.parametrize("made", [compared_words, run_with_words])
def test_no_word_breaks_inside_on_a_phone(browser, tmp_path, made):
    file = tmp_path / "page.html"
    file.write_text(made(tmp_path), encoding="utf-8")
    seen = browser.open(file.as_uri(), width=400)
    assert seen["wide"] <= seen["window"]
    assert browser.measure(BROKEN) == []
    assert browser.measure("document.querySelectorAll('.rows td').length") > 0


def test_a_run_that_trains_is_seen_to_grow_without_a_reload(browser, tmp_path, monkeypatch):
    """The pages ask the browser themselves to look again; the test navigates once to each."""
    monkeypatch.setattr("fedpeft.serve.server.SECONDS", 1)
    monkeypatch.setattr(pages, "pictures", lambda _: {"curves": DRAWN})

    def after(rounds):
        made = record(rounds=rounds)
        made["settings"]["training"] = {"rounds": 4}
        write(tmp_path / "run", made)

    after(1)
    with serving(tmp_path) as server:
        assert "1 of 4 rounds" in browser.open(server.url)["text"]
        after(2)
        assert "running" in browser.wait_for("2 of 4 rounds")["text"]
        (key,) = server.pages.page("/")[0].split('href="/run/')[1:]
        address = f"{server.url}run/{key[:16]}"
        assert "after round 2" in browser.open(address)["text"]
        after(3)
        check(browser, address, browser.wait_for("after round 3"))
        (tmp_path / "run" / "manifest.json").write_text(json.dumps({"job": "j", "status": "completed"}))
        assert "completed" in browser.wait_for("completed")["text"]


def test_what_the_other_tests_look_for_is_seen(browser, tmp_path):
    file = tmp_path / "page.html"
    wide = f'<div style="width: 900px">{json.dumps("wide")}</div>'
    file.write_text(f'{wide}<img src="http://127.0.0.1:9/a.png"><script>console.log("loud")</script>')
    seen = browser.open(file.as_uri(), width=400)
    assert seen["wide"] > seen["window"]
    assert seen["pictures"] == [False]
    assert "http://127.0.0.1:9/a.png" in browser.requests
    assert any("loud" in complaint for complaint in browser.complaints)
