# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A picture of what in an image speaks for an answer: integrated gradients of its log-probability, by captum.

The path leads from a black image to the image; the question stays as it is. What all pixels add up to is the difference
of the answer's log-probability between the two, which the picture's caption gives with the error of the sum.

Source: Sundararajan, Taly, Yan 2017, Axiomatic Attribution for Deep Networks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedpeft.answering.answering import Answering, Batch
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import replacing
from fedpeft.data.images import open_image
from fedpeft.data.schema import Example
from fedpeft.inference.examples import with_label
from fedpeft.inference.predictor import Prediction, Predictor

PIXELS = "pixel_values"
STEPS, AT_ONCE = 64, 8
BLUR = 1 / 40  # of the longest side: a single pixel says nothing
BRIGHTEST = 0.995  # quantile of the absolute values that has the full color


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The contribution of each pixel of an image to an answer."""

    pixels: np.ndarray  # the image as the model reads it, (H, W, 3) from 0 to 1
    values: np.ndarray  # what each pixel added to the answer's log-probability, (H, W)
    gained: float  # log-probability of the answer with the image, minus that with a black one
    error: float  # by how much the sum of the values differs from that


def evidence(predictor: Predictor, example: Example, answer: str) -> Evidence:
    """Return the evidence in an image for an answer, or for a label."""
    attribute = _captum()
    model = predictor.model
    wanted = with_label(example, answer, predictor.record)
    image = open_image(example.image)
    plain = (Image.new("RGB", image.size, color) for color in ("black", "white"))
    batch, black, white = (model.answering.collate([one], [wanted]).to(model.device) for one in (image, *plain))
    pixels = batch.inputs.get(PIXELS)
    if pixels is None or pixels.dim() != 4 or pixels.shape[1] != 3:
        raise FedpeftError(
            f"--heatmap needs a backbone that reads an image as pixels of three colors; one of family "
            f"{model.backbone.family!r} does not: leave it out."
        )
    score = _log_probability(model.answering.eval(), batch)
    with torch.enable_grad():
        values, error = attribute(score)(pixels, black.inputs[PIXELS])
    with torch.no_grad():
        gained = (score(pixels) - score(black.inputs[PIXELS])).item()
    return Evidence(
        pixels=_shown(pixels, black.inputs[PIXELS], white.inputs[PIXELS]),
        values=values[0].sum(0).detach().cpu().double().numpy(),
        gained=gained,
        error=error.item(),
    )


def draw(file: Path, found: Evidence, prediction: Prediction, answer: str, *, caution: str = "") -> None:
    """Draw the image beside what spoke for an answer (orange) and against it (purple), as .png, .svg or .pdf.

    `caution` is a line below, of procedural data or a tiny backbone.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from scipy.ndimage import gaussian_filter

    smooth = gaussian_filter(found.values, sigma=BLUR * max(found.values.shape))
    peak = float(np.quantile(np.abs(smooth), BRIGHTEST)) or 1.0
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    gray = found.pixels.mean(-1)
    left.imshow(found.pixels, interpolation="nearest")
    left.set_title("the image as the model reads it", fontsize=10)
    right.imshow(gray, cmap="gray", vmin=-0.6, vmax=1.6, interpolation="nearest")
    strength = np.clip(np.abs(smooth) / peak, 0, 1)
    colors = right.imshow(smooth, cmap="PuOr_r", vmin=-peak, vmax=peak, alpha=strength * 0.85, interpolation="bilinear")
    right.set_title("orange spoke for the answer, purple against it", fontsize=10)
    bar = figure.colorbar(colors, ax=right, shrink=0.8)
    bar.solids.set_alpha(1)
    bar.set_ticks([-peak, 0, peak], labels=["against", "0", "for"])
    for axes in (left, right):
        axes.set_axis_off()
    probability = next(scored.probability for scored in prediction.answers if scored.text == answer)
    question = prediction.example.question
    title = f"{question + '  ' if question else ''}{prediction.spelled(answer)} ({probability:.2f})"
    figure.suptitle(title, fontsize=12, wrap=True, parse_math=False)
    lines = [
        f"Integrated gradients of the log-probability, {STEPS} steps from a black image to this one: together "
        f"{found.gained:+.2f}, with an error of {abs(found.error):.2f}.",
        "It shows what this model's answer follows from, not where a finding is.",
        caution,
    ]
    figure.supxlabel("\n".join(filter(None, lines)), fontsize=8)
    kind = file.suffix.removeprefix(".").lower()
    with replacing(file, private=True) as draft:
        figure.savefig(draft, format=kind, dpi=150)


def check_file(file: Path) -> None:
    """Refuse another kind of file, and any picture if captum is missing, before anything is computed."""
    if file.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise FedpeftError(f"--heatmap is {str(file)!r}, it must end in .png, .svg or .pdf.")
    _captum()


def _captum() -> Callable[..., Callable[..., tuple[Tensor, Tensor]]]:
    """Return the function that turns a score into one from an image and a black one to attributions and their error."""
    try:
        from captum.attr import IntegratedGradients
    except ImportError as error:
        raise FedpeftError(
            "--heatmap needs captum, which is not installed: pip install 'flare-fedpeft[explain]'."
        ) from error

    def attributions(score: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
        return lambda pixels, black: IntegratedGradients(score).attribute(
            pixels, black, n_steps=STEPS, internal_batch_size=AT_ONCE, return_convergence_delta=True
        )

    return attributions


def _log_probability(answering: Answering, batch: Batch) -> Callable[[Tensor], Tensor]:
    """Return the function from N images (N, 3, H, W) to the log-probability (N,) of the answer of a batch of one."""

    def score(pixels: Tensor) -> Tensor:
        count = len(pixels)
        inputs = {name: tensor.expand(count, *tensor.shape[1:]) for name, tensor in batch.inputs.items()}
        target = batch.target.expand(count, *batch.target.shape[1:])
        return answering.log_probability(answering({**inputs, PIXELS: pixels}), target)

    return score


def _shown(pixels: Tensor, black: Tensor, white: Tensor) -> np.ndarray:
    """Return normalized pixels (1, 3, H, W) as an image from 0 to 1, (H, W, 3)."""
    image = ((pixels - black) / (white - black))[0]
    return image.detach().cpu().permute(1, 2, 0).clamp(0, 1).numpy()
