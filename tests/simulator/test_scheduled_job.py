# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""F3OCUS in FLARE's simulator, as a user runs it: scores, schedule, partial training, pictures."""

import json

import pytest
import torch
from safetensors.torch import load_file
from simulator_runs import simulate, workspace_for_tests, write

from fedpeft.core.keys import belongs, layer_of
from fedpeft.federate import federate
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.simulator
SITES = ("slake", "vqa-rad", "vqa-med-2019")
SCHEDULED = [
    f"federation.sites=[{', '.join(SITES)}]",
    "schedule.solver=nsga2",
    "schedule.score_samples=8",
    "schedule.budget=1",
]
VARIANTS = {
    "fresh": ["method.aggregation=fedavg"],
    "with reply, aligned, unequal": [
        "method.aggregation=pia",
        "method.pia.share=0.5",
        "schedule.scoring=with_reply",
        "schedule.site_budgets={slake: 2, vqa-rad: 0}",
    ],
}


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def scheduled(request, tmp_path_factory, sections):
    """The job of two layers and two rounds, and the run of it."""
    folder = tmp_path_factory.mktemp("scheduled")
    chosen = sections(*SCHEDULED, *VARIANTS[request.param])
    run = simulate(write(folder / "job", chosen), folder / "ws", threads=len(SITES), pictures=True)
    assert run.code == 0, run.text
    return chosen, run, json.loads((run.results / "history.json").read_text())


def test_it_says_who_trained_what_and_why(scheduled):
    _, run, history = scheduled
    for entry in history["rounds"]:
        plan = entry["schedule"]
        assert plan["layers"].keys() == plan["scores"].keys() == set(entry["sites"])
        for scores in plan["scores"].values():
            assert sum(scores) == pytest.approx(1)
    manifest = json.loads((run.results / "manifest.json").read_text())
    assert {"report/schedule.svg", "report/fronts.svg", "report/convergence.svg"} <= set(manifest["files"])
    assert "trained layers" in run.text


def test_the_loop_without_flare_gives_the_same_adapter_and_schedule(scheduled, tmp_path):
    chosen, run, history = scheduled
    sites = chosen["federation"]["sites"]
    results = list(federate({s: Learner.from_sections(chosen, site=s, folder=tmp_path / s) for s in sites}))
    saved = load_file(run.results / "global.safetensors")
    assert saved.keys() == results[-1].state.keys()
    assert all(torch.equal(saved[key], results[-1].state[key]) for key in saved)
    assert [r.assignment.layers for r in results] == [e["schedule"]["layers"] for e in history["rounds"]]


def test_what_nobody_trains_is_bit_identical(scheduled, tmp_path):
    chosen, _, _ = scheduled
    sites = chosen["federation"]["sites"]
    learners = {s: Learner.from_sections(chosen, site=s, folder=tmp_path / s) for s in sites}
    before = learners[sites[0]].trainable.state()
    for result in federate(learners):
        trained = {layer for layers in result.assignment.layers.values() for layer in layers}
        for key, tensor in result.state.items():
            if layer_of(key) is not None and not belongs(key, sorted(trained)):
                assert torch.equal(tensor, before[key])
        for site, update in result.updates.items():
            layers = result.assignment.layers[site]
            assert update.state.keys() == {key for key in before if belongs(key, layers)}
        before = result.state


def test_the_first_sites_start_is_refused_if_most_sites_start_from_another(tmp_path, sections):
    """Like everybody, it announces the right digest; it sends values as large as those that it should begin with."""
    faulty_site, *others = SITES
    chosen = sections(*SCHEDULED, *VARIANTS["fresh"], "federation.quorum=2", "training.rounds=1")
    job = write(tmp_path / "job", chosen, faulty_executor={"faults": {"0": "start"}, "faulty_site": faulty_site})
    run = simulate(job, workspace_for_tests(tmp_path / "ws"), threads=len(SITES))
    assert run.code == 0, run.text
    manifest = json.loads((run.results / "manifest.json").read_text())
    said = f"site {faulty_site} sent another first adapter than it and most sites announced"
    assert said in manifest["sites"][faulty_site]["problem"]
    assert said in run.text
    learners = {s: Learner.from_sections(chosen, site=s, folder=tmp_path / s) for s in others}
    assert manifest["start"] == {"site": others[0], "digest": learners[others[0]].start_digest()}
    (result,) = federate(learners)
    saved = load_file(run.results / "global.safetensors")
    assert saved.keys() == result.state.keys()
    assert all(torch.equal(saved[key], result.state[key]) for key in saved)
