# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a score is computed from, checked once: a model as a function, its layers, batches and a loss."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import parse_key
from fedpeft.core.settings import one_of
from fedpeft.methods.adapters import adapter_parameters

GRADIENTS = ("captured", "rows")
DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout}
NORMALIZATIONS = {F.batch_norm, F.instance_norm}


@dataclass(frozen=True, kw_only=True)
class ScoringTask:
    """Everything that a score may need; see `fedpeft.importance.score` for the fields."""

    model_fn: Callable[[Any], Tensor]
    layers: Mapping[Hashable, Sequence[Tensor]]
    batches: Sequence[Any]
    loss: Callable[[Tensor, Any], Tensor]
    outputs: Callable[[Tensor, Any], Tensor] | None = None
    gradients: str = "captured"
    generator: torch.Generator | None = None
    model: nn.Module | None = None
    previous: Mapping[Hashable, Sequence[Tensor]] | None = None

    def __post_init__(self) -> None:
        one_of("gradients", self.gradients, GRADIENTS)
        object.__setattr__(self, "layers", checked_layers(self.layers))
        if self.previous is not None:
            object.__setattr__(self, "previous", _as_tuples(self.previous, "previous"))

    @cached_property
    def parameters(self) -> list[Tensor]:
        """Every scored parameter once, in the order of the layers."""
        return list({id(p): p for group in self.layers.values() for p in group}.values())

    @cached_property
    def owners(self) -> dict[int, list[int]]:
        """Id of a parameter -> numbers of the layers that contain it."""
        owners: dict[int, list[int]] = {id(p): [] for p in self.parameters}
        for number, group in enumerate(self.layers.values()):
            for key in {id(p) for p in group}:
                owners[key].append(number)
        return owners

    def logits(self, batch: Any) -> Tensor:
        """Return the outputs (B, C) that are scored."""
        logits = self._outputs(batch)
        if self.outputs is not None:
            logits = self.outputs(logits, batch)
        if logits.ndim != 2:
            raise FedpeftError(
                f"the outputs are {_described(logits)}: this score needs logits of shape (B, C), pass outputs=, which "
                f"makes them of others, or choose a score of the loss (for lntk target='loss')."
            )
        return logits

    def _outputs(self, batch: Any) -> Tensor:
        """Return the model's outputs (B, ...)."""
        with _InEvalMode():
            outputs = self.model_fn(batch)
        if not isinstance(outputs, Tensor) or outputs.ndim < 2 or not len(outputs):
            raise FedpeftError(f"model_fn returned {_described(outputs)}: it must return logits of shape (B, C).")
        return outputs

    def losses(self, batch: Any) -> Tensor:
        """Return one loss for each sample, (B,)."""
        logits = self._outputs(batch)
        try:
            losses = self.loss(logits, batch)
        except (RuntimeError, ValueError) as error:
            if logits.ndim == 2:  # out of memory, or a mistake of the loss
                raise
            raise FedpeftError(
                f"model_fn returned {_described(logits)}, which has no loss ({error}): it must return logits "
                f"of shape (B, C), or what the loss takes."
            ) from error
        if not isinstance(losses, Tensor) or losses.shape != (len(logits),):
            raise FedpeftError(
                f"the loss returned {_described(losses)} for {len(logits)} samples: it must return one value for each "
                f"sample (reduction='none')."
            )
        finite = torch.isfinite(losses)
        if not finite.all():
            first = int((~finite).nonzero()[0])
            raise FedpeftError(
                f"the loss of sample {first} is {float(losses[first].detach())}, so no layer can be scored: the model "
                f"diverged, go back to an earlier state."
            )
        return losses

    def needs_batches(self) -> Sequence[Any]:
        """Return the batches, at least one."""
        if not self.batches:
            raise FedpeftError("there is no batch, and this score needs data: give at least one.")
        return self.batches

    def name(self, layer: int) -> str:
        """Return a layer's name for errors."""
        return f"layer {list(self.layers)[layer]}"

    def check_finite(self, values: Tensor) -> None:
        """Refuse scores (L,) that are not finite; the error names the first such layer."""
        bad = (~torch.isfinite(values)).nonzero()
        if len(bad):
            raise FedpeftError(
                f"{self.name(int(bad[0]))} has NaN or infinite gradients on this batch: its training diverged or its "
                f"precision is too low, score an earlier state or in float32."
            )


@contextmanager
def trainable(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Let gradients flow to these parameters, including frozen ones, and restore their flags afterwards."""
    flags = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for parameter, flag in zip(parameters, flags, strict=True):
            parameter.requires_grad_(flag)


def checked_layers(layers: Mapping[Hashable, Iterable[Tensor]]) -> dict[Hashable, tuple[Tensor, ...]]:
    """Return the layers as tuples, since an iterator could be read only once; refuse what cannot be scored."""
    groups = _as_tuples(layers, "layers")
    if not groups:
        raise FedpeftError("there are no layers to score: give a mapping from layer to its trainable parameters.")
    for name, group in groups.items():
        if not group:
            raise FedpeftError(f"layer {name} has no trainable parameters: leave it out.")
        for parameter in group:
            if not isinstance(parameter, Tensor) or not parameter.is_leaf or not parameter.is_floating_point():
                raise FedpeftError(f"layer {name} lists {_described(parameter)}, which is not a parameter of a model.")
            if not torch.isfinite(parameter.detach()).all():
                raise FedpeftError(
                    f"layer {name} has NaN or infinity in its parameters: its training diverged, go back to an earlier "
                    f"state."
                )
    return groups


def _as_tuples(layers: Mapping[Hashable, Iterable[Tensor]], what: str) -> dict[Hashable, tuple[Tensor, ...]]:
    if not isinstance(layers, Mapping):
        raise FedpeftError(f"{what} is {_described(layers)}: give a mapping from layer to its trainable parameters.")
    for name, group in layers.items():
        if isinstance(group, Tensor | nn.Module | str) or not isinstance(group, Iterable):
            raise FedpeftError(
                f"{what}[{name!r}] is {_described(group)}: give a list of its parameters, of a module "
                f"list(module.parameters())."
            )
    return {name: tuple(group) for name, group in layers.items()}


class _InEvalMode(TorchFunctionMode):
    """While active, refuses dropout that is on, since scores would be random, and statistics that would change."""

    def __init__(self) -> None:
        super().__init__()
        self.counter: Tensor | None = None

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if _dropped(func, args, kwargs) > 0:
            raise FedpeftError(
                f"the model drops activations at random ({func.__name__}), so its scores would be random as well: call "
                f"its .eval() first."
            )
        if func is torch.Tensor.add_ and args[0].ndim == 0:
            self.counter = args[0]  # a normalizing module counts its batches just before it normalizes
        elif func in NORMALIZATIONS and _changes_statistics(args, kwargs):
            if self.counter is not None and not self.counter.is_floating_point():
                self.counter.sub_(1)
            raise FedpeftError(
                f"the model normalizes over its batch ({func.__name__}), which would change its statistics: put it "
                f"into eval mode, call its .eval() first."
            )
        return func(*args, **kwargs)


def _changes_statistics(args: tuple, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a normalization updates running statistics; their tensors are its second and third argument."""
    running = args[1] if len(args) > 1 else kwargs.get("running_mean")
    return running is not None and bool(kwargs.get("training", kwargs.get("use_input_stats", False)))


def _dropped(func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> float:
    """Return the share of activations that a torch function drops; torch passes `p` and `training` by name."""
    if func in DROPOUTS:
        return kwargs["p"] if kwargs["training"] else 0
    if func is F.multi_head_attention_forward:
        return args[10] if kwargs["training"] else 0
    return kwargs.get("dropout_p") or sum(args[4:5]) if func is F.scaled_dot_product_attention else 0


def _described(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def adapter_layers(model: nn.Module, adapter_name: str = "default") -> dict[int, list[nn.Parameter]]:
    """Return layer number -> parameters of its adapters, including frozen ones, in the order of the layers.

    Parameters shared between layers (Compacter's rule) are left out: they train as soon as any layer does.

    Args:
        model: PEFT model with one of `fedpeft.adapters.names()`.
        adapter_name: which adapter.

    Raises:
        FedpeftError: the model has no such adapter.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> from fedpeft import adapters
        >>> shape = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "image_size": 32}
        >>> vit = ViTModel(ViTConfig(num_hidden_layers=2, **shape))
        >>> list(adapter_layers(adapters.attach(vit, adapters.config("pfeiffer", reduction_factor=2))))
        [0, 1]
    """
    layers: dict[int, list[nn.Parameter]] = {}
    for key, parameter in adapter_parameters(model, adapter_name).items():
        parts = parse_key(key)
        if parts is not None:
            layers.setdefault(parts.layer, []).append(parameter)
    return dict(sorted(layers.items()))
