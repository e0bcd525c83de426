# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The tables as GitHub-flavored Markdown."""

from __future__ import annotations

import re

from fedpeft.report.history import History
from fedpeft.report.table import Table
from fedpeft.report.tables import all_tables
from fedpeft.report.wording import caption, not_learning, rejections


def markdown(history: History) -> str:
    """Return all tables with captions: the last round, three accuracies by round; same history, same text."""
    parts = [_markdown_table(table, caption(history)) for table in all_tables(history)]
    if history.scheduled:
        parts.append("![Layer scores, chosen layers and layer use](schedule.png)")
    remarks = [*not_learning(history), *rejections(history)]
    if remarks:
        parts.append("\n".join(f"- {_escape(line)}" for line in remarks))
    return f"# {_escape(history.job)}\n\n" + "\n\n".join(parts) + f"\n\n{_escape(history.source)}\n"


def _markdown_table(table: Table, line: str) -> str:
    rule = [":---"] + ["---:"] * (len(table.columns) - 1)
    rows = [[_escape(cell) for cell in row] for row in (table.columns, *table.rows)]
    rows.insert(1, rule)
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    below = "  \n".join(f"*{_escape(text)}*" for text in (line, table.marks) if text)
    return f"## {_escape(table.title)}\n\n{body}\n\n{below}"


def _escape(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]|~$])", r"\\\1", text)
    # an underscore inside a word is not emphasis, and site_1 reads better than site\_1
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
