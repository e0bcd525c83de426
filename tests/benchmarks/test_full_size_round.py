# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""benchmarks/full_size_round.py: its shapes are those of the papers' models, and a round of one site ends."""

import pytest
import torch

from fedpeft import backbones
from fedpeft.backbones import BACKBONES


@pytest.fixture
def script(benchmark):
    return benchmark("full_size_round")


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "name"), [("llava-1.5-7b", "llava"), ("blip2", "blip2"), ("vilt-b", "vilt")])
def test_shapes_are_those_of_the_backbones(script, shape, name):
    made = script.SHAPES[shape]
    with torch.device("meta"):
        model = made.model(made.config(None))
    default = backbones.skeleton(name).model
    if name != "vilt":  # a skeleton has the vocabulary of the configuration, too
        assert len(model.language_model.get_submodule("layers" if name == "llava" else "model.decoder.layers")) == 32
    sizes = ({key: tuple(p.shape) for key, p in m.named_parameters()} for m in (model, default))
    assert next(sizes) == next(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", ["float32", "bfloat16"])
def test_a_round_of_one_layer(script, frozen, monkeypatch, capsys):
    monkeypatch.setattr(BACKBONES, "_own", dict(BACKBONES._own))
    options = f"--backbone vilt-b --layers 1 --samples 4 --batch-size 2 --device cpu --frozen {frozen}"
    monkeypatch.setattr("sys.argv", ["full_size_round.py", *options.split()])
    script.main()
    printed = capsys.readouterr().out
    assert f"vilt-b, 1 layers, houlsby, frozen in {frozen}, batch 2, on cpu" in printed
    assert "samples per second" in printed
