# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu.py on the CPU: every part is measured, and a row that fails says why and ends no other."""

import json
import time

import pytest

ROWS = ("steps", "round", "memory", "sites", "beside the CPU")


@pytest.fixture
def gpu(benchmark):
    return benchmark("gpu")


@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.parametrize("part", ROWS)
def test_every_part_is_measured_without_a_card(gpu, part, warm_python, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "RESULTS", tmp_path / "gpu.json")
    code = gpu.main(["--device", "cpu", "--small", "--minutes", "600", "--parts", part, "--write"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert {kind for _, kind, _ in results["rows"]} == {part}
    assert all("problem" not in figures for *_, figures in results["rows"])
    (table,) = gpu.tables(results)
    assert table.markdown() in gpu.section(tmp_path / "gpu.json")
    if part == "sites":
        assert [row[-1] for row in table.rows] == ["the same bytes"] * 3


@pytest.mark.slow
def test_a_row_that_fails_says_why(gpu, tmp_path):
    options = gpu.parsed(["--device", "cpu", "--small"])
    row = gpu.Row("steps", lambda *_: {})
    later = time.monotonic() + 600
    failed = gpu.measured("no such row", row, options, tmp_path, later)
    assert failed == {"problem": "KeyError: 'no such row' (exit code 1)"}
    late = gpu.measured("lora, less", row, options, tmp_path, time.monotonic() - 1)
    assert late == {"problem": "not begun: --minutes 20 were over."}
    absent = gpu.measured("lora, less", gpu.Row("round", row.call, "not installed"), options, tmp_path, later)
    assert absent == {"missing": "not installed"}


def test_reasons_stand_below_the_tables(gpu, tmp_path):
    step = {"seconds": 0.5, "samples": 16, "peak": 300.0, "held": 200.0}
    rows = [
        ("PEFT LoRA", "steps", step),
        ("lora, less", "steps", step | {"seconds": 0.25, "peak": 250.0}),
        ("FedDAT", "steps", {"problem": "OutOfMemoryError (exit code 1)"}),
        ("LLaVA-1.5-7B, four bits", "round", {"missing": "not installed"}),
        ("scores", "beside the CPU", {"runs": {}, "failed": {"snip": "RuntimeError: two devices"}}),
    ]
    results = {"machine": "here", "small": False, "rows": rows}
    table, beside = gpu.tables(results)
    assert beside.rows[0][:2] == ("scores", "0 of 1")
    assert table.rows == [
        ("PEFT LoRA", "32.0", "1.00", "300", "1.00"),
        ("lora, less", "64.0", "2.00", "250", "0.50"),
    ]
    assert gpu.reasons(results) == [
        "FedDAT: OutOfMemoryError (exit code 1)",
        "LLaVA-1.5-7B, four bits: not installed",
        "snip: RuntimeError: two devices",
    ]


def test_an_unknown_part_is_one_sentence(gpu, capsys):
    assert gpu.main(["--device", "cpu", "--small", "--parts", "step"]) == 1
    assert "['step'] is neither a table nor a row" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("machine", "kept"), [("2026-11-27: x, load before 9.9\ncard", ["a", "b"]), ("2026-11-28: x\ncard", ["b"])]
)
def test_a_call_of_some_tables_keeps_the_others_of_the_same_day_and_card(gpu, monkeypatch, tmp_path, machine, kept):
    monkeypatch.setattr(gpu, "RESULTS", tmp_path / "gpu.json")
    before = {"machine": machine, "small": True, "rows": [("a", "steps", {}), ("old", "round", {})]}
    gpu.RESULTS.write_text(json.dumps(before))
    monkeypatch.setattr(gpu, "machine", lambda: "2026-11-27: x, load before 1.0")
    monkeypatch.setattr(gpu, "card", lambda device: "card")
    row = gpu.Row("round", lambda *_: {})
    monkeypatch.setattr(gpu, "rows", lambda options: {"a": gpu.Row("steps", row.call), "b": row})
    figures = dict.fromkeys(("frozen", "step", "round", "peak", "batch"), 1.0)
    monkeypatch.setattr(gpu, "measured", lambda *_: figures)
    assert gpu.main(["--device", "cpu", "--small", "--parts", "b", "--write"]) == 0
    assert [name for name, *_ in json.loads(gpu.RESULTS.read_text())["rows"]] == kept


@pytest.mark.parametrize(("now", "code"), [({"problem": "OutOfMemoryError"}, 1), ({"missing": "not installed"}, 0)])
def test_what_was_measured_earlier_stays_where_today_has_no_figures(gpu, monkeypatch, tmp_path, now, code):
    monkeypatch.setattr(gpu, "RESULTS", tmp_path / "gpu.json")
    monkeypatch.setattr(gpu, "machine", lambda: "2026-11-27: x, load before 1.0")
    monkeypatch.setattr(gpu, "card", lambda device: "card")
    monkeypatch.setattr(gpu, "rows", lambda options: {"b": gpu.Row("round", lambda *_: {})})
    figures = dict.fromkeys(("frozen", "step", "round", "peak", "batch"), 1.0)
    for measured, expected in ((figures, 0), (now, code)):
        monkeypatch.setattr(gpu, "measured", lambda *_, measured=measured: measured)
        assert gpu.main(["--device", "cpu", "--small", "--parts", "b", "--write"]) == expected
    assert json.loads(gpu.RESULTS.read_text())["rows"] == [["b", "round", figures]]


def test_a_run_that_fails_beside_the_cpu_is_an_error(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "rows", lambda options: {"scores": gpu.Row("beside the CPU", lambda *_: {})})
    monkeypatch.setattr(gpu, "measured", lambda *_: {"runs": {}, "failed": {"snip": "RuntimeError: two devices"}})
    assert gpu.main(["--device", "cpu", "--small"]) == 1


def test_without_a_card_one_sentence(gpu, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu.main([]) == 1
    assert "no CUDA device" in capsys.readouterr().err
