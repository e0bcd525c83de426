# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What one site's update says of its training samples, with and without clipping and noise.

    pip install adversarial-robustness-toolbox           # for this benchmark alone, in an environment of its own
    python benchmarks/inference_attacks.py               # membership of samples
    python benchmarks/inference_attacks.py --images      # images from gradients

FedAvg over adapters, two sites, procedural data, tiny backbone. The attacker is the server, and is given more than it
gets: the site's head before and after the round, and every candidate's image, question and answer. 64 of the site's
samples, drawn at random, are members, which it trains on; all others of the same site are not. Three attacks give each
candidate a score. Two figures of each: the area under its curve (0.5 is guessing), and how many members are found where
1 % of the others are taken for members (1 % is guessing):

- update: cosine of the update and the candidate's negative gradient at the round's start (Li et al., 2022);
- loss: the candidate's negative loss under the released adapter (Yeom et al., 2018);
- ART: `MembershipInferenceBlackBox` of the Adversarial Robustness Toolbox on the model's answers, a random forest that
  is trained on one half of members and others and measured on the other half.

Images are reconstructed as by Geiping et al. (2020): Adam with the sign of the cosine's gradient, and total variation.
The backbone's projection of patches keeps only a part of an image, on which alone a gradient depends; `kept` is that
part of the true image. `mean` is the cosine of the mean features over all patches, `patches` that of what is left of
each patch's features without it. Clipping leaves a direction as it is, and with it what is found.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measured import machine, sections, show
from scipy.stats import rankdata
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import fold, unfold
from torchmetrics.functional.classification import binary_auroc
from torchmetrics.functional.image import peak_signal_noise_ratio

from fedpeft.answering.answering import Batch
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import State
from fedpeft.data.schema import Example, SiteData
from fedpeft.federate import federate
from fedpeft.protocol import PrivacySettings, release_adapter
from fedpeft.site.learner import Learner, Update

Figures = tuple[float, float]  # area under the curve; share of members found
VICTIM, OTHER = "slake", "vqa-rad"
ROUNDS = 5
SMALL = (
    "method.aggregation=fedavg",
    f"federation.sites=[{VICTIM}, {OTHER}]",
    f"training.rounds={ROUNDS}",
    "data.train_size=364",
    "data.validation_size=4",
    "data.test_size=16",
)
NOISE = (0.01, 0.1, 1.0)
MEMBERS = 64
WRONG = 0.01  # share of the others that an attack may take for members
ATTACKS = ("update", "loss", "ART")
BATCHES = (1, 4)  # images of one step
ITERATIONS, STEP, VARIATION = 200, 0.1, 0.001
SHOWN = ("found", "guess", "kept")
LIKENESS = ("dB", "mean", "patches")
AROUND = 1.0  # pixel values lie between minus this and this


class Watched(Learner):
    """A learner whose uploads are released with clipping and noise, and what an attacker has of each round."""

    privacy: PrivacySettings | None = None
    noise: np.random.Generator
    others: list[Example]
    seen: list[tuple[State, State, State, State]]  # adapter and head before, adapter released, head after

    def __init__(self, *, site_data: SiteData, training: TrainingSettings, **settings: Any) -> None:
        drawn = list(site_data.train)
        random.Random(training.seed).shuffle(drawn)
        super().__init__(site_data=replace(site_data, train=tuple(drawn[:MEMBERS])), training=training, **settings)
        self.others, self.seen = drawn[MEMBERS:], []

    def train_round(
        self, round: int, received: State, layers: Sequence[int] | None = None, *, part: float = 0.0
    ) -> Update:
        """As a learner does; what it would upload is released in place of it."""
        before = received or self.values.first
        head = _copy(self.head.state_dict())
        update = super().train_round(round, received, layers, part=part)
        sent = update.state
        if self.privacy:
            sent, _ = release_adapter(sent, before, self.privacy, self.noise.bytes)
        self.seen.append((_copy(before), head, _copy(sent), _copy(self.head.state_dict())))
        return replace(update, state=sent)


def membership(noise: float | None, clip: float, seed: int) -> dict[str, Any]:
    """Figures of every attack after the first and the last round, or the one in which training diverged."""
    torch.set_num_threads(1)
    privacy = None if noise is None else PrivacySettings(clip=clip, noise=noise)
    with tempfile.TemporaryDirectory() as folder:
        learners = _learners(Path(folder), privacy, seed)
        victim = learners[VICTIM]
        try:
            for _ in federate(learners):
                pass
        except FedpeftError:  # the noise made training diverge
            pass
        before, head, _, _ = victim.seen[0]
        last = len(victim.seen)
        of = {number: _figures(victim, *victim.seen[number - 1], seed) for number in {1, last}}
        _load(victim, before, head)
        untrained = _by_answers(victim, seed)
    return {"noise": noise, "first": of[1], "last": of[last], "untrained": untrained}


def _learners(folder: Path, privacy: PrivacySettings | None, seed: int) -> dict[str, Watched]:
    chosen = sections([*SMALL, f"training.seed={seed}", f"data.seed={seed}"])
    learners = {}
    for number, site in enumerate((VICTIM, OTHER)):
        learners[site] = learner = Watched.from_sections(chosen, site=site, folder=folder / site)
        learner.privacy, learner.noise = privacy, np.random.default_rng((seed, number))
    return learners


def _figures(
    victim: Watched, before: State, head: State, sent: State, head_after: State, seed: int
) -> dict[str, Figures]:
    members, others = _halves(victim)
    is_member = torch.tensor([1] * len(members) + [0] * len(others))
    _load(victim, before, head)
    update = torch.cat([(sent[key] - before[key]).flatten() for key in victim.trainable.parameters()])
    cosine = [torch.cosine_similarity(update, -_gradient(victim, batch), dim=0) for batch in members + others]
    _load(victim, sent, head_after)
    return {"update": _found(torch.stack(cosine), is_member)} | _by_answers(victim, seed)


def _by_answers(victim: Watched, seed: int) -> dict[str, Figures]:
    """The two attacks on what the model answers as it stands."""
    answers = [_answers(victim, examples) for examples in (victim.data.train, victim.others)]
    logits, losses, targets = (torch.cat(parts) for parts in zip(*answers, strict=True))
    is_member = torch.tensor([1] * len(answers[0][2]) + [0] * len(answers[1][2]))
    return {"loss": _found(-losses, is_member), "ART": _black_box(logits, targets, is_member, seed)}


def _halves(victim: Watched) -> list[list[Batch]]:
    """The members and the others, single samples that have an answer in the site's answer space."""
    return [
        [batch for batch in victim.batches.draw(examples, 1) if int(batch.target) >= 0]
        for examples in (victim.data.train, victim.others)
    ]


def _load(victim: Watched, adapter: State, head: State) -> None:
    victim.trainable.load(adapter)
    victim.head.load_state_dict(head)


def _found(scores: torch.Tensor, is_member: torch.Tensor) -> Figures:
    """Area under the curve, and share of members above all others but the highest `WRONG` of them."""
    ranks = torch.from_numpy(rankdata(torch.nan_to_num(scores.double()).numpy()))  # equal scores share a rank
    others = ranks[is_member == 0].sort(descending=True).values
    above = ranks[is_member == 1] > others[int(WRONG * len(others))]
    return float(binary_auroc(ranks / len(ranks), is_member)), float(above.double().mean())


def _black_box(logits: torch.Tensor, targets: torch.Tensor, is_member: torch.Tensor, seed: int) -> Figures:
    """The attack of the Adversarial Robustness Toolbox, trained on every other candidate."""
    from art.attacks.inference.membership_inference import MembershipInferenceBlackBox
    from art.estimators.classification import BlackBoxClassifierNeuralNetwork

    probabilities = torch.nan_to_num(logits.softmax(1)).numpy()
    classes = probabilities.shape[1]
    model = BlackBoxClassifierNeuralNetwork(lambda x: x, input_shape=(classes,), nb_classes=classes)
    np.random.seed(seed)  # noqa: NPY002 - the forest takes its randomness there
    attack = MembershipInferenceBlackBox(model, attack_model_type="rf", input_type="prediction")
    known = torch.arange(len(targets)) % 2 == 0
    is_in, labels = is_member.bool(), torch.nn.functional.one_hot(targets, classes).numpy()
    inside, outside = (known & is_in).numpy(), (known & ~is_in).numpy()
    attack.fit(y=labels[inside], test_y=labels[outside], pred=probabilities[inside], test_pred=probabilities[outside])
    rest = (~known).numpy()
    scores = attack.infer(None, labels[rest], pred=probabilities[rest], probabilities=True)[:, -1]
    return _found(torch.from_numpy(np.ascontiguousarray(scores)), is_member[~known])


def _gradient(victim: Watched, batch: Batch, pixels: torch.Tensor | None = None) -> torch.Tensor:
    """Of the loss by the adapter; with pixels, in place of the batch's, it can be differentiated once more."""
    answering, inputs = victim.answering.eval(), dict(batch.inputs)
    if pixels is not None:
        inputs["pixel_values"] = pixels
    victim.trainable.train_only(None)
    with sdpa_kernel(SDPBackend.MATH):  # the only one whose gradient has a gradient
        loss = answering.loss(answering(inputs), batch.target)
        parts = torch.autograd.grad(
            loss, list(victim.trainable.parameters().values()), create_graph=pixels is not None, allow_unused=True
        )
    sizes = victim.trainable.parameters().values()
    return torch.cat([torch.zeros(p.numel()) if g is None else g.flatten() for g, p in zip(parts, sizes, strict=True)])


@torch.inference_mode()
def _answers(victim: Watched, examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, losses and targets of those that have an answer in the site's answer space."""
    answering, logits, targets = victim.answering.eval(), [], []
    for batch in victim.batches.draw(examples, 64):
        known = batch.target >= 0
        logits.append(answering(batch.inputs)[known])
        targets.append(batch.target[known])
    values, target = torch.cat(logits), torch.cat(targets)
    return values, answering.loss(values, target, reduction="none").flatten(), target


def images(noise: float | None, clip: float, size: int, seed: int) -> dict[str, Any]:
    """Reconstruct the images of one SGD step from its update; the attacker knows questions and answers."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        learners = _learners(Path(folder), None, seed)
        victim = learners[VICTIM]
        for learner in learners.values():
            learner.training = replace(learner.training, rounds=2)
        first = next(iter(federate(learners)))  # an adapter that is no longer zero somewhere
        victim.trainable.load(first.state)
        batch = next(iter(victim.batches.draw(victim.data.train, size)))
        true = batch.inputs["pixel_values"]
        guess = torch.cat([b.inputs["pixel_values"] for b in victim.batches.draw(learners[OTHER].data.train, 64)]).mean(
            0
        )
        sent = _gradient(victim, batch).detach()
        if noise is not None:
            generator = torch.Generator().manual_seed(seed)
            sent = clip * sent / sent.norm()  # as long as clipping lets it be
            sent = sent + noise * 2 * clip * torch.randn(sent.shape, generator=generator)
        found = _invert(victim, batch, sent, torch.Generator().manual_seed(seed))
        shown = {"found": found, "guess": guess.expand_as(true), "kept": _kept(victim, true)}
        likeness = {name: _likeness(victim, image, true) for name, image in shown.items()}
    return {"noise": noise, "size": size} | likeness


def _invert(victim: Watched, batch: Batch, sent: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Images whose gradient has the direction of what was sent."""
    pixels = 0.1 * torch.randn(batch.inputs["pixel_values"].shape, generator=generator)
    pixels.requires_grad_()
    optimizer = torch.optim.Adam([pixels], lr=STEP)
    steps = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ITERATIONS)
    for _ in range(ITERATIONS):
        apart = 1 - torch.cosine_similarity(sent, _gradient(victim, batch, pixels), dim=0)
        rough = pixels.diff(dim=-1).abs().mean() + pixels.diff(dim=-2).abs().mean()
        (slope,) = torch.autograd.grad(apart + VARIATION * rough, [pixels])
        pixels.grad = slope.sign()
        optimizer.step()
        steps.step()
        with torch.no_grad():
            pixels.clamp_(-AROUND, AROUND)
    return pixels.detach()


def _features(victim: Watched, true: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int]]:
    """What the projection of patches makes of images, its weights, and the size of a patch."""
    patches = next(module for module in victim.backbone.model.modules() if isinstance(module, torch.nn.Conv2d))
    weight, size = patches.weight.detach().flatten(1), patches.kernel_size
    return weight @ unfold(true, size, stride=size), weight, size


def _kept(victim: Watched, true: torch.Tensor) -> torch.Tensor:
    """What the projection of patches keeps of images."""
    features, weight, size = _features(victim, true)
    return fold(torch.linalg.pinv(weight) @ features, true.shape[-2:], size, stride=size)


def _likeness(victim: Watched, found: torch.Tensor, true: torch.Tensor) -> tuple[float, float, float]:
    """Mean PSNR in dB, and cosines of the features' mean and of the rest."""
    pairs = zip(found.split(1), true.split(1), strict=True)
    ratio = statistics.fmean(float(peak_signal_noise_ratio(a, b, data_range=2 * AROUND)) for a, b in pairs)
    features = [_features(victim, image)[0] for image in (found, true)]
    means = [one.mean(-1, keepdim=True) for one in features]
    rest = [(one - mean).flatten(1) for one, mean in zip(features, means, strict=True)]
    cosines = [torch.cosine_similarity(*pair).mean() for pair in ([mean.flatten(1) for mean in means], rest)]
    return ratio, float(cosines[0]), float(cosines[1])


def _copy(state: State) -> State:
    return {key: tensor.detach().clone() for key, tensor in state.items()}


def _label(noise: float | None, clip: float) -> str:
    return "as trained" if noise is None else f"clip {clip:g}" + (f", noise {noise:g}" if noise else "")


def _mean(values: Sequence[float], digits: int = 2) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", action="store_true", help="reconstruct images in place of membership")
    parser.add_argument("--noise", nargs="+", type=float, default=list(NOISE), help="standard deviation / sensitivity")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--processes", type=int, default=2, help="runs at the same time")
    chosen = parser.parse_args()
    where, began = machine(), time.monotonic()
    settings = [None, *chosen.noise] if chosen.images else [None, 0.0, *chosen.noise]
    with ProcessPoolExecutor(chosen.processes) as pool:
        if chosen.images:
            work = [
                (images, noise, chosen.clip, size, seed)
                for seed in chosen.seeds
                for size in BATCHES
                for noise in settings
            ]
        else:
            work = [(membership, noise, chosen.clip, seed) for seed in chosen.seeds for noise in settings]
        futures = [pool.submit(*one) for one in work]
        results = []
        for future in as_completed(futures):
            results.append(future.result())
            print(f"{len(results)}/{len(work)}", flush=True)
    note = f"seeds {', '.join(map(str, chosen.seeds))}; {time.monotonic() - began:.0f} s\n{where}"
    if chosen.images:
        _show_images(results, settings, chosen.clip, note)
    else:
        _show_membership(results, settings, chosen.clip, note)


def _show_membership(results: list[dict], settings: list[float | None], clip: float, note: str) -> None:
    columns = ("what leaves", *(f"round {number}: {attack}" for number in (1, ROUNDS) for attack in ATTACKS))
    note = f"mean ± standard deviation over seeds; a run that diverges is attacked in its last round. {note}"
    titles = ("Area under the curve of membership, 0.5 is guessing", f"% of members found at {WRONG:.0%} of the others")
    for figure, title in enumerate(titles):
        once = [result for result in results if result["noise"] is None]  # noise changes nothing before training
        rows = [["before any training", *_cells(once, "untrained", figure), *[""] * len(ATTACKS)]]
        for noise in settings:
            of = [result for result in results if result["noise"] == noise]
            rows.append([_label(noise, clip), *_cells(of, "first", figure), *_cells(of, "last", figure)])
        show(title, columns, rows, note if figure else "")


def _cells(results: list[dict], when: str, figure: int) -> list[str]:
    factor, digits = (100, 0) if figure else (1, 2)
    seen = [result[when] for result in results]
    return [
        _mean([factor * one[attack][figure] for one in seen], digits) if attack in seen[0] else "" for attack in ATTACKS
    ]


def _show_images(results: list[dict], settings: list[float | None], clip: float, note: str) -> None:
    rows = []
    for size in BATCHES:
        for noise in settings:
            of = [result for result in results if result["noise"] == noise and result["size"] == size]
            cells = [
                _mean([result[kind][n] for result in of], 2 if n else 1)
                for kind in SHOWN[:2]
                for n in range(len(LIKENESS))
            ]
            kept = _mean([result["kept"][0] for result in of], 1)
            rows.append([f"{size}, {_label(noise, clip)}", *cells, kept])
    columns = ("images", *(f"{kind}: {figure}" for kind in SHOWN[:2] for figure in LIKENESS), "kept: dB")
    note = f"dB: PSNR; mean, patches: cosines of features; guess: the other site's mean image. {note}"
    show("Images from the update of one SGD step", columns, rows, note)


if __name__ == "__main__":
    main()
