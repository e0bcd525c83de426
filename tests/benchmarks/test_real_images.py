# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`real_images.py`: the job of each task with a method of the study, and what its tables say; nothing is trained."""

import sys

import pytest

from fedpeft.compare.runs import Variant, sections_of


@pytest.fixture
def real_images(benchmark):
    return benchmark("real_images")


def line(task, method, seed, backbone="mmbt-small", figure=0.5):
    rounds = [{"a": {"overall": figure}}] * 3
    return {"task": task, "backbone": backbone, "method": method, "seed": seed, "rounds": rounds}


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
        ("local", "21.0", "", "-9.5 ± 6.4, two seeds", "2"),
        ("fedavg", "30.5", "+9.5 ± 6.4, two seeds", "", "2"),
    ]
    assert tiny.section().startswith("vqa_rad tiny-vilt:")
    assert tiny.rows == [("local", "40.0", "", "", "1")]
    assert skin.rows == []
    assert chest.rows == [("local", "10.0", "", "", "1")]


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


def test_what_is_there_is_not_run_again(real_images, benchmark, in_this_process, monkeypatch, tmp_path, capsys):
    ran = []
    monkeypatch.setattr(real_images, "run", lambda *one: ran.append(one) or line(*one))
    command = ["real_images.py", "--tasks", "vqa_rad", "--methods", "local", "fedavg", "--out", str(tmp_path / "out")]
    for more in (["0"], ["0", "1"], ["0", "--tiny"]):
        monkeypatch.setattr(sys, "argv", [*command, "--seeds", *more])
        real_images.main()
    wanted = [(0, "mmbt-small"), (1, "mmbt-small"), (0, "tiny-vilt")]
    assert ran == [("vqa_rad", m, seed, backbone) for seed, backbone in wanted for m in ("local", "fedavg")]
    assert "50.0" in capsys.readouterr().out
