# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""training.py: FedDAT's step as its authors have it computes what ours does, every step runs, and the table's rows."""

import argparse

import pytest
import torch
from tiny_vilt import SMALL
from torch.nn import functional as F
from transformers import ViltConfig

from fedpeft import methods
from fedpeft.answering.classification import build_head
from fedpeft.backbones.vilt import Vilt
from fedpeft.methods.trainable import Part

SAMPLES, CLASSES, RATE = 3, 5, 0.5
TINY = {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PLACES = {"attention": "attention.output", "output": "output"}  # slot -> block of a layer
PARTS = {"1": "", "0": "private."}  # their adapter -> how the keys of ours begin


@pytest.fixture
def training(benchmark):
    return benchmark("training")


@pytest.fixture
def options():
    default = {"tiny": True, "threads": 1, "device": "cpu"}
    return argparse.Namespace(samples=SAMPLES, tokens=5, classes=CLASSES, **default)


def loss_of(logits, labels):
    """Theirs: binary cross-entropy of every answer."""
    return F.binary_cross_entropy_with_logits(logits, labels) * labels.shape[1]


def as_ours(peer, name):
    """The tensors of one of their adapters under our keys."""
    state = {}
    for number, layer in enumerate(peer.model.vilt.encoder.layer):
        for slot, path in PLACES.items():
            adapter = layer.get_submodule(path).adapter
            for half in ("down", "up"):
                values = getattr(adapter, half)[name].state_dict()
                state |= {f"layer.{number}.{slot}.{half}.{kind}": value.clone() for kind, value in values.items()}
    return state


@pytest.mark.slow
def test_the_transcription_of_feddats_step_is_our_step(training, benchmark, options):
    """From the same weights and batch, with their loss and plain gradient descent: the same loss, the same weights."""
    torch.manual_seed(0)
    config = ViltConfig(**TINY, num_labels=CLASSES)
    inputs, target = training.random_batch(config, options)
    labels = F.one_hot(target, CLASSES).float()
    peer = benchmark("training_peers").FedDat(config)
    with torch.no_grad():
        for adapter in peer.adapters:  # far from their first values, where all three are nearly nothing
            for parameter in adapter.parameters():
                parameter += 0.2 * torch.randn(parameter.shape)
            for half in (adapter.down, adapter.up):
                half["2"].load_state_dict(half["1"].state_dict())
        for parameter in peer.model.classifier.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    own = {key: value.clone() for key, value in peer.model.vilt.state_dict().items() if "adapter" not in key}
    model = type(peer.model.vilt)(config).train()
    model.load_state_dict({key.replace(".block.", "."): value for key, value in own.items()})
    backbone = Vilt(model, tokenizer=None, prepare=None, text_length=5)
    trainable = methods.get("feddat_houlsby").tuning().prepare(backbone, {}, seed=0)
    trainable.start(as_ours(peer, "1"), None)
    trainable.load_private({f"private.{key}": value for key, value in as_ours(peer, "0").items()})
    head = build_head("mlp", config.hidden_size, CLASSES, torch.Generator())
    head.load_state_dict(peer.model.classifier.state_dict())
    before = trainable.state() | trainable.private_state()

    (group,) = peer.optimizer.param_groups
    peer.optimizer = torch.optim.SGD(group["params"], lr=RATE)
    optimizer = torch.optim.SGD([*trainable.parameters().values(), *head.parameters()], lr=RATE)
    part = Part(lambda: head(backbone(**inputs)), lambda logits: loss_of(logits, labels))
    theirs, ours = peer.step(inputs, target), trainable.step([part], optimizer).item()

    assert ours == pytest.approx(theirs, rel=1e-5)
    now = trainable.state() | trainable.private_state()
    assert [key for key, tensor in now.items() if torch.equal(tensor, before[key])] == []
    for name, begin in PARTS.items():
        for key, tensor in as_ours(peer, name).items():
            torch.testing.assert_close(now[f"{begin}{key}"], tensor, rtol=1e-4, atol=1e-5, msg=key)
    torch.testing.assert_close(head.state_dict(), dict(peer.model.classifier.state_dict()), rtol=1e-4, atol=1e-5)
    for key, tensor in as_ours(peer, "2").items():
        assert torch.equal(trainable.beside().state[key], tensor)


@pytest.mark.slow
def test_every_step_runs_and_is_measured(training, options, monkeypatch):
    monkeypatch.setattr(training, "TINY", SMALL)
    for name in (name for name, row in training.ROWS.items() if not row.training.get("compile")):
        wall, cpu, peak, held = training.measure(name, options)
        assert min(wall, cpu) > 0
        assert peak >= held > 0


def test_a_row_stands_beside_that_of_others_run_by_run(training):
    taken = {
        "FedDAT": [(4.0, 2.0, 300.0, 200.0), (8.0, 4.0, 300.0, 200.0), (6.0, 3.0, 300.0, 200.0)],
        "feddat": [(2.0, 1.0, 250.0, 200.0), (2.0, 1.0, 260.0, 200.0), (2.0, 1.0, 240.0, 200.0)],
        "lora": [(1.0, 0.5, 110.0, 100.0)] * 3,
    }
    others, ours, alone = training.table_rows(taken, 16)
    assert others == ("FedDAT", "5.33", *2 * (training.ratio([1.0] * 3),), "300", "1.00")
    assert ours == ("feddat", "16.00", *2 * (training.ratio([2.0, 4.0, 3.0]),), "250", "0.50")
    assert alone == ("lora", "32.00", *2 * (training.ratio([1.0] * 3),), "110", "1.00")
