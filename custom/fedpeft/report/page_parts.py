# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What all pages share: the frame, pictures, tables and the style sheet, light and dark.

A page is one file that loads nothing and has no script; its style sheet names no font, picture or other file.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import NamedTuple

from fedpeft.core.text import capitalized
from fedpeft.report.tables import AVERAGED, Table
from fedpeft.report.wording import percent

STYLE = """\
:root {
  --paper: #ffffff; --ink: #1a1a1a; --soft: #5c5c5c; --line: #e2e2e2; --warn: #8a3600; --warn-paper: #fff4ea;
  --shade: rgb(0 0 0 / .22);
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #16181c; --ink: #f2f2f2; --soft: #a8abb2; --line: #30343b; --warn: #ffb070; --warn-paper: #2b2118;
    --shade: rgb(255 255 255 / .28);
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 64rem; padding: 2.5rem 1.5rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif;
}
h1 { margin: 0; font-size: 1.75rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 0 0 .75rem; font-size: 1.05rem; }
a { color: inherit; text-underline-offset: .15em; }
.live { margin: 0 0 1.5rem; color: var(--soft); overflow-wrap: anywhere; }
section { margin-top: 2.75rem; }
.method { margin: .25rem 0 0; color: var(--soft); overflow-wrap: anywhere; }
.warning {
  margin: 1rem 0 0; padding: .6rem .9rem; border-left: 4px solid var(--warn); background: var(--warn-paper);
  color: var(--warn); font-weight: 600;
}
.lead { margin: 2rem 0 .5rem; color: var(--soft); }
.figures { display: flex; flex-wrap: wrap; gap: .5rem 3.5rem; margin: 0; }
.figures dt { font-size: .875rem; color: var(--soft); }
.figures dd { margin: 0; font-size: 2.25rem; line-height: 1.15; font-variant-numeric: tabular-nums; }
.figures i { font-style: normal; margin-left: .1em; font-size: 1.25rem; color: var(--soft); }
figure { margin: 0; }
img { display: block; width: 100%; height: auto; }
figcaption, .caption { margin: .5rem 0 0; font-size: .8125rem; color: var(--soft); overflow-wrap: anywhere; }
/* a shadow at the edge behind which a wide table or picture goes on */
.wide {
  overflow-x: auto; scrollbar-width: thin; scrollbar-color: var(--soft) transparent;
  background:
    linear-gradient(to right, var(--paper) 30%, transparent) left / 2.5rem 100% no-repeat local,
    linear-gradient(to left, var(--paper) 30%, transparent) right / 2.5rem 100% no-repeat local,
    linear-gradient(to right, var(--shade), transparent) left / .75rem 100% no-repeat scroll,
    linear-gradient(to left, var(--shade), transparent) right / .75rem 100% no-repeat scroll;
}
table { border-collapse: separate; border-spacing: 0; font-size: .9375rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .9rem; text-align: right; white-space: nowrap; }
thead th { border-bottom: 1.5px solid var(--ink); font-weight: 600; vertical-align: bottom; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
th:first-child { padding-left: 0; text-align: left; font-weight: 400; }
thead th:first-child { font-weight: 600; }
tr.mean > * { font-weight: 600; }
tbody tr:not(.mean) + .mean > * { border-top: 1.5px solid var(--ink); }
.by-round th, .by-round td { padding-right: .5rem; }
.by-round th + th, .by-round td { padding-left: .5rem; }
.by-round thead th { white-space: normal; }
.by-round th:last-child, .by-round td:last-child { font-weight: 600; }
.by-round tbody th { color: var(--soft); }
.shaded th, .shaded td { padding: .3rem .35rem; }
.shaded td { min-width: 2.4em; font-size: .8125rem; text-align: center; print-color-adjust: exact; }
.shade-0 { background: #08306b; color: #ffffff; }
.shade-1 { background: #2f6fae; color: #ffffff; }
.shade-2 { background: #7db3dc; color: #1a1a1a; }
.shade-3 { background: #c3dbee; color: #1a1a1a; }
.shade-4 { background: #f1f6fb; color: #1a1a1a; }
.settings th { color: var(--soft); vertical-align: top; }
.settings td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.rejected { margin: 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
@media screen and (max-width: 40rem) {
  body { padding: 1.5rem 1rem 3rem; }
  .figures { gap: .5rem 2rem; }
  .by-round { font-size: .8125rem; }
  .by-round th, .by-round td { padding-right: .3rem; }
  .by-round th + th, .by-round td { padding-left: .3rem; }
  .shaded th { padding: .2rem .1rem; font-size: .75rem; text-align: center; }
  .shaded th:first-child { padding-left: 0; min-width: 5.5rem; text-align: left; }
  .shaded th:first-child { white-space: normal; overflow-wrap: break-word; }
  .shaded td { min-width: 1.9em; padding: .2rem .1rem; font-size: .75rem; }
  /* every row is a block: its name, and below it each figure under what it is */
  .rows, .rows tbody { display: block; }
  .rows thead { display: none; }
  .rows tr { display: flex; flex-wrap: wrap; gap: .25rem .5rem; padding: .6rem 0; }
  .rows tr + tr { border-top: 1px solid var(--line); }
  .rows tr:not(.mean) + .mean { border-top: 1.5px solid var(--ink); }
  .rows tbody tr > *, .rows tbody tr:not(.mean) + .mean > * {
    display: block; border: 0; padding: 0; text-align: left; white-space: normal;
    /* as wide as its longest word, which breaks only if it is wider than the screen */
    flex: 0 0 5.25rem; max-width: 100%; overflow-wrap: break-word;
  }
  .rows tbody tr > th, .rows tbody tr:not(.mean) + .mean > th { flex-basis: 100%; font-weight: 600; }
  .rows td::before {
    content: attr(data-head); display: block; font-size: .75rem; font-weight: 400; color: var(--soft);
  }
  .settings, .settings tbody { display: block; }
  .settings tr { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem; padding: .3rem 0; }
  .settings tr + tr { border-top: 1px solid var(--line); }
  .settings tbody tr > * { border: 0; padding: 0; text-align: left; white-space: normal; overflow-wrap: anywhere; }
  .broad img { width: 40rem; max-width: none; }
}
@media print {
  @page { margin: 1.5cm; }
  body { padding: 0; max-width: none; font-size: 10pt; }
  h1, h2, .lead { break-after: avoid; }
  figure, tr { break-inside: avoid; }
  section { margin-top: 1.5rem; }
  .wide { overflow: visible; background: none; }
  table { font-size: 8.5pt; }
  th, td { padding: .15rem .4rem; white-space: normal; }
  thead { display: table-header-group; }
}
"""


JOINER = "\u2060"  # of no width; a browser does not break a line beside it
# even if a name slipped through unescaped, the browser would load and run nothing
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Picture(NamedTuple):
    """An SVG file without title and warning, which the page has."""

    svg: bytes
    caption: str = ""  # below it
    section: str = ""  # title of its section
    described: str = ""  # for those who do not see it


def page_of(
    title: str,
    heading: str,
    about: str,
    *,
    sections: Iterable[str],
    warnings: Iterable[str] = (),
    figures: str = "",
    top: str = "",
    more_style: str = "",
) -> str:
    """Return a page with a header, its most important figures and its sections; the last four are HTML."""
    sections = "\n".join(filter(None, sections))
    return document(
        title,
        f"""{top}<header>
<h1>{escape(heading)}</h1>
<p class="method">{escape(about)}</p>
{"".join(map(warning, warnings))}
</header>
<main>
{figures}
{sections}
</main>""",
        more_style=more_style,
    )


def document(title: str, body: str, *, more_style: str = "") -> str:
    """Return a page with the style sheet that all have, `more_style`, and a body of HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>
{STYLE}{more_style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def section(title: str, content: str) -> str:
    """Return a part of a page under a heading; `content` is HTML."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def warning(text: str) -> str:
    """Return a sentence that stands out; empty for none."""
    return f'<p class="warning">{escape(capitalized(text))}.</p>' if text else ""


def headline(lead: str, figures: Mapping[str, float | None]) -> str:
    """Return fractions in large type, in percent, under a line that says what they are."""
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{percent(value)}{'' if value is None else '<i>%</i>'}</dd></div>"
        for name, value in figures.items()
    )
    return f'<p class="lead">{escape(lead)}</p>\n<dl class="figures">{cells}</dl>'


def figure(picture: Picture, described: str) -> str:
    """Return a picture with its description for those who do not see it."""
    below = f"<figcaption>{escape(picture.caption)}</figcaption>" if picture.caption else ""
    shown = f'<img src="{embedded(picture.svg, "svg+xml")}" alt="{escape(described)}">'
    return f'<figure><div class="wide broad">{shown}</div>{below}</figure>'


def embedded(file: bytes, kind: str) -> str:
    """Return an image file as the address of an image; `kind` is its format, such as png."""
    return f"data:image/{kind};base64,{base64.b64encode(file).decode()}"


def laid_out(table: Table) -> str:
    """Return a table as HTML; on narrow screens each row becomes a block, except for rounds and shades."""
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.columns)
    by_round = table.columns[0] == "round" and all(row[0].isdigit() for row in table.rows)
    layout = "shaded" if table.shades else "by-round" if by_round else "rows"
    first_mean = len(table.rows) - table.averages
    lines = []
    for index, row in enumerate(table.rows):
        kind = ' class="mean"' if index >= first_mean and row[0] in AVERAGED else ""
        shades = [f' class="shade-{shade}"' for shade in table.shades[index]] if table.shades else [""] * len(row[1:])
        cells = "".join(
            f'<td{shade} data-head="{escape(_whole(head))}">{_cell(cell, best=(index, column) in table.best)}</td>'
            for column, (shade, head, cell) in enumerate(zip(shades, table.columns[1:], row[1:], strict=True), 1)
        )
        lines.append(f'<tr{kind}><th scope="row">{escape(row[0])}</th>{cells}</tr>')
    rows = "\n".join(lines)
    marks = "".join(f'<p class="caption">{escape(line)}</p>' for line in (table.marks, *table.notes) if line)
    return (
        f'<div class="wide"><table class="{layout}"><thead><tr>{heads}</tr></thead>'
        f"\n<tbody>\n{rows}\n</tbody></table></div>{marks}"
    )


def _cell(text: str, *, best: bool) -> str:
    shown = escape(text).replace(" ± ", "&nbsp;±&nbsp;")
    return f"<strong>{shown}</strong>" if best else shown


def _whole(head: str) -> str:
    """Return the label of a figure on a narrow screen, with words that a browser does not break at - or /."""
    return re.sub(r"(?<=\S)[-/](?=\S)", f"\\g<0>{JOINER}", head)
