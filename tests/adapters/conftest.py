# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A tiny ViLT with random weights, inputs for it, and adapter states with values worth telling apart."""

import pytest
import torch
from transformers import ViltConfig, ViltModel

LAYERS, HIDDEN = 2, 32


def build_vilt() -> ViltModel:
    config = ViltConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=16,
        patch_size=8,
        vocab_size=50,
        max_position_embeddings=16,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ViltModel(config).eval()


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
        "input_ids": torch.randint(0, 50, (samples, 5), generator=generator),
        "attention_mask": torch.ones(samples, 5, dtype=torch.long),
        # patches that are embedded already: ViLT's own embedding shuffles them with the global generator
        "image_embeds": torch.randn(samples, 4, HIDDEN, generator=generator),
        "pixel_mask": torch.ones(samples, 4, dtype=torch.long),
    }


@pytest.fixture
def vilt():
    return build_vilt


@pytest.fixture
def run():
    return run_vilt


@pytest.fixture
def batch():
    return draw_batch


@pytest.fixture
def draw():
    return draw_state
