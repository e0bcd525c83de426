# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What all pages share: the frame, pictures and tables. A page is one file that loads nothing and has no script."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from fedpeft.report.style import STYLE
from fedpeft.report.table import AVERAGED, Table
from fedpeft.report.wording import percent

JOINER = "\u2060"  # of no width; a browser does not break a line beside it
# even if a name slipped through unescaped, the browser would load and run nothing
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """PNG files of one picture: for light pages and print, and for dark pages; the same for narrow screens.

    The page has the title and the warning, so the pictures have none; `caption` stands below them.
    """

    light: bytes
    dark: bytes
    narrow: bytes | None = None
    narrow_dark: bytes | None = None
    caption: str = ""


def document(title: str, body: str, *, more_style: str = "") -> str:
    """Return a page.

    Args:
        title: text.
        body: HTML.
        more_style: beside the style sheet that all pages have.
    """
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
    return f'<p class="warning">{escape(text[0].upper() + text[1:])}.</p>' if text else ""


def headline(lead: str, figures: Mapping[str, float | None]) -> str:
    """Return fractions in large type, in percent, under a line that says what they are."""
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{percent(value)}{'' if value is None else '<i>%</i>'}</dd></div>"
        for name, value in figures.items()
    )
    return f'<p class="lead">{escape(lead)}</p>\n<dl class="figures">{cells}</dl>'


def figure(picture: Picture, described: str) -> str:
    """Return a picture with its description for those who do not see it."""
    dark, small = "(prefers-color-scheme: dark)", "(max-width: 40rem)"
    sources = (
        (picture.narrow_dark, f"screen and {small} and {dark}"),
        (picture.narrow, f"screen and {small}"),
        (picture.dark, f"screen and {dark}"),
    )
    others = "".join(f'<source media="{media}" srcset="{_png(file)}">' for file, media in sources if file)
    kind = "wide" if picture.narrow else "wide broad"
    below = f"<figcaption>{escape(picture.caption)}</figcaption>" if picture.caption else ""
    return (
        f'<figure><div class="{kind}"><picture>{others}<img src="{_png(picture.light)}" alt="{escape(described)}">'
        f"</picture></div>{below}</figure>"
    )


def embedded(file: bytes, kind: str) -> str:
    """Return an image file as the address of an image; `kind` is its format, such as png."""
    return f"data:image/{kind};base64,{base64.b64encode(file).decode()}"


def laid_out(table: Table) -> str:
    """Return a table; on narrow screens its rows stand one below the other, where they are not rounds or shades."""
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
    marks = f'<p class="caption">{escape(table.marks)}</p>' if table.marks else ""
    return (
        f'<div class="wide"><table class="{layout}"><thead><tr>{heads}</tr></thead>'
        f"\n<tbody>\n{rows}\n</tbody></table></div>{marks}"
    )


def _cell(text: str, *, best: bool) -> str:
    shown = escape(text).replace(" ± ", "&nbsp;±&nbsp;")
    return f"<strong>{shown}</strong>" if best else shown


def _whole(head: str) -> str:
    """Return what stands over a figure on a narrow screen, with words that a browser does not break at - or /."""
    return re.sub(r"(?<=\S)[-/](?=\S)", f"\\g<0>{JOINER}", head)


def _png(file: bytes) -> str:
    return embedded(file, "png")
