# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`fedpeft predict --adapter`: the global adapter with a site's head answers as a learner does that has both."""

import json

import pytest
import torch
from safetensors.torch import save_file

from fedpeft.cli import main
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import HEAD
from fedpeft.federate import federate
from fedpeft.inference.examples import of_split
from fedpeft.inference.export import export
from fedpeft.inference.kept_model import find
from fedpeft.inference.model import Predictor, find_adapter
from fedpeft.methods.settings import MethodSettings
from fedpeft.server.job_run import export_adapter
from fedpeft.site.learner import Learner

SITES = ("slake", "vqa-rad")
FEDAVG = "method.aggregation=fedavg"
STILL = (  # a third round that mixes nothing and changes no weight
    "training.rounds=3",
    "method.pia.share=1",
    "training.learning_rate=1e-30",
    "training.head_learning_rate=1e-30",
)
FIGURES = ("overall", "open", "closed")


def run_of(sections, workspace):
    """A workspace as `fedpeft simulate` leaves it, and the global adapter."""
    state = workspace.with_name(f"{workspace.name}_state")
    learners = {site: Learner.from_sections(sections, site=site, folder=state / site / "small-1") for site in SITES}
    *_, last = federate(learners)
    result = workspace / "server" / "simulate_job" / "fedpeft"
    result.mkdir(parents=True)
    save_file({key: tensor.contiguous() for key, tensor in last.state.items()}, result / "global.safetensors")
    manifest = {
        "status": "completed",
        "files": {},
        "rounds": 2,
        "lineage": "small-1",
        "sites": {site: {} for site in SITES},
    }
    (result / "manifest.json").write_text(json.dumps(manifest))
    return last.state


def measured(kept, adapter):
    predictor, wanted = Predictor(kept, adapter), of_split("test", kept)
    measure = predictor.measure(wanted.unseen)
    list(predictor.predictions(wanted.examples, wanted.known, max_answers=3, measure=measure))
    return measure.figures()


def peft_folder(folder, state, sections):
    method = MethodSettings(**sections["method"])
    return export_adapter(folder, state, method, family="vilt")


@pytest.fixture(scope="module")
def run(sections, tmp_path_factory):
    """A workspace with a finished run of FedPIA, the job's sections, and the global adapter."""
    chosen = sections("training.learning_rate=0.05")
    workspace = tmp_path_factory.mktemp("global") / "ws"
    return workspace, chosen, run_of(chosen, workspace)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["method.aggregation=fedavg"],
        ["method.pia.integration=two_branches", "method.name=compacter"],
        ["method.name=lora", "method.aggregation=stack"],
        ["method.name=lora", "method.aggregation=svd", "method.site_settings={slake: {r: 2}}"],
        ["method.name=adapterfusion"],
        ["method.name=feddat_houlsby"],
        ["method.name=full", "method.head=federated"],
        ["method.name=classifier", "method.head=federated"],
    ],
    ids=" ".join,
)
def test_the_figures_are_those_of_a_learner_with_this_adapter_and_head(sections, tmp_path, overrides):
    overrides = ["training.learning_rate=0.05", *overrides]
    still = [one for one in STILL if "pia" not in one or "method.aggregation=fedavg" not in overrides]
    overrides = ["training.learning_rate=0.05", *overrides]
    state = run_of(sections(*overrides), tmp_path / "ws")
    for site in SITES:
        found = measured(find(tmp_path / "ws", site=site), find_adapter("global", tmp_path / "ws"))
        folder = tmp_path / "ws_state" / site / "small-1"
        learner = Learner.from_sections(sections(*overrides, *still), site=site, folder=folder)
        metrics = learner.train_round(3, state).metrics
        assert found == {name: metrics[name] for name in FIGURES}


@pytest.mark.slow
def test_with_ditto_the_head_is_that_of_the_exchanged_model_and_not_the_personal_one(sections, tmp_path):
    personal = ["method.aggregation=fedavg", "training.personalization=ditto", "training.learning_rate=0.05"]
    run_of(sections(*personal), tmp_path / "ws")
    for site in SITES:
        kept = find(tmp_path / "ws", site=site)
        head = Predictor(kept, find_adapter("global", tmp_path / "ws")).model.answering.head.state_dict()
        assert all(torch.equal(tensor, kept.state.exchanged[f"{HEAD}{name}"]) for name, tensor in head.items())
        assert any(not torch.equal(tensor, kept.state.head[name]) for name, tensor in head.items())


def logits(kept, adapter=None):
    predictor = Predictor(kept, adapter)
    batch = next(iter(predictor.batches(of_split("test", kept).examples)))
    with torch.no_grad():
        return predictor.model.answering.eval()(batch.inputs)


def test_the_result_a_peft_folder_and_an_exported_head_are_one_model(run, tmp_path, tiny_source):
    workspace, chosen, state = run
    kept = find(workspace, site="slake")
    learner = Learner.from_sections(chosen, site="slake", folder=tmp_path / "none")
    learner.trainable.load(state)
    learner.head.load_state_dict(kept.state.head)
    folder = peft_folder(tmp_path / "adapter", state, chosen)
    export(kept, tmp_path / "model")
    exported = find(tmp_path / "model", site=None, backbone=tiny_source)
    result = find_adapter(str(workspace), tmp_path)
    assert find_adapter(str(folder), tmp_path) == folder
    assert measured(kept, result) == learner.evaluate()
    expected = logits(kept, find_adapter("global", workspace))
    assert not torch.allclose(logits(kept), expected)
    predictor = Predictor(exported, folder)
    batch = next(iter(predictor.batches(of_split("test", kept).examples)))
    with torch.no_grad():
        assert torch.equal(predictor.model.answering.eval()(batch.inputs), expected)
    for adapter in (result, result.parent / "global.safetensors", folder):
        assert torch.equal(logits(kept, adapter), expected)


def test_the_command_says_with_what_it_predicts(run, capsys):
    workspace, _, _ = run
    assert main(["predict", str(workspace), "--site", "slake", "--adapter", "global", "--split", "test"]) == 0
    said = capsys.readouterr().out
    assert "global.safetensors with what site slake kept of round 2" in said
    assert "measured accuracy" in said


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["method.name=lora"], "is of PEFT's type LORA, and this model's is HOULSBY"),
        (["method.settings={houlsby: {reduction_factor: 2}}"], "is of shape (8,) and not (4,)"),
        (["method.settings={houlsby: {activation: gelu}}"], "has activation='gelu', and this model 'swish', so it w"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(run, sections, tmp_path, capsys, overrides, sentence):
    workspace, _, _ = run
    other = sections(*overrides, "method.aggregation=fedavg")
    learner = Learner.from_sections(other, site="slake", folder=tmp_path / "none")
    folder = peft_folder(tmp_path / "adapter", learner.first_state(), other)
    assert main(["predict", str(workspace), "--site", "slake", "--adapter", str(folder), "--split", "test"]) == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_an_adapter_with_other_tensors_is_refused(run, tmp_path):
    workspace, _, state = run
    kept, file = find(workspace, site="slake"), tmp_path / "global.safetensors"
    key, tensor = next(iter(state.items()))
    for wrong, sentence in (
        ({**state, "layer.7.x.y": tensor.clone()}, "it has layer.7"),
        ({key: tensor}, "it lacks layer"),
    ):
        save_file(wrong, file)
        with pytest.raises(FedpeftError, match=sentence):
            Predictor(kept, file)


def test_what_is_no_adapter_is_named(run, tmp_path):
    workspace, _, _ = run
    kept = find(workspace, site="slake")
    save_file({}, tmp_path / "global.safetensors")
    with pytest.raises(FedpeftError, match="exchange nothing"):
        Predictor(kept, find_adapter(str(tmp_path), tmp_path))
    (tmp_path / "global.safetensors").write_bytes(b"none")
    with pytest.raises(FedpeftError, match="cannot be read"):
        Predictor(kept, find_adapter(str(tmp_path), tmp_path))
    (tmp_path / "empty").mkdir()
    for named, sentence in (
        ("global", "is no workspace"),
        (str(tmp_path / "none"), "does not exist"),
        (str(tmp_path / "empty"), "holds neither"),
    ):
        with pytest.raises(FedpeftError, match=sentence):
            find_adapter(named, tmp_path)
    (tmp_path / "server" / "simulate_job" / "fedpeft").mkdir(parents=True)
    with pytest.raises(FedpeftError, match="has no global adapter"):
        find_adapter("global", tmp_path)


def test_a_module_whose_product_counts_otherwise_is_refused_and_dropout_is_not(sections, tmp_path):
    lora = ("method.name=lora", FEDAVG)
    run_of(sections(*lora), tmp_path / "ws")
    kept = find(tmp_path / "ws", site="slake")
    other = sections(*lora, "method.settings.lora.lora_dropout=0.3")
    state = Learner.from_sections(other, site="slake", folder=tmp_path / "none").first_state()
    folder = peft_folder(tmp_path / "adapter", state, other)
    Predictor(kept, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "alpha_pattern": {"query": 80}}))
    with pytest.raises(FedpeftError, match="has alpha_pattern="):
        Predictor(kept, folder)
    (folder / "adapter_config.json").write_text(json.dumps({**config, "r": None}))
    with pytest.raises(FedpeftError, match="has a rank or scale that is no number: export it again"):
        Predictor(kept, folder)


def test_products_that_count_otherwise_are_refused(sections, tmp_path):
    lora = ("method.name=lora", FEDAVG)
    alphas = {alpha: sections(*lora, f"method.settings.lora.lora_alpha={alpha}") for alpha in (4, 64)}
    run_of(alphas[4], tmp_path / "ws")
    learner = Learner.from_sections(alphas[64], site="slake", folder=tmp_path / "none")
    folder = peft_folder(tmp_path / "adapter", learner.first_state(), alphas[64])
    with pytest.raises(FedpeftError, match=r"has lora_alpha / r=16.0, and this model 1.0, so it would"):
        Predictor(find(tmp_path / "ws", site="slake"), folder)
