# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One eigenvalue or all: seconds of each (F3OCUS, Table 7), and the spectra of the kernels (Figure 18); see scoring.py.

A tensor of an adapter has the squared gradients G (out, in) of Algorithm 1, whose score is the largest eigenvalue of
G G^T. All eigenvalues take `torch.linalg.eigvalsh`, the largest one `scipy.sparse.linalg.eigsh`; fedpeft takes the
smaller one of G G^T and G^T G, which have the same eigenvalues but for zeros.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from measured import ROOT, sections
from torch import Tensor, nn

from fedpeft.core.keys import layer_of, layers_of
from fedpeft.federate import federate
from fedpeft.importance.lntk import kernels, principal_eigenvalue, principal_eigenvalue_of_rows
from fedpeft.importance.registry import LNTKSettings
from fedpeft.importance.saliency import squared_gradients
from fedpeft.importance.scoring_task import ScoringTask, trainable
from fedpeft.job.composing import compose
from fedpeft.report.palette import LIGHT
from fedpeft.site import site_state
from fedpeft.site.learner import Learner
from fedpeft.site.site_model import SharedModels

LLAVA = 4096, 256  # hidden size, neurons of an adapter
TOKENS = 8
FIRST = 16  # eigenvalues in the right half of the picture
ZERO = 1e-12  # of the largest eigenvalue: what is below is rounding
JOB = ("method.name=pfeiffer", "method.aggregation=fedavg", "training.learning_rate=5e-3", "training.local_epochs=1")


class Timed(NamedTuple):
    """What the eigenvalues of one matrix take: its size, seconds, and the largest relative difference of the first."""

    size: int
    every: float
    first: float
    ours: float
    apart: float


def squares(task: ScoringTask, names: Mapping[int, str]) -> dict[str, Tensor]:
    """Squared gradients of every scored tensor by its name, (out, in) float64."""
    with trainable(task.parameters):
        found, _ = squared_gradients(task, target="logits")
    return {names[key]: one.reshape(len(one) if one.ndim else 1, -1).double().cpu() for key, one in found.items()}


def of_one_adapter(samples: int, classes: int, hidden: int, neurons: int) -> dict[str, Tensor]:
    """Squared gradients of an adapter alone, on random tokens, under a random linear head."""
    generator = torch.Generator().manual_seed(0)
    down, up, head = nn.Linear(hidden, neurons), nn.Linear(neurons, hidden), nn.Linear(hidden, classes)
    for layer in (down, up, head):
        nn.init.normal_(layer.weight, std=0.02, generator=generator)
    tokens = torch.randn(samples, TOKENS, hidden, generator=generator)
    named = {"down.weight": down.weight, "down.bias": down.bias, "up.weight": up.weight, "up.bias": up.bias}
    task = ScoringTask(
        model_fn=lambda x: head((x + up(down(x).relu())).mean(1)),
        layers={0: list(named.values())},
        batches=(tokens,),
        loss=lambda logits, _: logits.square().sum(1),
    )
    return squares(task, {id(p): name for name, p in named.items()})


def timed(rows: Tensor, repeats: int) -> Timed:
    """Median CPU seconds for all eigenvalues of `rows rows^T` and the first, of the matrix as it stands, and ours."""
    matrix = rows @ rows.T
    every, spent = _timed(lambda: torch.linalg.eigvalsh(matrix), repeats)
    first, alone = _timed(lambda: principal_eigenvalue(matrix), repeats)
    ours, with_product = _timed(lambda: principal_eigenvalue_of_rows(rows), repeats)
    exact = float(every[-1])
    apart = max(abs(value - exact) for value in (first, ours)) / exact if exact else 0.0
    return Timed(len(matrix), spent, alone, with_product, apart)


def print_seconds(title: str, tensors: Mapping[str, Tensor], repeats: int) -> None:
    """Print the seconds of one adapter, tensor by tensor, and their sum."""
    print(f"{title:<30}{'matrix':>13}{'all, s':>11}{'top 1, s':>11}{'fedpeft, s':>12}{'apart':>9}")
    rows = {name: timed(tensor, repeats) for name, tensor in tensors.items()}
    for name, one in rows.items():
        size = f"{one.size} x {one.size}"
        print(f"{name:<30}{size:>13}{one.every:>11.5f}{one.first:>11.5f}{one.ours:>12.5f}{one.apart:>9.0e}", flush=True)
    sums = [sum(getattr(one, name) for one in rows.values()) for name in ("every", "first", "ours")]
    print(f"{'the adapter':<30}{'':>13}{sums[0]:>11.5f}{sums[1]:>11.5f}{sums[2]:>12.5f}\n", flush=True)


def spectra(rounds: int, samples: int, job: str = "") -> dict[str, list[Tensor]]:
    """Eigenvalues of every layer, the largest first, by kernel: the first site of a job, trained.

    Without a job it is the embedded federation, with Pfeiffer adapters. The sites take turns with one backbone.
    """
    length = f"training.rounds={rounds or 1}"
    of = compose(ROOT / "app_configs", job, [length]) if job else sections((*JOB, length))
    with tempfile.TemporaryDirectory() as folder:
        shared = SharedModels()
        learners = {
            site: Learner.from_sections(of, site=site, folder=Path(folder) / site, shared=shared)
            for site in of["federation"]["sites"]
        }
        first = next(iter(learners.values()))
        if rounds:
            list(federate(learners))
            first.model.restore(site_state.load_before(first.folder, rounds + 1))
        return spectra_of(first, samples)


def spectra_of(learner: Learner, samples: int) -> dict[str, list[Tensor]]:
    """Eigenvalues of every layer of a site's model as it stands."""
    learner.trainable.train_only(None)
    named = learner.trainable.parameters()
    layers = {n: [p for key, p in named.items() if layer_of(key) == n] for n in layers_of(named)}
    answering = learner.answering.eval()
    task = ScoringTask(
        model_fn=lambda batch: answering(batch.inputs),
        layers=layers,
        batches=learner.batches.sample(samples, 0),
        loss=lambda logits, batch: answering.loss(logits, batch.target, reduction="none"),
    )
    with trainable(task.parameters):
        outputs = kernels(task, LNTKSettings(target="logits"))
    found = squares(task, {id(p): key for key, p in named.items()})
    up = [tensor for key, tensor in found.items() if key.endswith("up.weight")]
    found = {"tangent kernel of the outputs": outputs, "Algorithm 1, weight of up": [one @ one.T for one in up]}
    return {name: [_descending(kernel) for kernel in every] for name, every in found.items() if every}


def print_spectra(found: Mapping[str, list[Tensor]]) -> None:
    """Print by layer how many times larger than the second eigenvalue the first one is, and its share of their sum."""
    for name, layers in found.items():
        print(f"{name:<34}{'matrix':>9}{'lambda 1':>12}{'/ lambda 2':>12}{'of the sum, %':>15}")
        for number, values in enumerate(layers):
            share = 100 * float(values[0] / values.sum())
            ratio = float(values[0] / values[1])
            print(f"{f'layer {number}':<34}{len(values):>9}{float(values[0]):>12.3g}{ratio:>12.1f}{share:>15.1f}")
        print(flush=True)


def draw(found: Mapping[str, list[Tensor]]) -> Figure:
    """All eigenvalues on the left and the first ones on the right, a row for each kernel, a shade for each layer."""
    figure = Figure(figsize=(8, 2.9 * len(found)), layout="constrained", facecolor=LIGHT.paper)
    panels = figure.subplots(len(found), 2, squeeze=False)
    for (name, layers), (whole, first) in zip(found.items(), panels, strict=True):
        for number, values in enumerate(layers):
            shade = 0.25 + 0.75 * number / max(1, len(layers) - 1)
            for panel, count in ((whole, len(values)), (first, FIRST)):
                kept = values[:count]
                kept = kept[kept > ZERO * values[0]]
                places = range(1, len(kept) + 1)
                label = f"layer {number}" if number in (0, len(layers) - 1) else None
                panel.plot(places, kept, color=(0, 0.45, 0.7, shade), linewidth=1.2, label=label)
        _frame(whole, f"{name}: all")
        _frame(first, f"the first {FIRST}")
        whole.legend(frameon=False, fontsize=8, labelcolor=LIGHT.ink)
    return figure


def _frame(panel: Axes, title: str) -> None:
    panel.set_yscale("log")
    panel.set_title(title, fontsize=9, color=LIGHT.ink, loc="left")
    panel.set_xlabel("eigenvalue, the largest first", fontsize=8, color=LIGHT.soft)
    panel.tick_params(labelsize=8, colors=LIGHT.soft)
    panel.grid(color=LIGHT.grid, linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)


def _descending(matrix: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(matrix.double()).flip(0)


def _timed(run: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    spent = []
    for _ in range(repeats):
        start = time.process_time()
        result = run()
        spent.append(time.process_time() - start)
    return result, statistics.median(spent)
