# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""exchanged.py: what is counted on the messages of a run is what the method sends, and the head apart from it."""

import pytest
from small_models import SIZE
from transformers import ViTConfig, ViTModel

LAYERS, WIDTH, CLASSES, RANK = SIZE["num_hidden_layers"], SIZE["hidden_size"], 8, 4
SENT = {
    "lora": LAYERS * 2 * 2 * RANK * WIDTH,  # A and B of query and value
    "sba": 4 * (WIDTH * WIDTH + WIDTH),  # of one layer
    "classifier": 0,
}


@pytest.fixture
def source(tmp_path):
    """A small ViT for images of the size that the benchmark names."""
    ViTModel(ViTConfig(**SIZE, image_size=224, patch_size=56), add_pooling_layer=False).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_numbers_are_counted_on_messages_and_the_head_apart(benchmark, source, tmp_path):
    exchanged = benchmark("exchanged")
    assert SENT.keys() <= exchanged.METHODS.keys()
    for method, numbers in SENT.items():
        sent, in_head, size = exchanged.sent(method, source, tmp_path / "sites")
        assert (sent, in_head) == (numbers, CLASSES * WIDTH + CLASSES)
        assert size > 4 * (sent + in_head)
