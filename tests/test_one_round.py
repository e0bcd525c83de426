# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The script of one round in plain lines ends with the adapter of `federate`, to the bit, and stays short."""

import importlib.util
from pathlib import Path

import pytest
import torch

from fedpeft.federate import federate
from fedpeft.job.composing import compose
from fedpeft.site.learner import Learner

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "one_round.py"
SMALL = ["training.rounds=1", "data.train_size=32", "data.test_size=16"]


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("one_round", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SETTINGS", SMALL)
    return module


@pytest.mark.slow
def test_it_computes_what_federate_computes(script, tmp_path, capsys):
    merged = script.one_round()
    lines = capsys.readouterr().out.splitlines()
    budgets = dict(zip(script.SITES, script.BUDGETS, strict=True))
    same = [*SMALL, "method.aggregation=pia", "method.pia.client=false", "schedule.solver=exact"]
    sections = compose(ROOT / "app_configs", "f3ocus_task1", [*same, f"schedule.site_budgets={budgets}"])
    learners = {site: Learner.from_sections(sections, site=site, folder=tmp_path / site) for site in script.SITES}
    (result,) = federate(learners)
    assert merged.keys() == result.state.keys()
    assert all(torch.equal(merged[key], tensor) for key, tensor in result.state.items())
    assert [line.split()[0] for line in lines] == ["before", "layers", "trained", "moved", "merged"]
    assert lines[1].endswith(str(result.assignment.layers))
    trained = {site: f"{site} {100 * update.metrics['overall']:.1f} %" for site, update in result.updates.items()}
    assert all(figure in lines[2] for figure in trained.values())


def test_it_stays_one_screen():
    assert len(SCRIPT.read_text().splitlines()) <= 62
