# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""benchmarks/merging.py: its class folders, its picture, and the figures that pages quote."""

import re

import pytest


@pytest.fixture
def merging(benchmark):
    return benchmark("merging")


@pytest.mark.slow
def test_class_folders_are_shared_as_fedpeft_new_shares_them(merging, monkeypatch, tmp_path):
    monkeypatch.setattr(merging, "IMAGES", 10)
    sections = merging.sections_of(merging.FOLDERS[0], 3, [], tmp_path)
    assert sections["federation"]["sites"] == ["client-1", "client-2", "client-3", "client-4"]
    assert (sections["data"]["dataset"], sections["data"]["parts"]) == ("class_folders", 4)
    assert sections["backbone"]["name"] == "tiny-vit"
    assert sections["method"]["name"] == "houlsby"
    assert sections["method"]["initialization"] == "own"
    assert sections["training"]["first_epochs"] == 6
    images = {folder.name: len([*folder.iterdir()]) for folder in (tmp_path / "images").iterdir()}
    assert images == {name.replace(" ", "_"): 10 for name in merging.CLASSES}


def test_a_seed_draws_the_same_images_and_another_one_others(merging, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        merging.write_images(tmp_path / name, seed, 1)
    for folder in (tmp_path / "a").iterdir():
        of_class = [(tmp_path / name / folder.name / "000.png").read_bytes() for name in "abc"]
        assert of_class[0] == of_class[1] != of_class[2]


@pytest.mark.slow
def test_merged_adapters_of_class_folders_are_measured(merging, monkeypatch):
    monkeypatch.setattr(merging, "IMAGES", 10)
    monkeypatch.setattr(merging, "HEAD_STEPS", 2)
    result = merging.run(merging.FOLDERS[0], 0, ["training.first_epochs=1"])
    assert [*result["figures"]] == [merging.OWN, merging.MERGED, merging.PLAIN]
    assert all(0 <= figure <= 100 for figures in result["figures"].values() for figure in figures)


def test_every_kind_has_results_of_five_seeds(merging):
    ran = [(one["kind"], one["seed"]) for one in merging.published()]
    assert sorted(ran) == sorted((kind, seed) for kind in merging.KINDS for seed in range(5))


def test_runs_with_other_settings_are_not_published(merging, monkeypatch, tmp_path):
    monkeypatch.setattr(merging, "RESULTS", tmp_path / "merging.jsonl")
    for seed, overrides in enumerate(([], ["training.first_epochs=1"], [])):
        merging.json_lines.append(merging.RESULTS, {"seed": seed, "overrides": overrides})
    assert [one["seed"] for one in merging.published()] == [0, 2]


def test_the_picture_has_a_panel_for_each_kind_and_the_best_of_pefts_ways(merging, benchmark):
    picture = benchmark("merging_picture")
    lora = [
        {"own adapter": [50 + seed, 60], "fedpeft merge": [49, 59], "PEFT svd": [45, 58], "PEFT ties": [46, 57]}
        for seed in (0, 2)
    ]
    results = [{"kind": merging.UNEQUAL, "seed": seed, "figures": one} for seed, one in enumerate(lora)]
    results += [{"kind": "Houlsby", "seed": 0, "figures": {"own adapter": [1, 2], "plain mean": [3, 4]}}]
    panels = picture.draw(results).axes
    assert [panel.get_title(loc="left") for panel in panels] == ["Houlsby", merging.UNEQUAL]
    shown = [picture.shown(results[:2], which) for which in (0, 1)]
    assert [*shown[0]] == [merging.OWN, picture.BEST, merging.MERGED]
    assert [one[picture.BEST][0] for one in shown] == [46, 58]
    assert shown[0][merging.OWN] == pytest.approx((51, 12.706), rel=1e-3)  # Student's t of two values 2 apart


def test_the_pages_quote_the_figures_of_the_results(merging):
    tables = {one.title.split(", seeds")[0]: one.rows for one in merging.tables(merging.published())}
    page = (merging.ROOT / "docs" / "merging.md").read_text()
    assert all(figure in "\n".join(map(str, tables.values())) for figure in re.findall(r"\d+\.\d ± \d\.\d", page))
    for kind, rows in tables.items():
        for column, head in ((1, "the site's head"), (3, "a new head")):
            means = {row[0]: row[column] for row in rows}
            of_peft = sorted(float(mean) for way, mean in means.items() if way.startswith("PEFT"))
            peft = f"{of_peft[0]} to {of_peft[-1]}" if of_peft else ""
            cells = (means[merging.OWN], means[merging.MERGED], means.get(merging.PLAIN, ""), peft)
            assert f"| {kind}, {head} | {' | '.join(cells)} |".replace("  ", " ") in page
    readme = (merging.ROOT / "README.md").read_text().split("## Where alignment matters")[1].split("\n## ")[0]
    readme = " ".join(readme.split())
    lora = {row[0]: row[1] for row in tables[merging.FOLDERS[1]]}
    ties = f"with LoRA {lora[merging.MERGED]} (plain mean {lora[merging.PLAIN]}, PEFT's ties {lora['PEFT ties']})"
    assert ties in readme
    means = {row[0]: row[1] for row in tables[merging.FOLDERS[0]]}
    assert f"{means[merging.MERGED]} % on class folders" in readme
    assert f"adapter {means[merging.OWN]}, plain mean {means[merging.PLAIN]})" in readme
    assert "fedpeft merge site-a site-b site-c --out merged" in readme
