# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Benchmarks of time and size, each run to its end at the smallest size: their figures are for people to read."""

import sys

import pytest

RUNS = {
    "alignment": (["--clients", "2", "--layers", "1", "--repeats", "1", "--width", "4", "--hidden", "8"], "POT emd"),
    "anchor": (["--parts", "drift", "--seeds", "0"], "drift"),
    "barycenter": (["--cases", "1"], "all orders tried"),
    "probe_tiny_vilt": (["--train", "8", "--test", "4"], "modality"),
    "probe_tiny_vit": (["--train", "8", "--test", "4"], "shade"),
    "scheduling": (["--sizes", "3x9", "--seeds", "1", "--generations", "2"], "nsga2"),
    "scoring": (["--samples", "2", "--repeats", "1", "--adapters", "pfeiffer", "--methods", "lntk"], "lntk"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_it_prints_its_table(benchmark, name, monkeypatch, capsys):
    (options, row), module = RUNS[name], benchmark(name)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *options])
    monkeypatch.setattr(module, "peak_memory", lambda *_: (1, 0), raising=False)  # a process for each row
    module.main()
    assert row in capsys.readouterr().out
