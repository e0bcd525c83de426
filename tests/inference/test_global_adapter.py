# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`fedpeft predict --adapter`: the global adapter with a site's head answers as a learner does that has both."""

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedpeft import adapters
from fedpeft.alignment import PIASettings, align_global
from fedpeft.backbones.slots import slot_templates
from fedpeft.cli import main
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import HEAD
from fedpeft.core.states import equal
from fedpeft.federate import federate
from fedpeft.inference.examples import read_split
from fedpeft.inference.export import export
from fedpeft.inference.kept_model import find
from fedpeft.inference.predictor import Predictor, find_adapter
from fedpeft.inference.same_function import difference
from fedpeft.methods.settings import MethodSettings
from fedpeft.server.job_run import export_adapter
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.slow

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
    predictor, wanted = Predictor(kept, adapter), read_split("test", kept)
    measure = predictor.measure(wanted.unseen)
    list(predictor.predictions(wanted.examples, wanted.known, max_answers=3, measure=measure))
    return measure.figures()


def peft_folder(folder, state, sections):
    method = MethodSettings(**sections["method"])
    return export_adapter(folder, state, method, family="vilt")


def test_places_that_low_rank_sites_alone_trained_are_padded_to_the_rank_of_the_folder(tmp_path):
    method = {"name": "lora", "aggregation": "svd", "site_settings": {"slake": {"r": 2}}}
    ranks = {"layer.0.query": 4, "layer.1.query": 2}
    state = {f"{place}.A": torch.ones(rank, 16) for place, rank in ranks.items()}
    state |= {f"{place}.B": torch.ones(16, rank) for place, rank in ranks.items()}
    folder = peft_folder(tmp_path / "adapter", state, {"method": method})
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    assert {tensor.shape[0] for name, tensor in tensors.items() if ".lora_A." in name} == {config["r"]} == {4}


@pytest.fixture(scope="module")
def run(sections, tmp_path_factory):
    """A workspace with a finished run of FedPIA, the job's sections, and the global adapter."""
    chosen = sections("training.learning_rate=0.05")
    workspace = tmp_path_factory.mktemp("global") / "ws"
    return workspace, chosen, run_of(chosen, workspace)


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


def test_with_ditto_the_head_is_that_of_the_exchanged_model_and_not_the_personal_one(sections, tmp_path, tiny_source):
    personal = ["method.aggregation=fedavg", "training.personalization=ditto", "training.learning_rate=0.05"]
    run_of(sections(*personal), tmp_path / "ws")
    for site in SITES:
        kept = find(tmp_path / "ws", site=site)
        head = Predictor(kept, find_adapter("global", tmp_path / "ws")).model.answering.head.state_dict()
        assert all(torch.equal(tensor, kept.state.exchanged[f"{HEAD}{name}"]) for name, tensor in head.items())
        assert any(not torch.equal(tensor, kept.state.head[name]) for name, tensor in head.items())
        export(kept, tmp_path / site)
        handed = find(tmp_path / site, site=None, backbone=tiny_source)
        again = Predictor(handed, find_adapter("global", tmp_path / "ws")).model.answering.head.state_dict()
        assert all(torch.equal(tensor, again[name]) for name, tensor in head.items())
        (tmp_path / site / "exchanged.safetensors").unlink()
        with pytest.raises(FedpeftError, match=r"lacks exchanged.safetensors, .*: export the model again"):
            Predictor(find(tmp_path / site, site=None, backbone=tiny_source), find_adapter("global", tmp_path / "ws"))


def logits(kept, adapter=None):
    predictor = Predictor(kept, adapter)
    batch = next(iter(predictor.batches(read_split("test", kept).examples)))
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
    batch = next(iter(predictor.batches(read_split("test", kept).examples)))
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


def test_the_command_says_that_a_file_alone_was_not_checked(run, tmp_path, capsys):
    workspace, _, _ = run
    alone = Path(shutil.copy(find_adapter("global", workspace), tmp_path))
    assert main(["predict", str(workspace), "--site", "slake", "--adapter", str(alone), "--split", "test"]) == 0
    assert f"beside {alone}: whether its settings are this model's was not checked" in capsys.readouterr().out


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
    with pytest.raises(FedpeftError, match="has a rank or scale that is no number: save the adapter again"):
        Predictor(kept, folder)


def test_products_that_count_otherwise_are_refused(sections, tmp_path):
    lora = ("method.name=lora", FEDAVG)
    alphas = {alpha: sections(*lora, f"method.settings.lora.lora_alpha={alpha}") for alpha in (4, 64)}
    run_of(alphas[4], tmp_path / "ws")
    learner = Learner.from_sections(alphas[64], site="slake", folder=tmp_path / "none")
    folder = peft_folder(tmp_path / "adapter", learner.first_state(), alphas[64])
    with pytest.raises(FedpeftError, match=r"has lora_alpha / r=16.0, and this model 1.0, so it would"):
        Predictor(find(tmp_path / "ws", site="slake"), folder)


def other_scale(sections, folder, *overrides):
    """The first adapter of a job in which products count sixteen times as often, and its sections."""
    chosen = sections(*overrides, "method.settings.lora={r: 4, lora_alpha: 128}")
    return Learner.from_sections(chosen, site="slake", folder=folder).first_state(), chosen


@pytest.mark.parametrize("aggregation", ["svd", "stack"])
def test_products_count_alike_where_their_ranks_may_differ(sections, tmp_path, aggregation):
    lora = ("method.name=lora", f"method.aggregation={aggregation}")
    state = run_of(sections(*lora), tmp_path / "ws")
    kept = find(tmp_path / "ws", site="slake")
    ours = sections(*lora, "method.site_settings={vqa-rad: {r: 2, lora_alpha: 4}}")
    Predictor(kept, peft_folder(tmp_path / "ours", state, ours))
    theirs = peft_folder(tmp_path / "theirs", *other_scale(sections, tmp_path / "none", *lora))
    with pytest.raises(FedpeftError, match=r"has lora_alpha / r=32.0, and this model 2.0, so it would compute"):
        Predictor(kept, theirs)


def test_an_adapter_that_is_cut_to_the_rank_of_a_site_is_said_to_be(sections, tmp_path):
    ranks = ("method.settings.lora={r: 4, lora_alpha: 8}", "method.site_settings={slake: {r: 2, lora_alpha: 4}}")
    run_of(sections("method.name=lora", "method.aggregation=svd", *ranks), tmp_path / "ws")
    adapter = find_adapter("global", tmp_path / "ws")
    said = {site: Predictor(find(tmp_path / "ws", site=site), adapter).remarks(()) for site in SITES}
    (cut,) = (remark for remark in said["slake"] if "cut to its best" in remark)
    assert "has rank 4 and this site's model 2" in cut
    assert not any("cut to its best" in remark for remark in said["vqa-rad"])
    assert not any("cut to its best" in r for r in Predictor(find(tmp_path / "ws", site="slake")).remarks(()))


def test_products_count_alike_where_single_modules_have_their_own_factor(sections, tmp_path):
    lora = ("method.name=lora", "method.aggregation=svd")
    narrow = [*lora, "method.settings.lora={r: 2, lora_alpha: 4, alpha_pattern: {query: 8}}"]
    wide = [*lora, "method.settings.lora={r: 4, lora_alpha: 8, alpha_pattern: {query: 8}}"]
    run_of(sections(*narrow), tmp_path / "patterned")
    state = Learner.from_sections(sections(*wide), site="slake", folder=tmp_path / "none").first_state()
    with pytest.raises(FedpeftError, match=r"has lora_alpha / r=2.0, and this model 4.0"):
        Predictor(find(tmp_path / "patterned", site="slake"), peft_folder(tmp_path / "wide", state, sections(*wide)))


@pytest.mark.parametrize(
    ("patterns", "scale"),
    [({"value": 8, "query": 4}, None), ({"query": 4, "layer.1.query": 8}, "lora_alpha / r")],
    ids=["of two modules", "of one"],
)
def test_the_order_of_patterns_tells_functions_apart_where_two_match_one_module(patterns, scale):
    """PEFT writes them in the order of the alphabet, and of several that match it takes the first."""
    one, other = (adapters.config("lora", alpha_pattern=of) for of in (patterns, dict(reversed(patterns.items()))))
    found = difference(one, other)
    assert (found and found[0]) == scale


@pytest.mark.parametrize(
    ("method", "settings"),
    [("compacter", {"rule_std": 0.5}), ("vera", {"d_initial": 0.5}), ("lora", {"init_lora_weights": "gaussian"})],
)
def test_first_values_may_differ(method, settings):
    assert difference(adapters.config(method, **settings), adapters.config(method), family="vilt") is None


@pytest.mark.parametrize(
    ("method", "slots", "other"),
    [("lora", ("query", "value"), "attention.attention.key"), ("houlsby", ("attention", "output"), "attention")],
)
def test_an_adapter_of_other_modules_with_the_same_names_of_slots_is_refused(sections, tmp_path, method, slots, other):
    state = run_of(sections(f"method.name={method}", FEDAVG), tmp_path / "ws")
    kept, own, slot = find(tmp_path / "ws", site="slake"), slot_templates("vilt", slots), slots[0]
    for paths in (own, own | {slot: f"encoder.layer.{{layer}}.{other}"}):
        settings = {method: {"target_modules": paths}}
        theirs = {"method": {"name": method, "aggregation": "fedavg", "settings": settings}}
        folder = peft_folder(tmp_path / str(paths == own), state, theirs)
        sentence = f"has target_modules.{slot}='{paths[slot]}', and this model '{own[slot]}', so it would compute"
        with pytest.raises(FedpeftError, match=re.escape(sentence)) if paths != own else nullcontext():
            Predictor(kept, folder)


def test_first_values_that_changed_the_frozen_weights_are_the_models_own(sections, tmp_path):
    lora = ("method.name=lora", FEDAVG)
    starts = {name: sections(*lora, f"method.settings.lora.init_lora_weights={name}") for name in ("gaussian", "pissa")}
    folders = {}
    for name, chosen in (("usual", sections(*lora)), *starts.items()):
        folders[name] = peft_folder(tmp_path / name / "adapter", run_of(chosen, tmp_path / name / "ws"), chosen)
    usual, pissa = (find(tmp_path / name / "ws", site="slake") for name in ("usual", "pissa"))
    Predictor(usual, folders["gaussian"])
    Predictor(pissa, folders["pissa"])
    with pytest.raises(FedpeftError, match=r"has init_lora_weights='pissa', and this model True, so it would"):
        Predictor(usual, folders["pissa"])
    with pytest.raises(FedpeftError, match=r"has init_lora_weights=True, and this model 'pissa', so it would"):
        Predictor(pissa, folders["usual"])


@pytest.mark.parametrize("method", ["lora", "lora_vpt"])
def test_a_file_is_compared_with_what_lies_beside_it(sections, tmp_path, method):
    chosen = (f"method.name={method}", FEDAVG)
    state = run_of(sections(*chosen), tmp_path / "ws")
    kept, run = find(tmp_path / "ws", site="slake"), tmp_path / "run"
    run.mkdir()
    save_file({key: tensor.contiguous() for key, tensor in state.items()}, run / "global.safetensors")
    for scale, ok in ((8, True), (128, False)):
        settings = {"r": 4, "lora_alpha": scale}
        settings = {"lora": settings} if method == "lora_vpt" else settings
        about = {"name": method, "settings": {method: settings}, "matched_layers": None}
        (run / "history.json").write_text(json.dumps({"settings": {"method": about}}))
        if ok:
            Predictor(kept, find_adapter(str(run), tmp_path))
            continue
        with pytest.raises(FedpeftError, match=r"global.safetensors has lora_alpha / r=32.0, and this model 2.0"):
            Predictor(kept, find_adapter(str(run), tmp_path))
    (run / "history.json").write_text("{}")
    with pytest.raises(FedpeftError, match=r"history.json cannot be read .*: take it from the run again"):
        Predictor(kept, find_adapter(str(run), tmp_path))
    if method == "lora":
        peft_folder(run / "adapter", state, sections(*chosen))
        Predictor(kept, find_adapter(str(run), tmp_path))
        peft_folder(run / "adapter", *other_scale(sections, tmp_path / "none", *chosen))
        with pytest.raises(FedpeftError, match=r"has lora_alpha / r=32.0, and this model 2.0"):
            Predictor(kept, find_adapter(str(run), tmp_path))


def test_what_follows_from_the_model_is_no_other_configuration(sections, tmp_path):
    chosen = sections("method.name=ia3", FEDAVG)
    folder = peft_folder(tmp_path / "adapter", run_of(chosen, tmp_path / "ws"), chosen)
    file = folder / "adapter_config.json"
    written = json.loads(file.read_text())
    for own in (written, {**written, "target_modules": None, "feedforward_modules": None}):
        file.write_text(json.dumps(own))
        Predictor(find(tmp_path / "ws", site="slake"), folder)


def test_a_global_adapter_of_another_width_is_as_wide_as_the_sites_own(sections, tmp_path):
    wide = "method.site_settings={vqa-rad: {reduction_factor: 2}}"
    chosen = sections("method.settings={houlsby: {reduction_factor: 4}}", "method.pia.support=weights", wide)
    state = run_of(chosen, tmp_path / "ws")
    kept = find(tmp_path / "ws", site="slake")
    predictor = Predictor(kept, find_adapter("global", tmp_path / "ws"))
    assert any("8 neurons in a place and this site's model 4: it is aligned" in one for one in predictor.remarks(()))
    model = predictor.model
    expected, _ = align_global(state, dict(kept.state.adapter), None, PIASettings(support="weights"))
    assert any(tensor.shape != state[key].shape for key, tensor in expected.items())
    assert equal(model.trainable.state(), expected)


def test_an_export_with_a_second_adapter_is_no_adapter(sections, tmp_path):
    two_branches = sections("method.pia.integration=two_branches", "method.aggregation=pia")
    run_of(two_branches, tmp_path / "ws")
    kept, out = find(tmp_path / "ws", site="slake"), tmp_path / "out"
    export(kept, out)
    assert (out / "beside").is_dir()
    with pytest.raises(FedpeftError, match="holds a second adapter that runs beside the first"):
        Predictor(kept, out)


def test_an_export_of_another_frozen_model_is_refused(run, tmp_path, tiny_source):
    kept, out = find(run[0], site="slake"), tmp_path / "out"
    export(kept, out)
    exported = find(out, site=None, backbone=tiny_source)
    for predicted in (kept, exported):
        Predictor(predicted, out)
    content = json.loads((out / "model.json").read_text())
    content["record"]["sections"]["backbone"] |= {"image_size": 64, "text_length": 20}
    (out / "model.json").write_text(json.dumps(content))
    Predictor(kept, out)
    content["record"]["sections"]["backbone"]["projection"] = "closed_form"
    (out / "model.json").write_text(json.dumps(content))
    with pytest.raises(FedpeftError, match=r"is for the model '.* projection=closed_form', and this one is 'vilt"):
        Predictor(kept, out)
