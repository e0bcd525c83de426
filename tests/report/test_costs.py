# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Tables of what was sent, what the alignment did and how layers rank."""

import pytest
from histories import complete, gaps

from fedpeft.report.costs import aligned, ranks, sent
from fedpeft.report.history_reader import parse
from fedpeft.report.json_fields import HistoryError
from fedpeft.report.tables import all_tables


def parsed(history):
    return parse(history, origin="h")


def test_what_was_sent_adds_up_over_sites_and_rounds():
    assert sent(parsed(complete())).rows == tuple(
        (str(n), "1.000", "1.000", "2.000", f"{2 * n}.000") for n in (1, 2, 3)
    )


def test_a_round_that_nobody_counted_is_marked_from_then_on():
    history = complete()
    del history["rounds"][1]["sites"]["a"]["sent"]
    table = sent(parsed(history))
    assert [row[-1] for row in table.rows] == ["2.000", "3.000*", "5.000*"]
    assert "*" in table.marks


def test_a_site_that_is_absent_sent_nothing_and_marks_nothing():
    history = complete()
    del history["rounds"][1]["sites"]["a"]
    assert [row[-1] for row in sent(parsed(history)).rows] == ["2.000", "3.000", "5.000"]


def test_the_alignment_of_the_last_aligned_round():
    history = complete()
    history["rounds"][2]["alignment_report"] = {"sites": {"a": {"before": None, "after": None}}}
    table = aligned(parsed(history))
    assert table.title == "Alignment in round 2"
    assert table.rows == (
        ("a", "0.4000", "0.1000", "75.0", "50.0"),
        ("b", "0.2000", "0.2000", "0.0", "0.0"),
        ("mean", "0.3000", "0.1500", "37.5", "25.0"),
    )


def test_equal_scores_share_their_rank():
    table = ranks(parsed(complete()))
    assert table.rows == (("a", "1.0", "2.0", "3.0"), ("b", "2.5", "2.5", "1.0"))


def test_scores_that_are_equal_for_all_layers_are_said():
    history = complete()
    assert "scored all layers the same" not in ranks(parsed(history)).marks
    for one in history["rounds"][:2]:
        one["schedule"]["scores"]["b"] = [0.2, 0.2, 0.2]
    assert "; 2 of 6 times a site scored all layers the same" in ranks(parsed(history)).marks


@pytest.mark.parametrize("table", [sent, aligned, ranks])
def test_a_run_that_recorded_nothing_of_it_has_no_table(table):
    assert table(parsed(gaps())) is None


def test_all_of_them_stand_among_the_tables():
    titles = {table.title for table in all_tables(parsed(complete()))}
    assert {"Sent by the sites (MB)", "Alignment in round 3", "Rank of the layers"} <= titles


@pytest.mark.parametrize("wrong", [[], {"a": 3}, {"a": {"before": "x"}}, {"a": {"moved": 2}}, {"a": {"after": -1}}])
def test_a_damaged_report_of_an_alignment_is_refused(wrong):
    history = complete()
    history["rounds"][0]["alignment_report"] = {"sites": wrong}
    with pytest.raises(HistoryError, match="alignment_report"):
        parsed(history)
