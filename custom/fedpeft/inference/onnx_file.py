# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Write a model for ONNX with torch's exporter, and compare it with PyTorch.

Its inputs are those of a batch of one example, as `backbone.collate` makes it, and its output is the logits of the
answers. The length of the question may differ from call to call; the size of the image may not.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedpeft.answering.answering import Answering
from fedpeft.core.errors import FedpeftError
from fedpeft.site.site_model import SiteModel

FILE, LOGITS = "model.onnx", "logits"
PADDING = "pixel_mask"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
TOLERANCE = 1e-3  # of a logit
EXTRA = "pip install 'flare-fedpeft[onnx]'"


class _Logits(nn.Module):
    """A model whose inputs have an order instead of names."""

    def __init__(self, answering: Answering, names: Sequence[str]) -> None:
        super().__init__()
        self.answering, self.names = answering, tuple(names)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the logits (1, C)."""
        return self.answering(dict(zip(self.names, inputs, strict=True)))


def check_installed() -> None:
    """Refuse before anything is computed where a package is missing.

    Raises:
        FedpeftError: naming the package.
    """
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(name)
        except ImportError as error:
            raise FedpeftError(f"--onnx needs {name}, which is not installed: {EXTRA}.") from error


@torch.no_grad()
def write_onnx(folder: Path, model: SiteModel, probes: Sequence[dict[str, Tensor]]) -> float:
    """Write `model.onnx` and return the largest difference of a logit from PyTorch's.

    Args:
        folder: that exists.
        model: of a site.
        probes: inputs of at least two examples, whose questions have different lengths.

    Raises:
        FedpeftError: the exporter refuses the model, or what it writes computes something else.
    """
    answering, names = model.answering.eval(), _needed(probes)
    expected = [answering(inputs) for inputs in probes]
    if any(logits.dim() != 2 for logits in expected):
        raise FedpeftError(
            "--onnx writes one pass of a model, and answers that are ranked or written take several: leave it out."
        )
    differing = [any(other[name].shape != probes[0][name].shape for other in probes) for name in names]
    shapes = tuple({1: torch.export.Dim.DYNAMIC} if differs else None for differs in differing)
    arguments = tuple(probes[-1][name] for name in names)
    try:
        with _quiet():
            program: Any = torch.onnx.export(
                _Logits(answering, names),
                arguments,
                input_names=names,
                output_names=[LOGITS],
                dynamic_shapes={"inputs": shapes},
                dynamo=True,
                verbose=False,
            )
            program.save(folder / FILE)
    except Exception as error:  # of many kinds, from torch.export to onnxscript
        raise FedpeftError(f"torch's exporter refuses this model ({_reason(error):.200}): leave --onnx out.") from error
    difference = max(
        (logits.cpu() - torch.from_numpy(found)).abs().max().item()
        for logits, found in zip(expected, _computed(folder / FILE, names, probes), strict=True)
    )
    if not difference <= TOLERANCE:
        raise FedpeftError(
            f"the logits of the ONNX file differ by {difference:.1e} from PyTorch's, more than {TOLERANCE:g}: leave "
            f"--onnx out."
        )
    return difference


def _needed(probes: Sequence[dict[str, Tensor]]) -> list[str]:
    """Return the names of the inputs: not that of a mask of padded pixels, which one image does not have."""
    padded = any(not bool(inputs[PADDING].all()) for inputs in probes if PADDING in inputs)
    return [name for name in probes[0] if name != PADDING or padded]


def _computed(file: Path, names: Sequence[str], probes: Sequence[dict[str, Tensor]]) -> list[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return [session.run(None, {name: inputs[name].cpu().numpy() for name in names})[0] for inputs in probes]


def _reason(error: Exception) -> str:
    """Return the first line of what is behind the exporter's error, whose own text is a list of next steps."""
    behind = error.__cause__ or error
    lines = [line for line in ANSI.sub("", str(behind)).splitlines() if line.strip()]
    return (lines or [type(behind).__name__])[0].strip().rstrip(".")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter prints and logs about its own steps from the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            yield
    finally:
        logging.disable(before)
