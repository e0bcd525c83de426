# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The command `fedpeft inspect`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedpeft.core.errors import FedpeftError

MAX_EXAMPLES = 50


def add(commands: Any) -> None:
    """Add the command to the command line."""
    inspect = commands.add_parser("inspect", help="write a page of a site's own data and answers, at the site")
    inspect.add_argument("run", type=Path, help="a workspace of fedpeft simulate, or a site's workspace")
    inspect.add_argument("--site", metavar="NAME", help="whose page; needed where a workspace has several sites")
    inspect.add_argument("--out", type=Path, required=True, metavar="FILE.html", help="a new file")
    inspect.add_argument(
        "--examples", type=int, default=0, metavar="N", help="show N images answered right and N answered wrong"
    )
    inspect.add_argument("--round", default="last", metavar="N", help="last (default), best by validation, or a number")
    inspect.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> None:
    _check(arguments)
    from fedpeft.core.console import Console
    from fedpeft.inference.exported import is_exported
    from fedpeft.inference.kept_model import find
    from fedpeft.inference.predict_command import lines
    from fedpeft.inference.site_page.page import write_page
    from fedpeft.inference.site_page.subject import has_projection, subject_of

    if is_exported(arguments.run):
        raise FedpeftError(
            f"{arguments.run} is an exported folder, which does not say where data are: name the run's workspace, "
            "or the site's."
        )
    console = Console()
    kept = find(arguments.run, site=arguments.site, round=arguments.round)
    subject = subject_of(kept, console=console)
    write_page(arguments.out, subject, examples=arguments.examples)
    for line in (*lines(kept.record, kept.state.round, subject.figures, len(subject.predictions)), *subject.remarks):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not has_projection():
        print("no map   of the features without scikit-learn: pip install 'flare-fedpeft[inspect]'")
    print(f"page     {arguments.out}: it shows data of site {kept.record.site} and stays there")


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be done before anything is loaded."""
    if arguments.out.suffix.lower() != ".html":
        raise FedpeftError(f"--out is {str(arguments.out)!r}, it must end in .html.")
    if not 0 <= arguments.examples <= MAX_EXAMPLES:
        raise FedpeftError(f"--examples is {arguments.examples}, it must be from 0 to {MAX_EXAMPLES}.")
    if arguments.out.exists():
        raise FedpeftError(f"{arguments.out} is there already, and nothing is replaced: name a new file.")
    from fedpeft.inference.exported import check_own_place

    check_own_place(arguments.out, holds="the page shows the site's answers")
