# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The parts of a site's round: learning rate, optimizer, training epochs, `Evaluation`, and `Personalization`.

The learning rate follows one schedule over the whole federation, not over one round. `Learner` puts the parts together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from fedpeft.answering.answering import Answering, Batch, Batches
from fedpeft.answering.training_settings import ADAMW, BALANCED, LINEAR, SGD, SHARE, START, STEPS, TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import BALANCED_ACCURACY, ENDS, VALIDATION
from fedpeft.core.seeds import draws_restored
from fedpeft.core.states import State
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example, SiteData
from fedpeft.methods.trainable import Part, Step
from fedpeft.site import computing
from fedpeft.site.metrics import Measure, Measured, measured, thresholds_by_share
from fedpeft.site.site_model import SiteModel
from fedpeft.site.site_state import SiteState

if TYPE_CHECKING:
    from fedpeft.job.site_policy import SitePolicy
    from fedpeft.site.learner import Learner

COURSE_POINTS = 20  # points of a round's loss curve
MAX_SUMMED_RATES = 1000  # a longer round is sampled


def rate_factor(step: int, *, total_steps: int, warmup: float, decays: bool = True) -> float:
    """Return the factor of the peak learning rate: (s+1)/w during warm-up, then (T-s)/(T-w), or 1 without decay.

    Args:
        step: index of the optimizer step, counted from 0 over all rounds.
        total_steps: T, the steps of all rounds.
        warmup: fraction of T spent rising; w = ceil(warmup * T).
        decays: linearly to 0 at the end.

    Source: FedPIA, Training and Implementation Details (linear decay, 10 % warm-up, 30 rounds).
    """
    warmup_steps = _warmup_steps(total_steps, warmup)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 1.0 if not decays else max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))


@cache
def _warmup_steps(total_steps: int, warmup: float) -> int:
    return math.ceil(Fraction(str(warmup)) * total_steps)  # a product of floats may be above the whole number


def sum_of_rate_factors(training: TrainingSettings, *, samples: float, round: int, first: int = 1) -> float:
    """Return the sum of `rate_factor` over the steps of a round (from 1) at a site that joined in round `first`."""
    batches = math.ceil(samples / training.batch_size)
    begin = batches * training.epochs_before(round, first=first)
    steps = batches * training.epochs_in(round, first=first)
    total = batches * training.epochs_before(training.rounds + 1, first=first)
    sampled = range(begin, begin + steps, math.ceil(max(steps, 1) / MAX_SUMMED_RATES))
    decays = training.decay == LINEAR
    factors = [rate_factor(step, total_steps=total, warmup=training.warmup, decays=decays) for step in sampled]
    return steps * sum(factors) / len(factors) if factors else 0.0


Named = Iterable[tuple[str, nn.Parameter]]


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {ADAMW: torch.optim.AdamW, SGD: torch.optim.SGD}
# whether a step changes a number by about the learning rate at most, whatever the size of its gradient
NORMALIZES = {ADAMW: True, SGD: False}
KEPT_TENSORS = {ADAMW: 2, SGD: 0}  # numbers that the optimizer keeps for each trained number


def build_optimizer(
    body: Named, head: Named, *, kind: str, learning_rate: float, head_learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Build the optimizer of the trained parameters; no weight decay on biases and LayerNorm.

    Biases and norms have one axis; a bias of experts has two and is recognized by its name. Rates are peak rates. AdamW
    decouples weight decay from the gradient, and SGD has no momentum.

    Source: FedPIA, Training and Implementation Details (AdamW); the federated tuning of vision transformers (SGD).
    """
    groups = []
    for named, rate in ((body, learning_rate), (head, head_learning_rate)):
        named = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        for decays in (True, False):
            chosen = [(name, parameter) for name, parameter in named if _decays(name, parameter) == decays]
            if chosen:
                groups.append(
                    {
                        "params": [parameter for _, parameter in chosen],
                        "names": [name for name, _ in chosen],
                        "lr": rate,
                        "weight_decay": weight_decay if decays else 0.0,
                    }
                )
    return OPTIMIZERS[kind](groups, fused=True)


def moments(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Copy the optimizer's state to CPU tensors named `<parameter>/<entry>`."""
    return {
        f"{name}/{entry}": value.detach().cpu().clone()
        for name, parameter in _named_parameters(optimizer)
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


def restore_moments(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Restore what `moments` returned; parameters without stored moments start at zero."""
    for name, parameter in _named_parameters(optimizer):
        stored = {key.rsplit("/", 1)[1]: value for key, value in tensors.items() if key.rsplit("/", 1)[0] == name}
        if stored:
            optimizer.state[parameter] = {
                entry: value.to(parameter.device, copy=True) for entry, value in stored.items()
            }


def _decays(name: str, parameter: nn.Parameter) -> bool:
    """Return whether weight decay applies: not to biases, norms and gains, such as IA3's, whose second axis is one."""
    return parameter.ndim > 1 and not name.endswith(("bias", "ia3_l"))


def _named_parameters(optimizer: torch.optim.Optimizer) -> Iterable[tuple[str, nn.Parameter]]:
    for group in optimizer.param_groups:
        yield from zip(group["names"], group["params"], strict=True)


OnStep = Callable[[int, int], None]  # is called with the finished steps of a round and the number of all


def no_step(step: int, steps: int) -> None:
    """Ignore a step."""


def no_loss(loss: float) -> None:
    """Ignore a loss."""


def course_of(losses: Sequence[float]) -> torch.Tensor:
    """Return the loss curve of a round (`COURSE_POINTS`,): means over equal parts of its steps."""
    parts = np.array_split(np.asarray(losses), min(len(losses), COURSE_POINTS))
    means = [part.mean() for part in parts]
    places = np.linspace(0, 1, COURSE_POINTS)
    return torch.tensor(np.interp(places, np.linspace(0, 1, len(means)), means), dtype=torch.float32)


def train_epochs(
    answering: Answering,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    rate: Callable[[int], float],
    *,
    first_step: int,
    epochs: int,
    device: torch.device,
    train_step: Step,
    micro_batch: int = 0,
    on_step: OnStep = no_step,
    on_loss: Callable[[float], None] = no_loss,
) -> dict[str, float]:
    """Train; return the mean loss of the first and of the last epoch, or raise if the loss is not finite.

    The optimizer's groups hold the peak learning rates; `rate` gives the factor at a global step, and this round begins
    at `first_step`. At most `micro_batch` samples of a batch are computed at once; 0: all. `on_loss` gets the loss of
    each batch.
    """
    peaks = [group["lr"] for group in optimizer.param_groups]
    means, step = [], first_step
    for _ in range(epochs):
        total = count = 0.0
        for batch in batches:
            batch = batch.to(device)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * rate(step)
            value = train_step(parts_of(batch, answering, micro_batch), optimizer).item()
            if not math.isfinite(value):
                raise FedpeftError(
                    f"the training loss became {value} at step {step}: lower training.learning_rate ({max(peaks):g}).",
                    code="training-diverged",
                )
            on_loss(value)
            total, count, step = total + value * len(batch.target), count + len(batch.target), step + 1
            on_step(step - first_step, epochs * len(batches))
        means.append(total / count)
    return {"loss_first": means[0], "loss": means[-1]}


def parts_of(batch: Batch, answering: Answering, micro_batch: int = 0) -> list[Part]:
    """Divide a batch into parts whose losses and gradients add up to those of the whole.

    A batch with an input that has not one row for each sample is refused. A part has `micro_batch` samples, the last
    one may have fewer; 0: all.
    """
    size = len(batch.target)
    if not 0 < micro_batch < size:
        whole, divergence = (partial(f, target=batch.target) for f in (answering.loss, answering.divergence))
        return [Part(partial(answering, batch.inputs), whole, divergence=divergence)]
    if other := [name for name, tensor in batch.inputs.items() if len(tensor) != size]:
        raise FedpeftError(
            f"micro_batch is {micro_batch}, and the input {other[0]!r} of this backbone has not one row for each "
            f"sample: leave it out.",
            setting="training.micro_batch",
        )
    with_target = max(1, _count_with_target(batch.target))
    parts = []
    for start in range(0, size, micro_batch):
        rows = slice(start, start + micro_batch)
        target = batch.target[rows]
        inputs = {name: tensor[rows] for name, tensor in batch.inputs.items()}
        loss, share = _part_of_mean(answering, target, with_target), len(target) / size
        parts.append(Part(partial(answering, inputs), loss, share, partial(answering.divergence, target=target)))
    return parts


def _part_of_mean(answering: Answering, target: torch.Tensor, count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda logits: answering.loss(logits, target, reduction="sum") / count


def _count_with_target(target: torch.Tensor) -> int:
    return int((target >= 0).reshape(len(target), -1).any(-1).sum())


@torch.inference_mode()
def mean_loss(answering: Answering, batches: Iterable[Batch]) -> float:
    """Return the mean loss over the samples that have a target; infinity where it is not finite."""
    total = count = 0.0
    for batch in batches:
        losses = answering.loss(answering(batch.inputs), batch.target, reduction="sum")
        total, count = total + losses.item(), count + _count_with_target(batch.target)
    return total / count if count and math.isfinite(total) else math.inf


class Evaluation:
    """Measures a site's model by the metric of its data.

    Args:
        model: measured as it is at the time.
        data: the site's splits.
        batches: function from examples and a batch size to batches.
        policy: of the site; it says how many images a class must have, and samples a figure; None: in the simulator.

    Attributes:
        tested: the answers of the last round to the test split; None before the first round.
        course: the loss curve of the last round (`course_of`); None: it was not measured.
    """

    def __init__(
        self,
        model: SiteModel,
        data: SiteData,
        batches: Callable[[Sequence[Example], int], Batches],
        *,
        policy: SitePolicy | None = None,
    ) -> None:
        self._model, self._data, self._batches, training = model, data, batches, model.training
        self._min_images = policy.min_class_images if policy else 1
        self._min_tested = policy.min_test_samples if policy else 0
        self._min_validated = policy.min_validation_samples if policy else 0
        self.tested: Measure | None = None
        self.course: torch.Tensor | None = None
        self._losses: list[float] | None = None
        self._tunes = training.thresholds == VALIDATION and bool(data.validation)
        self._validates = training.validate and bool(data.validation)
        shares = training.thresholds in (SHARE, VALIDATION) and not self._tunes and bool(data.labels)
        self._thresholds = None  # one half; balanced sampling moves probabilities in a way that no formula says
        if shares and training.sampling != BALANCED:
            weights = getattr(model.answering, "weights", None)
            own = None if weights is None else weights.tolist()
            self._thresholds = thresholds_by_share(model.vocabulary, data.train, own)

    def measure_round(self) -> tuple[Measured, tuple[float, ...] | None]:
        """Measure the test split and, if the settings ask for it, the validation split; return figures and thresholds.

        Thresholds chosen on the validation split make its own figure look better, equally in every round.
        """
        test, validation = self._answer(self._data.test), None
        if self._tunes or self._validates:
            validation = self._answer(self._data.validation)
            validation.min_samples = self._min_validated
        if self._tunes and validation:
            test.tune(validation)
            validation.tune(validation)
        wanted = validation if self._validates else None
        figures = test.figures() | {VALIDATION: wanted.figures()["overall"] if wanted else None}
        self.tested = test
        return figures, test.thresholds

    def measure_training(
        self, train: Callable[[], dict[str, float]], probe: Callable[[], Sequence[Batch]]
    ) -> dict[str, float | None]:
        """Call `train` and return its losses; with `training.measure: start` also those on the probe before and after.

        With `steps` the losses that `note` gets become `course`. Measuring changes no bit of the training.
        """
        if self._model.training.measure == STEPS:
            self._losses = []
            losses = train()
            self.course, self._losses = course_of(self._losses), None
            return dict(losses)
        if self._model.training.measure != START:
            return dict(train())
        with draws_restored():  # a loader draws for its workers, ViLT the order of padded patches
            batches = probe()
            start = self._probe_loss(batches)
        losses = train()
        with draws_restored():
            return {**losses, **dict(zip(ENDS, (start, self._probe_loss(batches)), strict=True))}

    def note(self, loss: float) -> None:
        """Record the loss of a batch while `measure_training` collects losses."""
        if self._losses is not None:
            self._losses.append(loss)

    def _probe_loss(self, batches: Sequence[Batch]) -> float | None:
        """Return the mean loss on batches; None if it is not finite, or too few samples have a target."""
        model = self._model
        training = model.answering.training
        if sum(_count_with_target(batch.target) for batch in batches) < self._min_tested:
            return None
        with computing.shortcuts(model.backbone, model.training):
            loss = mean_loss(model.answering.eval(), batches)
        model.answering.train(training)
        return loss if math.isfinite(loss) else None

    def measure(self, examples: Sequence[Example]) -> Measure:
        """Measure examples with the thresholds of a round; refuse an empty list."""
        if not examples:
            raise FedpeftError("there is no example to measure: give one at least.")
        measure = self._answer(examples)
        if self._tunes:
            measure.tune(self._answer(self._data.validation))
        return measure

    def recognized(self, vocabulary: AnswerVocabulary) -> dict[str, tuple[int, int]]:
        """Return by class the test images and how many of them the last round recognized; see `Learner.recognized`."""
        if self._data.metric != BALANCED_ACCURACY or self.tested is None:
            return {}
        right = self.tested.recognized()
        images = Counter(vocabulary.class_of(example) for example in self._data.test)
        return {name: (count, right.get(vocabulary.index(name), 0)) for name, count in sorted(images.items())}

    def _answer(self, examples: Sequence[Example]) -> Measure:
        model = self._model
        with computing.shortcuts(model.backbone, model.training, model.features):
            measure = measured(
                model.answering.eval(),
                self._batches(examples, model.training.evaluation_batch_size),
                device=model.device,
                metric=self._data.metric,
                min_images=self._min_images,
                min_samples=self._min_tested,
                rare=self._data.rare_classes(model.vocabulary, examples, min_images=self._min_images),
                unseen=self._data.unseen_classes(model.vocabulary, examples, min_images=self._min_images),
            )
        measure.thresholds = self._thresholds
        return measure


class Personalization:
    """One round of a site's own model (`training.personalization`); this base class is the value `none`.

    It is created after the model has loaded the tensors that the exchanged part starts from.

    Args:
        learner: of the site.
        round: counted from 1.
        own: the site's state after its last round; None: this is its first one.
        near: the tensors that the exchanged model starts from, global ones if there are any, and a federated head.
        held: those of them that all sites have; empty in the first round of a site with initial values of its own.
        layers: transformer layers that are trained; None: all.

    Attributes:
        kept: tensors by name that the next round needs, written to the site's disk.
        exchanged: head and private tensors of the exchanged model, if another model is measured.
    """

    def __init__(
        self,
        learner: Learner,
        *,
        round: int,
        own: SiteState | None,
        near: State,
        held: State,
        layers: Sequence[int] | None,
    ) -> None:
        self.learner, self.round, self.own, self.layers = learner, round, own, layers
        self.near, self.held = near, held
        self.kept: State = {}
        self.exchanged: State = {}

    def train(self) -> dict[str, float]:
        """Train the site's own model and leave it loaded, to be measured; return the losses of its training."""
        return {}

    def restore(self, trained: State) -> None:
        """Load the exchanged model again if `train` replaced it; `trained` is its adapter."""
