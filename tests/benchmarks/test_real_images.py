# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`real_images.py`: the job of each task with a method of the study, and what its tables say; nothing is trained."""

import sys

import pytest

from fedpeft.compare.runs import Variant, sections_of


@pytest.fixture
def real_images(benchmark):
    return benchmark("real_images")


def line(task, method, seed, backbone="mmbt-small", rate=None, figure=0.5, validation=None):
    site = {"overall": figure} | ({} if validation is None else {"validation": validation})
    settings = {"task": task, "backbone": backbone, "method": method, "seed": seed, "rate": rate}
    return settings | {"rounds": [{"a": site, "unvalidated": {"overall": figure}}] * 3}


def test_a_tables_rows_are_compared_with_local_and_averaging(real_images):
    lines = [
        *(line("vqa_rad", "fedavg", seed, figure=0.3 + seed / 100) for seed in (0, 1)),
        *(line("vqa_rad", "local", seed, figure=0.2 + seed / 50) for seed in (0, 1)),
        line("nih_cxr14", "local", 0, figure=0.1),
        line("vqa_rad", "local", 0, "tiny-vilt", figure=0.4),
    ]
    first, tiny, skin, _, chest, _ = real_images.tables(lines)
    assert first.section().startswith("vqa_rad:")
    assert first.rows == [
        ("local", "21.0", "", "-9.5 ± 6.4, two seeds", "the job's", "2"),
        ("fedavg", "30.5", "+9.5 ± 6.4, two seeds", "", "the job's", "2"),
    ]
    assert tiny.section().startswith("vqa_rad tiny-vilt:")
    assert tiny.rows == [("local", "40.0", "", "", "1")]
    assert skin.rows == []
    assert chest.rows == [("local", "10.0", "", "", "the job's", "1")]


def test_a_methods_row_has_the_rate_that_is_best_on_validation(real_images):
    grid = [(1e-3, 0.4, 0.6), (3e-3, 0.5, 0.5)]
    lines = [
        line("vqa_rad", "local", seed, rate=rate, figure=figure, validation=validation)
        for rate, figure, validation in grid
        for seed in (0, 1)
    ]
    incomplete = line("vqa_rad", "local", 0, rate=3e-4, figure=0.9, validation=0.9)
    first, *_ = real_images.tables([*lines, incomplete])
    assert first.rows == [("local", "40.0", "", "", "0.001", "2")]
    unvalidated = line("vqa_rad", "local", 1, rate=1e-2, figure=0.1)
    (tried,) = real_images.rates([*lines, incomplete, unvalidated])
    assert tried.rows == [
        ("local", "0.0003", "90.0", "90.0", "0"),
        ("local", "0.001", "60.0", "40.0", "0, 1"),
        ("local", "0.003", "50.0", "50.0", "0, 1"),
    ]


SCHEMES = ("proximal_mu", "personalization", "ditto_lambda", "ala_rate")  # settings that a method of the study is


@pytest.mark.parametrize("task", ["vqa_rad", "fed_isic2019", "nih_cxr14"])
def test_a_method_of_the_study_has_the_steps_and_the_rate_of_the_tasks_job(real_images, benchmark, task):
    learning = benchmark("learning")
    for method in benchmark("study").METHODS:
        variant = Variant(name=method, method="fedavg", settings=tuple(learning.METHODS[method]))
        sections = sections_of(real_images.ROOT / "app_configs", task, variant, [])
        own = sections_of(real_images.ROOT / "app_configs", task, Variant(name="own", method="fedavg"), [])
        schemes = {name: value for name, value in sections["training"].items() if name in SCHEMES}
        assert sections["training"] == own["training"] | schemes
        assert sections["data"] == own["data"]


@pytest.mark.parametrize("task", ["vqa_rad", "fed_isic2019", "nih_cxr14"])
@pytest.mark.parametrize("tiny", [False, True])
def test_every_run_reads_the_last_layer_of_the_image_encoder(real_images, benchmark, monkeypatch, task, tiny):
    composed = []
    result = {"refused": 0, "rounds": []}
    monkeypatch.setattr(benchmark("learning"), "run_sections", lambda sections, *_: composed.append(sections) or result)
    backbone = real_images.TINY[task] if tiny else real_images.PRETRAINED
    real_images.run(task, "fedavg", 0, backbone, None)
    (sections,) = composed
    assert sections["backbone"]["name"] == backbone
    assert sections["backbone"]["image_layers"] == "last"


def test_what_is_there_is_not_run_again(real_images, benchmark, in_this_process, monkeypatch, tmp_path, capsys):
    ran = []
    monkeypatch.setattr(real_images, "run", lambda *one: ran.append(one) or line(*one, validation=0.5))
    command = ["real_images.py", "--tasks", "vqa_rad", "--methods", "classifier", "fedavg", "--rates", "0.1", "0.2"]
    for more in (["0"], ["0", "1"], ["0", "--tiny"]):
        monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "out"), "--seeds", *more])
        real_images.main()
    rates = [("classifier", None), ("fedavg", 0.1), ("fedavg", 0.2)]  # the classifier trains no adapter
    assert ran == [
        *(("vqa_rad", method, seed, "mmbt-small", rate) for seed in (0, 1) for method, rate in rates),
        *(("vqa_rad", method, 0, "tiny-vilt", None) for method in ("classifier", "fedavg")),
    ]
    assert "50.0" in capsys.readouterr().out
