# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Pre-train the tiny ViT that ships with fedpeft, on a fresh stream of procedural images.

    python benchmarks/pretrain_tiny_vit.py --out DIR --batch 96 --lr 5e-4 --steps 400

It starts from the image layers of the tiny ViLT, whose first token sees the image only together with a question. No
image is seen twice, and no name of a finding, a place, a region or a modality is used. Each scene is drawn twice, by
two scanners of a modality, in slightly different places, and a quarter of the patches is covered; four scenes each
differ in the shapes of their findings alone. The losses are
    pair      of the first tokens of a batch, which two are pictures of one scene? (SimCLR, Chen et al. 2020)
    picture   from the first token: the whole picture at half the size, without noise, as one and the same scanner
              would draw it
    patches   from each patch's token, a covered one's too: the patch in that picture
The heads are thrown away. An interrupted run goes on from its last checkpoint.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from pretrain_tiny_vilt import GRID, PATCH, SEED
from pretraining import arguments, as_float16, train
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ViTConfig

from fedpeft.backbones import BackboneSettings, build
from fedpeft.backbones.registry import TINY_FOLDER
from fedpeft.backbones.vit import Vit
from fedpeft.data.phantom_scene import KINDS, MODALITIES, SIZE, Look, Scene, draw_look, draw_scene, render

ALIKE = 4  # scenes
COVERED = 4  # patches of the 16
TEMPERATURE = 0.2
CLEAN = Look(air=0.05, body=0.45, contrast=0.3, shade_x=0.0, shade_y=0.0, noise=0.0, speckle=0.0, blur=0)


def write_configuration(folder: Path) -> None:
    """Write the model's configuration: the sizes of the tiny ViLT."""
    folder.mkdir(parents=True, exist_ok=True)
    ViTConfig(
        hidden_size=96,
        num_hidden_layers=12,
        num_attention_heads=4,
        intermediate_size=192,
        image_size=SIZE,
        patch_size=PATCH,
        layer_norm_eps=1e-6,
        dtype="float32",  # in which the weights compute; the file has them in float16
    ).save_pretrained(folder)


def alike(rng: np.random.Generator) -> list[Scene]:
    """Draw scenes that differ in the shapes of their findings alone."""
    first = draw_scene(rng, modality=MODALITIES[rng.integers(len(MODALITIES))])
    drawn = [rng.permutation(len(KINDS))[: len(first.findings)] for _ in range(ALIKE)]
    return [
        replace(first, findings=tuple(replace(f, kind=KINDS[k]) for f, k in zip(first.findings, kinds, strict=True)))
        for kinds in drawn
    ]


def make_batch(number: int, size: int) -> dict[str, Tensor]:
    """Draw part `number` of the stream, scene by scene; it depends on nothing but SEED and the number.

    Args:
        number: of the part.
        size: images, two of each scene; a multiple of 8.

    Returns:
        `image` and `clean` (size, H, W), gray values of 0 to 255, and `covered` (size, patches); the second pictures
        stand behind all first ones.
    """
    rng = np.random.default_rng([SEED, number])
    scenes = [scene for _ in range(size // (2 * ALIKE)) for scene in alike(rng)]
    images, clean = [], []
    for scene in scenes * 2:
        place = int(rng.integers(2**31))  # where it is drawn, and its noise
        for out, look in ((images, draw_look(scene.modality, rng)), (clean, CLEAN)):
            out.append(render(scene, look, np.random.default_rng(place))[:, :, 0])
    covered = rng.random((len(images), GRID**2)).argsort(1) < COVERED
    arrays = {"image": np.stack(images), "clean": np.stack(clean), "covered": covered}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


class Heads(nn.Module):
    """The heads of pre-training, thrown away afterwards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.picture = nn.Linear(width, (SIZE // 2) ** 2)
        self.patches = nn.Linear(width, PATCH**2)


def in_patches(images: Tensor) -> Tensor:
    """Cut images (B, H, W) into their patches row by row, (B, patches, PATCH * PATCH)."""
    rows = images.unflatten(1, (GRID, PATCH)).unflatten(3, (GRID, PATCH))
    return rows.transpose(2, 3).flatten(1, 2).flatten(2)


def losses(backbone: Vit, heads: Heads, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the losses of a batch by name, and in `found` the share of pictures whose other one was found."""
    pixels, clean = (batch[name].float().div(127.5).sub(1) for name in ("image", "clean"))
    clean = 2 * clean
    covered = batch["covered"].unflatten(1, (GRID, GRID)).repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)
    pixels = pixels.masked_fill(covered, 0.0)[:, None].expand(-1, 3, -1, -1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tokens = backbone.model(pixel_values=pixels).last_hidden_state.float()
        first, rest = tokens[:, 0], tokens[:, 1:]
        pair = F.normalize(heads.pair(first).float(), dim=1)
        picture, patches = heads.picture(first).float(), heads.patches(rest).float()
    similar = (pair @ pair.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    other = torch.arange(len(pair)).roll(len(pair) // 2)
    return {
        "pair": F.cross_entropy(similar, other),
        "picture": F.mse_loss(picture, F.avg_pool2d(clean[:, None], 2).flatten(1)),
        "patches": F.mse_loss(patches, in_patches(clean)),
        "found": (similar.argmax(1) == other).float().mean(),
    }


def pretrain(args: argparse.Namespace) -> None:
    """Train, and write the weights in transformers' layout."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    write_configuration(args.out)
    backbone = build(BackboneSettings(name="tiny-vit", source=str(TINY_FOLDER))).requires_grad_()
    heads = Heads(backbone.hidden_size)

    def step(number: int) -> tuple[Tensor, dict[str, float]]:
        parts = losses(backbone, heads, make_batch(number, args.batch))
        total = 0.3 * parts["pair"] + 3 * parts["picture"] + parts["patches"]
        return total, {name: value.item() for name, value in parts.items()}

    train(nn.ModuleDict({"backbone": backbone, "heads": heads}), step, args)
    save_file(as_float16(backbone.model.state_dict()), args.out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    pretrain(arguments(__doc__.splitlines()[0], steps=400))
