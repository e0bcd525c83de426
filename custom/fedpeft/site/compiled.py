# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Compile a backbone's layers with torch.compile (`training.compile`), within training and evaluation alone.

Elsewhere hooks read what modules return (scores, activations of adapters), and compiled code does not call them.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch

from fedpeft.backbones.backbone import Backbone
from fedpeft.core.errors import FedpeftError

SETTING = "training.compile"
LIMIT = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"  # torch 2.6
VARIANTS = 64  # of a layer: trained or not, with a way back or not, the first token alone, sizes of batches
# dropout draws what it draws without; no compiled code of an earlier process is read, whose files are pickles
OPTIONS = {"fallback_random": True, "fx_graph_cache": False, "compile_threads": 1}
FOLDER = "TORCHINDUCTOR_CACHE_DIR"  # environment variable with the folder of compiled code
COMPILE = functools.partial(torch.compile, options=OPTIONS)


def check(backbone: Backbone) -> None:
    """Refuse to compile what cannot be compiled here; a small function is compiled for that.

    Raises:
        FedpeftError: the backbone has no layers that are called alone, or writes its answers, or this machine has no
            compiler.
    """
    if hasattr(backbone, "writer"):
        raise FedpeftError(
            f"compile is true, and a backbone of family {backbone.family!r} writes answers, with other sizes for every "
            f"token: leave it out.",
            setting=SETTING,
        )
    if not _layers(backbone):
        raise FedpeftError(
            f"compile is true, and no layer of a backbone of family {backbone.family!r} is known to be called alone: "
            f"leave it out.",
            setting=SETTING,
        )
    device = next(iter(backbone.parameters())).device
    os.environ[FOLDER] = _own_folder()
    try:
        COMPILE(_twice)(torch.ones(8, device=device))
    except Exception as error:  # of dynamo, inductor, Triton and the C++ compiler
        raise FedpeftError(
            f"compile is true, and torch {torch.__version__} cannot compile for {device.type} on this machine "
            f"({type(error).__name__}): install g++ and Python's headers, for CUDA also Triton, or leave it out.",
            setting=SETTING,
        ) from error


@contextmanager
def compiled(backbone: Backbone) -> Iterator[None]:
    """Compute every layer of a backbone with compiled code in this block; it is compiled when it first runs."""
    layers = [(layer, vars(layer).get("forward")) for layer in _layers(backbone)]
    for layer, _ in layers:
        vars(layer)["forward"] = COMPILE(layer.forward)
    try:
        with torch._dynamo.config.patch({LIMIT: VARIANTS}), functorch.patch(enable_autograd_cache=False):
            yield
    finally:
        for layer, own in layers:
            vars(layer).pop("forward") if own is None else vars(layer).update(forward=own)


def _layers(backbone: Backbone) -> list[nn.Module]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in backbone.model.modules() if isinstance(module, GradientCheckpointingLayer)]


@functools.cache
def _own_folder() -> str:
    """Return a folder of this process alone; the usual one has a name that any user of this machine can make first."""
    folder = tempfile.mkdtemp(prefix="fedpeft-compiled-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _twice(values: Tensor) -> Tensor:
    return values * 2
