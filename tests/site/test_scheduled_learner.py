# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Scheduled layers with everything a site can train: the others keep their bits, everywhere."""

import json
from itertools import accumulate

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fedpeft import importance
from fedpeft.backbones.registry import TINY_ALBEF_FOLDER
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import belongs, layer_of
from fedpeft.core.states import digest
from fedpeft.federate import federate
from fedpeft.importance import MemorySettings, layer_memory
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.site import computing, scoring, site_state
from fedpeft.site.learner import Learner
from fedpeft.site.scoring import _group_by_layer, _losses

pytestmark = pytest.mark.slow

SITES = ("slake", "vqa-rad")
UPPER_LAYER = ["schedule.solver=own", "schedule.score=last_k", "schedule.budget=1", "schedule.score_samples=4"]
ADAPTERS = {
    "houlsby": [],
    "pfeiffer": ["method.name=pfeiffer"],
    "parallel": ["method.name=parallel"],
    "compacter": ["method.name=compacter", "method.settings.compacter.reduction_factor=4"],
    "lora": ["method.name=lora"],
}
TRAINED = {
    **{f"{name}, fedavg": [*chosen, "method.aggregation=fedavg"] for name, chosen in ADAPTERS.items()},
    **{f"{name}, pia": [*chosen, "method.aggregation=pia"] for name, chosen in ADAPTERS.items()},
    "whole layers": ["method.name=full", "method.aggregation=fedavg"],
    "a private fusion": ["method.name=adapterfusion"],
    "a private adapter": ["method.name=feddat_compacter", "method.settings.compacter.reduction_factor=4"],
    "frozen companion": ["method.pia.integration=two_branches"],
    "scores with the reply": ["method.aggregation=fedavg", "schedule.scoring=with_reply"],
}


@pytest.mark.parametrize("overrides", TRAINED.values(), ids=TRAINED)
def test_only_the_assigned_layer_is_trained_sent_and_changed(sections, tmp_path, overrides):
    chosen = sections(*UPPER_LAYER, *overrides)
    learners = {site: Learner.from_sections(chosen, site=site, folder=tmp_path / site) for site in SITES}
    before = first = learners["slake"].trainable.state()
    for result in federate(learners):
        assert result.assignment.layers == {site: [1] for site in SITES}
        for update in result.updates.values():
            assert update.state.keys() == {key for key in first if belongs(key, [1])}
        assert result.state.keys() == first.keys()
        changed = {key for key in first if not torch.equal(before[key], result.state[key])}
        assert changed
        assert all(belongs(key, [1]) for key in changed)
        before = result.state
    for site in SITES:
        kept = site_state.load_before(tmp_path / site, 3)
        trained = {key.rsplit(".", 1)[0] for key in kept.optimizer if not key.startswith("head")}
        assert not any(layer_of(name) == 0 for name in trained), sorted(trained)


def test_layers_can_be_given_by_any_numbers_but_not_by_a_mask(sections, tmp_path):
    learner = Learner.from_sections(sections(*UPPER_LAYER), site="slake", folder=tmp_path)
    start = learner.first_state()
    for layers in (iter([1]), np.flatnonzero([False, True]), torch.tensor([1])):
        assert learner.train_round(1, start, layers).state.keys() == {key for key in start if belongs(key, [1])}
    with pytest.raises(FedpeftError, match="layers is a mask"):
        learner.train_round(1, start, np.array([False, True]))


CHANGES = [*UPPER_LAYER, "schedule.score=fedselect", "method.aggregation=fedavg"]


class Watched(Learner):
    """Notes by how much each round's training changed the layers, in the mean over their numbers."""

    changes: dict[int, float]

    def fit(self, optimizer, round):
        before = {key: parameter.detach().clone() for key, parameter in self.trainable.parameters().items()}
        losses = super().fit(optimizer, round)
        moved = {key: (p.detach() - before[key]).abs().double() for key, p in self.trainable.parameters().items()}
        layers = {layer: [t for key, t in moved.items() if layer_of(key) == layer] for layer in (0, 1)}
        self.changes = {n: float(sum(t.sum() for t in g) / sum(t.numel() for t in g)) for n, g in layers.items()}
        return losses


@pytest.mark.parametrize("sites", [SITES[:1], SITES], ids=["one site", "two sites"])
@pytest.mark.parametrize("scoring", ["fresh", "with_reply"])
@pytest.mark.parametrize("method", ["houlsby", "adapterfusion"])
def test_fedselect_scores_what_the_sites_own_training_changed(sections, tmp_path, sites, scoring, method):
    chosen = sections(*CHANGES, "schedule.budget=2", f"schedule.scoring={scoring}", f"method.name={method}")
    learners = {site: Watched.from_sections(chosen, site=site, folder=tmp_path / site) for site in sites}
    changed = {}
    for result in federate(learners):
        for site, scores in result.assignment.scores.items():
            measured = changed.get(site, {0: 1.0, 1: 1.0})
            assert scores == pytest.approx([value / sum(measured.values()) for value in measured.values()], rel=1e-5)
            assert (scores[0] == scores[1]) == (site not in changed)
        changed = {site: learner.changes for site, learner in learners.items()}


def test_scores_depend_on_nothing_that_the_process_drew_before(sections, tmp_path):
    """As transformers' ViLT does: it draws the order of the patches where images differ in size."""
    chosen = sections(*UPPER_LAYER, "schedule.score=lntk", "method.aggregation=fedavg")
    learner = Learner.from_sections(chosen, site="slake", folder=tmp_path)
    drawn, first = [], learner.first_state()
    learner.model.backbone.register_forward_pre_hook(lambda *_: drawn.append(float(torch.rand(()))))
    for seed in (1, 2):
        torch.manual_seed(seed)
        learner.score_layers(1, first)
    half = len(drawn) // 2
    assert drawn[:half] == drawn[half:] != []


def test_a_notebooks_federation_refuses_scores_that_grow_old_as_a_job_does(sections, tmp_path):
    chosen = sections(*UPPER_LAYER, "method.aggregation=fedavg", "schedule.scoring=with_reply")
    chosen["schedule"]["clients_per_round"] = 1
    learners = {site: Learner.from_sections(chosen, site=site, folder=tmp_path / site) for site in SITES}
    with pytest.raises(FedpeftError, match=r"schedule.scoring is 'with_reply'.* set schedule.scoring to 'fresh'"):
        next(iter(federate(learners)))


def test_a_layer_that_was_never_trained_counts_as_the_most_changed_one(sections, tmp_path):
    made = sections(*CHANGES, "schedule.scoring=with_reply")
    learner = Learner.from_sections(made, site="slake", folder=tmp_path)
    first = learner.first_state()
    assert learner.score_layers(1, first) == [0.5, 0.5]
    learner.train_round(1, first, [0])
    assert learner.score_trained(1) == [0.5, 0.5]  # of the one that was trained, and as much for the other
    sent = learner.train_round(2, first, [1]).state
    scores = learner.score_trained(2)
    assert len(set(scores)) == 2  # layer 0 keeps what it had when it was trained
    resumed = Learner.from_sections(made, site="slake", folder=tmp_path)
    assert resumed.score_layers(3, {**first, **sent}) == scores


def test_a_state_without_changes_is_that_of_a_site_that_has_not_trained(sections, tmp_path):
    learner = Learner.from_sections(sections(*CHANGES), site="slake", folder=tmp_path)
    sent = learner.train_round(1, learner.first_state(), [0]).state
    file = tmp_path / "round-00001" / "state.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "changes"}))
    assert learner.score_layers(2, {**learner.first_state(), **sent}) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("name", "scoring"), [*((name, "fresh") for name in importance.names()), ("fedselect", "with_reply")]
)
def test_every_score_schedules_every_round(sections, tmp_path, name, scoring):
    chosen = [f"schedule.score={name}", f"schedule.scoring={scoring}", "method.aggregation=fedavg"]
    made = sections(*UPPER_LAYER, *chosen)
    learners = {site: Learner.from_sections(made, site=site, folder=tmp_path / site) for site in SITES}
    for result in federate(learners):
        for scores in result.assignment.scores.values():
            assert sum(scores) == pytest.approx(1)
            assert min(scores) >= 0


@pytest.mark.parametrize("score", ["snip", "rgn", "synflow"])
def test_layers_that_have_not_trained_get_their_turn_where_a_score_gives_them_0(sections, tmp_path, caplog, score):
    """LoRA's B is 0 before its first training, and its product with the gradient as well."""
    chosen = [f"schedule.score={score}", "method.name=lora", "method.aggregation=fedavg"]
    learner = Learner.from_sections(sections(*UPPER_LAYER, *chosen), site="slake", folder=tmp_path)
    first = learner.first_state()
    assert learner.score_layers(1, first) == [0.5, 0.5]
    assert f"{score} gives every layer 0 in this round" in caplog.text
    trained = learner.train_round(1, first, [0]).state
    assert learner.score_layers(2, {**first, **trained}) == [0.5, 0.5]  # layer 1 is still 0, and not the last for it
    assert f"{score} gives 0 to 1 of 2 layers, which have not trained yet" in caplog.text
    both = trained | learner.train_round(2, {**first, **trained}, [1]).state
    scores = learner.score_layers(3, {**first, **both})
    assert sum(scores) == pytest.approx(1)
    assert scores != [0.5, 0.5]


def test_a_layer_without_sensitive_parameters_stays_last_although_it_has_not_trained(sections, tmp_path, caplog):
    """For spt 0 is a low score and nothing else."""
    chosen = ["schedule.score=spt", "schedule.score_settings={tau: 0.00001}", "method.name=lora"]
    made = sections(*UPPER_LAYER, *chosen, "method.aggregation=fedavg")
    learner = Learner.from_sections(made, site="slake", folder=tmp_path)
    assert sorted(learner.score_layers(1, learner.first_state())) == [0, 1]
    assert "have not trained yet" not in caplog.text


def test_a_budget_of_nothing_trains_the_head_alone(sections, tmp_path):
    chosen = sections(*UPPER_LAYER, "method.aggregation=fedavg", "schedule.site_budgets={slake: 0}")
    learners = {site: Learner.from_sections(chosen, site=site, folder=tmp_path / site) for site in SITES}
    first = next(federate(learners))
    assert learners["slake"].layer_budget() == 0
    assert first.assignment.layers == {"slake": [], "vqa-rad": [1]}
    assert first.updates["slake"].state == {}
    assert first.updates["slake"].metrics["loss"] > 0


@pytest.mark.parametrize(
    ("own", "sentence", "setting"),
    [
        (
            "site_budgets={slake: 0}",
            "^site slake has a budget of 0 layers and no head to train: give it 1 or more in schedule.site_budgets, ",
            "schedule.site_budgets",
        ),
        (
            "budget=0",
            "^no layer fits into the memory of site slake, which has no head to train: lower training.batch_size, ",
            "training.batch_size",
        ),
    ],
    ids=["of the job", "of the memory"],
)
def test_a_budget_of_nothing_is_refused_where_no_head_trains(sections, tmp_path, monkeypatch, own, sentence, setting):
    """Ranking takes no head."""
    monkeypatch.setattr("fedpeft.site.learner.measure_budget", lambda *_: 0)
    ranking = (f"backbone.source={TINY_ALBEF_FOLDER}", "backbone.name=tiny-albef-decoder", "training.answering=ranking")
    chosen = sections(*UPPER_LAYER, "method.aggregation=fedavg", *ranking, f"schedule.{own}")
    learner = Learner.from_sections(chosen, site="slake", folder=tmp_path)
    with pytest.raises(FedpeftError, match=sentence) as refused:
        learner.layer_budget()
    assert refused.value.setting == setting


@pytest.mark.parametrize(
    ("changes", "tensors"),
    [
        ((), 2),
        (("training.optimizer=sgd",), 0),
        (("training.scaffold=true", "training.optimizer=sgd"), 2),
        (("training.proximal_mu=0.1",), 3),
        (("training.personalization=ditto",), 5),
    ],
    ids=str,
)
def test_a_measured_budget_counts_what_is_held_beside_the_model(sections, tmp_path, monkeypatch, changes, tensors):
    asked = []
    monkeypatch.setattr(scoring, "layer_budget", lambda *_, settings, **how: asked.append(settings) or 1)
    chosen = sections("schedule.solver=exact", "schedule.budget=0", "method.aggregation=fedavg", *changes)
    Learner.from_sections(chosen, site="slake", folder=tmp_path).layer_budget()
    assert [settings.optimizer_tensors for settings in asked] == [tensors]


def test_drawn_budgets_lie_in_their_range(sections, tmp_path):
    chosen = sections("schedule.solver=exact", "schedule.budget_range=[1, 2]", "method.aggregation=fedavg")
    learners = {site: Learner.from_sections(chosen, site=site, folder=tmp_path / site) for site in SITES}
    for site, layers in next(federate(learners)).assignment.layers.items():
        assert len(layers) == learners[site].layer_budget() in (1, 2)


def test_each_site_draws_its_own_budget_by_the_seed_of_the_job():
    settings = ScheduleSettings(solver="exact", budget_range=(1, 4))

    def draw(seed):
        return [settings.budget_of(f"site-{number}", seed=seed) for number in range(200)]

    assert set(draw(0)) == {1, 2, 3, 4}
    assert draw(0) == draw(0)
    assert draw(0) != draw(1)


@pytest.mark.parametrize(("margin", "layers"), [(0.1, [0, 1]), (0.999999, [])])
def test_the_margin_of_a_job_decides_how_many_layers_the_memory_holds(sections, tmp_path, margin, layers):
    chosen = sections("schedule.solver=exact", f"schedule.memory_margin={margin}", "method.aggregation=fedavg")
    learners = {site: Learner.from_sections(chosen, site=site, folder=tmp_path / site) for site in SITES}
    assert next(federate(learners)).assignment.layers == dict.fromkeys(SITES, layers)


@pytest.mark.parametrize("name", ["full", "sba_vpt", "houlsby"])
def test_the_budget_counts_what_a_scheduled_round_trains(sections, tmp_path, monkeypatch, name):
    solver = () if name == "sba_vpt" else ("schedule.solver=exact",)  # that has a schedule of its own
    chosen = sections(f"method.name={name}", "method.aggregation=fedavg", *solver)
    learner, counted = Learner.from_sections(chosen, site="slake", folder=tmp_path), []

    def beside_layers():
        given = learner.trainable.parameters().items()
        return {key for key, parameter in given if parameter.requires_grad and layer_of(key) is None}

    monkeypatch.setattr("fedpeft.site.learner.measure_budget", lambda *_, **__: counted.append(beside_layers()) or 1)
    monkeypatch.setattr(ScheduleSettings, "budget_of", lambda *_, **__: None)
    assert learner.layer_budget() == 1
    learner.trainable.train_only([1])
    assert counted == [beside_layers()]


@pytest.mark.parametrize("batch_size", [2, 32])
def test_the_budget_holds_what_checkpointing_computes_again(sections, tmp_path, batch_size):
    """Beside what torch's profiler counts of a step: the largest sum of allocations less what was freed."""
    chosen = sections("schedule.solver=exact", "method.aggregation=fedavg", "training.checkpointing=true")
    chosen["training"]["batch_size"] = batch_size
    learner = Learner.from_sections(chosen, site="slake", folder=tmp_path)
    layers, batch = (
        _group_by_layer(learner.trainable.parameters()),
        learner.batches.sample(batch_size, 0, size=batch_size)[0],
    )
    losses, settings = _losses(learner.answering), MemorySettings(optimizer_tensors=0)
    with computing.shortcuts(learner.backbone, learner.training):
        model = learner.answering.train()
        inputs = batch.inputs, lambda logits, _: losses(logits, batch)
        step, added = layer_memory(model, layers, *inputs, model=model, settings=settings)
        learner.trainable.train_only(None)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            losses(model(batch.inputs), batch).mean().backward()
    events = sorted(
        (event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"),
        key=lambda event: event.start_ns(),
    )
    peak = max(accumulate(event.nbytes() for event in events))
    assert float(step + added.sum()) == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("margin", [-0.1, 1, 1.5])
def test_a_margin_that_is_no_share_is_refused(margin):
    with pytest.raises(FedpeftError, match=f"memory_margin is {margin}"):
        ScheduleSettings(memory_margin=margin)


DIGESTS = {  # settings of a job, and the sites that announce a digest of what all start from
    "no layers are scheduled": (["schedule.solver=all"], ()),
    "scheduled layers": ([], SITES),
    "a seed of its own": (["schedule.solver=all", "method.initialization=own"], ()),
    "one joins later": (["schedule.solver=all", "method.matched_layers=2", "schedule.joins={vqa-rad: 2}"], SITES[:1]),
    "relays may add up": (["schedule.solver=all", "method.aggregation=fedavg"], SITES),
    "nothing is sent": (["schedule.solver=all", "method.aggregation=none"], ()),
    "a federated head": (["method.head=federated", "data.answers=['yes', 'no']"], SITES),
}


@pytest.mark.parametrize(("overrides", "named"), DIGESTS.values(), ids=DIGESTS)
def test_a_digest_is_announced_only_where_all_sites_can_compute_what_one_may_send(sections, tmp_path, overrides, named):
    chosen = sections(*UPPER_LAYER, *overrides)
    learners = {site: Learner.from_sections(chosen, site=site, folder=tmp_path / site) for site in SITES}
    assert {site: each.start_digest() for site, each in learners.items()} == {
        site: digest(learners[SITES[0]].first_state()) if site in named else "" for site in SITES
    }


def test_a_digest_tells_keys_dtypes_shapes_and_bytes_apart():
    state = {"b": torch.zeros(2, 3), "a": torch.ones(2)}
    others = [
        {"a": torch.ones(2)},
        {**state, "a": torch.ones(2, dtype=torch.bfloat16)},
        {**state, "b": torch.zeros(3, 2)},
        {**state, "a": torch.tensor([1.0, 1.0 + 1e-7])},
        {"c": state["b"], "a": state["a"]},
        {},
    ]
    assert digest(state) == digest(dict(reversed(state.items()))) == digest({**state, "b": torch.zeros(3, 2).T})
    assert len({digest(state), *map(digest, others)}) == 1 + len(others)
    assert len(digest({"a": torch.tensor(1.0, dtype=torch.bfloat16)})) == 64
