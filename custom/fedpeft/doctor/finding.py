# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What one check found: it passes, or it says what to do."""

from __future__ import annotations

from dataclasses import dataclass

PASS, WARN, FAIL = "pass", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """A verdict and one sentence; unless the verdict is `pass`, the sentence holds the remedy."""

    verdict: str
    sentence: str


def passed(sentence: str) -> Finding:
    """Nothing to do."""
    return Finding(PASS, sentence)


def warned(sentence: str) -> Finding:
    """A job can run, but not as well or not as safely as it should."""
    return Finding(WARN, sentence)


def failed(sentence: str) -> Finding:
    """A job cannot run."""
    return Finding(FAIL, sentence)
