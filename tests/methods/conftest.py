# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The tiny ViLT, inputs for it, and adapter states with values worth telling apart."""

import pytest
import torch
from tiny_vilt import SMALL, tiny_vilt


def draw_state(shapes: dict, seed: int = 3) -> dict:
    """Values far from an adapter's initial ones, so that it changes the model's output visibly."""
    generator = torch.Generator().manual_seed(seed)
    return {key: torch.randn(shape, generator=generator) * 0.3 for key, shape in shapes.items()}


def run_vilt(model, samples: int = 3) -> torch.Tensor:
    with torch.no_grad():
        return model(**draw_batch(samples)).last_hidden_state


def draw_batch(samples: int = 3, seed: int = 1) -> dict:
    generator = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.randint(0, SMALL["vocab_size"], (samples, 5), generator=generator),
        "attention_mask": torch.ones(samples, 5, dtype=torch.long),
        # patches that are embedded already: ViLT's own embedding shuffles them with the global generator
        "image_embeds": torch.randn(samples, 4, SMALL["hidden_size"], generator=generator),
        "pixel_mask": torch.ones(samples, 4, dtype=torch.long),
    }


@pytest.fixture
def vilt():
    return tiny_vilt


@pytest.fixture
def run():
    return run_vilt


@pytest.fixture
def batch():
    return draw_batch


@pytest.fixture
def draw():
    return draw_state
