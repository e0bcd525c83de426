# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A large backbone whose matrices are read in bfloat16: bit for bit those that were read in float32 and rounded."""

import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import MODELS, blip2
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedpeft import methods
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import BackboneSettings, build
from fedpeft.backbones.matrices import MATRICES, matrices
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.methods.settings import MethodSettings
from fedpeft.scheduling.settings import schedule_of
from fedpeft.site import computing
from fedpeft.site.site_model import SiteModel

pytestmark = pytest.mark.slow

FOLDERS = {"llava": MODELS["llava"], "blip2": blip2, "clip": MODELS["clip"], "dinov2": MODELS["dinov2"]}
SETTINGS = {"compacter": {"reduction_factor": 4}}
HALF = {"precision": "bfloat16", "frozen_precision": "bfloat16"}


@pytest.fixture(scope="module", params=[torch.float32, torch.float16], ids=str)
def stored(request, tmp_path_factory):
    """Function from the name of a model to its folder, whose weights are in this precision."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = FOLDERS[name](tmp_path_factory.mktemp("models") / name)
            file = made[name] / "model.safetensors"
            tensors = {key: tensor.to(request.param) for key, tensor in load_file(file).items()}
            save_file(tensors, file, metadata={"format": "pt"})
        return str(made[name])

    return folder


def settings(name, folder, **options):
    kind = name if name in ("llava", "blip2") else "transformers"
    return BackboneSettings(name=kind, source=folder, text_length=16, **options)


def same(one, other):
    assert one.keys() == other.keys()
    for key, tensor in one.items():
        assert tensor.dtype == other[key].dtype, key
        assert torch.equal(tensor, other[key]), key


@pytest.mark.parametrize("name", FOLDERS)
def test_matrices_are_read_in_bfloat16_and_all_else_in_float32(stored, name):
    default, half = build(settings(name, stored(name))), build(settings(name, stored(name)), half=True)
    assert half.hidden_size == default.hidden_size
    assert {parameter.dtype for parameter in default.model.parameters()} == {torch.float32}
    for weight in matrices(default.model):
        weight.data = weight.data.to(torch.bfloat16)
    same(dict(half.model.named_parameters()), dict(default.model.named_parameters()))
    same(dict(half.model.named_buffers()), dict(default.model.named_buffers()))
    others = {p.dtype for m in half.model.modules() if not isinstance(m, MATRICES) for p in m.parameters(recurse=False)}
    assert others == {torch.float32}


class Held(TorchDispatchMode):
    """The most bytes that tensors of operations take at once."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta":
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                self._known.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        return result

    def _freed(self, key, size):
        self._known.discard(key)
        self.now -= size


def test_no_more_than_the_matrices_in_bfloat16_is_held(stored, monkeypatch):
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # threads are not followed
    folder, peaks = stored("llava"), {}
    for half in (False, True):
        with Held() as held:
            backbone = build(settings("llava", folder), half=half)
        peaks[half] = held.peak
        sizes = {p.data_ptr(): p.nbytes for p in backbone.parameters()}
        assert held.peak >= sum(sizes.values())
    assert peaks[True] < 0.6 * peaks[False]


def site(name, folder, method, monkeypatch, *, direct, answering="classification"):
    """A site's model, whose backbone is read in bfloat16 or rounded later."""
    chosen = MethodSettings(name=method, aggregation="none", settings=SETTINGS)
    with monkeypatch.context() as patch:
        if not direct:
            patch.setattr(computing, "reads_half", lambda *_: False)
        return SiteModel(
            site="a",
            backbone=settings(name, folder),
            method=chosen,
            training=TrainingSettings(rounds=1, answering=answering, **HALF),
            schedule=schedule_of({}, chosen.registered),
            vocabulary=AnswerVocabulary(["yes", "no"]),
            labelled=False,
            metric="accuracy",
        )


@pytest.mark.parametrize("method", [name for name in methods.names() if name != "full"])
def test_every_method_begins_with_the_same_bits(stored, method, monkeypatch):
    direct, later = (site("dinov2", stored("dinov2"), method, monkeypatch, direct=way) for way in (True, False))
    same(dict(direct.answering.named_parameters()), dict(later.answering.named_parameters()))
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in direct.trainable.parameters().values())


@pytest.mark.parametrize(("name", "method"), [("llava", "lora"), ("blip2", "houlsby"), ("llava", "attention")])
def test_models_that_write_are_the_same_whether_read_in_half_precision_or_converted(stored, name, method, monkeypatch):
    ways = [site(name, stored(name), method, monkeypatch, direct=way, answering="generation") for way in (True, False)]
    same(*(dict(way.answering.named_parameters()) for way in ways))
