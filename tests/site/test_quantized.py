# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Frozen linear layers in four bits: a quarter of the memory, what is trained and sent as with float32, or a refusal.

Without bitsandbytes only the refusals are tested. With it the layers are computed on the CPU.
"""

import copy
import importlib.util
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from small_models import blip2, llava
from tiny_vilt import tiny_vilt
from torch import nn
from trained_sites import trained
from transformers import BertTokenizerFast

from fedpeft import backbones, methods
from fedpeft.core.errors import FedpeftError
from fedpeft.inference.examples import read_split
from fedpeft.inference.export import export
from fedpeft.inference.kept_model import find
from fedpeft.inference.predictor import Predictor
from fedpeft.site import computing, quantized
from fedpeft.site.learner import Learner
from fedpeft.site.loop import parts_of

HALF, NF4 = "training.precision=bfloat16", "training.frozen_precision=nf4"
REFUSED = [name for name in methods.names() if not methods.get(name).four_bits]
SETTINGS = {
    "compacter": ["method.settings.compacter.reduction_factor=4"],
    "feddat_compacter": ["method.settings.feddat_compacter.reduction_factor=4"],
}
# QLoRA, appendix E
LEVELS = [-1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0]
LEVELS = torch.tensor([*LEVELS, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1])
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)


def vilt(folder, tiny_source):
    tokenizer = BertTokenizerFast.from_pretrained(tiny_source)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 40}
    tiny_vilt(**sizes, vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory, tiny_source):
    """Folders of small models whose layers are whole blocks of 64 inputs."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "llava": llava(folder / "llava", width=64),
        "blip2": blip2(folder / "blip2", width=64),
        "tiny-vilt": vilt(folder / "vilt", tiny_source),
    }


@pytest.fixture
def learner(sections, sources, tmp_path):
    """Function from the name of a backbone and overrides to a site's learner."""

    def build(backbone, *overrides, number=0):
        source = sources.get(backbone) or backbones.default_source(backbone)
        job = [f"backbone.name={backbone}", f"backbone.source={source}", *overrides]
        return Learner.from_sections(sections(*job), site="slake", folder=tmp_path / f"slake {number}")

    return build


def overfit(made, steps=12):
    """The losses of steps on one batch."""
    batch = next(iter(made.batches.draw(made.data.train, 16)))
    trained = [p for p in (*made.trainable.parameters().values(), *made.head.parameters()) if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-2)
    with computing.shortcuts(made.backbone, made.training):
        parts = parts_of(batch, made.answering.train(), made.training.micro_batch)
        return [made.trainable.step(parts, optimizer).item() for _ in range(steps)]


def frozen(made):
    """Copies of everything that may not change, with the scales of what is in four bits."""
    kept = {name: copy.deepcopy(p.data) for name, p in made.backbone.named_parameters() if not p.requires_grad}
    for number, layer in enumerate(quantized.quantized_layers(made.backbone.model)):
        kept[f"scales {number}"] = layer.weight.quant_state.absmax.clone()
    return kept


@needs_bitsandbytes
@pytest.mark.parametrize("method", ["houlsby", "lora"])
@pytest.mark.parametrize("backbone", ["llava", "blip2", "tiny-vilt"])
def test_it_learns_and_sends_what_it_does_in_float32(learner, backbone, method):
    job = [f"method.name={method}", "method.settings.houlsby.reduction_factor=4"]
    default, made = learner(backbone, *job, number=1), learner(backbone, *job, HALF, NF4)
    first, same = made.first_state(), default.first_state()
    assert first.keys() == same.keys()
    assert all(torch.equal(tensor, same[key]) for key, tensor in first.items())
    before = frozen(made)
    losses = overfit(made)
    assert losses[-1] < 0.97 * losses[0]
    assert losses[0] == pytest.approx(overfit(default, steps=1)[0], rel=0.05)
    after = frozen(made)
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert all(tensor.dtype == torch.float32 for tensor in made.trainable.state().values())


@needs_bitsandbytes
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("backbone", "count"), [("llava", 2 * 7 + 2 * 6), ("blip2", 2 * 4 + 2 * 6 + 10 + 6)])
def test_the_layers_have_a_quarter_of_the_bytes_and_close_values(learner, backbone, count, precision):
    from bitsandbytes.functional import dequantize_4bit

    originals = dict(learner(backbone, number=1).backbone.model.named_modules())
    made = learner(backbone, NF4, f"training.precision={precision}")
    layers = {path: m for path, m in made.backbone.model.named_modules() if m in _four_bits(made)}
    assert len(layers) == count
    for path, layer in layers.items():
        weight, state, original = layer.weight, layer.weight.quant_state, originals[path].weight.detach()
        assert weight.nbytes + state.absmax.nbytes <= 0.26 * 2 * original.numel()
        assert layer.compute_dtype == getattr(torch, precision)
        blocks = original.reshape(-1, 64)
        scale = blocks.abs().amax(1, keepdim=True)
        nearest = LEVELS[(blocks / scale).unsqueeze(-1).sub(LEVELS).abs().argmin(-1)] * scale
        far = (dequantize_4bit(weight, state).float().reshape(-1, 64) - nearest).abs() / scale
        # the scales are quantized too; between two levels bfloat16 may round to the other one
        assert (far > 0.02).float().mean() < (0.02 if precision == "bfloat16" else 1e-3)


def _four_bits(made):
    return set(quantized.quantized_layers(made.backbone.model))


@needs_bitsandbytes
def test_other_layers_stay(learner):
    made = learner("llava", HALF, NF4)
    others = {
        path
        for path, module in made.backbone.model.named_modules()
        if isinstance(module, nn.Linear) and module not in _four_bits(made) and "adapter" not in path
    }
    assert others == {"multi_modal_projector.linear_1", "multi_modal_projector.linear_2"}


@needs_bitsandbytes
def test_gradients_flow_after_an_evaluation(learner):
    made = learner("llava", HALF, NF4)
    made.evaluate()
    assert all(key.startswith("layer.") for key in made.trainable.state())
    before = made.trainable.state()
    overfit(made, steps=2)
    after = made.trainable.state()
    assert all(not torch.equal(tensor, after[key]) for key, tensor in before.items() if "down" in key)


@needs_bitsandbytes
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in methods.names() if methods.get(name).four_bits])
def test_every_method_that_declares_it_trains(learner, name):
    made = learner(
        "tiny-vilt", f"method.name={name}", "method.aggregation=[fedavg, none]", *SETTINGS.get(name, []), HALF, NF4
    )
    losses = overfit(made)
    assert losses[-1] < losses[0]


@needs_bitsandbytes
@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "job"),
    [
        ("tiny-vilt", ["training.last_layer=first_token", "training.attention=fused", "training.checkpointing=true"]),
        ("tiny-vilt", ["training.micro_batch=6", "method.pia.integration=two_branches"]),
        ("tiny-vilt", ["training.features_mib=8", "schedule.solver=own", "schedule.score=last_k", "schedule.budget=1"]),
        ("tiny-vit", ["training.last_layer=first_token", "method.name=lora", "method.aggregation=svd"]),
        ("tiny-albef-decoder", ["training.answering=ranking"]),
        ("llava", ["training.answering=generation", "method.name=lora"]),
        ("blip2", ["training.answering=generation", "method.pia.integration=two_branches"]),
    ],
    ids=str,
)
def test_rounds_end_near_those_in_bfloat16(learner, backbone, job):
    ends = []
    for number, kept in enumerate(("bfloat16", "nf4")):
        made = learner(backbone, HALF, f"training.frozen_precision={kept}", *job, number=number)
        update = made.train_round(1, {}, [1] if "schedule.solver=own" in job else None)
        ends.append((update.state, update.metrics["loss"], made.score_trained(1)))
    (default, loss, scores), (small, close, near) = ends
    assert small.keys() == default.keys()
    assert close == pytest.approx(loss, rel=0.1)
    assert len(near) == len(scores)


@needs_bitsandbytes
@pytest.mark.slow
def test_layers_can_be_compiled(learner, monkeypatch):
    monkeypatch.setattr(computing, "COMPILE", partial(torch.compile, backend="aot_eager"))
    losses = [overfit(learner("tiny-vilt", HALF, NF4, *also)) for also in ([], ["training.compile=true"])]
    torch.compiler.reset()
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@needs_bitsandbytes
def test_a_kept_model_predicts_the_same_and_exports_its_adapter_alone(sections, sources, tmp_path):
    job = sections("method.name=lora", f"backbone.source={sources['tiny-vilt']}", HALF, NF4)
    folder, metrics = trained(job, tmp_path / "state")["slake"]
    kept = find(folder, site=None)
    wanted, predictor = read_split("test", kept), Predictor(kept)
    measure = predictor.measure(wanted.unseen)
    assert list(predictor.predictions(wanted.examples, wanted.known, max_answers=3, measure=measure))
    assert measure.figures()["overall"] == metrics["overall"]
    for form in ("merged", "onnx"):
        with pytest.raises(FedpeftError, match=r"in four bits .* leave --merged and --onnx out"):
            export(kept, tmp_path / "out", **{form: True})
    export(kept, tmp_path / "out")
    assert (tmp_path / "out" / "adapter_config.json").is_file()


@pytest.mark.parametrize("name", REFUSED)
def test_methods_that_need_the_values_are_refused(learner, name):
    with pytest.raises(FedpeftError, match=f"method '{name}' trains parameters") as refused:
        learner("tiny-vilt", f"method.name={name}", "method.aggregation=[fedavg, none]", HALF, NF4)
    assert refused.value.setting == "training.frozen_precision"


def test_those_are_the_methods_of_the_backbones_own_parameters_and_hra():
    assert REFUSED == ["full", "bias", "attention", "sba", "hra", "attention_vpt", "sba_vpt"]


def test_products_of_stacked_factors_are_refused(learner):
    with pytest.raises(FedpeftError, match=r"is 'nf4', and method.aggregation adds"):
        learner("tiny-vilt", "method.name=lora", "method.aggregation=stack", HALF, NF4)


@needs_bitsandbytes
def test_layers_that_are_not_whole_blocks_are_refused(learner, tiny_source):
    with pytest.raises(FedpeftError, match="no linear layer with a multiple of 64 inputs"):
        learner("tiny-vilt", f"backbone.source={tiny_source}", HALF, NF4)


def test_without_bitsandbytes_it_is_refused(learner, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(FedpeftError, match=r"not installed: pip install 'flare-fedpeft\[quantized\]'") as refused:
        learner("tiny-vilt", HALF, NF4)
    assert refused.value.setting == "training.frozen_precision"


def test_where_bitsandbytes_would_run_code_from_the_hub_it_is_refused(learner, monkeypatch):
    monkeypatch.setattr(quantized, "find_spec", lambda name: name == "kernels")
    with pytest.raises(FedpeftError, match="'kernels' is installed, with which bitsandbytes fetches") as refused:
        learner("tiny-vilt", HALF, NF4)
    assert refused.value.setting == "training.frozen_precision"


def test_a_device_for_which_bitsandbytes_has_no_code_is_refused(learner, monkeypatch):
    def no_code(*_, **__):
        raise NotImplementedError("bitsandbytes::quantize_4bit: no kernel for cpu")

    layers = SimpleNamespace(Linear4bit=no_code, Params4bit=no_code)
    monkeypatch.setitem(sys.modules, "bitsandbytes", SimpleNamespace(nn=layers, __version__="0.1"))
    with pytest.raises(FedpeftError, match=r"bitsandbytes 0.1 cannot compute with it on cpu of this machine"):
        learner("tiny-vilt", HALF, NF4)
