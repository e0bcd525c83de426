# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The client's half of FedPIA in a round: align what was received, put it beside or into the own adapter, integrate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fedpeft.alignment.client_pia import align_global, align_upload, finish_round, start_merged
from fedpeft.alignment.settings import PIASettings
from fedpeft.methods.trainable import Trainable
from fedpeft.states import State

Inputs = Sequence[dict[str, torch.Tensor]]
Finish = Callable[[State], tuple[State, State]]


def start(
    trainable: Trainable,
    *,
    own: State | None,
    received: State,
    settings: PIASettings | None,
    probe: Callable[[], Inputs],
) -> Finish:
    """Load what a round starts from and return how it ends.

    With `aligned_at="site"` what is uploaded, and only that, takes the order of the received adapter.

    Without client PIA, in the first round and at a site that has no adapter yet, the received adapter replaces the own.

    Args:
        trainable: the trained part; it holds the right tensors afterwards.
        own: the site's adapter of its last round, wire keys.
        received: the global adapter, wire keys.
        settings: PIA's; None for any other method.
        probe: draws the inputs of the m samples whose activations are compared.

    Returns:
        a function from the trained adapter to (what is uploaded, what the site keeps as its own).
    """
    finish = _start(trainable, own, received, settings, probe)
    if settings is None or not settings.aligns_before_upload:
        return finish

    def finish_aligned(trained: State) -> tuple[State, State]:
        upload, kept = finish(trained)
        return align_upload(upload, received, settings), kept

    return finish_aligned


def _start(
    trainable: Trainable, own: State | None, received: State, settings: PIASettings | None, probe: Callable[[], Inputs]
) -> Finish:
    """`start`, with the neurons of what is uploaded in the site's own order."""
    if own is None or settings is None or not settings.client:
        trainable.load(received)
        trainable.set_companion(None)
        return lambda trained: (trained, trained)
    trainable.load(own)  # the probe runs through the own adapter, whatever a living process still holds in the model
    trainable.set_companion(None)
    activations = trainable.activations([received, own], probe()) if settings.compares_activations else None
    aligned, _ = align_global(received, own, activations, settings)
    if settings.integration == "merge":
        trainable.load(start_merged(own, aligned))
        return lambda trained: (trained, trained)
    trainable.set_companion(aligned)
    return lambda trained: finish_round(trained, aligned, settings)
