# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Durations in words, and when a site that trains says how far it is."""

from itertools import pairwise

from fedpeft.core.text import StepLines


def said(seconds, steps, before=0.0):
    """The lines of a round, by the second in which they came.

    Args:
        seconds: that a step takes.
        steps: of the round.
        before: seconds until the first step begins.
    """
    clock, lines = [0.0], []
    note = StepLines(lambda line: lines.append((clock[0], line)), now=lambda: clock[0])
    clock[0] = before
    for step in range(1, steps + 1):
        clock[0] += seconds
        note(step, steps)
    return lines


def test_a_round_of_a_minute_is_never_silent_for_long():
    assert said(1.0, 60) == [
        (10.0, "step 10 of 60, about 50.0 s left"),
        (30.0, "step 30 of 60, about 30.0 s left"),
    ]


def test_a_round_of_hours_has_a_line_every_five_minutes():
    times = [at for at, _ in said(2.0, 7200)]
    assert times[:5] == [10, 30, 70, 150, 310]
    assert {after - before for before, after in pairwise(times[4:])} == {300}
    assert said(2.0, 7200)[-1][1].endswith("left")


def test_a_short_round_has_no_line_and_one_step_no_time_left():
    assert said(0.5, 10) == []
    assert said(30.0, 3) == [(30.0, "step 1 of 3"), (60.0, "step 2 of 3, about 30.0 s left")]


def test_what_went_before_the_first_step_does_not_count_as_training():
    assert said(1.0, 10, before=20.0) == [(21.0, "step 1 of 10")]
