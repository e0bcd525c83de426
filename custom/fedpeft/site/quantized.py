# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Keep the frozen linear layers of a backbone in four bits (`training.frozen_precision: nf4`), by bitsandbytes.

NF4 has blocks of 64 values, whose scales are quantized again in blocks of 256: about 4.13 bits for each value. Products
are computed with the restored values.

Source: Dettmers et al. 2023, QLoRA: Efficient Finetuning of Quantized LLMs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from fedpeft.answering.training_settings import NF4
from fedpeft.backbones.backbone import Backbone
from fedpeft.core.errors import FedpeftError

SETTING = "training.frozen_precision"
FETCHING = "kernels"  # bitsandbytes imports it on processors with AVX512-BF16
EXTRA = "pip install 'flare-fedpeft[quantized]'"
IN_A_STACK = re.compile(r"(^|\.)\d+\.")  # in the path of a module: a member of a list of layers
BLOCK = 64


def quantize(backbone: Backbone, weights: Sequence[Tensor], device: torch.device, precision: torch.dtype) -> None:
    """Replace the linear layers in a backbone's stacks of layers by those of bitsandbytes, on a device.

    Projections between stacks, embeddings, convolutions, matrices that two modules share and the method's own layers
    stay as they are. So do layers whose rows are not whole blocks: bitsandbytes 0.50 computes these wrongly on the CPU.
    Only one layer at a time is in full precision on the device.

    Args:
        backbone: with the method in it.
        weights: `matrices` of the backbone.
        device: on which it will be.
        precision: of the products.

    Raises:
        FedpeftError: bitsandbytes is not installed or does not compute on the device, or there is no such layer.
    """
    layers = _check_installed(device, precision)
    uses = Counter(map(id, weights))

    def fits(path: str, module: nn.Module) -> bool:
        if type(module) is not nn.Linear or module.in_features % BLOCK:
            return False
        return uses[id(module.weight)] == 1 and bool(IN_A_STACK.search(path))

    places = [
        (parent, name, module)
        for path, parent in backbone.model.named_modules(remove_duplicate=False)
        for name, module in parent.named_children()
        if fits(f"{path}.{name}", module)
    ]
    if not places:
        raise FedpeftError(
            f"frozen_precision is {NF4!r}, and no linear layer with a multiple of {BLOCK} inputs is in a list of "
            f"layers in this backbone (family {backbone.family!r}): use 'bfloat16'.",
            setting=SETTING,
        )
    made: dict[int, nn.Module] = {}  # a layer in several places stays one layer
    for parent, name, module in places:
        if id(module) not in made:
            made[id(module)] = _quantized(layers, module, device, precision)
            module.weight.data = module.weight.data.new_empty(0)  # `weights` still has it
        setattr(parent, name, made[id(module)])


def quantized_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a model that are in four bits."""
    return (module for module in model.modules() if hasattr(vars(module)["_parameters"].get("weight"), "quant_state"))


def _quantized(layers: Any, module: nn.Linear, device: torch.device, precision: torch.dtype) -> nn.Module:
    """Return a layer of bitsandbytes with the values of a plain one."""
    made = layers.Linear4bit(
        module.in_features,
        module.out_features,
        bias=module.bias is not None,
        compute_dtype=precision,
        compress_statistics=True,
        quant_type=NF4,
        device="meta",
    )
    weight = module.weight.detach().to(precision)
    made.weight = layers.Params4bit(
        weight, requires_grad=False, quant_type=NF4, compress_statistics=True, module=made
    ).to(device)
    if module.bias is not None:
        made.bias = nn.Parameter(module.bias.detach().to(device, precision), requires_grad=False)
    # evaluation on processors with AVX512-BF16 would pack the weights without a backward pass, and later training
    # would have no gradients
    made.support_avx512bf16_for_cpu = False
    made.register_forward_pre_hook(_cast_inputs)
    return made.train(module.training)


def _cast_inputs(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Cast the inputs, so that a layer returns the dtype of a plain one under autocast and not its input's float32."""
    return tuple(tensor.to(module.compute_dtype) for tensor in inputs)  # type: ignore[arg-type]


def _check_installed(device: torch.device, precision: torch.dtype) -> Any:
    """Return bitsandbytes' layers after a trial on the device; refuse it if missing, unsafe or unable."""
    if find_spec(FETCHING):
        raise FedpeftError(
            f"frozen_precision is {NF4!r}, and the package {FETCHING!r} is installed, with which bitsandbytes fetches "
            f"compiled code from the hub and runs it: uninstall {FETCHING!r}, or use 'bfloat16'.",
            setting=SETTING,
        )
    try:
        from bitsandbytes import nn as layers
    except ImportError as error:
        raise FedpeftError(
            f"frozen_precision is {NF4!r}, which needs bitsandbytes, and that is not installed: {EXTRA}, or use "
            f"'bfloat16'.",
            setting=SETTING,
        ) from error
    try:
        trial = _quantized(layers, nn.Linear(BLOCK, BLOCK), device, precision)
        trial(torch.ones(1, BLOCK, device=device, requires_grad=True)).sum().backward()
    except Exception as error:  # of ctypes, of a missing library, of an operation that a device does not have
        import bitsandbytes

        raise FedpeftError(
            f"frozen_precision is {NF4!r}, and bitsandbytes {getattr(bitsandbytes, '__version__', '')} cannot compute "
            f"with it on {device.type} of this machine ({type(error).__name__}): install a build for this device, or "
            f"use 'bfloat16'.",
            setting=SETTING,
        ) from error
    return layers
