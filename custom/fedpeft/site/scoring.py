# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""F3OCUS at a site: score the importance of its layers, and measure how many fit into its memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from fedpeft.answering.answering import Answering, Batch
from fedpeft.answering.training_settings import PERSONALIZATIONS, TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import belongs, layer_of, layers_of
from fedpeft.core.seeds import draws_restored
from fedpeft.core.states import State
from fedpeft.importance import layer_budget, score
from fedpeft.importance.registry import MemorySettings, normalized
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.site.loop import KEPT_TENSORS

T = TypeVar("T", bound=torch.Tensor)
_log = logging.getLogger(__name__)


def score_layers(
    answering: Answering,
    parameters: Mapping[str, nn.Parameter],
    batches: Sequence[Batch],
    settings: ScheduleSettings,
    *,
    seed: int,
    changes: Mapping[int, float],
) -> list[float]:
    """Score each transformer layer that has trainable parameters, in the order of the layers.

    The model is in evaluation mode; parameters are by wire key. `changes` has by layer what `score_changes` returned
    after the last training, for scores that use it; the seed is for random scores. If a score is declared
    `zero_until_trained`, a LoRA whose B is still 0 counts as much as the best layer, so that it gets its turn, and the
    site's log says so.
    """
    if compares_with_previous(settings):
        return scores_of_changes(changes, layers_of(parameters), settings.score)
    layers = _group_by_layer(parameters)
    values = torch.tensor(_scores(answering, layers, batches, settings, seed, normalize=False), dtype=torch.float64)
    if not values.any():
        _log.warning("%s gives every layer 0 in this round, so all layers count alike.", settings.score)
        return [1 / len(values)] * len(values)
    unset = torch.tensor([not all(bool(tensor.any()) for tensor in group) for group in layers.values()])
    if settings.declares("zero_until_trained") and (unmoved := unset & (values == 0)).any():
        _log.warning(
            "%s gives 0 to %d of %d layers, which have not trained yet: they count as much as the best.",
            settings.score,
            int(unmoved.sum()),
            len(values),
        )
        values[unmoved] = values.max()
    return normalized(values, settings.score).tolist()


def compares_with_previous(settings: ScheduleSettings) -> bool:
    """Return whether the score uses what the site's last training changed."""
    return settings.scored and settings.declares("needs_previous")


def score_changes(
    answering: Answering,
    parameters: Mapping[str, nn.Parameter],
    batches: Sequence[Batch],
    settings: ScheduleSettings,
    *,
    seed: int,
    previous: State,
) -> dict[int, float]:
    """Score by layer what a site's training has just changed, without normalizing.

    `previous` has the trained parameters from before the training; for the other arguments see `score_layers`.
    """
    layers = _group_by_layer(parameters)
    if not layers:
        return {}
    before = _group_by_layer({key: previous[key] for key in parameters})
    values = _scores(answering, layers, batches, settings, seed, previous=before, normalize=False)
    return dict(zip(layers, values, strict=True))


def scores_of_changes(changes: Mapping[int, float], layers: Sequence[int], method: str) -> list[float]:
    """Return the scores of all layers, in their order, from the changes of their last trainings.

    A layer that was never trained counts like the one that changed most, so that it gets its turn. If nothing was
    trained or nothing has changed, all layers have the same score.
    """
    largest = max(changes.values(), default=0.0)
    values = torch.tensor([changes.get(layer, largest) for layer in layers], dtype=torch.float64)
    if not values.any():
        return [1 / len(layers)] * len(layers)
    return normalized(values, method).tolist()


def measure_budget(
    answering: Answering,
    parameters: Mapping[str, nn.Parameter],
    batch: Batch,
    schedule: ScheduleSettings,
    training: TrainingSettings,
) -> int:
    """Return how many transformer layers fit into the device's memory, less the schedule's margin.

    In main memory the space for kept features and images is not free either.

    Source: F3OCUS, supplement, Algorithm 46.
    """
    losses = _losses(answering)
    kept = training.features_mib + training.kept_images_mib
    models = PERSONALIZATIONS[training.personalization].models  # the site's own ones, each with an optimizer
    tensors = KEPT_TENSORS[training.optimizer] * (1 + models) + 2 * training.scaffold
    tensors += bool(training.proximal_mu or (models and training.ditto_lambda))  # the global adapter
    memory = MemorySettings(margin=schedule.memory_margin, optimizer_tensors=tensors, reserved_mib=kept)
    return layer_budget(
        lambda rows: answering(rows.inputs),
        _group_by_layer(parameters),
        batch,
        losses,
        model=answering,
        settings=memory,
    )


def check_trains(budget: int, parameters: Iterable[str], *, site: str, measured: bool) -> int:
    """Return a budget of layers; refuse 0 where nothing trains beside layers, such as a head."""
    if budget or any(belongs(key, []) for key in parameters):
        return budget
    if measured:
        raise FedpeftError(
            f"no layer fits into the memory of site {site}, which has no head to train: lower training.batch_size, or "
            f"set training.micro_batch.",
            setting="training.batch_size",
        )
    raise FedpeftError(
        f"site {site} has a budget of 0 layers and no head to train: give it 1 or more in schedule.site_budgets, or "
        f"leave it out.",
        setting="schedule.site_budgets",
    )


def _scores(
    answering: Answering,
    layers: Mapping[int, Sequence[nn.Parameter]],
    batches: Sequence[Batch],
    settings: ScheduleSettings,
    seed: int,
    **options: Any,
) -> list[float]:
    """Call `score` with the random numbers of a seed."""
    with draws_restored(seed):  # ViLT draws the order of padded patches
        return score(
            lambda batch: answering(batch.inputs),
            layers,
            batches,
            _losses(answering),
            outputs=lambda logits, batch: answering.outputs(logits, batch.target),
            method=settings.score,
            generator=torch.Generator().manual_seed(seed),
            model=answering,
            **options,
            **settings.score_settings,
        ).tolist()


def _losses(answering: Answering) -> Callable[[torch.Tensor, Batch], torch.Tensor]:
    return lambda logits, batch: answering.loss(logits, batch.target, reduction="none")


def _group_by_layer(tensors: Mapping[str, T]) -> dict[int, list[T]]:
    return {n: [tensor for key, tensor in tensors.items() if layer_of(key) == n] for n in layers_of(tensors)}
