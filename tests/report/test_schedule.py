# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The schedule of the layers: read, drawn and tabled exactly as the history has it."""

import io
from functools import cache

import matplotlib
import numpy as np
import pytest
from histories import FIVE, PROCEDURAL, record, write
from rich.console import Console

from fedpeft.report import render, show
from fedpeft.report.history_reader import HistoryError, parse
from fedpeft.report.palette import svg
from fedpeft.report.schedule_plot import layer_use, schedule_figure, shown_rounds
from fedpeft.report.tables import trained_layers


def scheduled(sites=FIVE, rounds=5, layers=12, *, first=0, absent=0.0, **settings):
    """A run whose every round has a schedule of random scores and layers; some sites may be absent from a round."""
    made, draw = record(sites, rounds, **settings), np.random.default_rng(1)
    numbers = range(first, first + layers)
    for entry in made["rounds"]:
        there = [site for site in sites if draw.random() >= absent] or [sites[0]]
        entry["schedule"] = {
            "numbers": list(numbers),
            "layers": {
                s: sorted(draw.choice(numbers, draw.integers(layers + 1), replace=False).tolist()) for s in there
            },
            "scores": {s: draw.dirichlet(np.ones(layers)).tolist() for s in there},
            "importance": 1.5,
            "variance": 0.25,
        }
    return made


def history_of(made):
    return parse(made, origin="h")


def panels(figure):
    """Round number -> axes of its heat map."""
    titles = {axes.get_title(loc="left"): axes for axes in figure.axes}
    return {int(title.split()[1]): axes for title, axes in titles.items() if title.startswith("Round")}


RUNS = {
    "five": scheduled(),
    "one round": scheduled(rounds=1),
    "one layer": scheduled(("a",), 1, 1),
    "many": scheduled(tuple(f"site-{i}" for i in range(30)), 2, 32, absent=0.4),
    "long": scheduled(rounds=40, absent=0.5),
    "upper layers": scheduled(layers=6, first=6),
}


@cache
def drawn_run(name):
    """The picture of one of RUNS, drawn once for all tests."""
    return schedule_figure(history_of(RUNS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_score_is_drawn_and_every_chosen_layer_marked(name):
    made = RUNS[name]
    history = history_of(made)
    sites, entries = list(layer_use(history)), {entry["round"]: entry["schedule"] for entry in made["rounds"]}
    drawn = panels(drawn_run(name))
    assert list(drawn) == [one.round for one in shown_rounds(history)]
    for number, axes in drawn.items():
        (image,), (dots,) = axes.images, axes.collections
        first = entries[number]["numbers"][0]
        marked = {(sites[round(y)], round(x) + first) for x, y in dots.get_offsets()}
        assert marked == {(site, layer) for site, chosen in entries[number]["layers"].items() for layer in chosen}
        for row, site in zip(image.get_array(), sites, strict=True):
            expected = entries[number]["scores"].get(site)
            assert row.mask.all() if expected is None else np.allclose(row, expected)
        assert [int(label.get_text()) - first for label in axes.get_xticklabels()] == axes.get_xticks().tolist()


@pytest.mark.parametrize("name", RUNS)
def test_the_bars_count_every_round(name):
    made, figure = RUNS[name], drawn_run(name)
    (bars,) = [axes for axes in figure.axes if axes.get_title(loc="left").startswith("Layer use")]
    numbers = made["rounds"][0]["schedule"]["numbers"]
    chosen = [layer for e in made["rounds"] for layers in e["schedule"]["layers"].values() for layer in layers]
    heights = [sum(box.get_height() for box in column) for column in zip(*bars.containers, strict=True)]
    assert heights == [chosen.count(number) for number in numbers]
    (even,) = bars.lines
    assert np.allclose(even.get_ydata(), len(chosen) / len(numbers))


@pytest.mark.parametrize("rounds", [1, 2, 6, 7, 20, 100])
def test_at_most_six_rounds_first_and_last_among_them(rounds):
    shown = [one.round for one in shown_rounds(history_of(scheduled(("a", "b"), rounds, 4)))]
    assert len(shown) == min(rounds, 6)
    assert (shown[0], shown[-1]) == (1, rounds)
    assert np.ptp(np.diff(shown)) <= 1 if rounds > 2 else True


def seen(axis):
    """Ticks within the axis; matplotlib keeps others beside it that it does not draw."""
    low, high = sorted(axis.get_view_interval())
    return [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


@pytest.mark.slow
def test_no_text_covers_another_or_leaves_the_picture():
    long_name = schedule_figure(history_of(scheduled(("a-hospital-with-a-very-long-name-indeed", "b"), 2)))
    for figure in (*map(drawn_run, RUNS), long_name):
        legends = [text for axes in figure.axes if axes.get_legend() for text in axes.get_legend().get_texts()]
        axis = [one for axes in figure.axes for one in (axes.xaxis, axes.yaxis)]
        ticks = [tick.label1 if tick.label1.get_visible() else tick.label2 for one in axis for tick in seen(one)]
        boxes = [t.get_window_extent() for t in (*legends, *ticks, *figure.texts) if t.get_text() and t.get_visible()]
        for i, box in enumerate(boxes):
            assert box.x0 >= 0
            assert box.y0 >= 0
            assert box.x1 <= figure.bbox.x1
            assert not any(box.overlaps(other) for other in boxes[:i])


@pytest.mark.slow
def test_names_are_drawn_to_the_letter():
    names = (r"a$b$_c", "_x", r"$\frac$")
    figure = schedule_figure(history_of(scheduled(names, 2)))
    (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == [*names[::-1], "even use"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(names)


def test_the_table_says_what_was_saved():
    made = record(("a", "b", "idle"), 3)
    for entry, layers in zip(made["rounds"], ({"a": [0, 1], "b": [2]}, {"a": [3]}, {}), strict=True):
        entry["schedule"] = {"layers": layers, "scores": {site: [0.25] * 4 for site in layers}} if layers else {}
    assert trained_layers(history_of(made)).rows == (
        ("a", "2", "1.50", "37.5", "62.5"),
        ("b", "1", "1.00", "25.0", "75.0"),
        ("mean", "1.5", "1.25", "31.2", "68.8"),
    )


def test_a_round_without_a_sites_reply_saved_it_nothing():
    made = record(("a", "b"), 2)
    for entry in made["rounds"]:
        entry["schedule"] = {"layers": {"a": [0, 1], "b": [2]}, "scores": {site: [0.25] * 4 for site in "ab"}}
    del made["rounds"][1]["sites"]["b"]
    assert trained_layers(history_of(made)).rows[:2] == (
        ("a", "2", "2.00", "50.0", "50.0"),
        ("b", "1", "1.00", "25.0", "75.0"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("planned", [(), (1,), (0, 1, 2)])
def test_picture_and_table_stand_exactly_where_some_round_is_scheduled(tmp_path, planned):
    made = scheduled(("a", "b"), 3, 4)
    for index, entry in enumerate(made["rounds"]):
        entry["schedule"] = entry["schedule"] if index in planned else {}
    if 2 not in planned:
        del made["rounds"][2]["schedule"]
    write(tmp_path, made)
    files = render(tmp_path, tmp_path / "out")
    console = Console(file=io.StringIO(), width=120)
    show(tmp_path, console=console)
    there = bool(planned)
    assert ("schedule" in files) == (tmp_path / "out" / "schedule.svg").exists() == there
    assert ("(schedule.svg)" in files["markdown"].read_text()) == there
    assert ("Layer schedule" in files["page"].read_text()) == there
    for text in (files["markdown"].read_text(), files["page"].read_text(), console.file.getvalue()):
        assert ("Layers trained" in text) == there


@pytest.mark.slow
@pytest.mark.parametrize("procedural", [True, False])
def test_the_warning_is_in_the_picture_exactly_when_the_data_are_procedural(procedural):
    figure = schedule_figure(history_of(scheduled(procedural=procedural)))
    assert any(PROCEDURAL in text.get_text().lower() for text in figure.texts) == procedural


@pytest.mark.slow
def test_same_history_same_bytes_whatever_the_users_style():
    history = history_of(scheduled(absent=0.3))
    once = svg(schedule_figure(history), "a")
    with matplotlib.rc_context({"font.size": 20, "savefig.bbox": "tight", "image.cmap": "jet", "legend.fontsize": 30}):
        assert svg(schedule_figure(history), "a") == once


def change(*path, value):
    def apply(schedule):
        for key in path[:-1]:
            schedule = schedule[key]
        schedule[path[-1]] = value

    return apply


BROKEN = [
    ("no scores", lambda s: s.pop("scores"), ["'scores' is missing"]),
    ("no layers", lambda s: s.pop("layers"), ["'layers' is missing"]),
    ("sites differ", lambda s: s["scores"].pop("slake"), ["'slake'", "both must name the same"]),
    ("no site", lambda s: s.update(layers={}, scores={}), ["at least one"]),
    ("layers no list", change("layers", "slake", value=3), ["'slake'", "'layers' is 3", "list"]),
    ("half a layer", change("layers", "slake", value=[0.5]), ["'slake'", "0.5", "whole number"]),
    ("a truth", change("layers", "slake", value=[True]), ["'slake'", "True"]),
    ("below 0", change("layers", "slake", value=[-1]), ["'slake'", "-1"]),
    ("twice", change("layers", "slake", value=[1, 1]), ["'slake'", "each once"]),
    ("no such layer", change("layers", "slake", value=[12]), ["'slake'", "[12]", "have a score"]),
    ("NaN", change("scores", "slake", 2, value=float("nan")), ["'slake'", "layer 2", "finite"]),
    ("a word", change("scores", "slake", 2, value="0.1"), ["'slake'", "layer 2", "'0.1'"]),
    ("null", change("scores", "slake", 2, value=None), ["'slake'", "one number for each layer"]),
    ("too few", change("scores", "vqa-rad", value=[0.5]), ["'vqa-rad'", "1", "12 as for the other sites"]),
    ("numbers too few", change("numbers", value=[0, 1]), ["'numbers'", "12"]),
    ("variance below 0", change("variance", value=-1), ["'variance'", "-1"]),
    ("fewer layers", change("numbers", value=list(range(1, 13))), ["0", "have a score"]),
]


@pytest.mark.parametrize(("broken", "words"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_broken_schedule_is_refused_in_one_sentence(broken, words):
    made = scheduled(rounds=2)
    made["rounds"][1]["schedule"]["layers"]["vqa-rad"] = [0]
    broken(made["rounds"][1]["schedule"])
    with pytest.raises(HistoryError) as caught:
        history_of(made)
    message = str(caught.value)
    assert message.startswith("h, entry 2 of 'rounds', 'schedule'")
    assert all(word in message for word in words), message


@pytest.mark.parametrize("value", [None, [], "all"])
def test_a_schedule_is_an_object(value):
    made = record(rounds=1)
    made["rounds"][0]["schedule"] = value
    with pytest.raises(HistoryError, match=r"'schedule'.* a JSON object"):
        history_of(made)


def test_rounds_schedule_the_same_layers():
    made = scheduled(rounds=2)
    made["rounds"][1]["schedule"] = {"layers": {"slake": [0]}, "scores": {"slake": [0.5, 0.5]}}
    with pytest.raises(HistoryError, match="round 1 scores 12 layers, that of round 2 2"):
        history_of(made)


def test_numbers_may_be_left_out_and_a_site_that_never_replied_is_named():
    made = record(rounds=1)
    made["rounds"][0]["schedule"] = {"layers": {"late": []}, "scores": {"late": [0.5, 0.5]}}
    history = history_of(made)
    assert history.rounds[0].schedule.numbers == (0, 1)
    assert history.sites == (*FIVE, "late")
    assert panels(schedule_figure(history))[1].collections[0].get_offsets().shape == (0, 2)


@pytest.mark.slow
def test_drawn_layers_have_a_picture_without_scores_and_no_fronts(tmp_path):
    made = record(FIVE, 2)
    for entry in made["rounds"]:
        layers = {site: [entry["round"]] for site in FIVE}
        entry["schedule"] = {"numbers": [0, 1, 2], "layers": layers, "scores": {}, "importance": None, "variance": 5.6}
    write(tmp_path, made)
    written = render(tmp_path, tmp_path / "out")
    assert "schedule" in written
    assert "fronts" not in written
