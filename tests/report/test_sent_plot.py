# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The picture of figures against what was sent."""

import numpy as np
import pytest
from histories import record

from fedpeft.report.history_reader import parse
from fedpeft.report.plots import end_labels, sent_figure, sent_so_far, was_counted

BYTES = {"a": 1_000_000, "b": 2_000_000}


def made(rounds=3):
    history = record(("a", "b"), rounds)
    for one in history["rounds"]:
        for site, values in one["sites"].items():
            values["sent"] = BYTES[site]
    return history


def parsed(history):
    return parse(history, origin="h")


def test_every_site_stands_at_what_it_had_sent_and_the_mean_at_their_mean():
    history = parsed(made())
    (axes,) = sent_figure(history).axes
    for places, values in (
        ([1, 2, 3], [one.sites["a"].overall for one in history.rounds]),
        ([2, 4, 6], [one.sites["b"].overall for one in history.rounds]),
        ([1.5, 3, 4.5], [np.mean([s.overall for s in one.sites.values()]) for one in history.rounds]),
    ):
        drawn = [line.get_ydata() for line in axes.lines if list(line.get_xdata()) == places]
        assert any(np.allclose(line, 100 * np.array(values)) for line in drawn)
    for text in axes.texts:
        assert text.get_window_extent().x1 < axes.figure.bbox.x1


def test_a_site_that_is_absent_sends_nothing_and_stays_where_it_was():
    history = made()
    del history["rounds"][1]["sites"]["b"]
    assert sent_so_far(parsed(history)).sites["b"].tolist() == [2, 2, 4]
    assert was_counted(parsed(history))


@pytest.mark.parametrize("sent", [None, 0])
def test_there_is_no_picture_where_nobody_counted_or_nothing_was_sent(sent):
    history = made()
    for one in history["rounds"]:
        for site in one["sites"].values():
            site["sent"] = sent
    assert not was_counted(parsed(history))
    assert not was_counted(parsed(record()))


def test_a_line_that_ends_before_another_reaches_its_label_dotted():
    history = parsed(made())
    late = {label.text.split()[0]: label.late for label in end_labels(history, sent_so_far(history))}
    assert late == {"a": True, "b": False, "mean": True}


def test_a_site_whose_replies_were_all_refused_does_not_count():
    history = made()
    for one in history["rounds"]:
        del one["sites"]["b"], one["alignment"]["b"]
        one["rejected"]["b"] = "NaN"
    history = parsed(history)
    assert sent_so_far(history).mean_of(history.sites).tolist() == [1, 2, 3]
    assert sent_figure(history).axes
