# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Prompts: trained tokens beside those of text and image, before every layer (VPT, DVPT) or the first (PromptFL).

    layer.<l>.prompt.tokens                       VPT, PromptFL: (R, d)
    shared.tokens                                 VPT of all layers at once: (L, R, d)
    layer.<l>.prompt.coefficients, .basis         DVPT by block: (R, rank), (rank, d), whose product are the tokens
    layer.<l>.prompt.coefficients, shared.basis   DVPT of all blocks concatenated: (R, rank) for each, one (rank, d)

At once, all prompts are trained and sent in every round, whichever layers a schedule assigns.

Prompts come after the first token, which classifies. Deep prompts are removed after their layer, shallow ones after the
last. If image and text have layers of their own, VPT's and DVPT's prompts are among the image's tokens, PromptFL's
among the text's. In a causal language model PromptFL's come before all tokens (`prepended_prompts.py`).

Sources: `vpt` Jia et al. 2022, Visual Prompt Tuning (deep); `promptfl` Guo et al. 2023, PromptFL; `dvpt` the federated
parameter-efficient tuning of vision transformers, prompts decomposed by SVD.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedpeft.backbones.backbone import Backbone
from fedpeft.backbones.images import COLORS, patch_area
from fedpeft.backbones.slots import module_path, two_towers
from fedpeft.backbones.structure import TEXT, VISION, family_of, stream_width, templates_in
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import SHARED, place_of
from fedpeft.core.settings import at_least, build, one_of
from fedpeft.methods.first_values import Bounded, FirstValues, Normal, Uniform, key_generator
from fedpeft.methods.prepended_prompts import arguments_beside_tokens, check_room, prepend, takes_prompts
from fedpeft.methods.trainable import Trainable, Tuning

SLOT = "prompt"
PER_BLOCK, CONCATENATED = "per_block", "concatenated"
BASIS, TOKENS = f"{SHARED}basis", f"{SHARED}tokens"
MASKS = ("attention_mask", "attn_mask", "mask")  # names of the argument that hides tokens
POSITIONS = {"position_embeddings", "position_ids", "rotary_pos_emb", "rotary_embeddings"}


@dataclass(frozen=True, kw_only=True)
class PromptSettings:
    """Settings of prompts as whole matrices.

    Args:
        tokens: R, of each layer with prompts.
    """

    tokens: int = 50

    def __post_init__(self) -> None:
        at_least("tokens", self.tokens, 1)


@dataclass(frozen=True, kw_only=True)
class FactoredSettings(PromptSettings):
    """Settings of prompts as a product of two matrices.

    Args:
        rank: of the product, at most R (of all layers together under `concatenated`) and the backbone's width.
        decomposition: of the prompts of each layer (`per_block`), or of those of all layers one below the other
            (`concatenated`), which share the second factor.
    """

    rank: int = 8
    decomposition: str = PER_BLOCK

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("rank", self.rank, 1)
        one_of("decomposition", self.decomposition, (PER_BLOCK, CONCATENATED))


class Stack(NamedTuple):
    """Layers of a model, first to last, and the causal language model that calls them, if it is one."""

    layers: list[nn.Module]
    decoder: nn.Module | None


class Prompts(Trainable):
    """Prompts in a frozen backbone, whose model gets the parameters as its module `prompts`.

    With `deep` every layer of the stack has its own prompts; otherwise those of the first layer stay until the last.
    """

    def __init__(self, model: nn.Module, stack: Stack, first: Mapping[str, Tensor], *, deep: bool) -> None:
        model.requires_grad_(False)
        self._names = {key: key.replace(".", "-") for key in first}  # a dot would be part of a path
        model.prompts = nn.ParameterDict({self._names[key]: nn.Parameter(value) for key, value in first.items()})
        self._model = model
        if stack.decoder and not deep:
            prepend(stack.decoder, lambda: tokens_of(self.parameters(), 0))
        else:
            count, last = tokens_of(first, 0).shape[0], len(stack.layers) - 1
            for number, layer in enumerate(stack.layers):
                enter = self._insertion_hook(layer, number, count, insert=deep or number == 0)
                layer.register_forward_pre_hook(enter, with_kwargs=True)
                if deep or number == last:
                    layer.register_forward_hook(lambda module, inputs, output: _remove_prompts(output, count))
        self.train_only(None)

    def parameters(self) -> Mapping[str, nn.Parameter]:
        return {key: self._model.prompts[name] for key, name in self._names.items()}

    def _insertion_hook(self, layer: nn.Module, number: int, count: int, *, insert: bool) -> Any:
        """Return a hook that inserts the prompts of a layer and extends the attention mask by `count` tokens."""
        causal_attention = any(getattr(module, "is_causal", False) for module in layer.modules())
        names = list(inspect.signature(type(layer).forward).parameters)[2:]  # after the layer and the hidden states
        found = ((name, place) for place, name in enumerate(names) if name in MASKS)  # it is not the first of GPT-2
        mask, position = next(found, (MASKS[0], len(names)))

        def enter(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            hidden, *others = inputs
            if insert:
                tokens = tokens_of(self.parameters(), number).to(hidden.dtype)
                hidden = torch.cat((hidden[:, :1], tokens.expand(len(hidden), -1, -1), hidden[:, 1:]), dim=1)
            causal = named.get("is_causal", causal_attention)
            if position < len(others):
                others[position] = _extend_mask(others[position], count, causal=causal)
            if mask in named:
                named = {**named, mask: _extend_mask(named[mask], count, causal=causal)}
            return (hidden, *others), named

        return enter


@dataclass(eq=False)
class PromptTuning(Tuning):
    """A method that trains prompts, in every layer (`deep`) or before the first."""

    name: str
    settings_cls: type[PromptSettings]
    deep: bool
    tower: str = VISION  # whose layers have them, where image and text have layers of their own: `VISION` or `TEXT`
    std: float | None = None  # of the tokens' initial values; None: VPT's uniform distribution, by patch size and width
    at_once: bool = False  # keep the prompts of all layers in one tensor, which no schedule of layers divides

    def check(self, settings: Mapping[str, Any]) -> None:
        build(self.settings_cls, settings, section=f"method.settings.{self.name}")

    def first_values(self, settings: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> FirstValues:
        """Return the distribution of tokens; VPT's bound depends on the model's patch size, which is not known here."""
        if not key.endswith(".tokens"):
            return Bounded()  # factors
        return Normal(self.std) if self.std else Uniform(math.sqrt(6 / math.prod(shape[-1:])), known=False)

    def prepare(self, backbone: Backbone, settings: Mapping[str, Any], *, seed: int) -> Trainable:
        chosen = build(self.settings_cls, settings, section=f"method.settings.{self.name}")
        stack = transformer_layers(backbone.model, self.tower, deep=self.deep)
        count, width = len(stack.layers) if self.deep else 1, stream_width(stack.layers)
        if stack.decoder and not self.deep:
            width = stack.decoder.get_input_embeddings().weight.shape[1]  # OPT may make its stream wider
            check_room(backbone, stack.decoder, chosen.tokens)
        bound = uniform_bound(backbone.model, width) if self.std is None else 0.0
        tokens = {
            place_of(layer, SLOT): self._drawn(backbone.model, (chosen.tokens, width), layer, bound, seed)
            for layer in range(count)
        }
        if isinstance(chosen, FactoredSettings):
            first = factored(tokens, chosen.rank, together=chosen.decomposition == CONCATENATED)
        elif self.at_once:
            first = {TOKENS: torch.stack(list(tokens.values()))}
        else:
            first = {f"{place}.tokens": value for place, value in tokens.items()}
        device = next(backbone.model.parameters()).device
        first = {key: value.to(device) for key, value in first.items()}
        return Prompts(backbone.model, stack, first, deep=self.deep)

    def _drawn(self, model: nn.Module, shape: tuple[int, int], layer: int, bound: float, seed: int) -> Tensor:
        if next(model.parameters()).is_meta:
            return torch.empty(shape, device="meta")
        generator = key_generator(seed, f"{place_of(layer, SLOT)}.tokens")
        empty = torch.empty(shape, device="cpu")
        if self.std is not None:
            return empty.normal_(0.0, self.std, generator=generator)
        return empty.uniform_(-bound, bound, generator=generator)


def uniform_bound(model: nn.Module, width: int) -> float:
    """Return the largest value of VPT's first prompts, Glorot's for a patch of p x p pixels: sqrt(6 / (3 p^2 + d))."""
    if not (area := patch_area(model)):
        raise FedpeftError(
            f"the first values of visual prompts depend on the size of an image's patches, and "
            f"{type(model).__name__} has no layer that embeds such patches: use promptfl, or another backbone."
        )
    return math.sqrt(6 / (COLORS * area + width))


def factored(tokens: Mapping[str, Tensor], rank: int, *, together: bool) -> dict[str, Tensor]:
    """Return the factors of prompts by truncated singular value decomposition, `U sqrt(S)` and `sqrt(S) V^T`.

    `tokens` maps places to (R, d); `together` stacks all places and decomposes them with one second factor.
    """
    groups = [list(tokens)] if together else [[place] for place in tokens]
    factors: dict[str, Tensor] = {}
    for places in groups:
        stacked = torch.cat([tokens[place] for place in places])
        if rank > min(stacked.shape):
            raise FedpeftError(
                f"rank is {rank}, but prompts of shape {tuple(stacked.shape)} have at most {min(stacked.shape)}: lower "
                f"it, or set more tokens."
            )
        if stacked.is_meta:
            left, right = stacked.new_empty(len(stacked), rank), stacked.new_empty(rank, stacked.shape[1])
        else:
            vectors, values, rows = torch.linalg.svd(stacked, full_matrices=False)
            root = values[:rank].sqrt()
            left, right = vectors[:, :rank] * root, root[:, None] * rows[:rank]
        for place, part in zip(places, left.split([len(tokens[place]) for place in places]), strict=True):
            factors[f"{place}.coefficients"] = part.contiguous()
        factors[BASIS if together else f"{places[0]}.basis"] = right.contiguous()
    return factors


def tokens_of(parameters: Mapping[str, Tensor], layer: int) -> Tensor:
    """Return the prompts of a layer (R, d) from parameters with the keys of the module's docstring."""
    place = place_of(layer, SLOT)
    if TOKENS in parameters:
        return parameters[TOKENS][layer]
    if f"{place}.tokens" in parameters:
        return parameters[f"{place}.tokens"]
    basis = f"{place}.basis" if f"{place}.basis" in parameters else BASIS
    return parameters[f"{place}.coefficients"] @ parameters[basis]


def transformer_layers(model: nn.Module, tower: str, *, deep: bool) -> Stack:
    """Return the layers of a model, or of its `tower` if it has several stacks.

    With `deep` every layer gets its own prompts, which is refused if a layer needs the positions of its tokens.
    """
    templates = templates_in(model, ("output",))
    if two_towers(templates.values()):
        if f"{tower}_output" not in templates:
            towers = ", ".join(role.removesuffix("_output") for role in templates)
            raise FedpeftError(
                f"prompts of this method belong in the {tower} layers, and model family "
                f"{family_of(model) or type(model).__name__!r} has the stacks {towers}: use another method."
            )
        templates = {tower: templates[f"{tower}_output"]}
    stack, _, _ = next(iter(templates.values())).partition("{layer}")
    layers = {path: module for path, module in model.named_modules() if path.startswith(stack)}
    found: list[nn.Module] = []
    while (path := module_path(f"{stack}{{layer}}", len(found))) in layers:
        found.append(layers[path])
    owner = model.get_submodule(stack.rstrip(".").rpartition(".")[0])
    decoder = owner if takes_prompts(owner) else None
    if not deep and (besides := arguments_beside_tokens(owner)):
        raise FedpeftError(
            f"prompts come before all tokens of a causal language model, and that of model family "
            f"{family_of(model) or type(model).__name__!r} reads {', '.join(besides)} beside its tokens: use another "
            f"method."
        )
    if (deep or not decoder) and POSITIONS & set(inspect.signature(type(found[0]).forward).parameters):
        other = "use promptfl, whose prompts come before all tokens, or another" if decoder else "use another"
        raise FedpeftError(
            f"prompts among the tokens would move their positions, which every layer of model family "
            f"{family_of(model)!r} needs: {other} method."
        )
    return Stack(found, decoder)


def _extend_mask(mask: Tensor | None, count: int, *, causal: bool) -> Tensor | None:
    """Insert `count` visible tokens after the first in an attention mask; `causal`: no earlier token sees them."""
    if mask is None:
        return None
    visible = 0 if mask.is_floating_point() else 1  # added to the attention's logits, or a flag
    first, rest = mask[..., :1], mask[..., 1:]
    wider = torch.cat((first, mask.new_full((*mask.shape[:-1], count), visible), rest), dim=-1)
    if wider.dim() == 4 and wider.shape[-2] > 1:  # one row for each query
        rows = wider[..., :1, :].expand(*wider.shape[:-2], 1 + count, wider.shape[-1])  # of the first token and the new
        if causal:
            hidden = torch.finfo(mask.dtype).min if mask.is_floating_point() else 0
            later = torch.ones(1 + count, wider.shape[-1], dtype=torch.bool, device=mask.device).triu(1)
            rows = rows.masked_fill(later, hidden)
        wider = torch.cat((rows, wider[..., 1:, :]), dim=-2)
    return wider


def _remove_prompts(output: Any, count: int) -> Any:
    if isinstance(output, tuple):
        return (_remove_prompts(output[0], count), *output[1:])
    return torch.cat((output[:, :1], output[:, 1 + count :]), dim=1)


VPT = PromptTuning("vpt", PromptSettings, deep=True)
VPT_AT_ONCE = PromptTuning("vpt", PromptSettings, deep=True, at_once=True)
DVPT = PromptTuning("dvpt", FactoredSettings, deep=True)
PROMPTFL = PromptTuning("promptfl", PromptSettings, deep=False, tower=TEXT, std=0.02)
