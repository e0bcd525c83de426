# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Layers through torch.compile: the same results within rounding, in training and evaluation alone, or a refusal.

Layers are traced and differentiated as for a user; the step to machine code, which takes minutes, is left out.
"""

import os
import stat
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from fedpeft.core.errors import FedpeftError
from fedpeft.site import computing
from fedpeft.site.learner import Learner

COMPILE = "training.compile=true"


@pytest.fixture
def traced(monkeypatch):
    """Without the step from traced operations to machine code."""
    monkeypatch.setattr(computing, "COMPILE", partial(torch.compile, backend="aot_eager"))
    yield
    torch.compiler.reset()


@pytest.fixture
def learner(sections, tmp_path):
    """Function from overrides to a site's learner."""

    def build(*overrides):
        return Learner.from_sections(sections(*overrides), site="slake", folder=tmp_path / str(len(overrides)))

    return build


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        ["training.last_layer=first_token", "training.checkpointing=true"],
        ["method.name=vpt", "backbone.name=tiny-vit", "schedule.solver=own", "training.features_mib=8"],
    ],
    ids=str,
)
def test_a_round_ends_near_the_usual_one(learner, traced, job):
    job = [*job, "data.train_size=16", "training.rounds=2"]
    layers = [1] if "schedule.solver=own" in job else None
    default, fast = learner(*job), learner(*job, COMPILE)
    ends = [site.train_round(1, {}, layers) for site in (default, fast)]
    assert ends[1].metrics["loss"] == pytest.approx(ends[0].metrics["loss"], rel=1e-4)
    for key, tensor in ends[0].state.items():
        torch.testing.assert_close(ends[1].state[key], tensor, rtol=1e-2, atol=1e-4)
    assert fast.score_trained(1) == pytest.approx(default.score_trained(1), rel=1e-2)


@pytest.mark.slow
def test_outside_training_and_evaluation_modules_are_called_as_ever(learner, traced):
    site = learner(COMPILE)
    layers = computing._layers(site.backbone)
    assert layers
    with computing.shortcuts(site.backbone, site.training):
        assert all("forward" in vars(layer) for layer in layers)
    assert not any("forward" in vars(layer) for layer in layers)


def no_compiler(function):
    def call(*_):
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found in config.cpp.cxx: (None, 'g++')")

    return call


@pytest.mark.parametrize(
    ("members", "compiler", "sentence"),
    [
        ({}, no_compiler, "cannot compile for cpu on this machine .RuntimeError.: install g.. and Python's headers"),
        ({"writer": None}, no_compiler, "writes answers, with other sizes for every token: leave it out"),
        ({"model": nn.Linear(2, 2)}, no_compiler, "no layer of a backbone of family 'vilt' is known to be called"),
    ],
)
def test_what_cannot_be_compiled_here_is_refused(learner, monkeypatch, members, compiler, sentence):
    monkeypatch.setattr(computing, "COMPILE", compiler)
    backbone = learner().backbone
    for name, value in members.items():
        setattr(backbone, name, value)
    with pytest.raises(FedpeftError, match=sentence) as refused:
        computing.check_compiles(backbone)
    assert refused.value.setting == "training.compile"


@pytest.mark.usefixtures("traced")
def test_compiled_code_is_kept_in_a_folder_of_this_process_alone(learner, monkeypatch):
    shared = "/tmp/torchinductor_everybody"
    monkeypatch.setenv(computing.FOLDER, shared)  # as torch sets it when it is imported
    learner(COMPILE)
    folder = Path(os.environ[computing.FOLDER])
    assert str(folder) != shared
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_folder_of_a_process_that_has_ended_is_removed_by_the_next(monkeypatch, tmp_path):
    """A training process ends without its exit handlers."""
    monkeypatch.setattr(computing.tempfile, "tempdir", str(tmp_path))
    own = f"{computing.COMPILED}b.{os.getpid()}.draft"
    for name in (f"{computing.COMPILED}a.4194305.draft", own, ".x.4194305.draft"):
        (tmp_path / name).mkdir()
    made = Path(computing._own_folder.__wrapped__())
    left = {path.name for path in tmp_path.iterdir()} - {made.name}
    assert left == {own, ".x.4194305.draft"}
    assert made.name.endswith(f".{os.getpid()}.draft")


def test_torch_has_the_settings_by_which_no_pickle_of_another_process_is_read():
    assert computing.OPTIONS["fx_graph_cache"] is False
    assert computing.COMPILE.keywords["options"] is computing.OPTIONS
    for name in computing.OPTIONS:
        assert hasattr(torch._inductor.config, name)
    assert hasattr(computing.functorch, "enable_autograd_cache")
