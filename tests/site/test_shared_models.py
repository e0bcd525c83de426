# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Sites that take turns with one backbone compute what each computes with a backbone of its own."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedpeft import methods
from fedpeft.core.states import equal
from fedpeft.federate import federate
from fedpeft.site import site_state
from fedpeft.site.learner import Learner
from fedpeft.site.site_batches import SiteBatches
from fedpeft.site.site_model import SharedModels
from fedpeft.site.training_process import LEARNER_BYTES, MAX_HELD_BYTES, Learners

pytestmark = pytest.mark.slow

SITES = ("slake", "vqa-rad")
THREE = "federation.sites=[slake, vqa-rad, vqa-med-2019]"
SMALL = (
    f"federation.sites=[{', '.join(SITES)}]",
    "training.rounds=2",
    "training.local_epochs=1",
    "training.learning_rate=0.3",
    "data.train_size=4",
    "data.validation_size=2",
    "data.test_size=2",
)
SETTINGS = {"fourierft": ["method.settings.fourierft.n_frequency=64"]}
OTHERS = {
    "scheduled": ["schedule.solver=nsga2", "schedule.score_samples=4", "schedule.budget=1"],
    "scored with the reply": ["schedule.solver=own", "schedule.scoring=with_reply", "schedule.score_samples=4"],
    "joins": ["schedule.joins={vqa-rad: 2}"],
    "some clients": ["schedule.clients_per_round=1"],
    "two branches": ["method.pia.integration=two_branches"],
    "agreement": ["method.pia.share=agreement", "method.pia.accept=true"],
    "secure sum": [THREE, "method.aggregation=fedavg", "method.secure_sum=true"],
    "features": ["method.settings.houlsby.layers=[1]", "training.features_mib=10"],
    "federated head": ["method.head=federated"],
    "own start": ["method.initialization=own"],
    "stacked": ["method.name=lora", "method.aggregation=stack"],
    "of unequal widths": ["method.site_settings={slake: {reduction_factor: 8}}"],
}


def learners(chosen, folder, shared=None):
    sites = chosen["federation"]["sites"]
    return {s: Learner.from_sections(chosen, site=s, folder=folder / s, shared=shared) for s in sites}


def check(chosen, tmp_path):
    alone = list(federate(learners(chosen, tmp_path / "alone")))
    together = learners(chosen, tmp_path / "together", SharedModels())
    for expected, result in zip(alone, federate(together), strict=True):
        assert equal(expected.state, result.state)
        assert expected.updates.keys() == result.updates.keys()
        for site, update in expected.updates.items():
            assert result.updates[site].metrics == update.metrics
            assert equal(result.updates[site].state, update.state)
    for site in SITES:
        expected, kept = (site_state.load_before(tmp_path / name / site, 3) for name in ("alone", "together"))
        if expected is None:  # it was not drawn
            continue
        for part in ("adapter", "private", "head", "optimizer"):
            assert equal(getattr(expected, part), getattr(kept, part)), (site, part)
    return together


@pytest.mark.parametrize("name", methods.names())
def test_every_method_gives_the_same_bits(name, sections, tmp_path):
    made = check(sections(*SMALL, f"method.name={name}", *SETTINGS.get(name, ())), tmp_path)
    backbones = {id(learner.backbone) for learner in made.values()}
    assert len(backbones) == 1


@pytest.mark.parametrize("name", OTHERS)
def test_every_kind_of_job_gives_the_same_bits(name, sections, tmp_path):
    check(sections(*SMALL, *OTHERS[name]), tmp_path)


@pytest.mark.parametrize("kind", [(), ("method.name=feddat_houlsby",), tuple(OTHERS["features"])], ids=str)
def test_what_one_site_leaves_in_memory_and_on_disk_no_other_sees(kind, sections, tmp_path):
    chosen = sections(*SMALL, *kind)
    made, alone = learners(chosen, tmp_path / "a", SharedModels()), learners(chosen, tmp_path / "b")
    poisoned, *others = SITES
    for site in SITES:
        made[site].train_round(1, {})
        alone[site].train_round(1, {})
    one = made[poisoned]
    private = one.trainable.private_state()
    assert bool(private) == (kind == ("method.name=feddat_houlsby",))
    one.trainable.load_private({key: torch.full_like(tensor, torch.nan) for key, tensor in private.items()})
    with torch.no_grad():
        for parameter in (*one.trainable.parameters().values(), *one.head.parameters()):
            parameter.fill_(torch.nan)
    for example in one.data.train:
        example.image.setflags(write=True)
        example.image.fill(255)
    for file in (tmp_path / "a" / poisoned).rglob("*.safetensors"):  # its optimizer's moments among them
        save_file({key: torch.full_like(tensor, torch.nan) for key, tensor in load_file(file).items()}, file)
    for site in others:
        expected, update = alone[site].train_round(2, {}), made[site].train_round(2, {})
        assert equal(expected.state, update.state)
        assert made[site].head is not one.head


def test_the_learners_that_were_not_used_for_long_are_dropped(sections, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpeft.site.training_process._print_to", lambda file: None)
    kept = Learners(sections(*SMALL), None, SharedModels())
    logs = {site: str(tmp_path / site / "training.log") for site in SITES}
    first = kept.switch_to("slake", logs["slake"])
    assert kept.switch_to("slake", logs["slake"]) is first
    monkeypatch.setattr(SiteBatches, "held_bytes", MAX_HELD_BYTES)
    second = kept.switch_to("vqa-rad", logs["vqa-rad"])
    assert second.backbone is first.backbone
    assert kept.switch_to("slake", logs["slake"]) is not first


@pytest.mark.parametrize("settings", [[], ["method.initialization=own", "method.pia.reference=largest"]])
def test_what_a_learner_holds_after_its_turn_counts(settings, sections, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpeft.site.training_process._print_to", lambda file: None)
    kept = Learners(sections(*SMALL, *settings), None, SharedModels())
    first, second = (kept.switch_to(site, str(tmp_path / site / "training.log")) for site in SITES[:2])
    if settings:  # a backbone of its own
        monkeypatch.setattr("fedpeft.site.training_process.MAX_HELD_BYTES", 2 * LEARNER_BYTES + first.model.own_bytes)
        assert first.model.own_bytes > 0
    else:  # images that were opened in its turn
        monkeypatch.setattr(SiteBatches, "held_bytes", MAX_HELD_BYTES)
    assert kept.switch_to(SITES[1], "") is second
    assert kept.switch_to(SITES[0], str(tmp_path / SITES[0] / "training.log")) is not first


def test_a_model_of_another_method_or_seed_is_not_taken(sections, tmp_path):
    shared = SharedModels()

    def backbone(*settings):
        chosen = sections(*SMALL, "method.aggregation=fedavg", *settings)
        return Learner.from_sections(chosen, site="slake", folder=tmp_path / "state", shared=shared).model.backbone

    first = backbone("method.name=bias")
    assert backbone("method.name=bias") is first
    others = ("method.name=layernorm",), ("method.name=bias", "training.seed=2")
    assert all(backbone(*other) is not first for other in others)


def test_a_federation_leaves_neither_salts_nor_threads_to_the_next_one(sections, tmp_path, monkeypatch):
    threads, original = [], Learner.train_round

    def noted(learner, *args, **how):
        threads.append(torch.get_num_threads())
        return original(learner, *args, **how)

    monkeypatch.setattr(Learner, "train_round", noted)
    chosen = sections(*SMALL, "training.threads=1")
    learners = {site: Learner.from_sections(chosen, site=site, folder=tmp_path / site) for site in SITES}
    plain = [one.state for one in federate(learners)]
    salted = [one.state for one in federate(learners, salts=lambda *_: "salt")]
    torch.set_num_threads(2)  # as a learner of another job does
    try:
        again = [one.state for one in federate(learners)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert set(threads) == {1}
    assert any(not torch.equal(salted[0][key], plain[0][key]) for key in plain[0])
    assert all(torch.equal(again[-1][key], plain[-1][key]) for key in plain[-1])
