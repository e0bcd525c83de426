# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""ALBEF with the decoder that its authors answer questions with.

The decoder is BERT's layers, which see the answer's tokens so far and attend to the states of the question. Its weights
are those of a checkpoint that was fine-tuned on questions; from a pre-trained one it begins as in the authors' code, as
a copy of the fusion layers, of the embeddings and of the head of masked words, whose output layer is the table of
embeddings.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.bert.modeling_bert import BertModel, BertPredictionHeadTransform

from fedpeft.backbones.albef_model import AlbefConfig, AlbefModel, bert_config, put_slots


class AlbefDecoderConfig(AlbefConfig):
    """The sizes of an ALBEF; the decoder has as many layers as the fusion."""

    model_type = "albef_decoder"


class AlbefDecoderModel(AlbefModel):
    """Image encoder, text encoder and answer decoder.

    Args:
        config: their sizes.
    """

    config_class = AlbefDecoderConfig

    def __init__(self, config: AlbefDecoderConfig) -> None:
        super().__init__(config)
        sizes = bert_config(
            config,
            num_hidden_layers=config.num_hidden_layers - config.fusion_layer,
            is_decoder=True,
            add_cross_attention=True,
            use_cache=False,
        )
        self.decoder = put_slots(BertModel(sizes, add_pooling_layer=False))
        self.word_transform = BertPredictionHeadTransform(sizes)
        self.word_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def words(self, ids: Tensor, mask: Tensor, states: Tensor, states_mask: Tensor) -> Tensor:
        """Return the logits (B, T, V) of the token that follows each token of an answer.

        Args:
            ids, mask: of the answers, (B, T).
            states, states_mask: of the questions, (B, T', d) and (B, T').
        """
        decoded = self.decoder(ids, mask, encoder_hidden_states=states, encoder_attention_mask=states_mask)
        hidden = self.word_transform(decoded.last_hidden_state)
        return F.linear(hidden, self.decoder.embeddings.word_embeddings.weight, self.word_bias)
