# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The picture: what is drawn is what the history holds."""

import re
import subprocess
import sys
from xml.etree import ElementTree
from xml.sax.saxutils import unescape

import matplotlib
import numpy as np
import pytest
from histories import FIVE, PROCEDURAL, complete, gaps, record

from fedpeft.report.history_reader import parse
from fedpeft.report.outputs import page
from fedpeft.report.palette import COLORS, DARK, DISTINCT, LIGHT, shorten, spread, svg
from fedpeft.report.plots import convergence, end_labels, picture_files, pictures
from fedpeft.report.wording import caption


def draw(made, **settings):
    return convergence(parse(made, origin="h"), **settings)


def texts(figure):
    return [text.get_text() for place in (figure, *figure.axes) for text in place.texts]


def curve(line):
    return np.asarray(line.get_xdata(), float).tolist(), np.asarray(line.get_ydata(), float)


@pytest.mark.slow
@pytest.mark.parametrize("made", [record(), gaps(), record(FIVE, 30)], ids=["five", "gaps", "long"])
def test_every_site_and_the_mean_are_drawn(made):
    entries = made["rounds"]
    rounds = [entry["round"] for entry in entries]
    for axes, name, scale in zip(draw(made).axes, ("overall", "loss", "alignment"), (100, 1, 1), strict=True):
        drawn = [y for x, y in map(curve, axes.lines) if x == rounds]
        rows = []
        for site in parse(made, origin="h").sites:
            values = [
                e["alignment"] if name == "alignment" else {s: r[name] for s, r in e["sites"].items()} for e in entries
            ]
            rows.append(scale * np.array([figures.get(site) for figures in values], float))
        for values in [row for row in rows if np.isfinite(row).any()] + [np.nanmean(rows, axis=0)]:
            assert any(np.allclose(values, y, equal_nan=True) for y in drawn)


@pytest.mark.slow
def test_open_circles_stand_where_the_mean_misses_a_site():
    figure = draw(gaps())
    # one site's replies were all refused: its figure is missing in every round
    for axes, rounds in zip(figure.axes, ([*range(1, 10)], [3, 4, 5, 7, 9], [3, 4, 5, 9]), strict=True):
        circles = [line for line in axes.lines if line.get_marker() == "o" and line.get_markerfacecolor() == "#ffffff"]
        assert [list(line.get_xdata()) for line in circles] == [rounds]
    assert "Open circle: mean over fewer sites." in " ".join(texts(figure))
    assert "Open circle" not in " ".join(texts(draw(record())))


@pytest.mark.slow
def test_figures_of_two_metrics_have_no_common_mean():
    made = record(("a", "b", "c"), 2)
    made["metrics"] = {"a": "accuracy", "b": "macro_f1", "c": "macro_f1"}
    for one, figures in zip(made["rounds"], ((0.9, 0.2, 0.3), (0.9, 0.2, 0.4)), strict=True):
        for site, figure in zip("abc", figures, strict=True):
            one["sites"][site]["overall"] = figure
    history = parse(made, origin="h")
    assert [label.text for label in end_labels(history)][-1] == "mean macro-F1  30.0"
    lines = [list(line.get_ydata()) for line in convergence(history).axes[0].lines]
    assert any(line == pytest.approx([25, 30]) for line in lines)
    assert not any(line == pytest.approx([140 / 3, 50]) for line in lines)


def test_the_mean_of_many_sites_says_of_how_many_it_is():
    made = record(tuple(f"s{number:02}" for number in range(30)), 2)
    last = made["rounds"][-1]["sites"]
    made["rounds"][-1]["sites"] = {site: last[site] for site in ("s00", "s01", "s02")}
    assert end_labels(parse(made, origin="h"))[-1].text.startswith("mean of 3 of 30 sites  ")
    made["rounds"][-1]["sites"], made["rounds"][-1]["rejected"] = {}, dict.fromkeys(last, "NaN")
    history = parse(made, origin="h")
    assert end_labels(history)[-1].text.startswith("mean of 30 sites  ")
    assert "of none of 30 sites after round 2" in page(history, {})


def whole_lines(axes, rounds):
    """Return the lines, without markers, that have all these rounds."""
    return [line for line in axes.lines if curve(line)[0] == rounds and line.get_linestyle() != "None"]


def heights(line, transform):
    """Return where a line is on paper, in points."""
    return transform.transform(line.get_xydata())[:, 1] * 72 / line.axes.figure.dpi


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "apart"),
    [
        ([0.2, 0.3, 0.4, 0.5], True),
        ([0.9, 0.8, 0.4, 0.5], True),
        ([0.2001, 0.3001, 0.4, 0.5], True),
        ([0.9, 0.3, 0.8, 0.1], False),
        ([0.9, 0.8, 0.7, 0.6], False),
    ],
    ids=["everywhere", "at the end", "almost", "in one round", "nowhere"],
)
def test_lines_that_coincide_are_both_seen(other, apart):
    made = record(("a", "b"), 4)
    for entry, first, second in zip(made["rounds"], (0.2, 0.3, 0.4, 0.5), other, strict=True):
        entry["sites"]["a"]["overall"], entry["sites"]["b"]["overall"] = first, second
    axes = draw(made).axes[0]
    one, two, _ = whole_lines(axes, [1, 2, 3, 4])
    assert np.allclose(one.get_ydata(), [20, 30, 40, 50])  # the figures stay what they are
    up, down = (heights(line, line.get_transform()) - heights(line, axes.transData) for line in (one, two))
    assert np.all(up - down >= one.get_linewidth()) == apart
    assert apart or np.allclose([up, down], 0)


@pytest.mark.slow
def test_the_mean_does_not_hide_sites_that_are_all_alike():
    made = record(("a", "b", "c"), 3)
    for entry in made["rounds"]:
        entry["alignment"] = dict.fromkeys(entry["alignment"], 0.0)
    lines = whole_lines(draw(made).axes[2], [1, 2, 3])
    at = sorted(heights(line, line.get_transform())[0] for line in lines)
    assert len(at) == 4
    assert min(np.diff(at)) >= 1.75  # half of the mean's line and half of a site's


@pytest.mark.slow
@pytest.mark.parametrize("made", [record(), complete()])
def test_a_page_has_no_second_title_or_warning_in_its_pictures(made, monkeypatch):
    """The files beside the page, which travel alone, have both."""
    drawn = []
    monkeypatch.setattr("fedpeft.report.plots.svg", lambda figure, description: drawn.append(figure) or b"")
    history = parse(made, origin="h")
    names = set(pictures(history))
    assert drawn
    for figure in drawn:
        assert not figure.texts
    drawn.clear()
    assert set(picture_files(history)) == names
    assert len(drawn) == len(names)
    for figure in drawn:
        assert any(PROCEDURAL in text.lower() for text in texts(figure))
        assert history.job in texts(figure)


@pytest.mark.slow
def test_what_marks_mean_stands_under_the_picture_of_the_page(monkeypatch):
    monkeypatch.setattr("fedpeft.report.plots.svg", lambda figure, description: b"")
    history = parse(gaps(), origin="h")
    text = page(history, pictures(history))
    assert "<figcaption>Dotted: no figure in these rounds. Open circle: mean over fewer sites." in text


@pytest.mark.slow
def test_labels_name_every_site_with_its_last_figure():
    shown_text = texts(draw(gaps()))
    made = gaps()["rounds"][-1]["sites"]
    for site, result in made.items():
        assert f"{site}  {100 * result['overall']:.1f}" in shown_text
    assert f"ct  {100 * gaps()['rounds'][-2]['sites']['ct']['overall']:.1f} (round 8)" in shown_text
    assert not any("histology" in text for text in shown_text)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 10, DISTINCT])
def test_labels_do_not_cover_each_other(count):
    made = record(tuple(f"site-{i}" for i in range(count)), 3)
    for result in made["rounds"][-1]["sites"].values():
        result["overall"] = 0.5
    figure = draw(made)
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == count + 1
    for i, box in enumerate(boxes):
        assert box.x1 < figure.bbox.x1
        assert not any(box.overlaps(other) for other in boxes[:i])


@pytest.mark.slow
def test_more_sites_than_styles_are_drawn_alike_around_their_mean():
    made = record(tuple(f"site-{i}" for i in range(DISTINCT + 1)), 3)
    shown_text = " ".join(texts(draw(made)))
    last = {site: result["overall"] for site, result in made["rounds"][-1]["sites"].items()}
    assert f"mean of {DISTINCT + 1} sites" in shown_text
    named = [site for site in last if f"{site}  " in shown_text]
    assert sorted(named) == sorted({max(last, key=last.get), min(last, key=last.get)})


@pytest.mark.parametrize(
    ("missing", "panels"), [((), 3), (("alignment",), 2), (("loss",), 2), (("loss", "alignment"), 1)]
)
def test_panels_stand_only_where_there_are_figures(missing, panels):
    made = record()
    for entry in made["rounds"]:
        if "alignment" in missing:
            entry["alignment"] = {}
        for result in entry["sites"].values():
            result["loss"] = None if "loss" in missing else result["loss"]
    assert len(draw(made).axes) == panels


@pytest.mark.parametrize("made", [record(("hospital",), 1), record(rounds=1), record(("a",), 3)])
def test_few_figures_make_a_picture(made):
    assert all(np.isfinite(axes.get_ylim()).all() and np.ptp(axes.get_ylim()) > 0 for axes in draw(made).axes)


def test_no_accuracy_at_all_makes_a_picture():
    made = record(rounds=2)
    for entry in made["rounds"]:
        entry["sites"], entry["alignment"], entry["rejected"] = {}, {}, {"slake": "NaN"}
    assert len(draw(made).axes) == 1


def described(file):
    """The description in an SVG file."""
    (text,) = re.findall(rb"<dc:description>(.*?)</dc:description>", file)
    return unescape(text.decode())


@pytest.mark.slow
@pytest.mark.parametrize("procedural", [True, False])
def test_the_warning_is_in_the_picture_exactly_when_the_data_are_procedural(procedural):
    made = record(procedural=procedural)
    history = parse(made, origin="h")
    warned = any(PROCEDURAL in text.lower() for text in texts(draw(made)))
    for file in (*picture_files(history).values(), *(one.svg for one in pictures(history).values())):
        assert warned == procedural == (PROCEDURAL in described(file))
        assert described(file) == caption(history)


@pytest.mark.slow
def test_what_is_drawn_in_colors_of_the_light_page_has_those_of_the_dark_one_there():
    for file in (one.svg.decode() for one in pictures(parse(complete(), origin="h")).values()):
        style = file[: file.index("</style>")]
        used = {one for attribute in re.findall(r'style="(.*?)"', file) for one in attribute.split("; ")}
        for name, light in vars(LIGHT).items():
            for kind in ("fill", "stroke"):
                if f"{kind}: {light}" in used:
                    assert f'[style*="{kind}: {light}"]{{{kind}: {getattr(DARK, name)} !important}}' in style
        assert {"fill: #ffffff", "fill: #1a1a1a", "stroke: #5c5c5c", "stroke: #e4e4e4"} <= used


@pytest.mark.slow
def test_hundreds_of_sites_and_rounds_do_not_make_a_picture_of_megabytes():
    made = record(tuple(f"site-{number}" for number in range(200)), 60)
    assert len(svg(draw(made), "")) < 1_000_000


@pytest.mark.slow
def test_names_in_a_picture_are_no_markup():
    file = svg(draw(record(("<script>--></svg>",), 2)), "<script>&").decode()
    assert "<script" not in file
    assert file.count("</svg>") == 1
    ElementTree.fromstring(file)


@pytest.mark.slow
def test_same_history_same_bytes_whatever_the_users_style():
    history = parse(gaps(), origin="h")
    once = svg(convergence(history), "a")
    with matplotlib.rc_context(
        {"font.size": 20, "savefig.bbox": "tight", "axes.facecolor": "red", "xtick.labelsize": 30}
    ):
        before = dict(matplotlib.rcParams)
        assert svg(convergence(history), "a") == once
        assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_names_are_drawn_to_the_letter():
    shown_text = texts(draw(record((r"a$b$_c", "_x", r"$\frac$"), 2)))
    assert all(any(text.startswith(name) for text in shown_text) for name in (r"a$b$_c", "_x", r"$\frac$"))


@pytest.mark.slow
def test_pyplot_stays_out():
    code = "import sys; import fedpeft.report.plots; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_colors_are_okabe_and_itos():
    assert set(COLORS) < {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}


@pytest.mark.parametrize("seed", range(20))
def test_spread_keeps_gap_order_and_bounds_and_nothing_is_closer(seed):
    draws = np.random.default_rng(seed)
    ideal_places = draws.uniform(-1, 11, draws.integers(1, 12))
    places = spread(ideal_places, gap=0.8, low=0, high=10)
    ordered = np.sort(places)
    assert (np.diff(ordered) >= 0.8 - 1e-9).all()
    assert ordered[0] >= -1e-9
    assert ordered[-1] <= 10 + 1e-9
    assert (np.argsort(ideal_places) == np.argsort(places)).all()
    cost = ((places - ideal_places) ** 2).sum()
    for _ in range(200):
        other = places + draws.normal(0, 0.1, len(places))
        if (np.diff(other[np.argsort(ideal_places)]) >= 0.8).all() and other.min() >= 0 and other.max() <= 10:
            assert ((other - ideal_places) ** 2).sum() >= cost - 1e-9


def test_spread_squeezes_what_does_not_fit():
    assert spread([5, 5, 5], gap=10, low=0, high=4).tolist() == [0, 2, 4]
    assert spread([], gap=1, low=0, high=1).tolist() == []


@pytest.mark.parametrize(
    ("name", "short"),
    [("slake", "slake"), ("abcdefgh", "abcdefgh"), ("abcdefghi", "abcd…ghi"), ("site-000001", "site…001")],
)
def test_long_names_lose_their_middle(name, short):
    assert shorten(name, 8) == short


@pytest.mark.slow
@pytest.mark.parametrize("made", [record(), gaps(), record(("a very long name of a hospital in the country",), 1)])
def test_the_picture_cuts_no_text(made):
    figure = draw(made)
    for axes in figure.axes:
        for text in (*axes.texts, axes.yaxis.get_label()):
            box = text.get_window_extent()
            assert box.x1 <= figure.bbox.x1
            assert box.x0 >= 0
