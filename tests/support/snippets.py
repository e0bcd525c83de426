# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How the code blocks of a page are run.

```python   top to bottom in one namespace; a ```text block right behind it is what it prints
```bash     `$ command` lines, run by bash; the lines below each are what it prints; `...` stands for anything
```yaml     with `# path` as its first line: written there; with `# path, one more line`: appended
```sh, ```text elsewhere, and indented code: not run (they start FLARE, or need data)
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import warm_python

from fedpeft.cli import main

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
PLACE = re.compile(r"# (\S+\.yml)(, one more line)?\n")
SHELL = set("|&;<>()$`*?[]#~{}'\"\\")  # characters that only a shell understands
QUOTED = re.compile(r"""'[^']*'|["][^"$`\\]*["]""")  # in quotes they are characters as any others


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, the line it begins on, what it should print (None: anything)."""

    language: str
    text: str
    line: int
    printed: str | None


def blocks(page: str) -> Iterator[Block]:
    """All fenced blocks of a page, in order."""
    matches = list(BLOCK.finditer(page))
    for match, after in zip_longest(matches, matches[1:]):
        adjacent = after is not None and not page[match.end() : after.start()].strip()
        printed = after[2] if adjacent and match[1] == "python" and after[1] == "text" else None
        yield Block(match[1], match[2], page.count("\n", 0, match.start()) + 1, printed)


def run_page(name: str, page: str) -> list[str]:
    """Run a page's blocks in the current folder; returns every difference between what is printed and what it says.

    Args:
        name: for tracebacks and differences.
        page: Markdown.
    """
    namespace: dict = {"__name__": "__main__"}
    wrong = []
    for block in blocks(page):
        where = f"{name}, line {block.line}"
        if block.language == "python":
            # blank lines first, so that a traceback names the page's own line
            code = "\n" * block.line + block.text
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, name, "exec"), namespace)
            wrong += _difference(where, block.printed, printed.getvalue())
        elif block.language == "bash":
            for command, expected in COMMAND.findall(block.text):
                code, printed = _shell(command)
                wrong += _difference(f"{where}, $ {command}", expected, printed)
                if (code != 0) != expected.startswith("fedpeft: "):
                    wrong.append(f"{where}, $ {command}: exit code {code}")
        elif block.language == "yaml" and (place := PLACE.match(block.text)):
            with open(place[1], "a" if place[2] else "w") as file:
                file.write(block.text[place.end() :])
    return wrong


def pattern(expected: str) -> str:
    """A regular expression for an expected text in which `...` stands for anything."""
    return ".*".join(re.escape(part) for part in expected.split("..."))


def _shell(command: str) -> tuple[int, str]:
    """Exit code and what a command prints; fedpeft's own run in this process, which has imported what they need.

    Those that need a shell find `python` and `fedpeft` with their imports already (`warm_python.py`).
    """
    if command.startswith("fedpeft ") and not set(QUOTED.sub("", command)) & SHELL:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), _columns("80"):
            return main(shlex.split(command)[1:]), printed.getvalue()
    path = os.pathsep.join([str(Path(python).parent) for python in (os.environ[warm_python.COMMAND], sys.executable)])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80"},
        check=False,
    )
    return done.returncode, done.stdout


@contextlib.contextmanager
def _columns(number: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ["COLUMNS"] = number
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _difference(where: str, expected: str | None, printed: str) -> list[str]:
    if expected is None:
        return []
    printed = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
    if re.fullmatch(pattern(expected.strip("\n")), printed, re.DOTALL):
        return []
    return [f"{where}: the page says\n{expected}\nprinted was\n{printed}\n"]
