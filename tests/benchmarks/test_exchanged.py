# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""exchanged.py: what is counted on the messages of a run is what the method sends, and the head apart from it."""

import pytest
from small_models import SIZE
from transformers import ViTConfig, ViTModel

LAYERS, WIDTH, CLASSES, RANK, TOKENS, FACTORS = SIZE["num_hidden_layers"], SIZE["hidden_size"], 8, 4, 50, 8
ONE_LAYER = 4 * (WIDTH * WIDTH + WIDTH)  # query, key, value and output, with their biases
LORA = LAYERS * 2 * 2 * RANK * WIDTH  # A and B of query and value
PROMPTS, FACTORED = LAYERS * TOKENS * WIDTH, LAYERS * FACTORS * (TOKENS + WIDTH)
MODEL = ViTModel(ViTConfig(**SIZE, image_size=224, patch_size=56), add_pooling_layer=False)
SENT = {  # numbers of the paper's equations, but for the head
    "attention": LAYERS * ONE_LAYER,
    "sba": ONE_LAYER,
    "vpt": PROMPTS,
    "dvpt": FACTORED,
    "lora": LORA,
    "lora_vpt": LORA + PROMPTS,
    "lora_dvpt": LORA + FACTORED,
    "attention_vpt": LAYERS * ONE_LAYER + PROMPTS,
    "sba_vpt": ONE_LAYER + PROMPTS,
    "promptfl": TOKENS * WIDTH,
    "classifier": 0,
    "full": sum(parameter.numel() for parameter in MODEL.parameters()),
}


@pytest.fixture
def source(tmp_path):
    """A small ViT for images of the size that the benchmark names."""
    MODEL.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("method", SENT)
def test_numbers_are_counted_on_messages_and_the_head_apart(benchmark, source, tmp_path, method):
    exchanged = benchmark("exchanged")
    sent, in_head, size = exchanged.sent(method, source, tmp_path / "sites")
    assert (sent, in_head) == (SENT[method], CLASSES * WIDTH + CLASSES)
    assert size > 4 * (sent + in_head)


def test_every_method_of_the_papers_table_is_counted(benchmark):
    assert SENT.keys() == benchmark("exchanged").METHODS.keys()
