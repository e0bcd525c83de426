# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""benchmarks/cases.py: what its cases are made of, without training."""

from dataclasses import replace

import pytest
import torch

from fedpeft.core.settings import build
from fedpeft.job.composing import compose
from fedpeft.methods.settings import MethodSettings
from fedpeft.report.wording import STAY_ALIGNED

SITES = ("slake", "vqa-rad", "vqa-med-2019", "vqa-med-2020", "vqa-med-2021")


NAMES = ("one_shot", "tuned_before", "late_joiner", "many_epochs", "unequal_widths")


SMALL = [
    "data.train_size=8",
    "data.validation_size=4",
    "data.test_size=4",
    "training.local_epochs=1",
    "training.rounds=2",
]


@pytest.fixture
def cases(benchmark):
    return benchmark("cases")


@pytest.fixture
def barrier(benchmark):
    return benchmark("barrier")


@pytest.mark.slow
@pytest.mark.parametrize("case", NAMES)
def test_every_method_can_run_every_case(cases, case):
    assert tuple(cases.CASES) == NAMES
    for method in cases.METHODS:
        for site in SITES:
            sections = cases.sections_of(cases.CASES[case], method, 3, [], site)
            settings = build(MethodSettings, sections["method"], section="method")
            assert settings.exchanges == (method != cases.LOCAL)
            assert sections["training"]["seed"] == sections["data"]["seed"] == 3


@pytest.mark.slow
def test_only_both_ends_of_pia_mix_widths(cases):
    case = cases.CASES["unequal_widths"]

    def widths(method):
        methods = (
            build(MethodSettings, cases.sections_of(case, method, 0, [], s)["method"], section="method") for s in SITES
        )
        return [m.settings_of(s)["reduction_factor"] for m, s in zip(methods, SITES, strict=True)]

    assert widths(cases.BOTH) == widths(cases.LOCAL) == [2, 8, 4, 2, 8]
    assert widths(cases.FEDAVG) == [8] * 5


def test_the_late_site_is_compared_with_all_others(cases):
    case = cases.CASES["late_joiner"]
    joins = cases.sections_of(case, cases.BOTH, 0, [], SITES[0])["schedule"]["joins"]
    assert joins == {"vqa-med-2021": case.compared}
    assert len(cases.pairs_of(case, SITES)) == 2 * (len(SITES) - 1)
    assert all("vqa-med-2021" in pair for pair in cases.pairs_of(case, SITES))


def test_a_barrier_is_what_rises_above_the_straight_line(barrier):
    straight = [1 + 2 * share for share in barrier.POINTS]
    assert barrier.barrier(straight) == pytest.approx(0)
    assert barrier.barrier([loss + (share == 0.5) for loss, share in zip(straight, barrier.POINTS, strict=True)]) == 1


def test_the_picture_has_a_panel_for_each_case_with_lines(barrier, benchmark):
    line = [1.0] * len(barrier.POINTS)
    results = [
        {"case": "one_shot", "lines": {barrier.BEFORE: line, barrier.BY_WEIGHTS: line}},
        {"case": "unequal_widths", "lines": {barrier.BY_WEIGHTS: line}},
        {"case": "late_joiner", "lines": {}},
    ]
    figure = benchmark("cases_picture").draw(results)
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["one shot", "unequal widths"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "method", "overrides"),
    [("late_joiner", "both", ["schedule.joins={vqa-med-2021: 2}"]), ("unequal_widths", "local", [])],
)
def test_a_shared_first_round_is_the_methods_own(cases, case, method, overrides, tmp_path, monkeypatch):
    one, overrides = (case, method, 3), [*SMALL, *overrides]
    monkeypatch.setattr(cases, "CASES", {case: replace(cases.CASES[case], compared=0)})
    kept, nothing = tmp_path / "kept", tmp_path / "nothing"
    nothing.mkdir()
    cases.first_rounds(*cases.first_of(*one), overrides, kept)

    aggregated = []
    aggregate = cases.aggregate
    monkeypatch.setattr(cases, "aggregate", lambda *a, **n: aggregated.append(aggregate(*a, **n)) or aggregated[-1])
    shared = cases.run(*one, overrides, kept)
    monkeypatch.setattr(
        cases, "_first", lambda learner: learner.train_round(learner.schedule.first_round(learner.site), {})
    )
    own = cases.run(*one, overrides, nothing)
    assert {**shared, "seconds": 0} == {**own, "seconds": 0}
    rounds = len(own["rounds"]) if method == "both" else 0
    assert len(aggregated) == 2 * rounds
    for (mine, _), (theirs, _) in zip(aggregated[:rounds], aggregated[rounds:], strict=True):
        assert all(torch.equal(mine[key], theirs[key]) for key in mine | theirs)


def test_the_readmes_second_run_is_server_pia_around_a_fixed_point_and_has_the_figures_of_the_results(cases):
    readme = (cases.ROOT / "README.md").read_text()
    section = readme.split("## Where alignment matters")[1].split("\n## ")[0]
    assert "fedpeft simulate cases/tuned_before -t 5" in section
    method = compose(cases.ROOT / "app_configs", "cases/tuned_before")["method"]
    assert method["initialization"] == "own"
    assert (method["pia"]["reference"], method["pia"]["client"]) == ("fixed_point", False)
    (table,) = [one for one in cases.tables(cases.read()) if one.title == "tuned_before"]
    exchanged = {row[0]: row[2] for row in table.rows}
    for name in ("server PIA, fixed point", cases.FEDAVG, cases.LOCAL):
        assert f"{exchanged[name]} %" in section
    assert STAY_ALIGNED in " ".join(readme.split())


def test_the_compared_methods_do_not_follow_what_a_case_sets(cases):
    sections = cases.sections_of(cases.CASES["tuned_before"], cases.BOTH, 0, [], SITES[0])
    assert (sections["method"]["pia"]["reference"], sections["method"]["pia"]["client"]) == ("fedavg", True)
