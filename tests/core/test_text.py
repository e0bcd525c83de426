# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What others write cannot steer a terminal, whichever command prints it."""

import ast
import contextlib
import html
import io
import logging
import os
import re
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from nvflare.fuel.utils.log_utils import BaseFormatter
from rich.table import Table

import fedpeft
from fedpeft import cli
from fedpeft.core.console import Console, cell
from fedpeft.core.errors import FedpeftError
from fedpeft.core.text import (
    MARK,
    MAX,
    CleanedStream,
    Unread,
    cleaned_output,
    csv_cell,
    limit_log_records,
    markdown_text,
    one_line,
    printable,
    shortened,
)

HOUSE = Path(fedpeft.__file__).parent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain – text: 東京, Ω, ±\n", "plain – text: 東京, Ω, ±\n"),
        ("no\u00a0break and wide\u3000blank", "no\u00a0break and wide\u3000blank"),
        ("\x1b[2J\x1b]0;title\x07", f"{MARK}[2J{MARK}]0;title{MARK}"),
        ("\x9b31m\x90\x00\x7f", f"{MARK}31m{MARK * 3}"),
        ("done\rfedpeft: complete", f"done{MARK}fedpeft: complete"),
        ("a\tb", "a b"),
        ("\u202egnp.exe\u2066\u200e", f"{MARK}gnp.exe{MARK * 2}"),
        ("a\u200b\u200d\u2060\ufeff\u00ad\u034f\u3164b", f"a{MARK * 7}b"),
        ("\u2028\u2029\ud800", MARK * 3),
        ("x" * (MAX + 5), "x" * MAX + "... (5 more characters)"),
        ("y\n" * MAX, "y\n" * MAX),
    ],
)
def test_what_a_terminal_would_obey_or_hide_is_marked(text, expected):
    assert printable(text) == expected


def test_a_cell_has_one_line():
    assert one_line("a\n\x1b[1m b\r\nc") == f"a {MARK}[1m b c"
    table = Table()
    table.add_column("name")
    table.add_row(cell("a\nfedpeft: complete [red]\x1b[2J"))
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    (row,) = (line for line in console.file.getvalue().splitlines() if "complete" in line)
    assert f"a fedpeft: complete [red]{MARK}[2J" in row


def test_a_table_keeps_its_own_colors():
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(cell("\x1b[2J", style="red"))
    assert console.file.getvalue() == f"\x1b[31m{MARK}[2J\x1b[0m\n"


def test_all_that_a_command_prints_or_logs_is_cleaned(capsys):
    with cleaned_output():
        print("out \x1b[2J", "\u202e")
        print("err \x1b[2J", file=sys.stderr)
        Console().print("table \x1b[2J", markup=False)
        logging.lastResort.stream.write("log \x1b[2J\n")
    out, err = capsys.readouterr()
    assert out == f"out {MARK}[2J {MARK}\ntable {MARK}[2J\n"
    assert err == f"err {MARK}[2J\nlog {MARK}[2J\n"


@pytest.mark.parametrize(
    ("encoding", "seen"),
    [("ascii", "a - b 41.0 ~ 2 ?"), ("latin-1", "a - b 41.0 ± 2 ?"), ("utf-8", "a – b 41.0 ± 2 Ω")],
)
def test_a_console_prints_what_its_encoding_has(encoding, seen):
    file = io.TextIOWrapper(raw := io.BytesIO(), encoding=encoding, write_through=True)
    console = Console(file=file, width=80)
    grid = Table(box=None, show_header=False, padding=0)
    grid.add_row(cell("a – b 41.0 ± 2 Ω"))
    console.print(grid)
    assert raw.getvalue().decode(encoding).strip() == seen


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("line", [print, lambda text, **_: Console().print(text)], ids=["print", "console"])
def test_a_command_that_writes_files_goes_on_where_its_reader_has_gone(monkeypatch, goes_on, line):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        with cleaned_output(goes_on=goes_on) as (output, _):
            with contextlib.nullcontext() if goes_on else pytest.raises(Unread):
                line("first", flush=True)
            line("second", flush=True)
        assert output.is_unread


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize(
    "line",
    [lambda text: print(text, file=sys.stderr, flush=True), lambda text: Console(stderr=True).print(text)],
    ids=["print", "console"],
)
def test_no_command_ends_because_nobody_reads_its_warnings(monkeypatch, goes_on, line):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as unread:
        monkeypatch.setattr(sys, "stderr", unread)
        with cleaned_output(goes_on=goes_on) as (output, errors):
            line("first")
            line("second")
        assert (output.is_unread, errors.is_unread) == (False, True)


def test_an_error_sentence_is_cleaned(capsys, monkeypatch):
    def fails(_):
        raise FedpeftError("site \x1b[2J is wrong.")

    monkeypatch.setattr(cli, "_tasks", fails)
    assert cli.main(["tasks"]) == 1
    assert capsys.readouterr().err == f"fedpeft: site {MARK}[2J is wrong.\n"


def test_what_an_encoding_lacks_ends_no_command():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii", write_through=True)
    CleanedStream(stream).write("a – b \x1b\n")
    assert raw.getvalue() == b"a \\u2013 b \\ufffd\n"


@pytest.mark.slow
def test_every_console_is_the_one_that_cleans():
    for file in HOUSE.rglob("*.py"):
        tree = ast.parse(file.read_text())
        names = [
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich")
            for name in node.names
        ]
        assert "Console" not in names, file
        assert "print" not in names, file


def test_a_long_error_keeps_its_start_and_its_remedy():
    assert shortened("a value that is wrong: correct it.") == "a value that is wrong: correct it."
    cut = shortened("the file " + "x" * 5000 + " is missing: download it again.")
    assert cut.startswith("the file xxx")
    assert cut.endswith("xxx is missing: download it again.")
    assert "(1,440 more characters)" in cut
    assert len(cut) < 3700


def test_a_record_of_the_log_is_printable_short_and_no_two_records(caplog):
    limit_log_records()
    limit_log_records()  # a second call changes nothing
    log, forged = logging.getLogger("fedpeft.test"), "12:00:00 round 1 of 2: mean accuracy 99.9 %"
    log.warning("peer=%s sent %s", f"slake\n{forged}\x1b[31m", 5)
    log.warning("peer=%s", "z" * 10**6)
    log.warning("as it is: %d", 7)
    try:
        raise ValueError(f"no\n{forged}" + "z" * 10**6)
    except ValueError:
        log.exception("failed")
    log.warning("\n" * 10**6)
    lied, long, plain, failed, many = caplog.records
    assert len(many.getMessage()) < 20_000
    assert lied.getMessage() == f"peer=slake\n    {forged}{MARK}[31m sent 5"
    assert len(long.getMessage()) < 20_000
    assert plain.getMessage() == "as it is: 7"
    formatted = logging.Formatter("%(message)s").format(failed)
    assert f"\n    {forged}" in formatted
    assert all(line.startswith("    ") for line in formatted.splitlines()[2:])
    assert len(formatted) < 20_000


def test_a_text_in_brackets_keeps_no_record_out_of_flares_log(caplog):
    """FLARE's formatter cuts it out of the message, and would then format the rest with the arguments once more."""
    limit_log_records()
    logging.getLogger("fedpeft.test").warning("a request %.40r of %.80r is refused", "[a=b]: ", "chest")
    (record,) = caplog.records
    assert "of 'chest' is refused" in BaseFormatter().format(record)


def test_a_record_that_cannot_be_formatted_raises_nothing(capsys, caplog):
    limit_log_records()

    class Unspoken:
        def __str__(self):
            raise ValueError("no text")

    for message, *arguments in [("x", 5), ("%d", "text"), (Unspoken(),), ("%s", Unspoken())]:
        logging.getLogger("fedpeft.test").warning(message, *arguments)
    logging.getLogger("fedpeft.test").warning({"no": "string"})
    *broken, whole = (record.getMessage() for record in caplog.records)
    assert all("test_text.py, line" in text and "cannot be formatted" in text for text in broken)
    assert whole == "{'no': 'string'}"
    assert "Logging error" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\x1b[31mb\x9b\x00.png", f"a{MARK}[31mb{MARK * 2}.png"),
        ("over\rwritten", f"over{MARK}written"),
        ("two\r\nlines\tand \u0645\u06cc\u200c\u0631", "two\r\nlines\tand \u0645\u06cc\u200c\u0631"),
        ("=1+1", "'=1+1"),
        ("\t=1+1", "'\t=1+1"),
        (-0.5, -0.5),
        (None, None),
    ],
)
def test_a_cell_is_neither_computed_nor_obeyed(value, expected):
    assert csv_cell(value) == expected


@pytest.mark.parametrize(
    "text",
    [
        "![](https://evil.example/p.png)",
        "[a](https://evil.example) <https://evil.example> &lt; [b]: x",
        "<img src=x> *a* **b** `c` ~~d~~ $e$",
        "_word_ of site_1 and __two__",
        "a|b \\| c\\",
    ],
)
def test_markdown_shows_a_text_letter_by_letter(text):
    shown = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(f"{markdown_text(text)} |\n---|")
    assert re.findall("<th>(.*)</th>", shown) == [html.escape(text, quote=False)]
