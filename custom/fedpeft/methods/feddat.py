# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FedDAT: a shared and a private adapter that teach each other, over any bottleneck adapter.

    a1   shared: starts each round as the received one, is trained, and is all that is sent
    a0   local: private, continues from the site's last round
    a2   the received a1, frozen

A batch is used twice, with one optimizer over a0, a1 and the head. With z_T, z_1 and z_0 the logits of (a0 + a2) / 2,
a1 and (a0 + a2) / 2:

    step a1 on (CE(z_1) + KL(z_T || z_1)) / 2        z_T without gradient
    step a0 on (CE(z_0) + KL(z_1 || z_0)) / 2        z_1 as it was before the first step; z_0 with the head after it

KL has temperature 3, times its square, and is the mean over the batch: that of the distributions over answers, or, of
images with any number of labels, the sum of those of each label (the way to answer says which). The head trains in both
steps, as in the authors' code. The site evaluates (a0 + a2) / 2, the authors' dual adapter teacher, and reports its
loss. The learning rate follows batches, not steps.

z_T and z_0 have the same features, because a0 and a2 do not change from one to the other; only the head does. They can
be computed once (`training.reuse_passes`) if there is memory for the backward pass to a0 while a1 trains.

Over AdapterFusion, a0 and a2 are fused by attention instead of averaged; the fusion is private and trains with a0.

Source: Chen et al. 2024, FedDAT, sections 3.2 and 3.3. All sites count alike in the mean, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedpeft.backbones.backbone import Backbone
from fedpeft.core.errors import FedpeftError
from fedpeft.core.seeds import derive
from fedpeft.methods.bottleneck.branches import AdapterBasedTuning, Branches, SideBySide
from fedpeft.methods.trainable import Part, Trainable, descend

SHARED, LOCAL, RECEIVED = "a1", "a0", "a2"
TEMPERATURE = 3.0


class DualAdapters(SideBySide):
    """The three adapters of FedDAT in a frozen backbone."""

    one_model = False

    def __init__(self, branches: Branches, backbone: Backbone) -> None:
        super().__init__(branches, sent=SHARED, local=LOCAL, received=RECEIVED)
        self._backbone, self._reuses = backbone, False

    def reuse_passes(self) -> None:
        self._reuses = True

    def step(self, parts: Sequence[Part], optimizer: torch.optim.Optimizer) -> Tensor:
        """Step a1, then a0; return the loss of (a0 + a2) / 2 between the two."""
        teachers: Sequence[Tensor]
        features: Sequence[Tensor | None] = [None] * len(parts)
        if self._reuses:
            teachers, features = zip(*(features_of(self._backbone, part.forward) for part in parts), strict=True)
        else:
            with torch.no_grad():
                teachers = [part.forward() for part in parts]
        shared, values = [], []

        def shared_losses() -> Iterator[Tensor]:
            for part, teacher in zip(parts, teachers, strict=True):
                logits = part.forward()
                shared.append(logits.detach())
                yield (part.loss(logits) + distilled(part, logits, teacher)) / 2

        def local_losses() -> Iterator[Tensor]:
            for part, teacher, kept in zip(parts, shared, features, strict=True):
                logits = forward_from_features(self._backbone, part.forward, kept)
                value = part.loss(logits)
                values.append(value.detach())
                yield (value + distilled(part, logits, teacher)) / 2

        self._branches.use(SHARED)
        descend(shared_losses(), optimizer)
        self._branches.use(LOCAL, RECEIVED)
        descend(local_losses(), optimizer)
        return torch.stack(values).sum()


class FedDATTuning(AdapterBasedTuning):
    def prepare(self, backbone: Backbone, settings: Mapping[str, Any], *, seed: int) -> Trainable:
        seeds = {SHARED: seed, LOCAL: derive(seed, LOCAL), RECEIVED: seed}
        return DualAdapters(self._base.branches(backbone, settings, seeds), backbone)


def features_of(backbone: Backbone, forward: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """Return logits without gradient, and the backbone's features with their graph."""
    kept: list[Tensor] = []
    hook = cast(nn.Module, backbone).register_forward_hook(lambda module, inputs, output: kept.append(output))
    try:
        logits = forward().detach()
    finally:
        hook.remove()
    if len(kept) != 1:
        raise FedpeftError(
            "reuse_passes is true, and answers are not made of one pass of features here: leave it out.",
            setting="training.reuse_passes",
        )
    return logits, kept[0]


def forward_from_features(backbone: Backbone, forward: Callable[[], Tensor], features: Tensor | None) -> Tensor:
    """Return the logits of given features without a pass through the backbone; None: with a pass."""
    if features is None:
        return forward()
    own = vars(backbone).get("forward")
    vars(backbone)["forward"] = lambda **batch: features
    try:
        return forward()
    finally:
        vars(backbone).pop("forward") if own is None else vars(backbone).update(forward=own)


def distilled(part: Part, logits: Tensor, teacher: Tensor) -> Tensor:
    """Return a part's softened KL(teacher || logits), times its share of the batch and the squared temperature."""
    return part.share * (part.divergence(logits / TEMPERATURE, teacher / TEMPERATURE) * TEMPERATURE**2)
