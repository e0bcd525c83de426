# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The parts of benchmarks/federation.py in their smallest setting."""

import re
import sys

import pytest
from undrawn import UNDRAWN

PARTS = {"wire": "wire", "start": "process_start", "wall": "wall_time", "rounds": "rounds"}


@pytest.fixture
def small(tiny_source):
    return [
        f"backbone.source={tiny_source}",
        "federation.sites=[slake, vqa-rad]",
        "method.probe_samples=4",
        "data.train_size=8",
        "data.validation_size=1",
        "data.test_size=4",
    ]


def test_machine_names_cores_versions_and_day(benchmark):
    text = benchmark("measured").machine()
    assert re.match(r"\d{4}-\d\d-\d\d: .* \d+ cores", text)
    assert "torch 2" in text


@pytest.mark.parametrize(
    ("values", "text"), [([1.5], "1.500"), ([1.0, 3.0, 1.2], "1.200 (1.000 to 3.000)")], ids=["one", "several"]
)
def test_ratio_is_the_median_with_its_range(benchmark, values, text):
    assert benchmark("measured").ratio(values) == text


def test_a_failing_command_is_reported_with_its_output(benchmark):
    measured = benchmark("measured")
    with pytest.raises(RuntimeError, match=r"(?s)ended with 3:.*no luck"):
        measured.timed(measured.python("-c", "print('no luck'); raise SystemExit(3)"))


@pytest.mark.slow
def test_rounds_time_every_variant(benchmark, small, tmp_path, capsys):
    rounds = benchmark("rounds")
    spent = rounds.measure(small, 2, tmp_path)
    assert spent.keys() == rounds.VARIANTS.keys()
    for measured in spent.values():
        assert len(measured) == 2
        assert all(seconds > 0 for site, server in measured for seconds in (*site, *server))
    ratios = rounds.report(spent, "small")
    assert ratios["FedAvg"] == [1.0, 1.0]
    assert all(variant in capsys.readouterr().out for variant in ["FedPIA, weight space"])


@pytest.mark.slow
def test_process_starts_are_counted_in_turns(benchmark):
    starts = benchmark("process_start")
    seconds = starts.measure({"nothing": "", "busy": "sum(range(3_000_000))"}, runs=3)
    assert seconds["busy"][1] > seconds["nothing"][1] >= 0
    assert set(starts.BEFORE) | set(starts.BEFORE.values()) <= set(starts.LINES)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("line", ["torch with an optimizer", "  + model, adapters and data: ready to train"])
def test_the_lines_that_stand_on_the_others_run(benchmark, line):
    measured = benchmark("measured")
    wall, cpu = measured.timed(measured.python("-c", benchmark("process_start").LINES[line]))
    assert wall > 0
    assert cpu > 0


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
def test_wire_counts_at_least_the_adapter_in_both_directions(benchmark):
    size, sent = benchmark("wire").measure(
        {"adapter": "houlsby", "settings": {"reduction_factor": 2}, "hidden_size": 16}
    )
    assert size == 12 * 2 * (8 * 16 * 2 + 8 + 16) * 4
    assert all(size < count < 4 * size for count in sent.values())


@pytest.mark.slow
def test_another_adapter_than_the_loops_is_refused(benchmark, small, tmp_path):
    wall_time = benchmark("wall_time")
    wall_time.bare([*small, "training.rounds=1"], tmp_path)
    file = tmp_path / "global.safetensors"
    expected = file.read_bytes()
    wall_time._check_same(file, expected, "-t 2")
    file.write_bytes(expected[:-4] + b"\0\0\0\1")
    with pytest.raises(RuntimeError, match="-t 2 ended with another adapter"):
        wall_time._check_same(file, expected, "-t 2")


@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.usefixtures("warm_python")
def test_the_federation_ends_where_the_bare_loop_does(benchmark, small, monkeypatch):
    monkeypatch.setenv(UNDRAWN, "yes")
    # raises where the adapters differ
    spent, training = benchmark("wall_time").measure(
        [*small, "training.rounds=2"], runs=1, ways=["-t 2", "--engine pool -t 2"]
    )
    assert spent["-t 2"][0] > 0
    assert spent["--engine pool -t 2"][0] > 0
    assert spent["bare loop"][0] > training[0] > 0


@pytest.mark.parametrize("chosen", [["wire"], ["start", "wall"], ["rounds"]], ids=" ".join)
def test_the_command_runs_the_parts_that_are_named(benchmark, monkeypatch, chosen, capsys):
    ran = []
    for part, module in PARTS.items():
        monkeypatch.setattr(benchmark(module), "run", lambda *_, part=part, **__: ran.append(part))
    monkeypatch.setattr(sys, "argv", ["federation.py", "--parts", *chosen])
    benchmark("federation").main()
    assert ran == chosen
    assert "cores" in capsys.readouterr().out
