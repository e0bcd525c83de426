# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The page stands alone and says what the history says."""

import base64
import re
from html.parser import HTMLParser

import pytest
from histories import PROCEDURAL, gaps, record

from fedpeft.report.history_reader import parse
from fedpeft.report.outputs import page
from fedpeft.report.page_parts import Picture, laid_out
from fedpeft.report.plots import pictures
from fedpeft.report.tables import Table, all_tables

NASTY = (
    "<script>alert(1)</script>",
    "a & b",
    "\"quoted\" 'twice'",
    "https://evil.example/x.png",
    "javascript:alert(1)",
)


class Reader(HTMLParser):
    """Collects tags with attributes, the texts of the table cells and all text outside the style sheet."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.rows, self.text, self.open = [], [], "", []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "source", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data
        if "style" not in self.open:
            self.text += data


PICTURE = {"curves": Picture(b"a picture")}


def read(made):
    return Reader(page(parse(made, origin="h"), PICTURE))


@pytest.mark.parametrize("made", [record(), gaps(), record(NASTY, 2), record(("hospital",), 1)])
def test_tables_and_settings_stand_on_the_page(made):
    history, content = parse(made, origin="h"), read(made)
    tables = [list(line) for table in all_tables(history) for line in (table.columns, *table.rows)]
    assert content.rows[: len(tables)] == tables
    rest = dict(content.rows[len(tables) :])
    assert rest["source"] == made["source"]
    assert rest["method.gamma"] == "0.1"
    assert content.open == []


@pytest.mark.parametrize("made", [record(NASTY, 2), gaps()])
def test_nothing_is_loaded_and_nothing_runs(made):
    html = page(parse(made, origin="h"), PICTURE)
    content = Reader(html)
    assert not {"script", "link", "iframe", "object", "embed", "base", "a", "form", "style-src"} & {
        t for t, _ in content.tags
    }
    for _, attributes in content.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("href", "action", "style")]
        for name in ("src", "srcset"):
            assert attributes.get(name, "data:").startswith("data:")
    style = re.search(r"<style>(.*?)</style>", html, re.S).group(1)
    assert not re.search(r"url\(|@import|//", style)
    policy = [a["content"] for t, a in content.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_names_of_sites_are_escaped():
    html = page(parse(record(NASTY, 1), origin="h"), PICTURE)
    assert "<script" not in html
    assert all(name in read(record(NASTY, 1)).text for name in NASTY)


@pytest.mark.slow
def test_all_pictures_are_embedded_with_a_description(monkeypatch):
    monkeypatch.setattr("fedpeft.report.plots.svg", lambda figure, description: b"a picture")
    history = parse(record(), origin="h")
    content = Reader(page(history, pictures(history)))
    (image,) = [attributes for tag, attributes in content.tags if tag == "img"]
    assert base64.b64decode(image["src"].removeprefix("data:image/svg+xml;base64,")) == b"a picture"
    assert "vqa-med-2021" in image["alt"]


@pytest.mark.parametrize("procedural", [True, False])
def test_the_warning_stands_once_exactly_when_the_data_are_procedural(procedural):
    assert read(record(procedural=procedural)).text.lower().count(PROCEDURAL) == procedural


def test_on_a_narrow_screen_every_figure_stands_under_what_it_is():
    for tag, attributes in read(gaps()).tags:
        if tag == "td" and "data-head" in attributes:
            assert attributes["data-head"]
    table = all_tables(parse(gaps(), origin="h"))[0]
    heads = [a["data-head"] for tag, a in read(gaps()).tags if tag == "td" and "data-head" in a]
    assert tuple(heads[: len(table.columns) - 1]) == table.columns[1:]


def test_on_a_narrow_screen_a_name_does_not_break_at_its_hyphens():
    table = Table(
        title="", columns=("method", "vqa-med-2019", "and/or", "a - b"), rows=(("m", "1 ± 2", "3", "4"),), marks=""
    )
    heads = [a["data-head"] for tag, a in Reader(laid_out(table)).tags if tag == "td"]
    assert heads == ["vqa-\u2060med-\u20602019", "and/\u2060or", "a - b"]
    assert "1&nbsp;±&nbsp;2" in laid_out(table)


def test_a_site_called_mean_is_no_mean():
    rows = [a for tag, a in read(record(("mean",), 1)).tags if tag == "tr" and a.get("class") == "mean"]
    assert len(rows) == 1  # of the last round, whose last row it is


def test_rejected_replies_are_listed():
    assert "ct, rounds 5, 9: reply rejected: layer.3.output.up.weight holds NaN" in read(gaps()).text
    assert "Rejected replies" not in read(record()).text
