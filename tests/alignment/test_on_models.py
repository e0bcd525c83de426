# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Alignment seen through a real transformer with PEFT adapters: the model's output stays."""

import pytest
import torch
from samples import generator
from tiny_vilt import tiny_vilt

import fedpeft.adapters as adapters
from fedpeft.alignment import PIASettings, align_global

pytestmark = pytest.mark.slow

REDUCTIONS = {"houlsby": 4, "pfeiffer": 4, "parallel": 2, "compacter": 2, "lora": None}


@pytest.fixture(scope="module")
def inputs():
    rng = generator(0)
    return {
        "input_ids": torch.randint(0, 50, (6, 8), generator=rng),
        "attention_mask": torch.ones(6, 8, dtype=torch.long),
        "pixel_values": torch.randn(6, 3, 32, 32, generator=rng),
        "pixel_mask": torch.ones(6, 32, 32, dtype=torch.long),
    }


def random_state(model, seed):
    rng = generator(seed)
    return {key: 0.3 * torch.randn(t.shape, generator=rng) for key, t in adapters.adapter_state(model).items()}


def test_a_model_computes_the_same_with_the_aligned_adapter(kind, inputs):
    from peft import get_peft_model

    base = tiny_vilt(num_attention_heads=4, image_size=32)
    reduction = REDUCTIONS[kind]
    model = get_peft_model(base, adapters.config(kind, **({"reduction_factor": reduction} if reduction else {}))).eval()

    def output(state):
        adapters.load_adapter_state(model, state)
        with torch.no_grad():
            return model(**inputs).pooler_output

    received, own = random_state(model, 1), random_state(model, 2)
    expected = output(received)
    if kind == "lora":
        settings, activations = PIASettings(support="weights"), None
    else:
        settings, activations = PIASettings(), adapters.hidden_activations(model, [received, own], [inputs])
    aligned, report = align_global(received, own, activations, settings)
    assert report["sites"]["here"]["moved"] > 0.1
    torch.testing.assert_close(output(aligned), expected, rtol=0, atol=1e-5)
    assert float((output(own) - expected).abs().max()) > 1e-2
