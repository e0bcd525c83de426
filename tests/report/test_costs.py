# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Tables of what was sent, what the alignment did and how layers rank."""

import io

import pytest
from histories import complete, gaps
from rich.console import Console

from fedpeft.report.history_reader import HistoryError, parse
from fedpeft.report.outputs import markdown, print_tables
from fedpeft.report.tables import aligned, all_tables, ranks, sent
from fedpeft.report.wording import moved_places


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


SHARED = {"initialization": "shared", "pia": {"solver": "exact"}}
STAY = "0 of 600 places moved: sites that start from one adapter stay aligned"


@pytest.mark.parametrize(
    ("settings", "moved", "held", "text"),
    [
        ({"method": SHARED}, 0, 0, STAY),
        ({"method": SHARED}, 4, 0, "40 of 600 places moved, the last in round 5"),
        (
            {"method": SHARED},
            0,
            3,
            "0 of 600 places moved; 30 stayed because they would have gained less than method.pia.margin",
        ),
        ({"method": {**SHARED, "initialization": "own"}}, 0, 0, "0 of 600 places moved"),
        ({"method": {**SHARED, "pia": {"solver": "identity"}}}, 0, 0, "0 of 600 places moved"),
        ({"method": SHARED, "schedule": {"joins": {"b": 2}}}, 0, 0, "0 of 600 places moved"),
    ],
    ids=["none", "some", "held", "starts of their own", "told to move none", "a site that joins"],
)
def test_how_many_places_moved_is_said_in_terminal_page_and_markdown(settings, moved, held, text):
    history = complete(rounds=5)
    history["settings"] = settings
    for one in history["rounds"]:
        rows = {site: {"moved": moved, "stayed": 60 - moved, "held": held} for site in ("a", "b")}
        one["alignment_report"]["decisions"] = rows
    made = parsed(history)
    assert moved_places(made) == text
    assert aligned(made).marks.endswith(f"; {text}")
    assert text in markdown(made)
    printed = io.StringIO()
    print_tables(made, console=Console(file=printed, width=60))
    assert text in printed.getvalue().splitlines()


def test_a_run_without_an_alignment_says_nothing_of_places():
    history = complete()
    assert moved_places(parsed(history)) == ""
    history["rounds"][0]["alignment_report"]["decisions"] = {"a": {"moved": -1}}
    with pytest.raises(HistoryError, match=r"alignment_report.*moved"):
        parsed(history)


def test_equal_scores_share_their_rank():
    table = ranks(parsed(complete()))
    assert table.rows == (("a", "1.0", "2.0", "3.0"), ("b", "2.5", "2.5", "1.0"))


def test_scores_that_are_equal_for_all_layers_are_said():
    history = complete()
    assert "the same for all layers" not in ranks(parsed(history)).marks
    for one in history["rounds"][:2]:
        one["schedule"]["scores"]["b"] = [0.2, 0.2, 0.2]
    assert "; 2 of 6 times a site's scores were the same for all layers" in ranks(parsed(history)).marks


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
