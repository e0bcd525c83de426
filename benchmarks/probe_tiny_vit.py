# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What can be read off the tiny ViT's features by a linear head?

    python benchmarks/probe_tiny_vit.py [--seed 1] [--train 1000] [--test 1000]

The first rows are about the phantom's images: the body region, the modality, the number of findings, and kind and shade
of the finding at the upper left. The last is about shapes that no image of the phantom has. Beside it stand the image
half of the tiny ViLT, which was trained on kinds, shades and answers, and the same layers with random weights.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from probe_tiny_vilt import probe
from torch import Tensor, nn
from transformers import ViTConfig
from transformers.models.vit.modeling_vit import ViTModel

from fedpeft.backbones import BackboneSettings, build
from fedpeft.backbones.registry import TINY_FOLDER, TINY_VIT_FOLDER
from fedpeft.backbones.vit import Vit
from fedpeft.data.phantom_scene import MODALITIES, SIZE, Scene, draw_look, draw_scene, render

SCENES: dict[str, Callable[[Scene], str]] = {
    "body region": lambda scene: scene.region,
    "modality": lambda scene: scene.modality,
    "findings": lambda scene: str(len(scene.findings)),
    "kind, upper left": lambda scene: getattr(scene.at(0), "kind", "nothing"),
    "shade, upper left": lambda scene: str(getattr(scene.at(0), "bright", "nothing")),
}
OTHERS = "other shapes"
SHAPES = ("triangle", "square", "hexagon", "star", "flower", "spiral", "checkers", "rays")


def draw_shape(name: str, rng: np.random.Generator) -> np.ndarray:
    """Draw a shape of SHAPES, of any size, turn, place and contrast, as (SIZE, SIZE, 3) uint8."""
    row, column = rng.uniform(16, 32, size=2)
    y, x = (axis - center for axis, center in zip(np.mgrid[0:SIZE, 0:SIZE], (row, column), strict=True))
    radius, angle = np.hypot(y, x) / rng.uniform(8, 15), np.arctan2(y, x) + rng.uniform(0, 2 * np.pi)
    corners = {"triangle": 3, "square": 4, "hexagon": 6}
    if name in corners:  # how far the edge is from the center at this angle
        side = 2 * np.pi / corners[name]
        inside = radius * np.cos((angle % side) - side / 2) < np.cos(side / 2)
    else:
        inside = {
            "star": radius < 0.75 + 0.25 * np.sign(np.sin(5 * angle)),
            "flower": radius < 0.7 + 0.3 * np.sin(5 * angle),
            "spiral": (radius < 1) & (np.sin(12 * radius + angle) > 0),
            "checkers": (radius < 1) & (np.sin(6 * radius * np.cos(angle)) * np.sin(6 * radius * np.sin(angle)) > 0),
            "rays": (radius < 1) & (np.sin(7 * angle) > 0),
        }[name]
    contrast = rng.choice((-1, 1)) * rng.uniform(0.15, 0.35)
    gray = rng.uniform(0.4, 0.6) + contrast * inside + rng.normal(0, 0.05, size=inside.shape)
    return np.repeat(np.rint(np.clip(gray, 0, 1) * 255).astype(np.uint8)[:, :, None], 3, axis=2)


def features(backbone: nn.Module, images: list[np.ndarray]) -> Tensor:
    """Return the features (N, d) of images."""
    with torch.inference_mode():
        parts = [images[start : start + 100] for start in range(0, len(images), 100)]
        return torch.cat([backbone(**backbone.collate(part, [""] * len(part))) for part in parts]).clone()


def accuracy(inputs: Tensor, labels: list[str], train: int) -> float:
    """Return the share of rows behind the first `train` that a linear head, fit on these, gets right, in percent."""
    number = {label: index for index, label in enumerate(sorted(set(labels)))}
    target = torch.tensor([number[label] for label in labels])
    spread = inputs[:train].std(0).clamp(min=1e-6)
    inputs = (inputs - inputs[:train].mean(0)) / spread
    head = probe(inputs[:train], target[:train], len(number))
    return 100 * (head(inputs[train:]).argmax(1) == target[train:]).float().mean().item()


def untrained() -> Vit:
    """Return the tiny ViT with random weights."""
    torch.manual_seed(0)
    return Vit(ViTModel(ViTConfig.from_pretrained(TINY_VIT_FOLDER), add_pooling_layer=False), SIZE)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=int, default=1000, help="images to fit the head on")
    parser.add_argument("--test", type=int, default=1000, help="images to test it on")
    parser.add_argument("--source", default="", help="folder of other weights of the tiny ViT")
    args = parser.parse_args()
    rng, count = np.random.default_rng(args.seed), args.train + args.test
    scenes = [draw_scene(rng, modality=MODALITIES[rng.integers(len(MODALITIES))]) for _ in range(count)]
    pictures = [render(scene, draw_look(scene.modality, rng), rng) for scene in scenes]
    names = [SHAPES[rng.integers(len(SHAPES))] for _ in range(count)]
    shapes = [draw_shape(name, rng) for name in names]
    models = {
        "tiny ViT": build(BackboneSettings(name="tiny-vit", source=args.source or None)),
        "half of tiny ViLT": build(BackboneSettings(name="tiny-vit", source=str(TINY_FOLDER))),
        "random": untrained(),
    }
    print(f"Right answers of a linear head on fresh images, %, fit on {args.train}, tested on {args.test}")
    print(f"{'':20}" + "".join(f"{name:>19}" for name in models))
    rows = [(model.eval(), features(model, pictures), features(model, shapes)) for model in models.values()]
    for question, answer in SCENES.items():
        labels = [answer(scene) for scene in scenes]
        print(f"{question:20}" + "".join(f"{accuracy(seen, labels, args.train):19.0f}" for _, seen, _ in rows))
    print(f"{OTHERS:20}" + "".join(f"{accuracy(seen, names, args.train):19.0f}" for _, _, seen in rows))


if __name__ == "__main__":
    main()
