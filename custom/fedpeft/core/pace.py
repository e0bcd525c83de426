# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How long something has taken and will take, in words; and when a site that trains says how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable

RECENT = 3  # rounds whose mean duration is expected of the next ones
FIRST_SECONDS, MAX_SECONDS = 10.0, 300.0  # until the first line, and between two lines


def duration(seconds: float) -> str:
    """Format a duration: 8.2 s, 3 min, 4 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


class StepLines:
    """Lines that say at which step the training of a round is, and how long it will go on.

    The first comes after ten seconds, each further one after twice as long as the one before, at most five minutes.
    """

    def __init__(self, say: Callable[[str], None], *, now: Callable[[], float] = time.monotonic) -> None:
        self._say, self._now = say, now
        self._pause = FIRST_SECONDS
        self._due = now() + self._pause
        self._first: tuple[int, float] | None = None  # a step, and when it was done

    def __call__(self, step: int, steps: int) -> None:
        """Note that a step is done."""
        at = self._now()
        if self._first is None or step < self._first[0]:
            self._first = step, at
        if at < self._due or step == steps:
            return
        self._pause = min(2 * self._pause, MAX_SECONDS)
        self._due = at + self._pause
        before, began = self._first
        left = f", about {duration((at - began) / (step - before) * (steps - step))} left" if step > before else ""
        self._say(f"step {step:,} of {steps:,}{left}")
