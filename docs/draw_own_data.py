# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/own_data.md: each command of the way from a folder of images to a prediction, run once.

python docs/draw_own_data.py DIR NEW.png PLACE        # writes new, tune, simulate, compare and predict.svg in docs/own

DIR has a folder for each class, NEW.png is one more image, and the commands run in PLACE. They read both under neutral
names, and no image comes into a picture. Each command's time is printed, with the processor time of its processes and
the load of the machine.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from xml.sax.saxutils import escape

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from fedpeft.report.palette import DARK, LIGHT

FOLDER = Path(__file__).parent / "own"
IMAGES, NEW = "scans", "new.png"
COMMANDS = {
    "new": f"fedpeft new own --data {IMAGES} --set training.rounds=5",
    "tune": "fedpeft tune own --over training.learning_rate=1e-3,3e-3,1e-2",
    "simulate": "fedpeft simulate jobs/own -t 2",
    "compare": "fedpeft compare own --methods local,fedavg --seeds 2",
    "predict": f"fedpeft predict simulator_workspace --site client-1 --image {NEW}",
}
DRAWN = {  # by the command itself
    "simulate": "simulator_workspace/server/simulate_job/fedpeft/report/convergence.svg",
    "compare": "comparison/own/comparison.svg",
}
COLUMNS = 100
SIZE, WIDTH, HEIGHT, MARGIN = 13, 7.83, 18, 14  # of letters and their cells, in pixels
CURSOR = re.compile(r"\x1b\[[\d;?]*[A-LN-Za-ln-z]|\r")  # what a progress bar writes beside colors
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def main() -> None:
    """Run the commands, and write a picture of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("images", type=Path, help="a folder of images for each class")
    parser.add_argument("new", type=Path, help="one more image")
    parser.add_argument("place", type=Path, help="a folder to run in")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), help="of a place of before")
    chosen = parser.parse_args()
    place = chosen.place
    for folder in (FOLDER, place):
        folder.mkdir(exist_ok=True)
    if not (place / IMAGES).exists():
        (place / IMAGES).symlink_to(chosen.images.resolve())
    shutil.copy(chosen.new, place / NEW)
    for command in chosen.only:
        printed = run(COMMANDS[command], place)
        picture = FOLDER / f"{command}.svg"
        if command in DRAWN:
            shutil.copy(place / DRAWN[command], picture)
        else:
            picture.write_text(terminal(COMMANDS[command], printed), encoding="utf-8")


def run(line: str, place: Path) -> str:
    """Return what a command prints in a terminal of 100 columns; its time is printed here."""
    command = [sys.executable, "-m", "fedpeft.cli", *shlex.split(line)[1:]]
    colored = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TTY_INTERACTIVE": "0"}
    start, used = time.monotonic(), _processor_seconds()
    done = subprocess.run(command, cwd=place, env=colored, stdout=subprocess.PIPE, text=True, check=True)
    wall, processor = time.monotonic() - start, _processor_seconds() - used
    print(f"{line}: {wall:.0f} s, processor {processor:.0f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    return done.stdout


def terminal(line: str, printed: str) -> str:
    """Return a terminal with a command and what it printed as SVG: text in two weights, for light and dark pages."""
    console = Console(width=COLUMNS, file=StringIO(), force_terminal=True)
    text = Text.assemble((f"$ {line}\n", "bold"), Text.from_ansi(CURSOR.sub("", printed).rstrip()))
    rows = console.render_lines(text, pad=False)
    lines = [piece for number, row in enumerate(rows) for piece in _pieces(row, MARGIN + (number + 0.75) * HEIGHT)]
    width, height = 2 * MARGIN + COLUMNS * WIDTH, 2 * MARGIN + len(rows) * HEIGHT
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}" font-family="{FONT}" font-size="{SIZE}">',
            f"<desc>{escape(text.plain)}</desc>",
            f"<style>rect{{fill:{LIGHT.paper};stroke:{LIGHT.grid}}}text{{fill:{LIGHT.ink};white-space:pre}}"
            f".b{{font-weight:bold}}.d{{fill:{LIGHT.soft}}}@media (prefers-color-scheme:dark){{"
            f"rect{{fill:{DARK.paper};stroke:{DARK.grid}}}text{{fill:{DARK.ink}}}.d{{fill:{DARK.soft}}}}}</style>",
            f'<rect x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="6"/>',
            *lines,
            "</svg>\n",
        )
    )


def _pieces(row: Sequence[Segment], base: float) -> Iterator[str]:
    """Yield words at their own columns, so that tables stay straight in any font."""
    column = 0
    for segment in row:
        style = segment.style
        kind = "b" if style and style.bold else "d" if style and style.dim else ""
        of_kind = f' class="{kind}"' if kind else ""
        for words in re.finditer(r"\S+(?: \S+)*", segment.text):
            left, length = MARGIN + (column + words.start()) * WIDTH, len(words[0]) * WIDTH
            place = f'x="{left:.1f}" y="{base:.1f}" textLength="{length:.1f}"'
            yield f"<text {place}{of_kind}>{escape(words[0])}</text>"
        column += segment.cell_length


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
