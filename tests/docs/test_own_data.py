# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The pictures of the page of own data: one for each command, small, and without an image or a path of the machine."""

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("draw_own_data", ROOT / "docs" / "draw_own_data.py")
own_data = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(own_data)
PAGE = (ROOT / "docs" / "own_data.md").read_text()


@pytest.mark.parametrize("command", own_data.COMMANDS)
def test_the_page_has_the_command_with_its_picture(command):
    picture = own_data.FOLDER / f"{command}.svg"
    assert own_data.COMMANDS[command] in PAGE
    assert f"](own/{command}.svg)" in PAGE
    text = picture.read_text()
    ElementTree.fromstring(text)
    assert not re.search(r"/tmp|/home|/work|/root|<image", text)


def test_the_pictures_are_small():
    assert sum(file.stat().st_size for file in own_data.FOLDER.iterdir()) < 400_000


def test_a_terminal_has_the_words_at_their_columns_and_nothing_that_moves_the_cursor():
    printed = "\x1b[?25l\x1b[2K\x1b[1msite    <a>\x1b[0m\nnorth  5 of 6\n\x1b[?25h"
    drawn = ElementTree.fromstring(own_data.terminal("fedpeft data", printed))
    texts = [(e.text, float(e.get("x")), e.get("class")) for e in drawn if e.tag.endswith("text")]
    left = own_data.MARGIN
    column = own_data.WIDTH
    assert texts == [
        ("$ fedpeft data", left, "b"),
        ("site", left, "b"),
        ("<a>", pytest.approx(left + 8 * column, abs=0.1), "b"),
        ("north", left, None),
        ("5 of 6", pytest.approx(left + 7 * column, abs=0.1), None),
    ]
