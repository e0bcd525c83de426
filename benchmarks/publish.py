# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What docs and `benchmarks/results/*.md` show of the results: tables between two marks of a page, and pictures.

    python benchmarks/publish.py            # names the pages and pictures that are not those of the results
    python benchmarks/publish.py --write    # writes tables and pictures

The results come from `learning.py --study`, `choices.py`, `cases.py`, `real_images.py`, `rates.py`, `merging.py`,
`gpu.py --write` and `learning.py --methods all`. A table stands between `<!-- results: NAME -->` and `<!-- end -->`;
where its results are missing, a line says so. A picture's file says which results it was drawn from.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import cases
import cases_picture
import choices
import every_method
import found_picture
import gpu
import json_lines
import learning
import merging
import merging_picture
import rates
import real_images
import study
import study_picture
from matplotlib.figure import Figure
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
WITH_TABLES = ("study", "choices", "methods", "cases", "real_images", "merging")
PAGES = (
    Path("docs/benchmarks.md"),
    Path("docs/speed.md"),
    *(Path(f"benchmarks/results/{name}.md") for name in WITH_TABLES),
)
MARKED = re.compile(r"<!-- results: (?P<name>.*?) -->.*?<!-- end -->", re.DOTALL)
NONE = "(no results yet)"
DPI = 200
DRAWN_FROM = "Source"  # a PNG's own field


def tables() -> dict[str, str]:
    """Name -> tables in Markdown."""
    every_run = json_lines.read(study.RESULTS)
    runs, tuned = study.alike(every_run), study.tuned(every_run)
    compared = [run for run in json_lines.read(every_method.RESULTS) if run["overrides"] == every_method.SETTINGS]
    order = list(every_method.EVERY)
    compared.sort(key=lambda run: (order.index(run["method"]), run["seed"]))
    tried = json_lines.read(every_method.RATES)
    pictures = json_lines.read(real_images.RESULTS)
    real = (*real_images.tables(pictures), *real_images.rates(pictures))
    return {
        **{table.title: table.markdown() if table.rows else NONE for table in real},
        **{
            f"headline, {rounds} rounds{rate}": study.headline(some, rounds).markdown() if some else NONE
            for rounds in (study.LONG, study.SHORT)
            for rate, some in (("", tuned), (", one rate", runs))
        },
        "aims": study.aims(tuned).markdown() if tuned else NONE,
        "aims, one rate": study.aims(runs).markdown() if runs else NONE,
        "each rate": study.at_each_rate(every_run).markdown() if every_run else NONE,
        "rounds": study.by_round(every_run).markdown() if every_run else NONE,
        "study": "\n\n".join(table.section() for table in study.groups(runs)) or NONE,
        "tuned": "\n\n".join(table.section() for table in study.groups(tuned)) or NONE,
        "cases": "\n\n".join(table.section() for table in cases.tables(cases.read())) or NONE,
        "methods": learning.report(compared, every_method.BASELINES, variants=True).markdown() if compared else NONE,
        "choices": "\n\n".join(table.section() for table in choices.tables(json_lines.read(choices.RESULTS))) or NONE,
        "merging": "\n\n".join(one.section() for one in merging.tables(merging.published())) or NONE,
        "gpu": gpu.section(gpu.RESULTS) or NONE,
        "rates": rates.table(tried).section() if tried else NONE,
    }


def pictures() -> dict[Path, tuple[tuple[Path, ...], Callable[[], Figure]]]:
    """Picture under the project -> its results, and what draws it; of what there are results for."""
    drawn: dict[Path, tuple[tuple[Path, ...], Callable[[], Figure]]] = {}
    if runs := study.tuned(json_lines.read(study.RESULTS)):
        drawn[Path("docs/study.png")] = (study.RESULTS,), lambda: study_picture.draw(runs)
    if any(run["lines"] for run in cases.read()):
        drawn[Path("docs/barriers.png")] = (cases.RESULTS,), lambda: cases_picture.draw(cases.read())
        alone = partial(cases_picture.draw, cases.read(), ["tuned_before"], width=5)
        drawn[Path("docs/tuned_before.png")] = (cases.RESULTS,), alone
    if merged := merging.published():
        drawn[Path("docs/merging.png")] = (merging.RESULTS,), lambda: merging_picture.draw(merged)
    real, studied = json_lines.read(real_images.RESULTS), json_lines.read(study.RESULTS)
    if real and studied:
        drawn[Path("docs/found.png")] = (
            (real_images.RESULTS, study.RESULTS),
            lambda: found_picture.draw(real, studied),
        )
    return drawn


def drawn_from(picture: Path) -> str | None:
    """What a picture says about the results that it was drawn from; None: there is no picture, or it says nothing."""
    if not picture.exists():
        return None
    with Image.open(picture) as opened:
        return opened.info.get(DRAWN_FROM)


def stale_pictures() -> list[Path]:
    """Pictures under the project that were drawn from other results than those that are there."""
    return [file for file, (results, _) in pictures().items() if drawn_from(ROOT / file) != source_of(results)]


def source_of(results: Sequence[Path]) -> str:
    """What a picture of these results says about them."""
    return "; ".join(f"{one.name}, SHA-256 {hashlib.sha256(one.read_bytes()).hexdigest()}" for one in results)


def pages() -> dict[Path, str]:
    """Page under the project -> its text with the tables of the results.

    Raises:
        KeyError: a page has a mark of another name than those of `tables`.
    """
    named = tables()
    return {page: MARKED.sub(lambda mark: _marked(mark["name"], named), (ROOT / page).read_text()) for page in PAGES}


def _marked(name: str, named: dict[str, str]) -> str:
    return f"<!-- results: {name} -->\n\n{named[name]}\n\n<!-- end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write tables and pictures")
    chosen = parser.parse_args()
    changed = {page: text for page, text in pages().items() if text != (ROOT / page).read_text()}
    if chosen.write:
        for page, text in changed.items():
            (ROOT / page).write_text(text)
        for file, (results, draw) in pictures().items():
            draw().savefig(ROOT / file, dpi=DPI, metadata={DRAWN_FROM: source_of(results)})
    elif others := [*changed, *stale_pictures()]:
        names = ", ".join(map(str, others))
        raise SystemExit(f"Not what benchmarks/results says: {names}. Run it with --write.")


if __name__ == "__main__":
    main()
