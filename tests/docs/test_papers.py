# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""papers.md has a row for each table and figure of the three papers, and each of its commands is one that can run."""

import argparse
import importlib
import os
import re
import shlex
import subprocess
from functools import cache
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
F3OCUS_TASKS = [f"f3ocus_task{n}" for n in range(1, 7)]
CENTERS = ["vit_ham10000", "vit_fed_isic2019", "vit_caltech101", "vit_flowers102"]
JOBS = {  # whose figures they have, where one command names one job
    ("FedPIA", "Table 1"): ["fedpia_task1", "fedpia_task1_albef"],
    ("FedPIA", "Table 2"): ["fedpia_task2"],
    ("FedPIA", "Table 3"): ["fedpia_task3", "fedpia_task4"],
    ("FedPIA", "Table 4"): ["fedpia_task5"],
    ("FedPIA", "Table 5"): [f"fedpia_task{n}{model}" for n in range(1, 6) for model in ("", "_albef")],
    ("FedPIA", "Figure 3"): ["fedpia_task1", "fedpia_task3"],
    ("FedPIA", "Figure 4"): ["fedpia_task5"],
    ("F3OCUS", "main, Table 2"): [task + m for task in F3OCUS_TASKS for m in ("", "_albef", "_llava", "_blip2")],
    ("F3OCUS", "Table 1"): F3OCUS_TASKS[:2],
    ("F3OCUS", "Table 2"): F3OCUS_TASKS[3:5],
    ("F3OCUS", "Figure 1"): F3OCUS_TASKS[:2],
    ("F3OCUS", "Figure 3"): F3OCUS_TASKS[3:5],
    ("F3OCUS", "Table 3"): [task + model for task in F3OCUS_TASKS for model in ("", "_blip2")],
    ("F3OCUS", "Table 4"): [task + model for task in F3OCUS_TASKS for model in ("", "_blip2")],
    ("F3OCUS", "Table 6"): F3OCUS_TASKS,
    **{("F3OCUS", f"Figure {n}"): ["f3ocus_task4_llava"] for n in range(8, 14)},
    ("F3OCUS", "Figure 14"): ["f3ocus_task5", "f3ocus_task5_blip2"],
    ("Vision transformers", "Table 1"): CENTERS,
    ("Vision transformers", "Table 2"): CENTERS[:2],
    ("Vision transformers", "Figure 3"): CENTERS,
}
PAGE = (ROOT / "docs" / "papers.md").read_text()
QUICK = re.search(r'^QUICK="(.+)"$', PAGE, re.MULTILINE)[1]
SPAN = re.compile(r"`([^`]+)`")
PROGRAMS = ("fedpeft ", "python ")
LOOP = "for "
UNNAMED = re.compile(
    r"the papers?'s? (own |literal )?(form|way|version)\b|(published|frozen-global) form|FedPIA's (clients|frozen)"
    r"|FedPIA, (mean|median)\b",
    re.IGNORECASE,
)


def sections() -> dict[str, list[list[str]]]:
    """The rows of the table of each paper, as their cells."""
    found = {}
    for part in PAGE.split("\n## ")[1:]:
        title, *lines = part.splitlines()
        rows = [line.strip("|").split(" | ") for line in lines if line.startswith("|")]
        found[title] = [[cell.strip() for cell in row] for row in rows[2:]]
    return found


@cache
def looped(loop: str) -> list[str]:
    """The commands that bash runs in a loop of the page, without running them."""
    say = 'say() { printf "%s\\0" "$@"; echo; }; fedpeft() { say fedpeft "$@"; }; python() { say python "$@"; }; '
    said = subprocess.run(["bash", "-euc", say + loop], capture_output=True, text=True, check=True)
    return [shlex.join(line.split("\0")[:-1]) for line in said.stdout.splitlines()]


def commands(cell: str) -> list[str]:
    """The commands in a cell, those of a loop one by one."""
    spans = [span.replace("$QUICK", QUICK) for span in SPAN.findall(cell) if span.startswith((*PROGRAMS, LOOP))]
    return [one for span in spans for one in (looped(span) if span.startswith(LOOP) else [span])]


SECTIONS = sections()
ROWS = [(paper, *row) for paper, rows in SECTIONS.items() for row in rows]
COMMANDS = sorted({command for row in ROWS for cell in row for command in commands(cell)})


def names(title: str) -> set[str]:
    """The tables and figures that a row names, `Table 1`."""
    found = set()
    for kind, listed in re.findall(
        r"(Table|Figure)s? (\d+(?:\([a-z]\)|, \(?\d*[a-z]?\)?| to \d+)*)", title.partition(":")[0]
    ):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", listed):
            found |= {f"{kind} {number}" for number in range(int(first), int(last or first) + 1)}
    return {f"main, {name}" for name in found} if title.startswith("main, Table") else found


def named(paper: str) -> set[str]:
    """The tables and figures that the rows of a paper name, without those of the main paper of F3OCUS."""
    return {name for row in SECTIONS[paper] for name in names(row[0]) if not name.startswith("main")}


@pytest.mark.parametrize(("paper", "kinds"), NUMBERED.items())
def test_every_table_and_figure_has_a_row(paper, kinds):
    wanted = {f"{kind} {number}" for kind, count in kinds.items() for number in range(1, count + 1)}
    assert named(paper) == wanted


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}, {row[1]}")
def test_every_row_has_a_command_for_the_embedded_data(row):
    _, _, published, embedded, differs = row
    assert commands(published if embedded == "the same" else embedded)
    assert published.startswith(("`", "as "))
    assert differs


def rows_of(cell: str) -> set[str]:
    """The rows of the first comparison in a cell, without what a small backbone and its data need."""
    command = next((c for c in commands(cell) if c.startswith("fedpeft compare")), "")
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


def test_each_embedded_comparison_can_be_shortened_to_minutes():
    for _, _, published, embedded, _ in ROWS:
        assert "$QUICK" not in published
        compared = [one for one in commands(embedded) if one.startswith("fedpeft compare")]
        assert all(one.endswith(QUICK) for one in compared)


@pytest.mark.parametrize(("paper", "name"), JOBS, ids=", ".join)
def test_each_task_of_a_table_has_a_command(paper, name):
    rows = [row for row in SECTIONS[paper] if name in names(row[0])]
    full = {job for row in rows for command in commands(row[1]) for job in jobs_of(command)}
    assert full == {f"paper/{job}" for job in JOBS[paper, name]}
    embedded = {job for row in rows for command in commands(row[2]) for job in jobs_of(command)}
    small = {job if job in known_jobs(CONFIGS) else job.rpartition("_")[0] for job in JOBS[paper, name]}
    assert embedded == small


def test_each_adapter_of_a_figure_has_a_command():
    (row,) = (row for row in SECTIONS["F3OCUS"] if "Figure 11" in names(row[0]))
    for cell in row[1:3]:
        adapters = [re.findall(r" method\.name=(\w+)", command) for command in commands(cell)]
        assert adapters == [["houlsby"], ["compacter"], ["parallel"]]


def jobs_of(command: str) -> list[str]:
    return re.findall(r"\bjobs/((?:paper/)?\w+)", command)


def test_every_job_that_the_page_names_exists():
    jobs = {job for command in COMMANDS for job in jobs_of(command)}
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
            chosen.seeds = 1
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


@pytest.mark.slow
@pytest.mark.parametrize("column", [1, 2], ids=["the paper's data", "embedded"])
@pytest.mark.parametrize("paper", SECTIONS)
def test_a_run_that_a_row_reports_on_is_made_by_a_command_of_its_column(paper, column):
    lines = [shlex.split(command) for row in SECTIONS[paper] for command in commands(row[column])]
    read = [_parser().parse_args(words[1:]) for words in lines if words[0] == "fedpeft"]
    made = {chosen.workspace.name for chosen in read if hasattr(chosen, "engine")}
    assert {chosen.run.name for chosen in read if hasattr(chosen, "surface") or hasattr(chosen, "examples")} <= made


PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks" / "results").glob("*.md")),
    *(path for folder, kind in (("app_configs", "*.yml"), ("custom", "*.py"), ("benchmarks", "*.py"))
      for path in sorted((ROOT / folder).rglob(kind))),
]  # fmt: skip


@pytest.mark.slow
def test_no_sentence_says_the_papers_form_without_naming_the_reading():
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
    assert {name for name, text in texts.items() if UNNAMED.search(" ".join(text.split()))} == set()
