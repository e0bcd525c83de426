# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The result of one check: passed, or what to do."""

from __future__ import annotations

from dataclasses import dataclass

PASS, WARN, FAIL = "pass", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """A verdict and one sentence; unless the verdict is `pass`, the sentence includes the remedy."""

    verdict: str
    sentence: str


def passed(sentence: str) -> Finding:
    """A finding with nothing to do."""
    return Finding(PASS, sentence)


def warned(sentence: str) -> Finding:
    """A finding with which a job can run, but not as well or as safely as it should."""
    return Finding(WARN, sentence)


def failed(sentence: str) -> Finding:
    """A finding with which a job cannot run."""
    return Finding(FAIL, sentence)
