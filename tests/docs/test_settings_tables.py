# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The tables of settings say what the dataclasses say, and leave none out."""

import dataclasses
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import generate_settings as generator  # noqa: E402

from fedpeft import importance  # noqa: E402
from fedpeft.methods import METHODS  # noqa: E402
from fedpeft.protocol.types import METRICS, TASKS, TrainReply  # noqa: E402


@pytest.fixture(scope="module")
def tables():
    return generator.tables()


@pytest.mark.slow
@pytest.mark.parametrize("page", generator.PAGES, ids=lambda path: path.name)
def test_pages_hold_the_tables_that_the_code_gives(page, tables):
    text = page.read_text()
    assert generator.filled(text, tables) == text, "run `python docs/generate_settings.py --write`"


@pytest.mark.slow
def test_every_table_is_on_a_page(tables):
    in_pages = {match[2] for page in generator.PAGES for match in generator.BLOCK.finditer(page.read_text())}
    assert in_pages == set(tables)


@pytest.mark.parametrize("section", [name for name in generator.SECTIONS if name != "flare"])
def test_every_setting_is_described(section):
    cls = generator.SECTIONS[section]
    assert set(generator.argument_texts(cls)) == {field.name for field in dataclasses.fields(cls)}


@pytest.mark.parametrize("message", [kind for task in TASKS.values() for kind in task], ids=lambda kind: kind.__name__)
def test_every_field_of_a_message_is_described(message):
    assert set(generator.argument_texts(message)) == {field.name for field in dataclasses.fields(message)}


def test_every_figure_that_leaves_a_site_is_described():
    described = generator.argument_texts(TrainReply)["metrics"]
    assert [name for name in METRICS if f"`{name}`" not in described] == []


def test_every_score_is_in_the_table_of_scores():
    rows = [line.split("|")[1] for line in (DOCS / "importance.md").read_text().splitlines() if line.startswith("| `")]
    assert [name for name in importance.names() if not any(f"`{name}`" in row for row in rows)] == []


@pytest.mark.parametrize("classes", [generator.solver_classes, generator.score_classes])
def test_every_setting_of_a_solver_or_score_is_described(classes):
    for name, cls in classes().items():
        described = [setting.name for setting in generator._dataclass_settings(cls)]
        assert described == [field.name for field in dataclasses.fields(cls)], name


def test_a_methods_own_settings_are_those_that_a_site_lets_a_job_set_and_more():
    for name in METHODS.own_names():
        own = {setting.name for setting in generator.method_settings(name)}
        assert not own or own >= set(METHODS.get(name).limits), name


def test_a_docstrings_arguments_are_read():
    @dataclasses.dataclass(kw_only=True)
    class Example:
        """One line.

        Args:
            a, b: shared,
                over two lines.
            c: a|b.

        Raises:
            ValueError: never.
        """

        a: int
        b: bool = True
        c: str | None = None

    assert generator.argument_texts(Example) == {
        "a": "shared, over two lines.",
        "b": "shared, over two lines.",
        "c": "a|b.",
    }
    assert generator.settings_table(Example).splitlines()[2:] == [
        "| `a` | whole number | required | shared, over two lines. |",
        "| `b` | true, false | `true` | shared, over two lines. |",
        "| `c` | text | none | a\\|b. |",
    ]
