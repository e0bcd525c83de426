# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The loss on the plane through two sites' adapters and the global one."""

import json
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from histories import record, write
from safetensors.torch import load_file, save_file

from fedpeft.cli import main
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import group_by_place
from fedpeft.federate import federate
from fedpeft.inference.surface import (
    ALIGNED,
    AS_THEY_COME,
    GLOBAL_LABEL,
    _chosen,
    flattened,
    plane_of,
    remarks,
    surface_of,
)
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.slow

SITES = ("slake", "vqa-rad", "vqa-med-2019")
RESULT = "server/simulate_job/fedpeft"


def run_of(sections, workspace, sites=SITES):
    """A workspace as `fedpeft simulate` leaves it; the learners as the run left them, and the global adapter."""
    state = workspace.with_name(f"{workspace.name}_state")
    learners = {site: Learner.from_sections(sections, site=site, folder=state / site / "small-1") for site in sites}
    rounds = list(federate(learners))
    last = rounds[-1]
    result = workspace / RESULT
    result.mkdir(parents=True)
    if last.state:
        save_file({key: tensor.contiguous() for key, tensor in last.state.items()}, result / "global.safetensors")
    manifest = {"status": "completed", "files": {}, "rounds": 2, "lineage": "small-1", "sites": {s: {} for s in sites}}
    (result / "manifest.json").write_text(json.dumps(manifest))
    history = record(sites, len(rounds))
    for entry, one in zip(history["rounds"], rounds, strict=True):
        for site, update in one.updates.items():
            entry["sites"][site] |= {name: update.metrics[name] for name in ("overall", "loss")}
    (result / "history.json").write_text(json.dumps(history))
    return learners, last.state


@pytest.fixture(scope="module")
def own(sections, tmp_path_factory):
    """A run whose sites start from different seeds: workspace, learners, global adapter."""
    workspace = tmp_path_factory.mktemp("own") / "run"
    return workspace, *run_of(sections("method.initialization=own", "method.pia.reference=largest"), workspace)


def folder_of(workspace, site):
    """The newest state of a site."""
    return sorted((workspace.with_name(f"{workspace.name}_state") / site / "small-1").glob("round-*"))[-1]


def mean_loss(learners, state, sites=SITES[:2]):
    losses = []
    for site in sites:
        learner = learners[site]
        learner.trainable.set_companion(None)
        losses.append(learner.loss(learner.batches.lasting_sample(learner.method.probe_samples), state))
    return sum(losses) / len(losses)


def test_the_losses_are_those_of_the_adapters_by_the_sites_own_learners(own):
    workspace, learners, received = own
    surface = surface_of(workspace, grid=3)
    adapters = {site: load_file(folder_of(workspace, site) / "adapter.safetensors") for site in SITES[:2]}
    adapters[GLOBAL_LABEL] = received
    panel = surface.panels[AS_THEY_COME]
    for name, state in adapters.items():
        expected = mean_loss(learners, state)
        assert panel.at_points[name] == pytest.approx(expected, rel=1e-5)
        place = panel.plane.at(*panel.plane.places[name])
        assert mean_loss(learners, place) == pytest.approx(expected, rel=1e-4)
        assert all(torch.allclose(place[key], state[key], atol=1e-5) for key in state)
    for i, j in ((0, 2), (1, 1), (2, 0)):
        expected = mean_loss(learners, panel.plane.at(panel.x[i], panel.y[j]))
        assert panel.losses[j, i] == pytest.approx(expected, rel=1e-5)


def test_alignment_changes_no_sites_loss_but_the_plane(own):
    surface = surface_of(own[0], grid=3, sites=("vqa-med-2019", "slake"))
    before, after = surface.panels[AS_THEY_COME], surface.panels[ALIGNED]
    assert 0 < surface.moved <= surface.places == 2 * len(group_by_place(own[2]))
    assert list(before.at_points) == ["vqa-med-2019", "slake", GLOBAL_LABEL]
    assert after.at_points == pytest.approx(before.at_points, rel=1e-4)
    assert not np.allclose(before.losses, after.losses)


def test_copies_of_the_global_adapter_in_other_orders_are_one_once_aligned(own, tmp_path):
    workspace = tmp_path / "run"
    shutil.copytree(own[0], workspace)
    shutil.copytree(own[0].with_name("run_state"), tmp_path / "run_state")
    for seed, site in enumerate(SITES[:2]):
        turned = {}
        generator = torch.Generator().manual_seed(seed)
        for names in group_by_place(own[2]).values():
            (width,) = {len(own[2][key]) for name, key in names.items() if name == "down.weight"}
            order = torch.randperm(width, generator=generator)
            for name, key in names.items():
                tensor = 3 * own[2][key]
                axis = {"down.weight": 0, "down.bias": 0, "up.weight": 1}.get(name)
                tensor = tensor if axis is None else tensor.index_select(axis, order)
                turned[key] = tensor + 1e-4 * torch.randn(tensor.shape, generator=generator)
        save_file({k: t.contiguous() for k, t in turned.items()}, folder_of(workspace, site) / "adapter.safetensors")
    tripled = {key: (3 * tensor).contiguous() for key, tensor in own[2].items()}
    save_file(tripled, workspace / RESULT / "global.safetensors")
    surface = surface_of(workspace, grid=3)
    assert surface.moved == surface.places
    far, near = (surface.panels[form].plane.places["slake"][0] for form in (AS_THEY_COME, ALIGNED))
    assert near < 0.01 * far
    differences = [np.ptp(surface.panels[form].losses) for form in (AS_THEY_COME, ALIGNED)]
    assert differences[1] < 0.05 * differences[0]


def test_the_plane_is_orthonormal_and_goes_through_all_three():
    generator = torch.Generator().manual_seed(0)
    origin, a, b = ({"x": torch.randn(3, 4, generator=generator), "y": torch.randn(5)} for _ in range(3))
    plane = plane_of(origin, {"a": a, "b": b})
    assert torch.allclose(plane.axes @ plane.axes.T, torch.eye(2, dtype=torch.float64), atol=1e-9)
    for name, state in (("a", a), ("b", b), (GLOBAL_LABEL, origin)):
        assert torch.allclose(flattened(plane.at(*plane.places[name])), flattened(state), atol=1e-5)
    assert plane.places["a"][1] == 0
    assert not plane.random


def test_three_on_one_line_get_a_second_direction_and_a_copy_is_refused():
    origin, step = {"x": torch.zeros(6)}, torch.arange(6.0)
    plane = plane_of(origin, {"a": {"x": step}, "b": {"x": -step}})
    assert plane.random
    assert torch.allclose(plane.axes @ plane.axes.T, torch.eye(2, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(plane.at(*plane.places["b"])["x"], -step, atol=1e-5)
    with pytest.raises(FedpeftError, match="the adapter of site b is the global one"):
        plane_of(origin, {"a": {"x": step}, "b": origin})


def test_where_nothing_moves_both_panels_are_one(sections, tmp_path):
    run_of(sections("method.aggregation=fedavg", "training.rounds=1"), tmp_path / "run", SITES[:2])
    surface = surface_of(tmp_path / "run", grid=3)
    assert surface.moved == 0
    assert surface.panels[ALIGNED] is surface.panels[AS_THEY_COME]
    said = "\n".join(remarks(surface))
    assert "both panels are equal" in said
    assert "up is a random direction" in said  # the global adapter of two sites lies between them


def test_the_command_writes_the_picture_and_prints_the_table(own, capsys):
    assert main(["report", str(own[0]), "--surface", "--grid", "3", "--sites", "slake,vqa-med-2019"]) == 0
    printed = capsys.readouterr().out
    for text in ("Loss between slake and vqa-med-2019", "loss at slake", "barrier from slake", "surface.svg"):
        assert text in printed
    picture = (own[0] / RESULT / "report" / "surface.svg").read_text()
    assert ElementTree.fromstring(picture).tag.endswith("}svg")
    assert "Procedural data, tiny backbone: these figures say nothing about medicine." in picture


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--surface", "--sites", "slake"], "name two of slake, vqa-rad, vqa-med-2019"),
        (["--surface", "--sites", "slake,nobody"], "name two of slake, vqa-rad, vqa-med-2019"),
        (["--surface", "--sites", "slake,slake"], "name two of"),
        (["--surface", "--grid", "2"], "must be from 3 to 101"),
        (["--grid", "5"], "--grid belongs to --surface"),
        (["--sites", "slake,vqa-rad"], "--sites belongs to --surface"),
    ],
)
def test_wrong_options_get_a_sentence(own, capsys, options, said):
    assert main(["report", str(own[0]), *options]) == 1
    assert said in capsys.readouterr().err


def test_two_sites_that_took_part_are_chosen(tmp_path):
    sites = ("late", *SITES)
    folder = write(tmp_path / RESULT, record(SITES, 2)).parent
    manifest = {"status": "completed", "files": {}, "rounds": 2, "lineage": "small-1", "sites": {s: {} for s in sites}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert _chosen(tmp_path, ()) == list(SITES[:2])
    with pytest.raises(FedpeftError, match="name two of slake, vqa-rad, vqa-med-2019 with a comma between"):
        _chosen(tmp_path, ("late", "slake"))


def test_a_run_without_what_it_needs_gets_a_sentence(own, sections, tmp_path, monkeypatch):
    with pytest.raises(FedpeftError, match="is no workspace of `fedpeft simulate` with a finished run"):
        surface_of(own[0] / RESULT)
    alone = tmp_path / "alone"
    shutil.copytree(own[0], alone)
    with pytest.raises(FedpeftError, match="what slake kept of the run"):
        surface_of(alone)
    manifest = json.loads((alone / RESULT / "manifest.json").read_text())
    manifest["sites"] = {"slake": {}, "vqa-rad": {"problem": "too few"}}
    (alone / RESULT / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FedpeftError, match="has 1 site that took part, and --surface needs two"):
        surface_of(alone)
    for name, settings, said in (
        ("head", ("method.name=classifier", "method.aggregation=none"), "exchanges no adapter with neurons"),
        ("bias", ("method.name=bias", "method.aggregation=fedavg"), "exchanges no adapter with neurons"),
        ("widths", ("method.site_settings={slake: {reduction_factor: 8}}",), "site slake has another width"),
        ("stacks", ("method.name=lora", "method.aggregation=stack"), "added to frozen weights"),
    ):
        run_of(sections("training.rounds=1", *settings), tmp_path / name, SITES[:2])
        with pytest.raises(FedpeftError, match=said):
            surface_of(tmp_path / name)
