# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Methods that train some of the backbone's own parameters, exchanged as `backbone.<parameter>`, or none.

Biases are what linear maps, convolutions and norms add to their outputs. A parameter is a bias if it is called `bias`,
or if its name contains that word and its module has a map whose outputs it fits:

    in_proj_bias (3d)                     in_proj_weight (3d, d), of the same name but for the word; torch's attention
    gate_up_proj_bias (E, m)              gate_up_proj (E, d, m) or (E, m, d): one matrix for each expert or head
    dense_bias (d), gate_bias (heads)     dense, gate_proj: linear layers; one value for each output or group of them
    q_bias, k_bias, v_bias, dt_bias (d)   a linear layer that makes several things at once, these among them

Tables and vectors that are added elsewhere are no biases, whatever their name: to the logits or queries of attention
for positions, to the scores of a router, to the inputs of a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fedpeft.backbones.backbone import Backbone
from fedpeft.backbones.slots import locate
from fedpeft.backbones.structure import templates_in
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import BACKBONE
from fedpeft.core.settings import no_settings
from fedpeft.methods.trainable import Trainable, Tuning

WORD, SUFFIX, IN_PROJ = "bias", "_bias", "in_proj_bias"
JOINED = ("q", "k", "v", "dt")  # parts of the outputs of one map: attention's three, and a state space model's step


def bias_names(model: nn.Module) -> list[str]:
    """Return the names of the biases in a model without adapters, in its order."""
    return [name for name, _ in model.named_parameters() if _is_bias(model, name)]


def _is_bias(model: nn.Module, name: str) -> bool:
    """Return whether a parameter is a bias, as the module's docstring defines it."""
    path, _, own = name.rpartition(".")
    if own == WORD or WORD not in own:
        return own == WORD
    module, bias = model.get_submodule(path), model.get_parameter(name)
    if isinstance(module, nn.MultiheadAttention):
        return own == IN_PROJ  # its weights are three if keys or values have another width
    maps = [getattr(module, other, None) for other in (own.replace(WORD, "weight"), own.removesuffix(SUFFIX))]
    if any(isinstance(weight, nn.Parameter) and weight is not bias and _fits(bias, weight) for weight in maps):
        return True
    if not own.endswith(SUFFIX) or bias.numel() != bias.shape[-1:].numel():
        return False
    what, linear = own.removesuffix(SUFFIX), {child: _outputs(inner) for child, inner in module.named_children()}
    if what in JOINED:
        return any(outputs >= bias.numel() for outputs in linear.values())
    return any(outputs and outputs % bias.numel() == 0 for outputs in map(linear.get, (what, f"{what}_proj")))


def _fits(bias: Tensor, weight: Tensor) -> bool:
    """Return whether a bias has one value for each output of a matrix, transposed or not, or of each in a stack."""
    *stack, rows, columns = weight.shape if weight.dim() > 1 else (0, 0)
    return tuple(bias.shape) in ((*stack, rows), (*stack, columns))


def _outputs(module: nn.Module) -> int:
    return module.out_features if isinstance(module, nn.Linear) else 0


class BackbonePart(Trainable):
    """Some parameters of a backbone's model; all others are frozen."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        model.requires_grad_(False)
        self._model, self._names = model, tuple(names)
        self.train_only(None)

    def parameters(self) -> Mapping[str, nn.Parameter]:
        return {f"{BACKBONE}{name}": self._model.get_parameter(name) for name in self._names}

    def merge(self) -> None:
        """Do nothing: the trained parameters are the backbone's own."""


@dataclass(eq=False)
class PartTuning(Tuning):
    """A method that trains the parameters of a model that `selected` names; None: only the head trains."""

    name: str
    selected: Callable[[nn.Module], Sequence[str]] | None = None

    def check(self, settings: Mapping[str, Any]) -> None:
        no_settings(self.name, settings)

    def prepare(self, backbone: Backbone, settings: Mapping[str, Any], *, seed: int) -> Trainable:
        self.check(settings)
        names = self.selected(backbone.model) if self.selected else ()
        if self.selected and not names:
            raise FedpeftError(f"{self.name} finds no parameter in {type(backbone.model).__name__} to train.")
        return BackbonePart(backbone.model, names)


def _attention(model: nn.Module) -> list[str]:
    """Return the weights and biases of query, key, value and output projection of every layer."""
    templates = templates_in(model, ("query", "key", "value", "attention_linear"), joint=True)
    modules = [path for path, _ in model.named_modules() if locate(path, templates)]
    return [f"{path}.{name}" for path in modules for name, _ in model.get_submodule(path).named_parameters()]


CLASSIFIER = PartTuning("classifier")
FULL = PartTuning("full", lambda model: [name for name, _ in model.named_parameters()])
BIAS = PartTuning("bias", bias_names)
ATTENTION = PartTuning("attention", _attention)
