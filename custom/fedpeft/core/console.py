# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The console of every table and progress bar: styles are rich's own, all text is printable and in its encoding."""

from __future__ import annotations

import codecs
import contextlib
import sys
from collections.abc import Iterator
from typing import IO, Any

from rich import console
from rich.segment import Segment
from rich.text import Text

from fedpeft.core.text import CleanedStream, one_line, printable

_PLAIN = str.maketrans({"–": "-", "—": "-", "×": "x", "·": "-", "±": "~", "†": "+", "…": ".", "→": ">"})
codecs.register_error("fedpeft-plain", lambda error: (_plain(error), error.end))  # type: ignore[attr-defined]


class Console(console.Console):
    """A rich console whose texts hold nothing that a terminal would obey or that its encoding lacks."""

    def __init__(self, *, file: IO[str] | None = None, stderr: bool = False, **named: Any) -> None:
        file = file or (sys.stderr if stderr else sys.stdout)
        self._cleaned = file if isinstance(file, CleanedStream) else None
        # rich's own codes for color and cursor must pass
        stream = file.stream if isinstance(file, CleanedStream) else file
        super().__init__(file=stream, stderr=stderr, emoji=False, **named)

    def on_broken_pipe(self) -> None:
        """Handle a broken pipe as this console's stream does; rich itself would end the process."""
        with self._cleaned.while_read() if self._cleaned else contextlib.nullcontext():
            raise sys.exception() or BrokenPipeError()

    def render(self, *arguments: Any, **named: Any) -> Iterator[Segment]:
        """Yield the segments with printable texts; rich's commands to the terminal stay."""
        for segment in super().render(*arguments, **named):
            yield segment if segment.control else segment._replace(text=self._encodable(printable(segment.text)))

    def _encodable(self, text: str) -> str:
        """Replace what the encoding lacks by one letter each: no run may fail at its last line because of a dash."""
        return text.encode(self.encoding, "fedpeft-plain").decode(self.encoding)


def _plain(error: UnicodeError) -> str:
    assert isinstance(error, UnicodeEncodeError)
    return error.object[error.start : error.end].translate(_PLAIN).encode("ascii", "replace").decode()


def cell(value: Any, style: str = "") -> Text:
    """Return a value from outside as a cell of a table: on one line, never read as rich's markup."""
    return Text(one_line(str(value)), style=style)
