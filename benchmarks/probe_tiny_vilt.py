# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which answers can be read off a tiny backbone's features by a linear head, per type of question?

    python benchmarks/probe_tiny_vilt.py [--backbone tiny-vilt] [--seed 1] [--train 600] [--test 300]

Once in the plain words of pre-training (are the features there?) and once in the clinical words of the sites
(what does the shift take away?), on fresh images of all modalities. A type whose plain column is low tells nothing
about a method.
"""

import argparse
from collections import Counter

import numpy as np
import torch
from torch import Tensor, nn

from fedpeft.backbones import BackboneSettings, build
from fedpeft.data.phantom_scene import (
    CLINICAL,
    MODALITIES,
    PLAIN,
    QUESTION_TYPES,
    Language,
    ask,
    draw_look,
    draw_scene,
    render,
)


def features(
    backbone: nn.Module, question_type: str, language: Language, count: int, seed: int
) -> tuple[Tensor, list[str]]:
    """Return pooled outputs (count, d) and answers of fresh questions of one type."""
    rng = np.random.default_rng([seed, QUESTION_TYPES.index(question_type)])
    images, questions = [], []
    for _ in range(count):
        scene = draw_scene(rng, modality=MODALITIES[rng.integers(len(MODALITIES))], counts=(2, 3, 3, 4))
        questions.append(ask(scene, question_type, rng, languages=(language,)))
        images.append(render(scene, draw_look(scene.modality, rng), rng))
    pooled = []
    with torch.inference_mode():
        for start in range(0, count, 100):
            part = slice(start, start + 100)
            pooled.append(backbone(**backbone.collate(images[part], [question.text for question in questions[part]])))
    return torch.cat(pooled).clone(), [question.answer for question in questions]


def probe(train: Tensor, target: Tensor, classes: int) -> nn.Linear:
    """Fit multinomial logistic regression with a little weight decay."""
    head = nn.Linear(train.shape[1], classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(head(train), target) + 1e-3 * head.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return head


def accuracy(
    backbone: nn.Module, question_type: str, language: Language, args: argparse.Namespace
) -> tuple[float, float]:
    """Return the probe's accuracy on new images and the share of the most frequent answer."""
    inputs, answers = features(backbone, question_type, language, args.train, args.seed)
    new_inputs, new_answers = features(backbone, question_type, language, args.test, args.seed + 1_000_000)
    number = {answer: index for index, answer in enumerate(sorted(set(answers)))}
    head = probe(inputs, torch.tensor([number[answer] for answer in answers]), len(number))
    right = head(new_inputs).argmax(1) == torch.tensor([number.get(answer, -1) for answer in new_answers])
    return right.float().mean().item(), max(Counter(new_answers).values()) / len(new_answers)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="tiny-vilt", help="registered name")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=int, default=600, help="questions per type to fit the probe on")
    parser.add_argument("--test", type=int, default=300, help="questions per type to test it on")
    args = parser.parse_args()
    backbone = build(BackboneSettings(name=args.backbone)).eval()
    print(f"Procedural phantom questions, {args.backbone} as shipped, linear probe on its features")
    print(f"{'question type':14} {'plain':>8} {'clinical':>9} {'majority':>9}")
    for question_type in QUESTION_TYPES:
        plain, majority = accuracy(backbone, question_type, PLAIN, args)
        clinical, _ = accuracy(backbone, question_type, CLINICAL, args)
        print(f"{question_type:14} {plain:8.2f} {clinical:9.2f} {majority:9.2f}")


if __name__ == "__main__":
    main()
