# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Scores by name; a new one is a file with a function and a `register` line at the end, imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import Registry
from fedpeft.core.settings import at_least, build, hints_of, no_settings, one_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Score = Callable[..., "Tensor"]  # (task[, settings]) -> (L,); the annotation of settings names their dataclass
SCORES: Registry[Score] = Registry("score", "fedpeft.scores", Callable)
register, names = SCORES.register, SCORES.names


@dataclass(frozen=True, kw_only=True)
class LayerSum:
    """Settings of a score that gives every parameter a value.

    Args:
        reduce: `sum` of a layer's values, or their `mean` (so that a layer's size does not count).
    """

    reduce: str = "sum"

    def __post_init__(self) -> None:
        one_of("reduce", self.reduce, ("sum", "mean"))


@dataclass(frozen=True, kw_only=True)
class LayerMean(LayerSum):
    """The same settings for a score that is defined as a mean."""

    reduce: str = "mean"


@dataclass(frozen=True, kw_only=True)
class SNIPSettings(LayerSum):
    """Settings of `snip`; as a product with the weights it is 0 for a LoRA until its B has trained."""

    zero_until_trained: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class SynFlowSettings(LayerMean):
    """Settings of `synflow`, which is also 0 for a LoRA until its B has trained."""

    zero_until_trained: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class FedSelectSettings(LayerMean):
    """Settings of `fedselect`, which a site can compute once it has trained."""

    needs_previous: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class LNTKSettings:
    """Settings of `lntk`.

    Args:
        target: differentiate the `loss` of every sample (n rows), or its `logits` (the paper's kernel).
        directions: with `logits`, how many combinations of each sample's logits to differentiate: those to which the
            sample is most sensitive ([how close that is](importance.md)). 0: every logit, n*C rows, C backward passes.
            Where an answer is written or ranked, the logits are those of its own tokens.
    """

    target: str = "loss"
    directions: int = 0

    def __post_init__(self) -> None:
        one_of("target", self.target, ("loss", "logits"))
        at_least("directions", self.directions, 0)
        if self.directions and self.target == "loss":
            raise FedpeftError(
                f"directions is {self.directions!r}, and the target is the loss, which is one number for each sample: "
                f"set target to 'logits', or leave directions out."
            )

    def rows(self, samples: int, classes: int) -> int:
        """Return the rows of the Jacobian of `samples` samples with `classes` logits each."""
        if self.target == "loss":
            return samples
        return samples * (min(self.directions, classes) if self.directions else classes)


@dataclass(frozen=True, kw_only=True)
class RGNSettings:
    """Settings of `rgn`.

    Args:
        norms: mean over the layer's `tensors` of each one's own ratio, or one ratio for the whole `layer`.
    """

    norms: str = "tensors"

    def __post_init__(self) -> None:
        one_of("norms", self.norms, ("tensors", "layer"))

    @property
    def zero_until_trained(self) -> bool:
        """Whether it gives a LoRA 0 until its B has trained."""
        return self.norms == "tensors"


@dataclass(frozen=True, kw_only=True)
class SPTSettings(LayerSum):
    """Settings of `spt`.

    Args:
        tau: share of all scored parameters that count as sensitive, above 0 and at most 1.
    """

    tau: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.tau <= 1:
            raise FedpeftError(f"tau is {self.tau!r}, it must be a share above 0 and at most 1.")


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Settings of the memory budget.

    Args:
        margin: share of the device's free memory that stays unused, at least 0 and below 1.
        optimizer_tensors: numbers that the optimizer keeps per trained number: 2 for Adam, 1 for momentum, 0 for SGD.
        choice: the count that fits for any layers (`any`), or only for the last ones (`last`).
        available_mib: free memory in MiB, instead of asking the device.
        reserved_mib: main memory in MiB that will be used for something else; does not count on CUDA.
    """

    margin: float = 0.1
    optimizer_tensors: int = 2
    choice: str = "any"
    available_mib: float | None = None
    reserved_mib: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise FedpeftError(f"margin is {self.margin!r}, it must be a share of at least 0 and below 1.")
        at_least("optimizer_tensors", self.optimizer_tensors, 0)
        one_of("choice", self.choice, ("any", "last"))
        if self.available_mib is not None:
            at_least("available_mib", self.available_mib, 0)
        at_least("reserved_mib", self.reserved_mib, 0)


def method_settings(method: str, values: Mapping[str, Any] | None = None) -> Any:
    """Return a score's settings from a job's values, checked; None if it has none."""
    cls = hints_of(SCORES.get(method)).get("settings")
    if cls is not None:
        return build(cls, values or {}, section=method)
    no_settings(method, values)
    return None


def score(
    model_fn: Callable[[Any], Tensor],
    layers: Mapping[Hashable, Iterable[Tensor]],
    batches: Iterable[Any],
    loss: Callable[[Tensor, Any], Tensor],
    *,
    outputs: Callable[[Tensor, Any], Tensor] | None = None,
    method: str = "lntk",
    normalize: bool = True,
    gradients: str = "captured",
    generator: torch.Generator | None = None,
    model: nn.Module | None = None,
    previous: Mapping[Hashable, Iterable[Tensor]] | None = None,
    **settings: Any,
) -> Tensor:
    """Return the importance of every layer for this data, (L,) float64 on the CPU, at least 0 and summing to 1.

    Parameters may be frozen: their flags are put back, their values and `.grad` are never touched. A model whose
    dropout is on, or whose batch statistics would change, is refused: call `model.eval()` first.

    Args:
        model_fn: from a batch to logits (B, C), or to what `outputs` and `loss` take; samples must not depend on each
            other (no batch statistics).
        layers: layer -> its L groups of parameters, those that could be trained; their order is the result's.
        batches: arguments of `model_fn` and `loss`. One batch of n samples needs the least time and memory.
        loss: from logits and batch to one loss for each sample (B,).
        outputs: from logits and batch to the outputs (B, C) that scores of logits use instead; None: the logits.
        method: one of `names()`.
        normalize: divide by the sum; scores that can be negative (`grasp`) are shifted first, the smallest to 0.
            False: the method's own numbers.
        gradients: how per-sample gradients are computed: `captured` in one backward pass, or with one backward pass for
            each of the `rows` of the Jacobian, which is slow, works for any model, and tests `captured`.
        generator: source of randomness; `fd` needs it.
        model: the whole module, whose weights `synflow` takes in absolute value for one pass. With it, the check that
            samples do not depend on each other runs once, and not in every call.
        previous: the parameters before the last training, grouped as `layers`; `fedselect` needs it.
        settings: the method's own, such as those of `LNTKSettings`.

    Raises:
        FedpeftError: wrong input, a model in training mode, NaN (names the layer), or all scores 0 although they should
            sum to 1.

    Source: Saha et al., F3OCUS (CVPR 2025), Client-level Layer Importance; each peer names its own.

    See Also: `adapter_layers`, which groups a model's adapters; `layer_budget`, how many layers fit.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(3, 2)
        >>> layers = {"weight": [model.weight], "bias": [model.bias]}
        >>> loss = lambda logits, batch: logits.square().sum(dim=1)
        >>> score(model, layers, [torch.zeros(4, 3)], loss, method="lntk").tolist()
        [0.0, 1.0]
    """
    from fedpeft.importance.scoring_task import ScoringTask, trainable

    function, own_settings = SCORES.get(method), method_settings(method, settings)
    task = ScoringTask(
        model_fn=model_fn,
        layers=layers,
        batches=tuple(batches),
        loss=loss,
        outputs=outputs,
        gradients=gradients,
        generator=generator,
        model=model,
        previous=previous,
    )
    with trainable(task.parameters):
        scores = function(task) if own_settings is None else function(task, own_settings)
    scores = _check_scores(scores, method, len(task.layers)).detach().double().cpu()
    task.check_finite(scores)
    return normalized(scores, method) if normalize else scores


def _check_scores(scores: Any, method: str, layers: int) -> Tensor:
    """Return the scores of a method; refuse what is not one number for each layer."""
    from torch import Tensor

    if not isinstance(scores, Tensor) or scores.shape != (layers,):
        form = (
            f"a tensor of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        )
        raise FedpeftError(
            f"score {method!r} returned {form}, not a tensor of shape ({layers},): have it return one number for each "
            f"of task.layers, in their order."
        )
    return scores


def normalized(scores: Tensor, method: str) -> Tensor:
    """Return `(s - min(0, min s)) / sum`: the same order, nothing negative, the sum 1."""
    if scores.abs().sum().isinf():
        scores = scores / scores.abs().max()  # else their sum would make all of them 0
    lowest = scores.min().clamp(max=0)
    shifted = scores - lowest
    total = shifted.sum()
    if total == 0:
        if lowest == 0:
            raise FedpeftError(
                f"{method} gives every layer 0, which cannot be made to sum to 1: the layers do not influence the "
                f"outputs yet (or, for fedselect, have not changed); use another method here, or normalize=False."
            )
        return scores.new_full(scores.shape, 1 / len(scores))  # all layers have the same negative value
    return shifted / total


register("lntk", "fedpeft.importance.lntk:lntk")
register("lntk_squared", "fedpeft.importance.lntk:lntk_squared")
register("fd", "fedpeft.importance.saliency:fd")
register("last_k", "fedpeft.importance.saliency:last_k")
register("first_k", "fedpeft.importance.saliency:first_k")
register("magnitude", "fedpeft.importance.saliency:magnitude")
register("fishmask", "fedpeft.importance.saliency:fishmask")
register("gradflow", "fedpeft.importance.saliency:gradflow")
register("grasp", "fedpeft.importance.saliency:grasp")
register("snip", "fedpeft.importance.saliency:snip")
register("rgn", "fedpeft.importance.saliency:rgn")
register("synflow", "fedpeft.importance.saliency:synflow")
register("fedselect", "fedpeft.importance.saliency:fedselect")
register("spt", "fedpeft.importance.saliency:spt")
