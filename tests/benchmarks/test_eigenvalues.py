# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Seconds of eigenvalues, and spectra of the kernels whose first eigenvalue is the score."""

import pytest
import torch

from fedpeft.importance import score
from fedpeft.site.learner import Learner


def test_the_first_of_all_eigenvalues_is_the_one_that_is_computed_alone(benchmark, capsys):
    eigenvalues = benchmark("eigenvalues")
    tensors = eigenvalues.of_one_adapter(4, 3, 24, 6)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "down.weight": (6, 24),
        "down.bias": (6, 1),
        "up.weight": (24, 6),
        "up.bias": (24, 1),
    }
    rows = [eigenvalues.timed(tensor, 1) for tensor in tensors.values()]
    assert [one.size for one in rows] == [6, 6, 24, 24]
    assert max(one.apart for one in rows) < 1e-10
    eigenvalues.print_seconds("a small one", tensors, 1)
    assert "24 x 24" in capsys.readouterr().out


@pytest.mark.slow
def test_a_spectrum_begins_with_the_score(benchmark, sections, tmp_path, capsys):
    eigenvalues = benchmark("eigenvalues")
    job = sections("data.train_size=16", *eigenvalues.JOB)
    learner = Learner.from_sections(job, site="slake", folder=tmp_path)
    for parameter in learner.trainable.parameters().values():  # up-projections of 0 would hide the others
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    found = eigenvalues.spectra_of(learner, 4)
    names = learner.trainable.parameters()
    layers = {n: [p for key, p in names.items() if f"layer.{n}." in key] for n in range(learner.backbone.num_layers)}
    answering, [batch] = learner.answering.eval(), learner.batches.sample(4, 0)
    scores = score(lambda b: answering(b.inputs), layers, [batch], answering.loss, target="logits", normalize=False)
    outputs, printed = found.values()
    assert [float(values[0]) for values in outputs] == pytest.approx(scores.tolist())
    assert [len(values) for values in printed] == [learner.backbone.hidden_size] * len(layers)
    assert all(bool((values.diff() <= 0).all()) for values in (*outputs, *printed))
    eigenvalues.print_spectra(found)
    assert capsys.readouterr().out.count(f"layer {len(layers) - 1}") == 2
    assert len(eigenvalues.draw(found).axes) == 4
