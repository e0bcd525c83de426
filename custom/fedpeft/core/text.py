# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Texts on a terminal and in CSV files: those written by others, durations, and the progress of training.

Names, answers and reasons written by others must not move a terminal's cursor, hide or turn words.

`fedpeft` writes everything through `cleaned_output`, so that no command can forget it; tables are printed by
`fedpeft.core.console`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

MARK = "\N{REPLACEMENT CHARACTER}"
MAX = 10_000  # characters of a line
# Unicode counts them as letters and marks, but they are invisible
UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_OBEYED = re.compile(r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # controls, except line breaks and tabs
_ASCII = re.compile(r"[\n\x20-\x7e]*")


def printable(text: str, *, max_length: int = MAX) -> str:
    """Replace each character that a terminal would obey, hide or turn around by a mark.

    These are control characters, those that change the direction of writing, and those without width. Line breaks stay.
    """
    if not _ASCII.fullmatch(text):
        text = "".join(one if one == "\n" or _is_seen(one) else " " if one == "\t" else MARK for one in text)
    if len(text) <= max_length:
        return text
    lines = ((line[:max_length], len(line) - max_length) for line in text.split("\n"))
    return "\n".join(start + f"... ({cut:,} more characters)" * (cut > 0) for start, cut in lines)


def one_line(text: str, *, max_length: int = MAX) -> str:
    """Return a printable text on one line, for a table's cell or a part of a sentence."""
    return printable(" ".join(text.split()), max_length=max_length)


def markdown_text(text: str) -> str:
    """Return a text as Markdown shows it letter by letter: no link, image, emphasis, HTML or formula, no new cell."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = text.replace("://", "&#58;//").replace("www.", "www&#46;")  # of which some readers make links
    text = re.sub(r"([\\`*\[\]|~$])", r"\\\1", text)
    # an underscore inside a word is not emphasis, and site_1 reads better than site\_1
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def capitalized(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 round`, `2 rounds`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def sites_in_words(count: int, every: int) -> str:
    """Return in words how many of all sites a mean is of."""
    sites = counted(every, "site")
    return sites if count == every else f"{count or 'none'} of {sites}"


def shortened(text: str, *, max_start: int = 3000, max_end: int = 600) -> str:
    """Return an error's text; if a stranger's file made it too long, only its start, and its end with the remedy."""
    left_out = len(text) - max_start - max_end
    return text if left_out <= 0 else f"{text[:max_start]}... ({left_out:,} more characters) ...{text[-max_end:]}"


class Unread(BrokenPipeError):
    """The reader of this process's output has gone; any other broken pipe is a fault."""


class CleanedStream:
    """A text stream that writes only printable text.

    Once its reader has gone, the rest is dropped if `goes_on`, for a command that also writes files; otherwise it
    raises `Unread`.
    """

    def __init__(self, stream: IO[str], *, goes_on: bool = False) -> None:
        self.stream, self.goes_on, self.is_unread = stream, goes_on, False

    def write(self, text: str) -> int:
        """Write a text; a character that the stream's encoding lacks is written as its number."""
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        # each text of a library's progress bar begins by going back to the start of the line
        back = "\r" * text.startswith("\r")
        cleaned = back + printable(text.removeprefix("\r"))
        with self.while_read():
            self.stream.write(cleaned.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with self.while_read():
            self.stream.flush()

    @contextlib.contextmanager
    def while_read(self) -> Iterator[None]:
        """Drop the rest of the output if its reader goes away in this block."""
        try:
            yield
        except BrokenPipeError as error:
            with open(os.devnull, "w") as nowhere:  # else Python says so again at its end
                os.dup2(nowhere.fileno(), self.stream.fileno())
            self.is_unread = True
            if not self.goes_on:
                raise Unread(*error.args) from error

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def cleaned_output(*, goes_on: bool = False) -> Iterator[tuple[CleanedStream, CleanedStream]]:
    """Print and log only printable text in this block; yield both streams.

    `goes_on` applies only to the output: no command ends because nobody reads its progress or its warnings.
    """
    with open(os.devnull, "w") as nowhere:  # for a stream that was closed before the command began
        output: Any = CleanedStream(sys.stdout or nowhere, goes_on=goes_on)
        errors: Any = CleanedStream(sys.stderr or nowhere, goes_on=True)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            yield output, errors


def _is_seen(character: str) -> bool:
    return (character.isprintable() and character not in UNSEEN) or unicodedata.category(character) == "Zs"


LOGGED = {"max_start": 12_000, "max_end": 4_000}  # characters of one record
_CLEANS = "fedpeft_cleans"


def limit_log_records() -> None:
    """Let this process log only printable text of bounded length; further lines of a record are indented.

    What others sent is in some of FLARE's records: it must neither look like a record of its own nor fill the files.
    """
    make = logging.getLogRecordFactory()
    if hasattr(make, _CLEANS):
        return

    def cleaned(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = make(*arguments, **named)
        try:
            text = record.getMessage()
        except Exception:  # as logging does, say it in the log and not to the caller
            text = f"a record of {record.pathname}, line {record.lineno}, cannot be formatted"
        record.msg, record.args = _logged(text), ()  # FLARE's formatter cuts texts in brackets out, and then formats
        if record.exc_info and record.exc_info[0]:
            with contextlib.suppress(Exception):  # an error whose text cannot be made
                record.exc_text = _logged("".join(traceback.format_exception(*record.exc_info)).rstrip())
        return record

    setattr(cleaned, _CLEANS, True)
    logging.setLogRecordFactory(cleaned)


def _logged(text: str) -> str:
    shown = printable(shortened(text, **LOGGED)).replace("\n", "\n    ")
    return shortened(shown, **LOGGED)  # many short lines are longer now


COMPUTED = ("=", "+", "-", "@", "\t", "\r")  # the beginnings of cells that a spreadsheet would compute


def csv_cell(value: Any) -> Any:
    """Return a text that neither a spreadsheet computes nor a terminal obeys; any other value as it is."""
    if not isinstance(value, str):
        return value
    shown = _OBEYED.sub(MARK, value)
    return f"'{shown}" if shown.startswith(COMPUTED) else shown


RECENT = 3  # rounds whose mean duration is expected of the next ones
FIRST_SECONDS, MAX_SECONDS = 10.0, 300.0  # until the first line, and between two lines


def duration(seconds: float) -> str:
    """Format a duration: 8.2 s, 3 min, 4 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


class StepLines:
    """Lines that say at which step the training of a round is, and how long it will take.

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
