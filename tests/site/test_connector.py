# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A backbone's connector, here MMBT's projection: trained beside every method, averaged without alignment, exported."""

import json

import pytest
import torch
from safetensors.torch import load_file
from small_federations import learners_of

from fedpeft.backbones import BACKBONES, BackboneSettings, Pretrained, build
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import CONNECTOR, group_by_place, layers_of, only_connector, without_connector
from fedpeft.federate import federate
from fedpeft.inference.examples import read_split
from fedpeft.inference.export import export
from fedpeft.inference.kept_model import find
from fedpeft.inference.merging import merge
from fedpeft.inference.predictor import Predictor
from fedpeft.job.composing import check_sections
from fedpeft.methods.trainable import connector_of
from fedpeft.server.job_run import ADAPTER, export_adapter
from fedpeft.site import site_state
from fedpeft.site.learner import Learner
from fedpeft.site.site_model import SharedModels

SITES = ("slake", "vqa-rad")
KEY = f"{CONNECTOR}projection"
FEDAVG, SCHEDULE = "method.aggregation=fedavg", ("schedule.solver=exact", "schedule.budget=1")
PIA, LORA = "method.aggregation=pia", "method.name=lora"
CLASSIFIER, FEDERATED = "method.name=classifier", "method.head=federated"


@pytest.fixture(scope="session")
def job(sections, encoders):
    """Function from overrides to the sections of a small job, whose projection trains."""

    def made(*overrides, projection="trained"):
        composed = sections("training.rounds=2", "training.batch_size=4", "training.learning_rate=5e-3", *overrides)
        return composed | {"backbone": {**encoders, "projection": projection}}

    return made


@pytest.mark.slow
def test_training_begins_with_the_orthogonal_matrix_to_the_bit(encoders):
    drawn, trained = (build(BackboneSettings(**encoders, projection=name)).eval() for name in ("orthogonal", "trained"))
    assert not drawn.connector
    assert list(trained.connector) == ["projection"]
    torch.testing.assert_close(trained.projection.T @ trained.projection, torch.eye(24))
    assert torch.equal(trained.scale * trained.projection, drawn.projection)
    batch = drawn.collate([torch.zeros(32, 32, 3, dtype=torch.uint8).numpy()], ["why ?"])
    with torch.no_grad():
        assert torch.equal(drawn(**batch), trained(**batch))


WAYS = [
    [FEDAVG],
    [FEDAVG, "method.robust.average=median"],
    [FEDAVG, FEDERATED],
    [FEDAVG, FEDERATED, CLASSIFIER],
    [FEDAVG, LORA],
    [LORA, "method.aggregation=svd"],
    [LORA, "method.aggregation=stack"],
    [FEDAVG, "method.name=bias"],
    [FEDAVG, "method.name=full"],
    [FEDAVG, "method.name=feddat_houlsby"],
    [FEDAVG, "method.name=compacter"],
    [PIA],
    [PIA, "method.pia.integration=two_branches"],
    [PIA, "method.pia.integration=weight_space"],
    [PIA, "method.pia.integration=frozen_half"],
    [PIA, "method.pia.aligned_at=site", "method.secure_sum=true"],
    [PIA, "method.pia.share=agreement"],
    [PIA, "method.pia.reference=fixed_point", "method.pia.gamma=0.1"],
    [PIA, "method.site_settings={slake: {reduction_factor: 8}}"],
    [FEDAVG, "method.initialization=own"],
    [FEDAVG, "method.server_optimizer=adam"],
    [FEDAVG, *SCHEDULE],
    [FEDAVG, *SCHEDULE, "schedule.scoring=with_reply", "schedule.score=lntk"],
    [FEDAVG, "training.proximal_mu=0.1"],
    [FEDAVG, "training.scaffold=true", "training.optimizer=sgd"],
    [FEDAVG, "training.moon_mu=1"],
    [FEDAVG, "training.personalization=ditto"],
    [FEDAVG, "training.personalization=fedala"],
]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", WAYS, ids=" ".join)
def test_it_travels_with_every_method_and_is_averaged_as_it_stands(job, tmp_path, chosen):
    made = learners_of(job(*chosen, "training.local_epochs=1"), tmp_path)
    starts = [learner.first_state() for learner in made.values()]
    assert torch.equal(*(start[KEY] for start in starts)), "also where adapters begin from seeds of their own"
    before = starts[0][KEY]
    for result in federate(made):
        counts = [update.samples for update in result.updates.values()]
        sent = [update.state[KEY] for update in result.updates.values()]
        assert all(not torch.equal(tensor, before) for tensor in sent), "whatever layers train"
        uniform = "feddat" in " ".join(chosen)
        mean = sum((1 if uniform else n) * one for n, one in zip(counts, sent, strict=True))
        mean = mean / (len(sent) if uniform else sum(counts))
        if "method.server_optimizer=adam" not in chosen:
            torch.testing.assert_close(result.state[KEY], mean, rtol=1e-5, atol=1e-6)
        before = result.state[KEY]


@pytest.mark.slow
@pytest.mark.parametrize("integration", ["two_branches", "weight_space", "frozen_half"])
def test_where_a_site_keeps_half_of_its_own_adapter_it_keeps_nothing_of_its_own_connector(job, tmp_path, integration):
    learner = learners_of(job(PIA, f"method.pia.integration={integration}"), tmp_path)["slake"]
    learner.train_round(1, learner.first_state())
    received = {key: tensor + 0.01 for key, tensor in learner.first_state().items()}
    own = site_state.load_before(tmp_path / "slake", 2)
    learner.values.restore(own, received, folder=learner.folder)
    started = learner.integrate(2, own.adapter, received)
    assert torch.equal(learner.trainable.state()[KEY], received[KEY])
    assert torch.equal(started.near[KEY], received[KEY])
    assert started.mix is None or KEY not in started.mix.own
    learner.trainable.load({KEY: received[KEY] * 2, **without_connector(own.adapter)})
    upload, kept, _ = started.end(learner.trainable.state())
    assert torch.equal(upload[KEY], received[KEY] * 2)
    assert torch.equal(kept[KEY], received[KEY] * 2)


@pytest.mark.slow
def test_scores_and_budget_of_layers_are_without_it_and_it_trains_in_any_case(job, tmp_path):
    settings = (FEDAVG, *SCHEDULE, "schedule.score=lntk")
    made = {
        name: learners_of(job(*settings, projection=name), tmp_path / name)["slake"]
        for name in ("orthogonal", "trained")
    }
    layers = layers_of(made["trained"].trainable.parameters())
    assert layers == [0, 1]
    scores = [learner.score_layers(1, learner.first_state()) for learner in made.values()]
    assert scores[0] == scores[1]
    assert len(scores[1]) == len(layers)
    learner = made["trained"]
    for assigned in ([], [1]):
        learner.trainable.train_only(assigned)
        trained = {key for key, one in learner.trainable.parameters().items() if one.requires_grad}
        assert KEY in trained
        assert layers_of(trained) == assigned
    sent = learner.train_round(1, learner.first_state(), [1]).state
    assert layers_of(sent) == [1]
    assert not torch.equal(sent[KEY], learner.first_state()[KEY])


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [[FEDAVG], [PIA], [FEDAVG, "training.personalization=ditto"]], ids=" ".join)
def test_a_site_goes_on_from_its_disk_to_the_bit(job, tmp_path, chosen):
    ends = []
    for fresh in (False, True):
        folder, received = tmp_path / str(fresh), {}
        for number in (1, 2):
            if number == 1 or fresh:
                learner = learners_of(job(*chosen), folder)["slake"]
            sent = learner.train_round(number, received).state
            received = {key: tensor + 0.001 for key, tensor in sent.items()}
        ends.append((sent, site_state.load(folder / "slake" / "round-00002").optimizer))
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert f"{KEY}/exp_avg" in ends[0][1]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [[FEDAVG, "method.aggregation=none"], [CLASSIFIER]], ids=" ".join)
def test_where_nothing_is_exchanged_each_site_trains_its_own(job, tmp_path, chosen):
    made = learners_of(job(*chosen), tmp_path)
    assert all(not update.state for result in federate(made) for update in result.updates.values())
    one, other = (site_state.load_before(tmp_path / site, 3).adapter[KEY] for site in SITES)
    assert not torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [[FEDAVG, "method.aggregation=none"], [CLASSIFIER]], ids=" ".join)
def test_sites_that_take_turns_with_one_model_go_on_with_their_own(job, tmp_path, chosen, monkeypatch):
    made = {
        shared: learners_of(job(*chosen), tmp_path / str(shared), shared=SharedModels() if shared else None)
        for shared in (0, 1)
    }
    assert made[1][SITES[0]].trainable is made[1][SITES[1]].trainable
    begun, fit = [], Learner.fit

    def noting(learner, *arguments):
        begun.append(learner.trainable.state()[KEY])
        return fit(learner, *arguments)

    monkeypatch.setattr(Learner, "fit", noting)
    ends = []
    for shared, sites in made.items():
        for number in (1, 2):
            for learner in sites.values():
                learner.train_round(number, {})
        ends.append([site_state.load_before(tmp_path / str(shared) / site, 3).adapter[KEY] for site in SITES])
    first = made[1][SITES[0]].first_state().get(KEY, begun[0])
    assert all(torch.equal(begun[k], first) for k in (0, 1, 4, 5)), "the second site's too, after the first one trained"
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    assert all(not torch.equal(one, first) for one in ends[1])


def test_what_a_backbone_calls_its_connector_is_none_where_the_job_trains_none(encoders):
    class Other(torch.nn.Module):
        connector = torch.nn.Linear(2, 2)

    settings = BackboneSettings(**encoders, projection="trained")
    assert connector_of(Other(), BackboneSettings(**encoders)) == {}
    with pytest.raises(
        FedpeftError, match="projection is 'trained', and backbone 'mmbt' has no connector: leave it out"
    ):
        connector_of(torch.nn.Linear(2, 2), settings)


PLUGIN = {"build": "a:b", "skeleton": "a:b", "image_encoder": True, "default_image_source": "b"}


@pytest.mark.parametrize("declared", [True, False])
def test_a_backbone_of_a_plugin_declares_it(declared, monkeypatch):
    monkeypatch.setitem(BACKBONES._own, "mine", Pretrained(**PLUGIN, connector=declared))
    if declared:
        assert BackboneSettings(name="mine", source="a", projection="trained").trains_connector
    else:
        with pytest.raises(FedpeftError, match="projection is 'trained', and backbone 'mine' has no connector"):
            BackboneSettings(name="mine", source="a", projection="trained")


def predicted(kept, examples):
    """The probabilities of three answers to each."""
    answers = Predictor(kept).predictions(examples, [True] * len(examples), max_answers=3)
    return [[(one.text, one.probability) for one in prediction.answers] for prediction in answers]


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [[FEDAVG], [PIA, "method.pia.integration=two_branches"], [FEDAVG, LORA], [FEDAVG, "method.name=full"]],
    ids=" ".join,
)
def test_an_export_answers_as_the_site_did(job, encoders, tmp_path, chosen):
    *_, last = federate(learners_of(job(*chosen), tmp_path))
    kept, out, merged = find(tmp_path / "slake", site=None), tmp_path / "out", tmp_path / "merged"
    examples = read_split("test", kept).examples[:6]
    expected = predicted(kept, examples)
    image = encoders["image_source"]
    sources = {"backbone": encoders["source"], "image_backbone": image}
    assert torch.equal(kept.state.adapter[KEY], last.updates["slake"].state[KEY])
    if "method.name=full" not in chosen:
        export(kept, out)
        assert torch.equal(load_file(out / "connector.safetensors")["projection"], kept.state.adapter[KEY])
        assert '"connector.safetensors"), strict=False)' in (out / "README.md").read_text()
        alone = build(BackboneSettings(**encoders, projection="trained"))  # as that line of the card has it
        assert not alone.load_state_dict(load_file(out / "connector.safetensors"), strict=False).unexpected_keys
        assert torch.equal(alone.projection, kept.state.adapter[KEY])
        assert predicted(find(out, site=None, **sources), examples) == expected
        if PIA not in chosen:
            with pytest.raises(FedpeftError, match=r"holds a connector of its backbone .*: merge those of runs with"):
                merge([out, merged], tmp_path / "mean")
        (out / "connector.safetensors").unlink()
        with pytest.raises(FedpeftError, match=r"lacks connector\.safetensors, which .*: export the model again"):
            find(out, site=None, **sources)
    if LORA in chosen or "method.name=full" in chosen:
        export(kept, merged, merged=True)
        if LORA in chosen:
            (merged / "adapter_config.json").unlink()
        again = predicted(find(merged, site=None, image_backbone=image), examples)
        assert [[text for text, _ in one] for one in again] == [[text for text, _ in one] for one in expected]
        numbers = [[[p for _, p in one] for one in rows] for rows in (again, expected)]
        torch.testing.assert_close(*map(torch.tensor, numbers), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [[FEDAVG], [LORA, "method.aggregation=stack"]], ids=" ".join)
def test_the_servers_folder_of_an_adapter_has_it_too(job, tmp_path, chosen):
    made = learners_of(job(*chosen), tmp_path)
    *_, last = federate(made)
    learner = made["slake"]
    folder = export_adapter(tmp_path / ADAPTER, last.state, learner.method, family=learner.backbone.family)
    assert torch.equal(load_file(folder / "connector.safetensors")["projection"], last.state[KEY])
    if chosen == [FEDAVG]:
        kept = find(tmp_path / "slake", site=None)
        model = Predictor(kept, folder).model
        torch.testing.assert_close(model.trainable.state(), last.state, rtol=0, atol=0)
        (folder / "connector.safetensors").unlink()
        with pytest.raises(FedpeftError, match=f"it lacks {KEY}: name an adapter of the same"):
            Predictor(kept, folder)


OF_ONE_SITE = [{"source": "/models/other"}, {"image_source": "/models/other"}, {"projection": "orthogonal"}]


@pytest.mark.parametrize("own", OF_ONE_SITE, ids=str)
def test_sites_with_encoders_of_their_own_have_no_map_in_common(job, own):
    sections = job(FEDAVG)
    sections["backbone"]["sites"] = {"vqa-rad": own}
    with pytest.raises(FedpeftError, match=f"backbone.sites.vqa-rad sets {next(iter(own))}: leave that out") as caught:
        check_sections(sections)
    assert caught.value.setting == "backbone.projection"
    sections["method"] = {**sections["method"], "aggregation": "none"}
    check_sections(sections)


def test_passes_that_it_changes_are_not_reused(job, tmp_path):
    settings = job(FEDAVG, "method.name=feddat_houlsby", "training.reuse_passes=true")
    with pytest.raises(FedpeftError, match="reuse_passes is true, and a backbone's connector, which is trained"):
        learners_of(settings, tmp_path)


def test_it_is_a_place_of_its_own_that_no_order_moves():
    state = {KEY: torch.ones(2, 3), "layer.0.output.down.weight": torch.ones(2, 2)}
    assert group_by_place(state)[KEY] == {KEY: KEY}
    assert set(only_connector(state)) == {KEY}
    assert json.dumps(layers_of(state)) == "[0]"
