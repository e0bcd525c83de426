# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""papers.md has a row for each table and figure of the three papers, and each of its commands is one that can run."""

import argparse
import importlib
import os
import re
import shlex
from pathlib import Path

import pytest

from fedpeft.cli import _parser
from fedpeft.compare.command import _plan
from fedpeft.compare.grid import axis_of
from fedpeft.job.composing import compose, known_jobs, name_of

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "app_configs"
NUMBERED = {  # tables and figures of each paper; of F3OCUS those of the supplement
    "FedPIA": {"Table": 5, "Figure": 4},
    "F3OCUS": {"Table": 7, "Figure": 18},
    "Vision transformers": {"Table": 2, "Figure": 4},
}
SPAN = re.compile(r"`([^`]+)`")
PROGRAMS = ("fedpeft ", "python ")
UNNAMED = re.compile(
    r"the papers?'s? (own )?(form|way|version)\b|(published|frozen-global) form|FedPIA's (clients|frozen)",
    re.IGNORECASE,
)


def sections() -> dict[str, list[list[str]]]:
    """The rows of the table of each paper, as their cells."""
    page = (ROOT / "docs" / "papers.md").read_text()
    found = {}
    for part in page.split("\n## ")[1:]:
        title, *lines = part.splitlines()
        rows = [line.strip("|").split(" | ") for line in lines if line.startswith("|")]
        found[title] = [[cell.strip() for cell in row] for row in rows[2:]]
    return found


SECTIONS = sections()
ROWS = [(paper, *row) for paper, rows in SECTIONS.items() for row in rows]
COMMANDS = sorted({span for row in ROWS for cell in row for span in SPAN.findall(cell) if span.startswith(PROGRAMS)})


def named(paper: str) -> set[str]:
    """The tables and figures that the rows of a paper name, `Table 1`."""
    found = set()
    for row in SECTIONS[paper]:
        title = row[0].partition(":")[0]
        for kind, listed in re.findall(r"(Table|Figure)s? (\d+(?:\([a-z]\)|, \(?\d*[a-z]?\)?| to \d+)*)", title):
            for first, last in re.findall(r"(\d+)(?: to (\d+))?", listed):
                found |= {f"{kind} {number}" for number in range(int(first), int(last or first) + 1)}
    return found


@pytest.mark.parametrize(("paper", "kinds"), NUMBERED.items())
def test_every_table_and_figure_has_a_row(paper, kinds):
    wanted = {f"{kind} {number}" for kind, count in kinds.items() for number in range(1, count + 1)}
    assert named(paper) == wanted


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}, {row[1]}")
def test_every_row_has_a_command_for_the_embedded_data(row):
    _, _, published, embedded, differs = row
    commands = published if embedded == "the same" else embedded
    assert any(span.startswith(PROGRAMS) for span in SPAN.findall(commands))
    assert published.startswith(("`", "as "))
    assert differs


def rows_of(cell: str) -> set[str]:
    """The rows of the first comparison in a cell, without what a small backbone and its data need."""
    command = next((c for c in SPAN.findall(cell) if c.startswith("fedpeft compare")), "")
    if not command:
        return set()
    chosen = _parser().parse_args(shlex.split(command)[1:])
    rows = [*(chosen.methods or "").split(","), *(text.partition(":")[2].strip() for text in chosen.variant)]
    small = re.compile(r"\+kernel_of_outputs| training\.learning_rate=1e-3")
    return {small.sub("", row) for row in rows if row}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}, {row[1]}")
def test_a_row_says_where_the_embedded_command_leaves_out_some_of_the_papers(row):
    _, _, published, embedded, differs = row
    if embedded != "the same" and rows_of(published) - rows_of(embedded):
        assert re.search("embedded|as above", differs)


def test_every_job_that_the_page_names_exists():
    page = (ROOT / "docs" / "papers.md").read_text()
    jobs = set(re.findall(r"\bjobs/((?:paper/)?\w+)", page))
    assert jobs
    assert jobs <= set(known_jobs(CONFIGS))


class Parsed(Exception):
    """A program has read its command line."""


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_read_by_its_program(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(os.path.expandvars(command))
    if program == "fedpeft":
        chosen = _parser().parse_args(words)
        if words[0] == "compare":  # composes every run, so that what is wrong is found before the first one
            assert _plan(chosen, axis_of(chosen.sweep, option="--sweep") if chosen.sweep else None)
        elif words[0] == "simulate":
            assert compose(CONFIGS, name_of(chosen.job), chosen.set)
        return
    file, *words = words
    assert (ROOT / file).is_file()
    if not file.startswith("benchmarks/"):
        assert not words
        return
    read = argparse.ArgumentParser.parse_args

    def parse(parser, arguments=None, namespace=None):
        read(parser, words if arguments is None else arguments, namespace)
        raise Parsed

    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    with pytest.raises(Parsed):
        importlib.import_module(Path(file).stem).main()


@pytest.mark.parametrize("column", [1, 2], ids=["the paper's data", "embedded"])
@pytest.mark.parametrize("paper", SECTIONS)
def test_a_run_that_a_row_reports_on_is_made_by_a_command_of_its_column(paper, column):
    commands = [shlex.split(c) for row in SECTIONS[paper] for c in SPAN.findall(row[column]) if c in COMMANDS]
    read = [_parser().parse_args(words[1:]) for words in commands if words[0] == "fedpeft"]
    made = {chosen.workspace.name for chosen in read if hasattr(chosen, "engine")}
    assert {chosen.run.name for chosen in read if hasattr(chosen, "surface") or hasattr(chosen, "examples")} <= made


PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(path for folder, kind in (("app_configs", "*.yml"), ("custom", "*.py"), ("benchmarks", "*.py"))
      for path in sorted((ROOT / folder).rglob(kind))),
]  # fmt: skip


def test_no_sentence_says_the_papers_form_without_naming_the_reading():
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
    assert {name for name, text in texts.items() if UNNAMED.search(" ".join(text.split()))} == set()
