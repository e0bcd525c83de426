# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""benchmarks/publish.py: the tables and pictures of docs, and README's intervals, are those of benchmarks/results."""

import re

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def publish(benchmark):
    return benchmark("publish")


def test_the_pages_have_the_tables_of_the_results(publish):
    for page, text in publish.pages().items():
        assert (publish.ROOT / page).read_text() == text, "run `python benchmarks/publish.py --write`"


def test_the_pictures_are_drawn_from_the_results(publish):
    assert publish.stale_pictures() == [], "run `python benchmarks/publish.py --write`"


def test_every_table_stands_somewhere(publish):
    texts = [(publish.ROOT / page).read_text() for page in publish.PAGES]
    named = [mark["name"] for text in texts for mark in publish.MARKED.finditer(text)]
    assert sorted(named) == sorted(publish.tables())


def test_the_readmes_intervals_are_those_of_the_results(publish):
    section = (publish.ROOT / "README.md").read_text().split("## What we found")[1].split("\n## ")[0]
    found = re.findall(r"\d+\.\d ± \d+\.\d", section)
    assert found
    tables = "\n".join(publish.tables().values())
    assert [figure for figure in found if figure not in tables] == []


def test_what_has_no_results_yet_says_so(publish, monkeypatch, tmp_path):
    for module, name in (
        (publish.study, "RESULTS"),
        (publish.choices, "RESULTS"),
        (publish.real_images, "RESULTS"),
        (publish.merging, "RESULTS"),
        (publish.gpu, "RESULTS"),
        (publish.every_method, "RESULTS"),
        (publish.every_method, "RATES"),
    ):
        monkeypatch.setattr(module, name, tmp_path / f"{name}.jsonl")
    monkeypatch.setattr(publish.cases, "read", list)
    assert set(publish.tables().values()) == {publish.NONE}


def test_a_study_that_has_just_begun_can_be_published(publish, monkeypatch, tmp_path):
    monkeypatch.setattr(publish.study, "RESULTS", tmp_path / "study.jsonl")
    monkeypatch.setattr(publish.cases, "read", list)
    monkeypatch.setattr(publish.merging, "RESULTS", tmp_path / "merging.jsonl")
    monkeypatch.setattr(publish.real_images, "RESULTS", tmp_path / "real_images.jsonl")
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    monkeypatch.setattr(publish, "PAGES", ())
    (tmp_path / "docs").mkdir()
    rounds = [{"slake": {"overall": 0.5}}] * 12
    line = {"dialects": 7, "method": "fedavg", "seed": 0, "rate": "8e-3", "rounds": rounds}
    publish.json_lines.append(publish.study.RESULTS, line)
    assert publish.tables()["headline, 12 rounds"] == publish.study.headline([], 12).markdown()
    assert publish.tables()["headline, 12 rounds, one rate"] == publish.NONE
    assert "| fedavg | 50.0 |" in publish.tables()["tuned"]
    picture = publish.Path("docs/study.png")
    assert publish.stale_pictures() == [picture]
    monkeypatch.setattr("sys.argv", ["publish.py", "--write"])
    publish.main()
    assert publish.stale_pictures() == []
    publish.json_lines.append(publish.study.RESULTS, {**line, "method": "ours", "seed": 1})  # no seed in common
    assert publish.stale_pictures() == [picture]
    publish.main()


def test_a_changed_page_is_named_and_written(publish, monkeypatch, tmp_path):
    page = publish.PAGES[0]
    (tmp_path / "docs").mkdir()
    (tmp_path / page).write_text("before\n<!-- results: study -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    monkeypatch.setattr(publish, "PAGES", (page,))
    monkeypatch.setattr(publish, "tables", lambda: {"study": "| new |"})
    monkeypatch.setattr(publish, "pictures", dict)
    monkeypatch.setattr("sys.argv", ["publish.py"])
    with pytest.raises(SystemExit, match=r"Not what benchmarks/results says: docs/benchmarks\.md"):
        publish.main()
    monkeypatch.setattr("sys.argv", ["publish.py", "--write"])
    publish.main()
    assert (tmp_path / page).read_text() == "before\n<!-- results: study -->\n\n| new |\n\n<!-- end -->\nafter\n"


def test_rows_of_other_seeds_do_not_stand_side_by_side(benchmark):
    found = benchmark("found_picture")
    lines = [
        {"task": "vqa_rad", "backbone": "mmbt-small", "method": method, "seed": seed, "rate": 3e-3, "rounds": rounds}
        for method, seeds in {"local": 3, "fedavg": 3, "ours": 2}.items()
        for seed in range(seeds)
        for rounds in ([{"slake": {"overall": 0.1 * seed, "validation": 0.5}}],)
    ]
    (panel,) = found.draw(lines, []).axes
    assert panel.get_title(loc="left") == "VQA-RAD\naccuracy %"
    assert len(panel.containers) == 2
