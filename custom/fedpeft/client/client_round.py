# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Client PIA in a round: align the received adapter, combine it with the site's own, and integrate after training."""

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
    """Load the tensors that a round starts from, and return the function that finishes the round.

    With `aligned_at="site"` only the upload is permuted into the order of the received adapter.

    Without client PIA, or while the site has no adapter of its own, the received adapter is loaded as it is.

    Args:
        trainable: the trained part of the model; its tensors are replaced.
        own: the site's adapter of its last round, wire keys.
        received: the global adapter, wire keys.
        settings: PIA's; None for any other method.
        probe: returns the inputs of the m samples whose activations are compared.

    Returns:
        A function from the trained adapter to (upload, adapter that the site keeps).
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
    """As `start`, with the upload's neurons in the site's own order."""
    if own is None or settings is None or not settings.client:
        trainable.load(received)
        trainable.set_companion(None)
        return lambda trained: (trained, trained)
    trainable.load(own)  # the probe must use the site's own adapter, not what an earlier round left in the model
    trainable.set_companion(None)
    activations = trainable.activations([received, own], probe()) if settings.compares_activations else None
    aligned, _ = align_global(received, own, activations, settings)
    if settings.integration == "merge":
        trainable.load(start_merged(own, aligned))
        return lambda trained: (trained, trained)
    trainable.set_companion(aligned)
    return lambda trained: finish_round(trained, aligned, settings)
