# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What saves time or memory at a site: equal to the bit or close, as its setting says, and with less kept."""

import copy
import os

import pytest
import torch
from peft import get_peft_model
from tiny_vilt import tiny_vilt
from torch.autograd.graph import saved_tensors_hooks

from fedpeft import adapters, methods
from fedpeft.answering.answering import Answering
from fedpeft.backbones import default_source
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.adapters import adapter_parameters
from fedpeft.site import computing
from fedpeft.site.kept_features import drops, fingerprint
from fedpeft.site.learner import Learner
from fedpeft.site.loop import parts_of

pytestmark = pytest.mark.slow

BFLOAT16 = ["training.precision=bfloat16", "training.frozen_precision=bfloat16"]
CLASSIFIER = ["method.name=classifier", "method.aggregation=none", "schedule.solver=all"]
FIRST_TOKEN = ["training.last_layer=first_token"]
PATTERN = r"encoder\.layer\.\d+\.attention\.attention"
INNER_ATTENTION = f"method.settings={{houlsby: {{reduction_factor: 4, target_modules: '{PATTERN}'}}}}"
FUSED = ["training.attention=fused"]
EVALUATED = 8 + 4  # test and validation questions of a round
SETTINGS = {
    "compacter": ["method.settings.compacter.reduction_factor=4"],
    "feddat_compacter": ["method.settings.feddat_compacter.reduction_factor=4"],
    "fourierft": ["method.settings.fourierft.n_frequency=64"],
}


@pytest.fixture
def learner(sections, tmp_path):
    """Function from overrides to a site's learner and its first batch."""

    def build(*overrides):
        made = Learner.from_sections(sections(*overrides), site="slake", folder=tmp_path / "slake")
        return made, next(iter(made.batches.draw(made.data.train, 16)))

    return build


def logits(made, batch):
    with torch.no_grad(), computing.shortcuts(made.backbone, made.training):
        return made.answering.eval()(batch.inputs)


def kept(made, batch):
    """Bytes that autograd keeps for the way back through one step's loss, without the model's own."""
    own = {tensor.untyped_storage().data_ptr() for tensor in made.answering.state_dict().values()}
    sizes = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # the tensor itself would keep the graph

    made.trainable.train_only(None)
    with computing.shortcuts(made.backbone, made.training), saved_tensors_hooks(pack, lambda tensor: tensor):
        (part, *_) = parts_of(batch, made.answering.train(), made.training.micro_batch)
        loss = part.loss(part.forward())
    assert loss.requires_grad
    return sum(sizes.values())


def stepped(made, batch, *, steps=1):
    """Trained parameters after steps of plain gradient descent, and the losses before each."""
    torch.manual_seed(0)
    made.trainable.train_only(None)
    trained = [p for p in (*made.trainable.parameters().values(), *made.head.parameters()) if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    with computing.shortcuts(made.backbone, made.training):
        parts = parts_of(batch, made.answering.train(), made.training.micro_batch)
        losses = [made.trainable.step(parts, optimizer).item() for _ in range(steps)]
    return [parameter.detach().clone() for parameter in trained], losses


def test_a_site_splits_questions_into_tokens_on_one_thread_unless_the_environment_says_otherwise(learner, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    learner()
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    learner()
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


@pytest.mark.parametrize("method", ["houlsby", "lora", "feddat_houlsby", "vpt"])
@pytest.mark.parametrize("backbone", ["tiny-vilt", "tiny-vit"])
def test_layers_computed_again_change_no_bit_and_keep_less(learner, method, backbone):
    job = [f"method.name={method}", "method.aggregation=fedavg", f"backbone.name={backbone}"]
    default, again = learner(*job), learner(*job, "training.checkpointing=true")
    assert kept(*again) < kept(*default) / 2
    (first, losses), (second, same) = stepped(*default, steps=2), stepped(*again, steps=2)
    assert losses == same
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("method", ["houlsby", "lora", "feddat_houlsby", "feddat_adapterfusion", "full"])
@pytest.mark.parametrize("size", [8, 5])
def test_micro_batches_add_up_to_the_batch_and_keep_less(learner, method, size):
    job = [f"method.name={method}", "method.aggregation=fedavg"]
    whole, divided = learner(*job), learner(*job, f"training.micro_batch={size}")
    assert kept(*divided) < kept(*whole) * size / 16 * 1.2
    (first, losses), (second, close) = stepped(*whole), stepped(*divided)
    assert close == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("also", [[], ["training.checkpointing=true"], ["training.micro_batch=5"]], ids=str)
@pytest.mark.parametrize("method", ["feddat_houlsby", "feddat_adapterfusion"])
def test_feddat_computes_equal_features_once_without_changing_a_bit(learner, method, also):
    passes, ends = [], []
    for again in ("false", "true"):
        made, batch = learner(
            f"method.name={method}", "method.aggregation=fedavg", f"training.reuse_passes={again}", *also
        )
        counted = made.backbone.model.pooler.register_forward_hook(lambda *_, way=again: passes.append(way))
        ends.append(stepped(made, batch, steps=2))
        counted.remove()
    assert passes.count("true") * 3 == passes.count("false") * 2
    (default, losses), (reused, same) = ends
    assert losses == same
    assert all(torch.equal(a, b) for a, b in zip(default, reused, strict=True))


class CallsDropout(torch.nn.Module):
    dropout = 0.1  # as OPT's layers have it


class LeavesOut(torch.nn.Module):
    drop_prob = 0.1  # of a whole layer, as BEiT's have it


MODULES = [torch.nn.Dropout(0.1), CallsDropout(), LeavesOut()]


@pytest.mark.parametrize("module", MODULES, ids=["module", "function", "layer"])
def test_features_are_not_shared_by_passes_that_drop_other_values(learner, monkeypatch, module):
    made, _ = learner("method.name=feddat_houlsby", "method.aggregation=fedavg", "training.reuse_passes=true")
    assert not drops(made.backbone)
    made.backbone.model.add_module("also", module)
    assert drops(made.backbone)
    monkeypatch.setattr("fedpeft.site.site_model.drops", lambda backbone: True)
    with pytest.raises(FedpeftError, match="dropout makes the features of every pass other ones"):
        learner("method.name=feddat_houlsby", "method.aggregation=fedavg", "training.reuse_passes=true")


def test_a_micro_batch_weighs_as_many_samples_as_it_has_targets(learner):
    made, batch = learner("training.micro_batch=3")
    batch.target[[0, 1, 7]] = -1
    whole = made.answering.eval().loss(made.answering(batch.inputs), batch.target)
    parts = parts_of(batch, made.answering, 3)
    assert sum(part.share for part in parts) == pytest.approx(1)
    torch.testing.assert_close(sum(part.loss(part.forward()) for part in parts), whole)


@pytest.mark.parametrize("name", [name for name in methods.names() if "dvpt" not in name])
def test_the_last_layer_of_the_first_token_gives_the_same_features_with_every_method(learner, name):
    job = [f"method.name={name}", "method.aggregation=[fedavg, none]", *SETTINGS.get(name, [])]
    whole, first = learner(*job), learner(*job, *FIRST_TOKEN)
    torch.testing.assert_close(logits(*first), logits(*whole), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("backbone", "overrides"),
    [("tiny-vit", FIRST_TOKEN), ("tiny-vilt", FIRST_TOKEN), ("tiny-vilt", FUSED), ("tiny-vilt", FUSED + FIRST_TOKEN)],
    ids=str,
)
def test_a_smaller_last_layer_and_fused_attention_are_close_and_keep_less(learner, backbone, overrides):
    job = [f"backbone.name={backbone}"]
    default, other = learner(*job), learner(*job, *overrides)
    assert kept(*other) < kept(*default) * 0.96
    torch.testing.assert_close(logits(*other), logits(*default), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(stepped(*other)[0], stepped(*default)[0], rtol=1e-3, atol=1e-5)


def test_only_training_and_evaluation_compute_the_first_token_alone(learner):
    (made, batch), (default, _) = learner(*FIRST_TOKEN), learner()
    made.evaluate()
    with torch.no_grad():
        assert torch.equal(made.answering.eval()(batch.inputs), default.answering.eval()(batch.inputs))


@pytest.mark.parametrize("name", [name for name in methods.names() if "dvpt" not in name and name != "full"])
def test_bfloat16_trains_every_method_and_keeps_what_is_trained_in_float32(learner, name):
    job = [f"method.name={name}", "method.aggregation=[fedavg, none]", *SETTINGS.get(name, [])]
    made, batch = learner(*job, *BFLOAT16)
    before = {name: copy.deepcopy(p) for name, p in made.backbone.named_parameters() if not p.requires_grad}
    trained, losses = stepped(made, batch, steps=8)
    assert losses[-1] < losses[0]
    assert all(parameter.dtype == torch.float32 for parameter in trained)
    assert sum(parameter.dtype == torch.bfloat16 for parameter in before.values()) >= 10
    assert all(torch.equal(before[name], made.backbone.get_parameter(name)) for name in before)


@pytest.mark.parametrize(
    "overrides",
    [[], ["method.pia.integration=two_branches"], ["method.name=lora"], ["backbone.name=tiny-vit"]],
    ids=str,
)
def test_a_round_in_bfloat16_ends_near_one_in_float32(learner, overrides):
    ends = []
    for precision in ([], BFLOAT16):
        made, _ = learner(*overrides, *precision, "data.train_size=32", "training.rounds=2")
        update = made.train_round(1, {})
        made.score_trained(1)
        ends.append(update)
    default, half = ends
    assert half.metrics["loss"] == pytest.approx(default.metrics["loss"], rel=0.05)
    assert all(tensor.dtype == torch.float32 for tensor in half.state.values())


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["training.frozen_precision=bfloat16"], "products in float32 cannot use"),
        (["training.micro_batch=16"], "a batch has 16 samples"),
        (["training.attention=flash"], "allowed are default, fused"),
        (["backbone.name=tiny-vit", *FUSED], "fused where it can be"),
        (["method.name=full", "method.aggregation=fedavg", *BFLOAT16], "trains the whole backbone"),
        (["training.reuse_passes=true"], "no two passes"),
        ([INNER_ATTENTION, *FIRST_TOKEN], "an adapter is around"),
        (["method.name=lora", "method.aggregation=stack", *BFLOAT16], "products to the frozen matrices"),
    ],
    ids=str,
)
def test_what_would_do_nothing_or_harm_is_refused(learner, overrides, sentence):
    with pytest.raises(FedpeftError, match=sentence) as refused:
        learner(*overrides)
    assert refused.value.setting.startswith("training.")


def epochs(learner, *overrides, layers=(1,), sizes=("data.train_size=32",)):
    """A site after a round of three epochs over some layers: its upload, and how often the first layer was computed."""
    made, _ = learner(
        "schedule.solver=own",
        "schedule.score=last_k",
        "schedule.budget=1",
        *overrides,
        *sizes,
        "training.local_epochs=3",
    )
    calls = []
    path = {"vilt": "model.encoder.layer.0", "vit": "model.layers.0"}[made.backbone.family]
    layer = made.backbone.get_submodule(path)
    first = layer.register_forward_hook(lambda module, inputs, output: calls.append(len(inputs[0])))
    update = made.train_round(1, {}, layers if layers is None else list(layers))
    first.remove()
    return made, update, sum(calls)


@pytest.mark.parametrize("method", ["houlsby", "lora", "vpt", "attention"])
def test_kept_features_of_images_change_no_bit_and_are_computed_once(learner, method):
    job = [f"method.name={method}", "method.aggregation=fedavg", "backbone.name=tiny-vit"]
    _, default, every = epochs(learner, *job)
    made, kept, once = epochs(learner, *job, "training.features_mib=64")
    assert every == 3 * 32 + EVALUATED
    assert once <= 32 + EVALUATED  # three questions of an image have the same features
    assert 0 < made.model.features.held_mib < 64
    assert kept.metrics == default.metrics
    assert all(torch.equal(tensor, default.state[key]) for key, tensor in kept.state.items())


@pytest.mark.parametrize(
    ("layer", "also"),
    [
        (1, []),
        (1, FIRST_TOKEN),
        (1, FUSED),
        (1, ["method.name=lora"]),
        (11, [f"backbone.source={default_source('tiny-vilt')}"]),
    ],
    ids=str,
)
def test_kept_features_of_questions_of_one_length_change_no_bit(learner, layer, also):
    length = 5 if layer == 11 else 16  # to which all questions are cut, so that none is padded: words, or letters
    job = [*also, f"backbone.text_length={length}"]
    _, default, every = epochs(learner, *job, layers=(layer,))
    made, kept, once = epochs(learner, *job, "training.features_mib=64", layers=(layer,))
    assert all(bool(batch.inputs["attention_mask"].all()) for batch in made.batches.draw(made.data.train, 16))
    assert (every, once) == (3 * 32 + EVALUATED, 32 + EVALUATED)  # no sample twice: all batches are whole
    assert all(torch.equal(tensor, default.state[key]) for key, tensor in kept.state.items())


@pytest.mark.parametrize("also", [[], FIRST_TOKEN, ["training.micro_batch=6"], BFLOAT16, FUSED], ids=str)
def test_kept_features_of_questions_of_several_lengths_are_close(learner, also):
    _, default, every = epochs(learner, *also)
    _, kept, once = epochs(learner, *also, "training.features_mib=64")
    assert (every, once) == (3 * 32 + EVALUATED, 32 + EVALUATED)
    assert kept.metrics["loss"] == pytest.approx(default.metrics["loss"], rel=0.02 if also == BFLOAT16 else 1e-4)


@pytest.mark.parametrize("layers", [None, ()], ids=["no adapter", "no budget"])
def test_features_are_kept_where_the_head_alone_trains(learner, layers):
    method = ["method.aggregation=fedavg"] if layers == () else CLASSIFIER
    job = [*method, *FIRST_TOKEN, "backbone.text_length=16"]
    _, default, every = epochs(learner, *job, layers=layers)
    _, kept, once = epochs(learner, *job, "training.features_mib=64", layers=layers)
    assert (every, once) == (3 * 32 + EVALUATED, 32 + EVALUATED)
    assert kept.metrics["overall"] == default.metrics["overall"]


def test_kept_features_are_computed_anew_when_something_below_has_changed(learner):
    job = ["training.features_mib=64", "backbone.name=tiny-vit", "data.train_size=32"]
    (made, *_), (default, *_) = epochs(learner, *job), epochs(learner, "backbone.name=tiny-vit")
    moved = {key: tensor + 0.1 for key, tensor in made.first_state().items()}
    for site in (made, default):
        site.trainable.load(moved)
    assert made.evaluate() == default.evaluate()
    batch = next(iter(made.batches.draw(made.data.train, 16)))
    with made.model.features.used():
        assert torch.equal(made.answering(batch.inputs), default.answering(batch.inputs))


def test_a_rule_that_layers_share_and_nobody_trains_counts_as_something_below():
    model = tiny_vilt()
    adapted = get_peft_model(model, adapters.config("compacter", reduction_factor=8)).requires_grad_(False)
    before = fingerprint(model, 1)
    assert fingerprint(model, 1) == before
    adapter_parameters(adapted)["shared.rule"].add_(0.1)
    assert fingerprint(model, 1) != before


def test_a_budget_of_features_holds_and_the_rest_is_computed_every_time(learner):
    made, update, computed = epochs(learner, "backbone.name=tiny-vit", "training.features_mib=0.002")
    _, default, every = epochs(learner, "backbone.name=tiny-vit")
    _, _, once = epochs(learner, "backbone.name=tiny-vit", "training.features_mib=64")
    assert 0 < made.model.features.held_mib <= 0.002
    assert once < computed < every
    assert update.metrics["loss"] == pytest.approx(default.metrics["loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ([], "trains in the first layer"),
        (["method.name=compacter", *SETTINGS["compacter"]], "trains in the first layer"),
        (["method.name=feddat_houlsby", "method.aggregation=fedavg", "schedule.solver=own"], "several adapters"),
    ],
    ids=str,
)
def test_features_that_nothing_could_use_are_refused(learner, overrides, sentence):
    with pytest.raises(FedpeftError, match=sentence):
        learner(*overrides, "training.features_mib=64")


def test_a_classifier_alone_computes_each_sample_once(learner):
    job = ["method.name=classifier", "method.aggregation=none", "training.local_epochs=3", "training.features_mib=64"]
    made, _ = learner(*job)
    calls = []
    made.backbone.model.encoder.layer[0].register_forward_hook(
        lambda module, inputs, output: calls.append(len(inputs[0]))
    )
    made.train_round(1, {})
    assert sum(calls) == 16 + EVALUATED


def test_batch_norms_keep_the_statistics_of_pre_training_and_dropout_drops():
    body = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.LayerNorm(2), torch.nn.Dropout(0.5))
    answering = Answering(body, torch.nn.Identity()).train()
    assert [module.training for module in body] == [False, True, True]
    body(torch.randn(8, 2))
    assert not body[0].running_mean.any()
    assert not any(module.training for module in answering.eval().modules())
