# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
import yaml
from PIL import Image
from small_federations import learners_of

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import copied, equal
from fedpeft.federate import federate
from fedpeft.methods.settings import MethodSettings
from fedpeft.server.aggregation import aggregate
from fedpeft.site import learner as learner_module
from fedpeft.site import site_state
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.slow


def last_round(sections, folder):
    return list(federate(learners_of(sections, folder)))[-1]


def test_the_examples_of_a_site_are_hashed_once(sections, tmp_path, monkeypatch):
    counted, digest = [], site_state.examples_digest
    monkeypatch.setattr(site_state, "examples_digest", lambda data: counted.append(data) or digest(data))
    made = learners_of(sections("method.aggregation=fedavg"), tmp_path)
    list(federate(made))
    assert counted == [made["slake"].data, made["vqa-rad"].data]
    assert made["slake"].facts["examples"] == digest(made["slake"].data)


def test_a_site_says_when_it_is_no_better_than_a_constant_answer_for_three_rounds(sections, tmp_path):
    constants, said = {"slake": 0.999, "vqa-rad": -1.0}, {"slake": [], "vqa-rad": []}
    for number in range(1, 5):  # each round in a learner of its own, as after a restart
        for site, one in learners_of(sections("training.rounds=4", "method.aggregation=fedavg"), tmp_path).items():
            one.constant = constants[site]
            said[site].append(one.train_round(number, {}).metrics["below_constant"])
    assert said == {"slake": [0, 0, 1, 1], "vqa-rad": [0, 0, 0, 0]}


def test_a_learner_keeps_its_own_sections(sections, tmp_path):
    chosen = sections("method.settings={houlsby: {reduction_factor: 4}}")
    learner, before = learners_of(chosen, tmp_path, ["slake"])["slake"], copy.deepcopy(chosen)
    chosen["method"]["settings"]["houlsby"]["reduction_factor"] = 2
    chosen["training"]["rounds"] = 99
    assert learner.record.sections == before
    assert learner.method.settings["houlsby"] == {"reduction_factor": 4}


@pytest.mark.parametrize(
    "overrides",
    [
        ["schedule.solver=exact", "schedule.budget=1"],
        ["method.name=full", "method.aggregation=fedavg", "method.head=federated"],
    ],
    ids=" ".join,
)
def test_what_is_done_to_the_first_state_changes_no_second_one(sections, tmp_path, overrides):
    learner = learners_of(sections(*overrides), tmp_path, ["slake"])["slake"]
    before, digest = copied(learner.first_state()), learner.start_digest()
    assert digest
    for tensor in learner.first_state().values():
        tensor.fill_(9.0)
    assert equal(learner.first_state(), before)
    assert learner.start_digest() == digest


@pytest.mark.parametrize(
    "overrides",
    [
        ["method.pia.integration=weight_space"],
        ["method.pia.integration=two_branches"],
        ["method.pia.integration=two_branches", "method.pia.upload=local"],
        ["method.pia.support=weights"],
        ["method.pia.support=mean"],
        ["method.pia.server=false"],
        ["method.pia.client=false"],
        ["method.aggregation=fedavg"],
        ["method.aggregation=none"],
        ["method.name=classifier", "method.aggregation=none"],
        ["method.name=full", "method.aggregation=fedavg"],
        ["method.name=pfeiffer"],
        ["method.name=parallel"],
        ["method.name=compacter", "method.settings.compacter.reduction_factor=4"],
        ["method.name=lora"],
        ["method.name=adapterfusion"],
        ["method.name=feddat_houlsby"],
        ["method.name=feddat_adapterfusion", "method.aggregation=none"],
        ["method.name=lora", "method.aggregation=svd", "method.site_settings={slake: {r: 2}}"],
        ["method.name=lora", "method.aggregation=stack", "method.site_settings={slake: {r: 2}}"],
        ["method.name=lora_vpt", "method.aggregation=stack"],
        ["method.name=dvpt", "method.aggregation=svd", "method.settings.dvpt.decomposition=concatenated"],
        ["method.initialization=own"],
        ["method.site_settings={slake: {reduction_factor: 4}}"],
        ["training.optimizer_state=reset", "training.head=mlp", "training.local_epochs=2"],
    ],
    ids=" ".join,
)
def test_every_method_runs_and_repeats_to_the_bit(sections, tmp_path, overrides):
    chosen = sections(*overrides)
    first, second = last_round(chosen, tmp_path / "a"), last_round(chosen, tmp_path / "b")
    assert equal(first.state, second.state)
    for site, update in first.updates.items():
        assert update.metrics == second.updates[site].metrics
        assert update.metrics["loss"] > 0
    assert bool(first.state) == MethodSettings(**chosen["method"]).exchanges


def start(value):
    return f"method.settings.lora.init_lora_weights={value}"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ([start("pissa"), "method.aggregation=stack"], "init_lora_weights='pissa' asks for first values"),
        ([start("false"), "method.aggregation=stack"], "init_lora_weights=False asks for first values"),
        ([start("gaussian"), "method.aggregation=stack"], "whose products are 0: leave it out"),
        ([start("pissa"), "method.aggregation=svd", "method.site_settings={slake: {r: 2}}"], "another rank or start"),
        ([start("pissa"), "method.aggregation=fedavg", "method.initialization=own"], "another rank or start differ"),
    ],
    ids=str,
)
def test_first_values_that_are_not_kept_or_not_shared_are_refused(sections, tmp_path, overrides, sentence):
    with pytest.raises(FedpeftError, match=sentence):
        learners_of(sections("method.name=lora", *overrides), tmp_path)


def test_the_validation_split_is_measured_and_changes_nothing(sections, tmp_path):
    default = last_round(sections(), tmp_path / "a")
    without = last_round(sections("training.validate=false"), tmp_path / "b")
    assert equal(default.state, without.state)
    for site, update in default.updates.items():
        assert 0 <= update.metrics["validation"] <= 1
        assert without.updates[site].metrics["validation"] is None
        assert {**update.metrics, "validation": None} == without.updates[site].metrics


@pytest.mark.parametrize("decay", ["linear", "none"])
def test_one_step_of_sgd_is_the_rate_times_the_gradient(sections, tmp_path, monkeypatch, decay):
    chosen = sections(
        "method.aggregation=fedavg",
        "training.optimizer=sgd",
        f"training.decay={decay}",
        "training.warmup=0",
        "training.weight_decay=0",
        "training.learning_rate=0.1",
        "training.rounds=2",
        "training.batch_size=500",
        "training.local_epochs=1",
    )
    learner = learners_of(chosen, tmp_path, ["slake"])["slake"]
    gradients = {}
    parameters = learner.trainable.parameters()
    for key, parameter in parameters.items():
        parameter.register_post_accumulate_grad_hook(lambda p, key=key: gradients.update({key: p.grad.clone()}))
    before = learner.trainable.state()
    first = learner.train_round(1, {})
    for key, tensor in first.state.items():
        torch.testing.assert_close(tensor, before[key] - 0.1 * gradients[key].cpu())
    second = learner.train_round(2, first.state)
    rate = 0.1 if decay == "none" else 0.05
    for key, tensor in second.state.items():
        torch.testing.assert_close(tensor, first.state[key] - rate * gradients[key].cpu())


def test_adapters_change_and_the_backbone_does_not(sections, tmp_path):
    learner = learners_of(sections(), tmp_path, ["slake"])["slake"]
    frozen = {n: p.clone() for n, p in learner.backbone.named_parameters() if "houlsby" not in n}
    before = learner.trainable.state()
    update = learner.train_round(1, {})
    assert not equal(before, update.state)
    assert all(torch.equal(p, frozen[n]) for n, p in learner.backbone.named_parameters() if n in frozen)


@pytest.mark.parametrize(
    "override",
    [
        "method.pia.integration=weight_space",
        "method.pia.integration=two_branches",
        "method.name=adapterfusion",
        "method.name=feddat_adapterfusion",
        "training.optimizer=sgd",
    ],
)
def test_a_new_process_goes_on_where_the_old_one_stopped(sections, tmp_path, override):
    # adapters from different seeds and a high rate, so that alignment really moves neurons
    lively = ["method.initialization=own", "training.learning_rate=0.3", "training.rounds=3"]
    chosen = sections(override, *lively)
    together = last_round(chosen, tmp_path / "together")
    state = {}
    for number in (1, 2, 3):
        replies = {}
        for site in ("slake", "vqa-rad"):
            fresh = Learner.from_sections(chosen, site=site, folder=tmp_path / "apart" / site)
            update = fresh.train_round(number, state)
            replies[site] = (update.state, update.samples)
        state, _ = aggregate(replies, fresh.method, previous=state or None)
    assert equal(together.state, state)


def test_repeating_a_round_repeats_its_result(sections, tmp_path):
    learner = learners_of(sections(), tmp_path, ["slake"])["slake"]
    first = learner.train_round(1, {})
    second = learner.train_round(2, first.state)
    again = learner.train_round(2, first.state)
    assert equal(second.state, again.state)


@pytest.mark.parametrize("name", ["adapterfusion", "feddat_houlsby"])
def test_what_is_private_is_trained_and_kept_and_never_sent(sections, tmp_path, name):
    learner = learners_of(sections(f"method.name={name}"), tmp_path, ["slake"])["slake"]
    first = learner.trainable.private_state()
    update = learner.train_round(1, {})
    kept = site_state.load_before(tmp_path / "slake", 2)
    assert update.state.keys() == learner.trainable.state().keys() == kept.adapter.keys()
    assert not update.state.keys() & first.keys()
    assert equal(kept.private, learner.trainable.private_state())
    assert not equal(kept.private, first)


def test_the_state_of_another_method_is_refused(sections, tmp_path):
    learners_of(sections(), tmp_path, ["slake"])["slake"].train_round(1, {})
    other = learners_of(sections("method.name=feddat_houlsby"), tmp_path, ["slake"])["slake"]
    with pytest.raises(FedpeftError, match=r"lacks 'private\..* remove that folder"):
        other.train_round(2, {})


def test_without_exchange_nothing_is_uploaded_but_the_site_keeps_its_adapter(sections, tmp_path):
    learner = learners_of(sections("method.aggregation=none"), tmp_path, ["slake"])["slake"]
    assert learner.train_round(1, {}).state == {}
    assert any((tmp_path / "slake").glob("round-00001/adapter.safetensors"))


@pytest.mark.parametrize("change", ["training.seed=1", "data.seed=1"])
def test_the_state_of_other_data_is_refused(sections, tmp_path, change):
    learners_of(sections(), tmp_path, ["slake"])["slake"].train_round(1, {})
    other = learners_of(sections(change), tmp_path, ["slake"])["slake"]
    with pytest.raises(FedpeftError, match="belongs to other data, another backbone, another seed or another site"):
        other.train_round(2, {})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method.settings.houlsby.reduction_factor=999", "leaves no neuron"),
        ("method.settings.houlsby.reduktion=2", "reduktion"),
        ("backbone.source=/nowhere", "/nowhere"),
        ("training.device=tpu9", "training.device is 'tpu9'"),
        ("data.site=", "data.site is None"),
    ],
)
def test_bad_input_is_one_sentence(sections, tmp_path, override, message):
    chosen = sections()
    section, _, rest = override.partition(".")
    name, _, value = rest.partition("=")
    target = chosen[section]
    *parents, last = name.split(".")
    for parent in parents:
        target = target[parent]
    target[last] = yaml.safe_load(value)
    with pytest.raises(FedpeftError, match=message):
        learners_of(chosen, tmp_path, ["slake"])["slake"].train_round(1, {})


def test_a_diverging_loss_is_refused_with_the_remedy(sections, tmp_path):
    chosen = sections("training.learning_rate=1.0e+30", "training.local_epochs=20")
    with pytest.raises(FedpeftError, match=r"training loss became .* lower training.learning_rate"):
        learners_of(chosen, tmp_path, ["slake"])["slake"].train_round(1, {})


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_one_sentence_wherever_it_is_decoded(sections, tmp_path, workers):
    data = tmp_path / "data"
    data.mkdir()
    Image.effect_noise((64, 64), 60).save(data / "broken.jpg")
    (data / "broken.jpg").write_bytes((data / "broken.jpg").read_bytes()[:-500])
    rows = [f"broken.jpg,{split} {answer}?,{answer},{split}" for answer in ("a", "b") for split in ("train", "test")]
    (data / "manifest.csv").write_text("\n".join(["image,question,answer,split", *rows]))
    chosen = sections(f"training.workers={workers}")
    chosen["data"] = {"dataset": "manifest", "root": str(data), "validation_fraction": 0}
    learner = Learner.from_sections(chosen, site="here", folder=tmp_path / "state")
    with pytest.raises(FedpeftError, match=r"broken\.jpg") as message:
        learner.train_round(1, {})
    assert "Traceback" not in str(message.value)


def test_scores_do_not_depend_on_what_the_process_did_before(sections, tmp_path):
    chosen = sections("method.pia.integration=two_branches", "schedule.solver=exact", "schedule.budget=1")
    living = learners_of(chosen, tmp_path, ["slake"])["slake"]
    state = living.train_round(1, {}).state
    living.train_round(2, state)
    fresh = learners_of(chosen, tmp_path, ["slake"])["slake"]
    assert living.score_layers(3, state) == fresh.score_layers(3, state)


def test_a_longer_first_round_counts_in_the_rate_of_all_rounds(sections, tmp_path, monkeypatch):
    rates = []
    original = learner_module.train_epochs

    def watched(answering, batches, optimizer, rate, *, first_step, epochs, **others):
        rates.extend(rate(first_step + k) for k in range(epochs * len(batches)))
        return original(answering, batches, optimizer, rate, first_step=first_step, epochs=epochs, **others)

    monkeypatch.setattr(learner_module, "train_epochs", watched)
    last_round(sections("training.first_epochs=3", "training.local_epochs=1", "training.rounds=2"), tmp_path / "longer")
    longer = rates[:]
    rates.clear()
    last_round(sections("training.local_epochs=1", "training.rounds=4"), tmp_path / "even")
    assert sorted(longer) == sorted(rates)
    settings = TrainingSettings(rounds=3, local_epochs=2)
    assert [settings.epochs_in(round) for round in (1, 2, 3)] == [2, 2, 2]
    assert settings.epochs_before(4) == 6


def test_a_site_that_joins_later_first_trains_what_the_others_have_trained():
    settings = TrainingSettings(rounds=5, local_epochs=2, first_epochs=7)
    assert [settings.epochs_in(round, first=3) for round in (3, 4, 5)] == [11, 2, 2]
    assert [settings.epochs_before(round, first=3) for round in (3, 4, 6)] == [0, 11, 15]
    assert settings.epochs_before(6, first=3) == settings.epochs_before(6)


def test_moments_end_with_a_round_that_does_not_train_their_layer(sections, tmp_path):
    job = sections("method.aggregation=fedavg", "schedule.solver=drawn", "schedule.budget=1", "training.rounds=3")
    learner = Learner.from_sections(job, site="slake", folder=tmp_path)
    update = learner.train_round(1, {}, [0])
    learner.train_round(2, learner.first_state() | update.state, [1])
    named = {key.split("/")[0] for key in site_state.load_before(tmp_path, 3).optimizer}
    assert {key for key in named if key.startswith("layer.")} == {
        key for key in learner.trainable.parameters() if key.startswith("layer.1.")
    }


@pytest.mark.parametrize(("aggregation", "kept"), [("fedavg", False), ("none", True)])
def test_moments_of_what_moved_end_while_a_site_is_away(sections, tmp_path, aggregation, kept):
    job = sections(f"method.aggregation={aggregation}", "training.rounds=4")
    learner = Learner.from_sections(job, site="slake", folder=tmp_path)
    update = learner.train_round(1, {})
    own = site_state.load_before(tmp_path, 4)
    assert learner.values.moments(own, 2) == own.optimizer
    after = {key.split("/")[0] for key in learner.values.moments(own, 4)}
    assert {key for key in after if key.startswith("head.")}
    assert bool(after & set(learner.trainable.parameters())) == kept
    assert learner.train_round(4, update.state).samples == len(learner.data.train)


def test_a_second_run_in_the_same_folders_is_the_first_one_again(sections, tmp_path):
    job = sections("method.aggregation=fedavg", "training.rounds=6", "data.train_size=4", "training.local_epochs=1")
    first, second = (
        list(federate({s: Learner.from_sections(job, site=s, folder=tmp_path / s) for s in ("slake", "vqa-rad")}))
        for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(one.state[key], other.state[key]) for key in one.state)
