# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Client PIA in a round: align the received adapter, combine it with the site's own, and integrate after training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from fedpeft.alignment.client_pia import align_global, align_upload, finish_round, start_merged
from fedpeft.alignment.settings import PLACES, PIASettings
from fedpeft.answering.batches import Batch
from fedpeft.site.merge_choice import accepted_global, chosen_share, moved_places
from fedpeft.methods.trainable import Trainable
from fedpeft.core.states import State

Finish = Callable[[State], tuple[State, State]]


class Integration(NamedTuple):
    """What a round starts with.

    Args:
        finish: from the trained adapter to what is sent and what is kept.
        figures: for the site's own record: `global_share`, the share of the global adapter; `plans`, the places whose
            neurons alignment would move; `plans_taken`, those whose neurons were moved. Empty where nothing of the
            site's own is integrated.
    """

    finish: Finish
    figures: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What a site looks at before it integrates; drawn when it is needed.

    Args:
        probe: the m random training samples, whose activations are compared, and whose loss accepts a plan.
        validation: the validation split.
        loss: mean cross-entropy of an adapter on batches.
    """

    probe: Callable[[], Sequence[Batch]]
    validation: Callable[[], Sequence[Batch]]
    loss: Callable[[Sequence[Batch], State], float]


def start(
    trainable: Trainable,
    *,
    own: State | None,
    received: State,
    settings: PIASettings | None,
    share: float | None,
    samples: Samples,
) -> Integration:
    """Load the tensors that a round starts from.

    With `aligned_at="site"` only the upload is permuted into the order of the received adapter.

    Without client PIA, with a share of 1, or while the site has no adapter of its own, the received adapter is loaded
    as it is.

    Args:
        trainable: the trained part of the model; its tensors are replaced.
        own: the site's adapter of its last round, by key.
        received: the global adapter, by key.
        settings: PIA's; None for any other method.
        share: of the global adapter in this round; None: the validation split decides.
        samples: of the site.
    """
    trainable.set_companion(None)
    figures: dict[str, float] = {}
    if own is None or settings is None or not settings.client or share == 1:
        trainable.start(received, own)
        finish: Finish = _as_trained
    else:
        trainable.load(own)  # the probe must use the site's own adapter, not what an earlier round left in the model
        share, integrated, plans = _integrated(trainable, own, received, settings, share, samples)
        finish = _combine(trainable, own, integrated, settings, share)
        taken = len(moved_places(received, integrated))
        figures = {"global_share": share, "plans": plans, "plans_taken": taken}
    if settings is None or not settings.aligns_before_upload:
        return Integration(finish, figures)

    def finish_aligned(trained: State) -> tuple[State, State]:
        upload, kept = finish(trained)
        return align_upload(upload, received, settings), kept

    return Integration(finish_aligned, figures)


def _combine(trainable: Trainable, own: State, integrated: State, settings: PIASettings, share: float) -> Finish:
    """Load both adapters, merged or one beside the other; return the function that finishes the round."""
    if settings.integration == "merge" or share == 1:
        trainable.load(start_merged(own, integrated, share))
        return _as_trained
    trainable.load(own)
    trainable.set_companion(integrated, share)
    return lambda trained: finish_round(trained, integrated, settings, share)


def _as_trained(trained: State) -> tuple[State, State]:
    return trained, trained


def _integrated(
    trainable: Trainable,
    own: State,
    received: State,
    settings: PIASettings,
    share: float | None,
    samples: Samples,
) -> tuple[float, State, int]:
    """The share of the global adapter, that adapter with the neurons moved that the site accepts to move, and the
    number of places whose neurons alignment would move."""
    needed = settings.compares_activations or settings.accept
    probe = samples.probe() if needed else []
    inputs = [batch.inputs for batch in probe]
    activations = trainable.activations([received, own], inputs) if settings.compares_activations else None
    aligned, _ = align_global(received, own, activations, settings)
    plans = len(moved_places(received, aligned))

    def accepted(share: float) -> State:
        if not settings.accept:
            return aligned
        each_place = settings.accept == PLACES
        loss = partial(samples.loss, probe)
        return accepted_global(own, received, aligned, share=share, loss=loss, each_place=each_place)

    if share is not None:
        return share, accepted(share), plans
    validation = samples.validation()

    def at_start(share: float, taken: State) -> float:
        _combine(trainable, own, taken, settings, share)
        value = samples.loss(validation, trainable.state())
        trainable.set_companion(None)
        return value

    return *chosen_share(accepted, at_start), plans
