# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Put prompts before all tokens of a causal language model, which computes with their positions.

    [P, E]      P at the positions 0, ..., R - 1, E from R on, on whichever side a text is padded

They are put before the embeddings that the first layer reads, and removed from the output of the last layer. Masks,
positions and the cache of keys and values are those of a text with R more tokens at its beginning; if a mask of queries
and tokens has a sliding window, the prompts are visible from outside it too.

Source: Lester et al. 2021, The Power of Scale for Parameter-Efficient Prompt Tuning.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpeft.backbones.backbone import Backbone
from fedpeft.core.errors import FedpeftError

READS = {"inputs_embeds", "attention_mask", "past_key_values"}  # arguments of a decoder, which calls the layers
OTHERS = {"input_ids", "position_ids", "use_cache", "cache_position", "return_dict", "output_attentions", "kwargs"} | {
    "output_hidden_states",
    "logits_to_keep",
    "token_type_ids",
    "encoder_hidden_states",
    "encoder_attention_mask",
}  # other allowed arguments; any further one may have one value for each token
BY_TOKEN = ("token_type_ids", "encoder_hidden_states")  # allowed only without a value
FULL = "full_attention"  # a kind of layer, where each kind has a mask


def takes_prompts(decoder: nn.Module) -> bool:
    """Return whether a module is a decoder, the caller of a causal language model's layers, that reads only tokens."""
    return _is_decoder(decoder) and not arguments_beside_tokens(decoder)


def arguments_beside_tokens(decoder: nn.Module) -> list[str]:
    """Return the other arguments of a decoder that may have a value for each token; none for another module."""
    return sorted(_arguments(decoder) - READS - OTHERS) if _is_decoder(decoder) else []


def _is_decoder(module: nn.Module) -> bool:
    return _arguments(module) >= READS


def _arguments(module: nn.Module) -> set[str]:
    return set(list(inspect.signature(type(module).forward).parameters)[1:])


def prepend(decoder: nn.Module, prompts: Callable[[], Tensor]) -> None:
    """Put prompts (R, d) before all tokens of a decoder (see `takes_prompts`), with two hooks."""
    order = list(inspect.signature(type(decoder).forward).parameters)[1:]

    def enter(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        given = dict(zip(order, inputs, strict=False)) | named
        return (), _extended(module, given, prompts())

    def leave(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        cache, length = named.get("past_key_values"), output["last_hidden_state"].shape[1]
        if cache is None or cache.get_seq_length() == length:  # otherwise the prompts are in the cache
            output["last_hidden_state"] = output["last_hidden_state"][:, len(prompts()) :]
        return output

    decoder.register_forward_pre_hook(enter, with_kwargs=True)
    decoder.register_forward_hook(leave, with_kwargs=True)


def check_room(backbone: Backbone, decoder: nn.Module, count: int) -> None:
    """Refuse prompts that leave too few positions for the longest question; skip a model on the meta device.

    `prepend` refuses longer texts, such as those with an answer, when they are read.
    """
    inputs = getattr(backbone, "inputs", None)
    if inputs is not None and not next(decoder.parameters()).is_meta:
        size = backbone.image_size or 16
        batch = backbone.collate([np.zeros((size, size, 3), dtype=np.uint8)], ["word " * inputs.text_length])
        _check_length(decoder, batch["input_ids"].shape[1] + count)


def _extended(decoder: nn.Module, given: dict[str, Any], prompts: Tensor) -> dict[str, Any]:
    """Return a decoder's arguments with the prompts: before the tokens, or, for a later token, in the cache."""
    cache, mask = given.get("past_key_values"), given.get("attention_mask")
    count = len(prompts)
    tokens = given.get("inputs_embeds")
    if tokens is None:
        tokens = decoder.get_input_embeddings()(given["input_ids"])
    before = cache.get_seq_length() if cache is not None else 0
    _check_call(decoder, given, tokens.shape[1] + (before or count))
    if before:
        positions = given.get("position_ids")
        positions = None if positions is None else positions + count
        return given | {"attention_mask": _extend_masks(mask, count, _continued), "position_ids": positions}
    embedded = torch.cat((prompts.to(tokens.dtype).expand(len(tokens), -1, -1), tokens), dim=1)
    return given | {
        "input_ids": None,
        "inputs_embeds": embedded,
        "attention_mask": _extend_masks(mask, count, _prefixed),
        "position_ids": _positions(given.get("position_ids"), _text_tokens(mask, tokens), count),
    }


def _check_call(decoder: nn.Module, given: Mapping[str, Any], length: int) -> None:
    """Refuse a call in which prompts cannot come before all tokens; `length` includes prompts and cache."""
    _check_length(decoder, length)
    cache = given.get("past_key_values")
    if getattr(cache, "is_compileable", False):
        raise FedpeftError("prompts need a cache that grows with the text: leave cache_implementation out.")
    if other := [name for name in BY_TOKEN if given.get(name) is not None]:
        raise FedpeftError(f"the language model is given {other[0]}, which the prompts have not: use another method.")


def _check_length(decoder: nn.Module, length: int) -> None:
    max_length = getattr(decoder.config, "max_position_embeddings", None)
    if max_length and length > max_length:
        raise FedpeftError(
            f"a text of {length} tokens, prompts included, is more than the {max_length} positions of the language "
            f"model: lower backbone.text_length, or the tokens in the method's settings."
        )


def _positions(given: Tensor | None, real: Tensor, count: int) -> Tensor:
    """Return the positions of R prompts and T tokens (..., R + T); positions that are not given are counted.

    `given` is (B, T), (1, T), or (3, B, T) for images with three axes; `real` (B, T) marks tokens that are no padding.
    """
    if given is None or given.dim() == 2:  # counted over padding if its length is not known
        maximum = torch.iinfo(torch.long).max
        first = 0 if given is None else given.expand(real.shape).masked_fill(~real, maximum).amin(-1, keepdim=True)
        given = (real.long().cumsum(-1) - 1).clamp_min(0) + first
    before = torch.arange(count, device=given.device, dtype=given.dtype).expand(*given.shape[:-1], -1)
    return torch.cat((before + given.amin(-1, keepdim=True), given + count), dim=-1)


def _text_tokens(mask: Any, tokens: Tensor) -> Tensor:
    """Return which tokens are no padding (B, T), from a mask of any form."""
    if isinstance(mask, Mapping):
        mask = mask.get(FULL)
    if mask is None:
        return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    if mask.dim() == 4:  # the last query sees all of the text
        mask = mask[:, 0, -1] == 0 if mask.is_floating_point() else mask[:, 0, -1]
    return mask.bool().expand(tokens.shape[:2])


def _extend_masks(mask: Any, count: int, extend: Callable[[Tensor, int], Tensor]) -> Any:
    """Extend a mask by the prompts, or each of several masks by kind of layer."""
    if isinstance(mask, Mapping):
        return {kind: _extend_masks(one, count, extend) for kind, one in mask.items()}
    return None if mask is None else extend(mask, count)


def _visible(mask: Tensor, columns: tuple[int, ...]) -> Tensor:
    return mask.new_full(columns, 0 if mask.dim() == 4 and mask.is_floating_point() else 1)


def _prefixed(mask: Tensor, count: int) -> Tensor:
    """Return the mask of a text after prompts: of tokens (B, R + T), or of queries and tokens (B, 1, R + T, R + T)."""
    wider = torch.cat((_visible(mask, (*mask.shape[:-1], count)), mask), dim=-1)
    if mask.dim() == 2:
        return wider
    hidden = torch.finfo(mask.dtype).min if mask.is_floating_point() else 0
    later = torch.ones(count, wider.shape[-1], dtype=torch.bool, device=mask.device).triu(1)
    rows = _visible(mask, (*mask.shape[:-2], count, wider.shape[-1])).masked_fill(later, hidden)
    return torch.cat((rows, wider), dim=-2)


def _continued(mask: Tensor, count: int) -> Tensor:
    """Return the mask of the next token of a text whose prompts are in the cache.

    A mask of tokens does not count the prompts; one of queries and tokens does, by the cache, at its end.
    """
    if mask.dim() == 4 and mask.shape[-2] > 1:
        raise FedpeftError("after prompts a text continues token by token: leave prefill_chunk_size out.")
    seen = _visible(mask, (*mask.shape[:-1], count))
    return torch.cat((seen, mask if mask.dim() == 2 else mask[..., :-count]), dim=-1)
