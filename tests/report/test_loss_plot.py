# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The picture of the losses at both ends of every round."""

import numpy as np
import pytest
from histories import record, write

from fedpeft.report import render
from fedpeft.report.history_reader import parse
from fedpeft.report.loss_plot import losses_explained, losses_figure, losses_of, panels_figure, rise, saw_tooth
from fedpeft.report.plots import pictures

STARTS, ENDS = {"a": (4.0, 2.0, 1.0), "b": (3.0, 2.5, 2.0)}, {"a": (1.0, 0.5, 0.25), "b": (1.5, 1.5, 1.5)}


def made(rounds=3):
    history = record(("a", "b"), rounds)
    for number, one in enumerate(history["rounds"]):
        for site, values in one["sites"].items():
            values |= {"loss_start": STARTS[site][number], "loss_end": ENDS[site][number]}
    return history


def parsed(history):
    return parse(history, origin="h")


def test_within_a_round_a_line_falls_and_between_rounds_it_jumps():
    history = parsed(made())
    assert losses_of(history)["a"].tolist() == [[4, 1], [2, 0.5], [1, 0.25]]
    places, losses = saw_tooth(losses_of(history)["a"])
    assert places.tolist() == [0, 1, 1, 2, 2, 3]
    assert losses.tolist() == [4, 1, 2, 0.5, 1, 0.25]
    (axes,) = losses_figure(history).axes
    a, b, mean = (line.get_ydata().tolist() for line in axes.lines)
    assert (a, b) == (losses.tolist(), [3, 1.5, 2.5, 1.5, 2, 1.5])
    assert mean == pytest.approx(np.mean([a, b], axis=0).tolist())


def test_the_oscillation_is_the_mean_jump_between_rounds():
    assert rise(losses_of(parsed(made()))) == pytest.approx(((1 + 0.5) / 2 + (1 + 0.5) / 2) / 2)
    assert losses_explained(parsed(made())).endswith("the start of the next: +0.750.")
    assert rise(losses_of(parsed(made(1)))) is None


def test_a_site_that_missed_a_round_has_no_jump_there():
    history = made()
    del history["rounds"][1]["sites"]["a"], history["rounds"][1]["alignment"]["a"]
    losses = losses_of(parsed(history))
    assert np.isnan(losses["a"][1]).all()
    assert rise(losses) == pytest.approx(0.75)  # of the other site
    assert losses_figure(parsed(history)).axes


@pytest.mark.parametrize("low", [0.0, -1.0])
def test_losses_that_are_not_above_zero_have_a_plain_axis(low):
    history = made()
    history["rounds"][2]["sites"]["a"]["loss_end"] = low
    (axes,) = losses_figure(parsed(history)).axes
    assert axes.get_yscale() == "linear"


def test_methods_stand_in_panels_with_one_axis():
    losses = losses_of(parsed(made()))
    figure = panels_figure(dict.fromkeys(("one", "two", "three", "four"), losses))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one", "two", "three", "four"]
    assert len({axes.get_ylim() for axes in figure.axes}) == 1


@pytest.mark.slow
def test_only_a_run_that_measured_has_the_picture(tmp_path):
    assert "losses" in pictures(parsed(made()))
    assert "losses" not in pictures(parsed(record(rounds=2)))
    write(tmp_path, made())
    written = render(tmp_path, tmp_path / "out")
    assert written["losses"].name == "losses.svg"
    page = written["page"].read_text()
    assert "Oscillation" in page
    assert "the start of the next: +0.750." in page
