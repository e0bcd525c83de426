# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""PEFT's own tuners whose tensors can be averaged: one object each.

The update of `fourierft` and `miss` is linear in the trained tensors, so that the mean of the tensors is the mean of
the updates; of the others it is that nearly, where the sites stay close to each other.

Sources: `layernorm` Zhao et al. 2024; `ia3` Liu et al. 2022; `oft` Qiu et al. 2023; `vera` Kopiczko et al. 2024;
`hra` Yuan et al. 2024; `fourierft` Gao et al. 2024; `miss` Kang and Yin 2024.
"""

from __future__ import annotations

import math
from typing import Any

from peft import (
    FourierFTConfig,
    HRAConfig,
    IA3Config,
    LNTuningConfig,
    MissConfig,
    OFTConfig,
    VeraConfig,
)
from torch import nn

from fedpeft.backbones.targets import pattern_of
from fedpeft.methods.first_values import Bounded, Constant, FirstValues, Uniform
from fedpeft.methods.peft_tuner import PeftTuning

QUERY_VALUE = ("query", "value")
SCALED_INPUT = "second_linear"  # its input is scaled; of key and value the output


class IA3Tuning(PeftTuning):
    """IA3, which must know besides which modules have their input scaled."""

    def fit(self, model: nn.Module, config: Any) -> None:
        """See `PeftTuning.fit`."""
        super().fit(model, config)
        templates = self.templates(config, None)
        scaled = {role: path for role, path in templates.items() if role.endswith(SCALED_INPUT)}
        if config.feedforward_modules is None:
            config.feedforward_modules = pattern_of(scaled) if scaled else []


def _scales(config: IA3Config, name: str, shape: tuple[int, ...]) -> FirstValues:
    return Constant(1.0) if config.init_ia3_weights else Bounded()


def _rotations(config: OFTConfig, name: str, shape: tuple[int, ...]) -> FirstValues:
    return Constant() if config.init_weights else Bounded()


def _reflections(config: HRAConfig, name: str, shape: tuple[int, ...]) -> FirstValues:
    rank = math.prod(shape[-1:])
    pairs = config.init_weights and rank % 2 == 0  # the second of two reflections undoes the first
    return Uniform(math.sqrt(2 / rank), copies=2) if pairs else Uniform(math.sqrt(1 / rank))


def _vectors(config: VeraConfig, name: str, shape: tuple[int, ...]) -> FirstValues:
    if not config.init_weights:
        return Bounded()
    return Constant(config.d_initial) if name == "vera_lambda_d" else Constant()


def _zeros(config: Any, name: str, shape: tuple[int, ...]) -> FirstValues:
    return Constant()


LAYERNORM = PeftTuning(
    LNTuningConfig, name="layernorm", roles=("attention_norm", "output_norm"), tensors=("ln_tuning_layers",)
)
IA3 = IA3Tuning(
    IA3Config, name="ia3", roles=("key", "value", SCALED_INPUT), tensors=("ia3_l",), joint=True, first=_scales
)
OFT = PeftTuning(
    OFTConfig,
    name="oft",
    roles=QUERY_VALUE,
    tensors=("oft_R",),
    least={"r": 0, "oft_block_size": 0},  # one of the two follows from the other and is 0
    first=_rotations,
)
HRA = PeftTuning(HRAConfig, name="hra", roles=QUERY_VALUE, tensors=("hra_u",), least={"r": 1}, first=_reflections)
VERA = PeftTuning(
    VeraConfig,
    name="vera",
    roles=QUERY_VALUE,
    tensors=("vera_lambda_b", "vera_lambda_d"),
    least={"r": 1},
    defaults={"save_projection": False},  # every site draws the frozen matrices from `projection_prng_key`
    first=_vectors,
)
FOURIERFT = PeftTuning(
    FourierFTConfig,
    name="fourierft",
    roles=QUERY_VALUE,
    tensors=("fourierft_spectrum",),
    least={"n_frequency": 1, "random_loc_seed": 0},
    defaults={"random_loc_seed": 777, "n_frequency_pattern": {}},  # PEFT's own, which fails on null
    fixed={"init_weights": True},  # zeros: PEFT's normal values would change the function at the start
    first=_zeros,
)
MISS = PeftTuning(
    MissConfig,
    name="miss",
    roles=QUERY_VALUE,
    tensors=("miss_block",),
    least={"r": 1},
    defaults={"r": 8},  # of a square matrix as many numbers as LoRA of rank 4
    fixed={"init_weights": True},  # "bat" multiplies with the matrix, so that it is not linear in the block
    first=_zeros,
)
