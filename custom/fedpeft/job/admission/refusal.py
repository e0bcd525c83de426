# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Why a job is not admitted: a code of a fixed list for others, the full message for this machine's log."""

from __future__ import annotations

from fedpeft.core.errors import FedpeftError
from fedpeft.job.setting_names import declared_part

REASONS = {
    "archive": "it is not a plain zip archive of a bounded size",
    "file": "it holds a file that no job has, or lacks one",
    "json": "a file in it is not strict JSON",
    "limit": "a file in it is too large or nested too deeply",
    "variable": "a text in it holds a brace, which FLARE would read as a variable",
    "text": "a text in it is too long or holds control characters",
    "shape": "it holds a setting that no job has",
    "class": "it names a class that a job may not load",
    "meta": "its meta.json holds what no job may ask for",
    "setting": "the value of a setting in it is not allowed",
}


class AdmissionError(FedpeftError):
    """A job that is not admitted.

    Args:
        sentence: full message with file, value and remedy; it stays on this machine.
        reason: one of the codes in `REASONS`.
        setting: dotted name of the wrong setting, if it is about one.
    """

    def __init__(self, sentence: str, *, reason: str, setting: str = "") -> None:
        super().__init__(sentence, setting=setting)
        self.reason = reason

    @property
    def public(self) -> str:
        """The message for others: the code, its fixed sentence and a setting's name, no value of job or machine."""
        name = declared_part(self.setting) if self.setting else ""
        place = "`fedpeft doctor` on its folder names the place"
        return f"the job is not admitted ({self.reason}): {REASONS[self.reason]}{f', {name}' * bool(name)}; {place}."
