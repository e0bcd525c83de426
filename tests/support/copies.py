# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Copies of small backbones in half the time that `copy.deepcopy` takes for them."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import TypeVar

from torch import nn
from transformers import PreTrainedTokenizerBase

T = TypeVar("T", bound=nn.Module)


def copied(module: T) -> T:
    """A deep copy; tokenizers, which cannot be changed, are those of the original.

    Every module has a dozen empty dictionaries of hooks, each of which takes as long to copy as a layer's tensors.
    """
    known: dict[int, object] = {}
    for part in module.modules():
        for value in vars(part).values():
            if type(value) is OrderedDict and not value:
                known[id(value)] = OrderedDict()
            tokenizer = getattr(value, "tokenizer", value)
            if isinstance(tokenizer, PreTrainedTokenizerBase):
                known[id(tokenizer)] = tokenizer
    return copy.deepcopy(module, known)
