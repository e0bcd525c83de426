# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Precision, time and memory of a site's computation: what `training` says of devices, bfloat16, compiling and so on.

A backbone's layers are compiled (`training.compile`) only within training and evaluation: elsewhere hooks read what
modules return (scores, activations of adapters), and compiled code does not call hooks.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch.utils.checkpoint import checkpoint

from fedpeft.answering.training_settings import BFLOAT16, FIRST_TOKEN, FLOAT32, FUSED, NF4, TrainingSettings
from fedpeft.backbones.backbone import Backbone
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import remove_leftovers
from fedpeft.methods.method import TuningMethod
from fedpeft.methods.settings import MethodSettings
from fedpeft.methods.trainable import Trainable
from fedpeft.site import quantized
from fedpeft.site.kept_features import MIB, KeptFeatures

if TYPE_CHECKING:
    from fedpeft.backbones.images import EncodedImages

SETTING = "training.compile"
VARIANTS = 64  # compiled forms of a layer: trained or not, with a gradient or not, first token only, sizes of batches
# dropout draws the same numbers as without; compiled code of earlier processes is not read, its files are pickles
OPTIONS = {"fallback_random": True, "fx_graph_cache": False, "compile_threads": 1}
FOLDER = "TORCHINDUCTOR_CACHE_DIR"  # environment variable with the folder of compiled code
COMPILED = ".fedpeft-compiled-"  # how that folder begins
COMPILE = functools.partial(torch.compile, options=OPTIONS)


def check_compiles(backbone: Backbone) -> None:
    """Refuse `training.compile` where it cannot work; a small function is compiled to find out.

    It cannot for a backbone whose layers are not called one by one or that writes its answers, or without a compiler.
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
        config = torch._dynamo.config  # not before: its import takes seconds
        limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # torch 2.6
        with config.patch({limit: VARIANTS}), functorch.patch(enable_autograd_cache=False):
            yield
    finally:
        for layer, own in layers:
            vars(layer).pop("forward") if own is None else vars(layer).update(forward=own)


def _layers(backbone: Backbone) -> list[nn.Module]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in backbone.model.modules() if isinstance(module, GradientCheckpointingLayer)]


@functools.cache
def _own_folder() -> str:
    """Return a private folder of this process; any user of this machine could create the default one first.

    A training process ends without its exit handlers, so that the next one removes what is left.
    """
    remove_leftovers(Path(tempfile.gettempdir()), f"{COMPILED}*")
    folder = tempfile.mkdtemp(prefix=COMPILED, suffix=f".{os.getpid()}.draft")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _twice(values: Tensor) -> Tensor:
    return values * 2


def device_of(settings: TrainingSettings) -> torch.device:
    """Return the device of `training.device`, for `auto` CUDA if there is one; refuse one that is not here."""
    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=settings.device).device
    except (RuntimeError, AssertionError) as error:
        raise FedpeftError(
            f"training.device is {settings.device!r:.60}, which torch {torch.__version__} does not find on this "
            f"machine: use 'auto' or 'cpu', or install a build of torch for that device.",
            setting="training.device",
        ) from error


def reads_half(settings: TrainingSettings, method: TuningMethod, own: Mapping[str, Any]) -> bool:
    """Return whether a backbone's matrices can be read in bfloat16 with the same results as rounding them later."""
    return settings.frozen_precision != FLOAT32 and settings.precision == BFLOAT16 and method.reads_half(own)


def keep_frozen(
    backbone: Backbone,
    settings: TrainingSettings,
    weights: Sequence[Tensor],
    device: torch.device,
    method: MethodSettings,
) -> None:
    """Keep the frozen matrices of a backbone in the precision that `training` says.

    The backbone contains the method, whose parameters are set to train, and need not be on its device yet. What it, the
    method or the device cannot do, or what would change nothing, is refused.
    """
    if settings.frozen_precision == FLOAT32:
        return
    if method.rule.stacks:
        raise FedpeftError(
            f"frozen_precision is {settings.frozen_precision!r}, and method.aggregation adds every round's products to "
            f"the frozen matrices, which so loses them bit by bit: leave it out.",
            setting="training.frozen_precision",
        )
    if settings.frozen_precision == NF4:
        if not method.registered.four_bits:
            raise FedpeftError(
                f"frozen_precision is {NF4!r}, and method {method.name!r} trains parameters of the backbone's linear "
                f"layers or computes with their values itself: use 'bfloat16', or one that adds layers beside them.",
                setting="training.frozen_precision",
            )
        quantized.quantize(backbone, weights, device, getattr(torch, settings.precision))
    if settings.precision == BFLOAT16:
        _round_frozen(weights)


def set_up(backbone: Backbone, settings: TrainingSettings) -> None:
    """Change a backbone on its device, with the method in it, to compute as `training` says.

    What it or the device cannot do, or what would change nothing, is refused.
    """
    if settings.attention == FUSED:
        _fuse_attention(backbone)
    if settings.last_layer == FIRST_TOKEN:
        _switch_first_token(backbone, only=True)
        _switch_first_token(backbone, only=False)
    if settings.checkpointing:
        _checkpoint_layers(backbone)
    if settings.precision == BFLOAT16:
        _autocast(backbone)
    if settings.compile:
        check_compiles(backbone)


@contextmanager
def shortcuts(backbone: Backbone, settings: TrainingSettings, features: KeptFeatures | None = None) -> Iterator[None]:
    """Apply the settings that only training and evaluation allow; other uses read all tokens and layers."""
    only = settings.last_layer == FIRST_TOKEN
    if only:
        _switch_first_token(backbone, only=True)
    try:
        with (
            features.used() if features else nullcontext(),
            compiled(backbone) if settings.compile else nullcontext(),
        ):
            yield
    finally:
        if only:
            _switch_first_token(backbone, only=False)


def kept_features(
    backbone: Backbone,
    trainable: Trainable,
    settings: TrainingSettings,
    *,
    some_layers: bool,
    images: EncodedImages | None = None,
) -> KeptFeatures | None:
    """Return the store of features; None without a budget for them, or if the backbone itself keeps them."""
    if not settings.features_mib:
        return None
    if keep := getattr(backbone, "keep_encoded", None):
        keep(round(settings.features_mib * MIB), images)
        return None
    if settings.moon_mu:
        raise FedpeftError(
            "features_mib is set, and moon_mu computes a batch with three adapters in turn: leave one of them out.",
            setting="training.features_mib",
        )
    half = settings.precision == BFLOAT16
    return KeptFeatures(backbone, trainable, settings.features_mib, some_layers=some_layers, half=half)


def _fuse_attention(backbone: Backbone) -> None:
    fuse: Callable[[], None] | None = getattr(backbone, "fuse_attention", None)
    if fuse is None:
        raise FedpeftError(
            f"attention is {FUSED!r}, and a backbone of family {backbone.family!r} uses transformers' own choice, "
            f"which is fused where it can be: leave it out.",
            setting="training.attention",
        )
    fuse()


def _switch_first_token(backbone: Backbone, *, only: bool) -> None:
    switch: Callable[[bool], bool] | None = getattr(backbone, "first_token_only", None)
    if switch is None or not switch(only):
        raise FedpeftError(
            f"last_layer is {FIRST_TOKEN!r}, and the features of this backbone (family {backbone.family!r}) need all "
            f"tokens, or an adapter is around its whole last layer: leave it out.",
            setting="training.last_layer",
        )


def _checkpoint_layers(backbone: Backbone) -> None:
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in backbone.model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise FedpeftError(
            f"checkpointing is true, and no layer of a backbone of family {backbone.family!r} can be computed again: "
            f"leave it out.",
            setting="training.checkpointing",
        )
    for layer in layers:
        layer.gradient_checkpointing = True
        vars(layer)["_gradient_checkpointing_func"] = partial(checkpoint, use_reentrant=False)


def _autocast(backbone: Backbone) -> None:
    device = next(iter(backbone.parameters())).device
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise FedpeftError(f"precision is {BFLOAT16!r}, which this GPU does not compute: use float32.")
    for name in ("forward", *filter(partial(hasattr, backbone), ("hidden", "generate"))):
        vars(backbone)[name] = types.MethodType(partial(_call_in_bfloat16, name), backbone)


def _call_in_bfloat16(name: str, self: nn.Module, *arguments: Any, **batch: Any) -> Tensor:
    """Multiply matrices in bfloat16; head, output layer and loss get features in float32."""
    with torch.autocast(next(self.parameters()).device.type, dtype=torch.bfloat16):
        result = getattr(type(self), name)(self, *arguments, **batch)
    return result.float() if result.is_floating_point() else result


def _round_frozen(weights: Sequence[Tensor]) -> None:
    frozen = [weight for weight in weights if not weight.requires_grad]
    if not frozen:
        raise FedpeftError(
            f"frozen_precision is {BFLOAT16!r}, and the method trains the whole backbone: leave it out.",
            setting="training.frozen_precision",
        )
    for weight in frozen:
        weight.data = weight.data.to(torch.bfloat16)
