# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The picture of the fronts: every heuristic beside the exact front of the round's own scores and budgets."""

import numpy as np
import pytest
from histories import record, write

from fedpeft.report import render
from fedpeft.report.history_reader import parse
from fedpeft.report.palette import svg
from fedpeft.report.schedule_plot import EXACT, fronts_figure, fronts_of
from fedpeft.scheduling import choose, names_with_front, schedule

pytestmark = pytest.mark.slow


def scheduled(sites: int, layers: int, *, budget: int):
    """A run of one round whose layers were chosen from the exact front."""
    named = tuple(f"site-{i}" for i in range(sites))
    made = record(named, 1)
    scores = np.random.default_rng(2).dirichlet(np.ones(layers), size=sites)
    mask = choose(schedule(scores, np.full(sites, budget), solver=EXACT))
    made["rounds"][0]["schedule"] = {
        "numbers": list(range(layers)),
        "layers": {site: np.flatnonzero(row).tolist() for site, row in zip(named, mask, strict=True)},
        "scores": {site: row.tolist() for site, row in zip(named, scores, strict=True)},
        "importance": float((scores * mask).sum()),
        "variance": float(mask.sum(axis=0).var()),
    }
    return made


@pytest.mark.parametrize(
    ("sites", "layers", "budget"), [(5, 12, 4), (10, 12, 3), (1, 12, 4), (5, 1, 1), (5, 12, 0), (5, 12, 12)]
)
def test_every_heuristic_has_a_panel(sites, layers, budget):
    history = parse(scheduled(sites, layers, budget=budget), origin="h")
    figure = fronts_figure(history)
    panels = [axes.get_title(loc="left").split(":")[0] for axes in figure.axes]
    assert panels == [name for name in names_with_front() if name != EXACT]
    assert len({axes.get_xlim() + axes.get_ylim() for axes in figure.axes}) == 1
    assert svg(figure, "a") == svg(fronts_figure(history), "a")


def test_what_was_assigned_lies_on_the_exact_front():
    plan = parse(scheduled(5, 12, budget=4), origin="h").scheduled[-1].schedule
    exact = fronts_of(plan)[EXACT]
    assert np.isclose(exact.importance, plan.importance).any()


def test_the_report_has_the_picture(tmp_path):
    write(tmp_path, scheduled(5, 12, budget=4))
    written = render(tmp_path, tmp_path / "out")
    assert written["fronts"].read_bytes().startswith(b"<?xml")
    assert "exact front" in written["page"].read_text()
