# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`learning.py --methods all` and the grid of rates behind it."""

import json
import sys

import pytest

from fedpeft import methods
from fedpeft.core.settings import build
from fedpeft.federate import federate
from fedpeft.job.composing import compose
from fedpeft.methods.settings import MethodSettings


@pytest.fixture
def every(benchmark):
    return benchmark("every_method")


@pytest.fixture
def rates(benchmark):
    return benchmark("rates")


@pytest.fixture
def learning(benchmark):
    return benchmark("learning")


@pytest.mark.slow
def test_every_method_of_the_registry_is_a_row_and_its_settings_fit(every, learning):
    assert set(methods.names()) <= set(every.EVERY)
    assert set(every.BASELINES) <= set(every.EVERY)
    for row in every.EVERY:
        sections = compose(learning.ROOT / "app_configs", learning.JOB, every.with_rate(row, 1e-3))
        assert build(MethodSettings, sections["method"], section="method").name == row.partition(",")[0]
        assert sections["training"]["learning_rate"] == 1e-3
        assert sections["training"]["head_learning_rate"] == every.HEAD


def test_a_row_with_a_comma_has_the_rate_of_its_method_unless_it_has_one_of_its_own(every, monkeypatch):
    fedpia = "houlsby, FedPIA in two branches"
    rates = (("houlsby", 1e-3), ("vpt", 5e-2), (fedpia, 2e-3))
    lines = [{"method": name, "rate": rate, "accuracy": 1.0} for name, rate in rates]
    monkeypatch.setattr(every.json_lines, "read", lambda _: lines)
    assert "training.learning_rate=0.002" in every.settings_of(fedpia)
    with pytest.raises(SystemExit, match=r"no learning rate for 'houlsby, every site alone'.*rates\.py"):
        every.settings_of("houlsby, every site alone")  # it has a search of its own
    assert "training.learning_rate=0.001" in every.settings_of("houlsby, centralized")
    assert "training.learning_rate=0.05" in every.settings_of("vpt, centralized")


@pytest.mark.parametrize(
    ("row", "aggregation", "settings"),
    [
        *((f"promptfl, k = {k}", "fedavg", {"tokens": k}) for k in (5, 10, 20)),
        ("dvpt, concatenated", "fedavg", {"decomposition": "concatenated"}),
        *((f"{name}, svd", "svd", {}) for name in ("lora", "lora_vpt", "lora_dvpt", "dvpt")),
        ("vpt, centralized", "none", {}),
    ],
)
def test_the_papers_variants_are_rows(every, learning, row, aggregation, settings):
    sections = compose(learning.ROOT / "app_configs", learning.JOB, every.with_rate(row, 1e-3))
    method = build(MethodSettings, sections["method"], section="method")
    assert (method.aggregation, method.settings_of("")) == (aggregation, settings)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["houlsby", "vpt"])
def test_a_centralized_row_has_the_data_of_the_same_five_sites_and_sends_nothing(every, learning, monkeypatch, method):
    small = ["training.rounds=1", "data.train_size=6", "data.validation_size=2", "data.test_size=4"]
    learners, results = [], []

    def noted(some):
        learners.append(some)
        return federate(some)

    monkeypatch.setattr(learning, "federate", noted)
    for row in (method, f"{method}, centralized"):
        results.append(learning.run_with(every.with_rate(row, 1e-3), row, 0, [*small, "training.local_epochs=1"]))
    sites, (center,) = (list(some.values()) for some in learners)
    default = compose(learning.ROOT / "app_configs", learning.JOB)
    assert [learner.site for learner in sites] == default["federation"]["sites"]
    for split, examples in center.data.splits().items():
        assert list(examples) == [example for learner in sites for example in learner.data.splits()[split]]
    assert {len(learner.data.test) for learner in sites} == {4}  # so that the share of all is the mean of the shares
    assert [len(result["rounds"][0]) for result in results] == [5, 1]
    assert results[0]["trained"] == results[0]["sent"] == results[1]["trained"]
    assert results[1]["sent"] == 0


def test_pooled_data_at_several_sites_are_refused(every, learning):
    with pytest.raises(SystemExit, match="'vpt, centralized' pools the data of all sites at one"):
        learning.run_with(every.with_rate("vpt, centralized", 1e-3), "vpt, centralized", 0, SMALL)


def test_of_two_rates_alike_the_smaller_is_taken(every):
    found = [("a", 1.0, 50.0), ("a", 0.1, 50.0), ("a", 10.0, 49.0), ("b", 1.0, 3.0)]
    lines = [dict(zip(("method", "rate", "accuracy"), line, strict=True)) for line in found]
    assert every.best_rates(lines) == {"a": 0.1, "b": 1.0}


def test_a_method_without_a_rate_is_refused_with_the_command(every, monkeypatch, tmp_path):
    monkeypatch.setattr(every.json_lines, "read", lambda _: [])
    with pytest.raises(SystemExit, match=r"no learning rate for 'vpt'.*rates\.py"):
        every.settings_of("vpt")


@pytest.mark.parametrize(
    ("tried", "next_ones"),
    [
        ({}, [1.5e-3, 5e-3, 1.5e-2]),
        ({1.5e-3: 1.0, 5e-3: 2.0, 1.5e-2: 1.0}, []),
        ({1.5e-3: 3.0, 5e-3: 2.0, 1.5e-2: 1.0}, [5e-4]),
        ({1.5e-3: 1.0, 5e-3: 2.0, 1.5e-2: 3.0, 5e-2: 4.0}, [1.5e-1]),
        ({1.5e-3: 1.0, 5e-3: 2.0, 1.5e-2: 3.0, 5e-2: 4.0, 1.5e-1: 5.0}, []),
    ],
    ids=["first", "between", "smaller", "larger", "end of the grid"],
)
def test_the_grid_is_widened_while_the_best_is_at_its_edge(rates, tried, next_ones):
    assert rates.missing(tried) == next_ones


def test_the_grid_uses_no_seed_that_is_reported(rates, learning):
    assert rates.SEED not in learning.SEEDS


SMALL = ("federation.sites=[slake,vqa-rad]", "data.train_size=8", "data.validation_size=4", "data.test_size=4")


@pytest.mark.slow
def test_a_row_runs_and_is_printed_with_its_cost(every, learning, in_this_process, monkeypatch, tmp_path, capsys):
    rows = ("classifier", "houlsby", "sba")
    monkeypatch.setattr(every, "EVERY", {row: every.EVERY[row] for row in rows})
    monkeypatch.setattr(every, "RATES", tmp_path / "rates.jsonl")
    for row in rows:
        every.json_lines.append(every.RATES, {"method": row, "rate": 1e-3, "accuracy": 1.0})
    out = tmp_path / "runs.jsonl"
    small = [part for setting in (*SMALL, "training.rounds=1") for part in ("--set", setting)]
    monkeypatch.setattr(
        sys, "argv", ["learning.py", "--methods", "all", "--seeds", "0", "1", "--out", str(out), *small]
    )
    learning.main()
    results = {line["method"]: line for line in map(json.loads, out.read_text().splitlines())}
    assert set(results) == set(rows)
    assert results["classifier"]["sent"] == 0
    assert 0 < results["sba"]["sent"] < results["sba"]["trained"]
    assert results["houlsby"]["sent"] == results["houlsby"]["trained"]
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines() if line.split()[:1] and line.split()[0] in rows] == list(
        rows
    )
    assert "minus houlsby" in printed
    assert "minus its method" in printed
    assert "MB a round" in printed

    monkeypatch.setattr(sys, "argv", [*sys.argv, "--rows", "sba", "--set", "training.learning_rate=0.5"])
    learning.main()  # other settings: a run of its own, beside those that are there
    added = [json.loads(line) for line in out.read_text().splitlines()][2 * len(rows) :]
    assert [line["method"] for line in added] == ["sba", "sba"]
    assert all("training.learning_rate=0.5" in line["overrides"] for line in added)
