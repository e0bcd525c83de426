# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Keys, shapes and initial values of an adapter from its configuration alone: the server needs no model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpeft.backbones.slots import two_towers
from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import State
from fedpeft.methods.lookup import tuning_of

if TYPE_CHECKING:
    from peft import PeftConfig


def schema(config: PeftConfig, family: str | None, num_layers: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """Return key -> shape of every tensor, in the order of `adapter_state`.

    Args:
        config: configuration of an adapter.
        family: transformers `model_type`; may be None where the configuration has its own `target_modules`.
        num_layers: number of transformer layers of the backbone.
        hidden_size: its width d; LoRA's projections are assumed to be (d, d).

    Raises:
        FedpeftError: a layer is beyond `num_layers`, a width does not fit, the kind of adapter is unknown, or its slots
            are in several stacks of layers.
    """
    tuning = tuning_of(config)
    shapes = tuning.shapes(config, family, num_layers, hidden_size)
    if two_towers(tuning.templates(config, family).values()):
        raise FedpeftError(
            "the adapter is in two stacks of layers, which may differ in number and width: take the shapes from "
            "adapter_state(model)."
        )
    return shapes


def initial_state(config: PeftConfig, family: str | None, num_layers: int, hidden_size: int) -> State:
    """Return the adapter before training, byte for byte what `get_peft_model` starts from with this configuration.

    Args:
        config: its `init_seed` determines every value.
        family, num_layers, hidden_size: see `schema`.

    Raises:
        FedpeftError: the configuration is LoRA's, whose initial values PEFT draws itself.
    """
    return tuning_of(config).first_state(config, schema(config, family, num_layers, hidden_size))
