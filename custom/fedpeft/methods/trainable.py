# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Interfaces of a tuning method's code: `Tuning` prepares a backbone, `Trainable` is its trained part.

Methods that distill use KL(teacher || learner). The way to answer chooses its form (`Answering.divergence`): of one
choice, of separate labels, or of the tokens of an answer.
"""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpeft.alignment.factors import Product, StartStd
from fedpeft.backbones.backbone import Backbone
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import CONNECTOR, PRIVATE, belongs, only_connector, without_connector
from fedpeft.core.states import State
from fedpeft.methods.adapters import check_state
from fedpeft.methods.first_values import Bounded, FirstValues

if TYPE_CHECKING:
    from fedpeft.backbones.registry import BackboneSettings


def kl_of_choices(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return KL of two distributions over classes (B, C), `sum_c p_c log(p_c / q_c)` with softmax, mean over B."""
    if logits.dim() != 2:
        raise FedpeftError(
            f"this method distills, and the divergence of one choice needs logits (B, C), here they are "
            f"{tuple(logits.shape)}: give the way to answer a `divergence` of its own, set training.answering to "
            f"'classification', or choose another method.name.",
            setting="training.answering",
        )
    return F.kl_div(logits.log_softmax(-1), teacher.log_softmax(-1), reduction="batchmean", log_target=True)


def kl_of_labels(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return KL of two distributions over sets of independent labels (B, L).

    It is the sum over labels of `p log(p / q) + (1 - p) log((1 - p) / (1 - q))` with sigmoid, mean over the batch.
    """
    learned, taught = (torch.stack((F.logsigmoid(z), F.logsigmoid(-z)), dim=-1) for z in (logits, teacher))
    return F.kl_div(learned, taught, reduction="batchmean", log_target=True)


def kl_of_tokens(logits: Tensor, teacher: Tensor, answered: Tensor) -> Tensor:
    """Return KL of the distributions over the next token (B, T, V), given the right ones before it.

    It is summed over an answer, (B,): the tokens of (B, T) that are `answered`; those after its end do not count.
    """
    tokens = F.kl_div(logits.log_softmax(-1), teacher.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    return (tokens * answered).sum(-1)


@dataclass(frozen=True)
class Part:
    """Samples of a batch that are computed at once."""

    forward: Callable[[], torch.Tensor]  # returns their logits by the current model
    loss: Callable[[torch.Tensor], torch.Tensor]  # from the logits to their part of the batch's mean loss
    share: float = 1.0  # of the batch's samples
    # from logits and a teacher's logits to KL, mean over these samples, for methods that distill
    divergence: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = kl_of_choices


Step = Callable[[Sequence[Part], torch.optim.Optimizer], torch.Tensor]


class ParameterCount(NamedTuple):
    """Numbers of trained and of exchanged parameters, without the head."""

    trained: int
    exchanged: int


class Beside(NamedTuple):
    """Frozen tensors beside the trained ones, by key, and their share in the output."""

    state: State
    share: float = 0.0


def descend(losses: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Take one step on losses, one by one; parameters that no loss depends on keep value and moments."""
    optimizer.zero_grad(set_to_none=True)
    for loss in losses:
        loss.backward()
    optimizer.step()


class Trainable:
    """The part of a backbone that a method trains, without the head.

    Tensors with a key that begins with `private.` stay at the site, on its disk between rounds; others are exchanged.
    """

    one_model = True  # whether all passes of a step have the same active parts
    start_std: StartStd = None  # of the first values of a factor A

    def state(self) -> State:
        """Return copies on the CPU of the tensors that are exchanged, by key (`fedpeft.core.keys`)."""
        return self._copies(private=False)

    def load(self, state: State) -> None:
        """Write the tensors of a state back."""
        with torch.no_grad():
            for key, parameter in self.parameters().items():
                if not key.startswith(PRIVATE):
                    parameter.copy_(state[key])

    def private_state(self) -> State:
        """Return copies on the CPU of the tensors that stay at the site, by key."""
        return self._copies(private=True)

    def load_private(self, state: State) -> None:
        """Write a result of `private_state` back; if a tensor does not fit, nothing is written."""
        private = {key: parameter for key, parameter in self.parameters().items() if key.startswith(PRIVATE)}
        check_state(state, {key: tuple(parameter.shape) for key, parameter in private.items()})
        with torch.no_grad():
            for key, parameter in private.items():
                parameter.copy_(state[key])

    def start(self, received: State, own: State | None) -> None:
        """Load the start of a round: the received tensors, or for some methods the site's own of its last round."""
        self.load(received)

    def beside(self) -> Beside:
        """Return copies on the CPU of received, frozen tensors of the model; most methods have none."""
        return Beside({})

    def restore(self, state: State, beside: Beside) -> None:
        """Load a trained model: the results of `state` and `beside` at that time."""
        self.load(state)

    def peft_config(self) -> Any:
        """Return the configuration for PEFT to load the trained tensors; None: it cannot."""
        return None

    def merge(self) -> None:
        """Write the trained change into the backbone's own weights, and remove everything else from the backbone."""
        raise FedpeftError("what this method trains is no change of the backbone's weights: keep it beside them.")

    def step(self, parts: Sequence[Part], optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """Train on the parts of one batch, and return the loss from before.

        Every call of `forward` uses the current parameters; the optimizer has all of them, head included.
        """
        values: list[torch.Tensor] = []

        def losses() -> Iterator[torch.Tensor]:
            for part in parts:
                value = part.loss(part.forward())
                values.append(value.detach())
                yield value

        descend(losses(), optimizer)
        return torch.stack(values).sum()

    def reuse_passes(self) -> None:
        """Compute equal passes of a step through the backbone only once."""
        raise FedpeftError(
            "reuse_passes is true, and no two passes of this method's step are equal: leave it out.",
            setting="training.reuse_passes",
        )

    def slots(self) -> dict[str, str]:
        """Return slot -> module path with `{layer}`, if the server needs it to write a PEFT folder."""
        return {}

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return all parameters that can train, by key."""
        raise NotImplementedError

    def _copies(self, *, private: bool) -> State:
        chosen = {key: value for key, value in self.parameters().items() if key.startswith(PRIVATE) == private}
        return {key: parameter.detach().cpu().clone() for key, parameter in chosen.items()}

    def train_only(self, layers: Sequence[int] | None) -> None:
        """Freeze all but these layers; None: train everything, also what belongs to no layer."""
        for key, parameter in self.parameters().items():
            parameter.requires_grad_(belongs(key, layers))

    def products(self) -> Mapping[str, Product]:
        """Return by place the frozen matrices to which products of factors are added; none without factors."""
        return {}

    def changed_by(self) -> str:
        """Return, as text, the settings whose first values changed the frozen weights; empty: there are none."""
        return ""

    def started_by(self) -> str:
        """Return, as text, a setting that asks for other first values than the default; empty: there is none."""
        return ""

    def set_companion(self, state: State | None, share: float = 0.5) -> None:
        """Add a frozen copy beside the trained part, output = (1 - share) trained + share frozen; None removes it."""
        if state is not None:
            raise FedpeftError(f"{type(self).__name__} has no companion: use method.pia.integration='weight_space'.")

    def activations(
        self, states: Sequence[State], inputs: Sequence[Mapping[str, torch.Tensor]]
    ) -> list[dict[str, torch.Tensor]]:
        """Return place -> token-averaged activations (m, r) of the hidden neurons of each state on the same inputs."""
        raise FedpeftError(f"{type(self).__name__} has no activations: use method.pia.support='weights'.")


class WithConnector:
    """A `Trainable` with the connector of its backbone; all else is passed on to the method.

    The connector always trains, whichever layers do. A round begins with the received one, even if a method continues
    with the site's own tensors. A state may lack it, and it then does not change.
    """

    def __init__(self, method: Trainable, connector: Mapping[str, nn.Parameter]) -> None:
        self._method = method
        self._connector = {f"{CONNECTOR}{name}": parameter for name, parameter in connector.items()}
        self.train_only(None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def parameters(self) -> dict[str, nn.Parameter]:
        return {**self._method.parameters(), **self._connector}

    def train_only(self, layers: Sequence[int] | None) -> None:
        self._method.train_only(layers)
        for parameter in self._connector.values():
            parameter.requires_grad_(True)

    def state(self) -> State:
        return self._method.state() | {key: p.detach().cpu().clone() for key, p in self._connector.items()}

    def load(self, state: State) -> None:
        self._method.load(without_connector(state))
        self._load(state)

    def start(self, received: State, own: State | None) -> None:
        self._method.start(without_connector(received), None if own is None else without_connector(own))
        self._load(received)

    def restore(self, state: State, beside: Beside) -> None:
        self._method.restore(without_connector(state), beside)
        self._load(state)

    def _load(self, state: State) -> None:
        if given := only_connector(state):
            check_state(given, {key: tuple(parameter.shape) for key, parameter in self._connector.items()})
            with torch.no_grad():
                for key, parameter in self._connector.items():
                    parameter.copy_(given[key])

    def reuse_passes(self) -> None:
        raise FedpeftError(
            "reuse_passes is true, and a backbone's connector, which is trained, changes between two passes of a step: "
            "leave it out, or set backbone.projection to 'orthogonal'.",
            setting="training.reuse_passes",
        )


def connector_of(backbone: Backbone, settings: BackboneSettings) -> Mapping[str, nn.Parameter]:
    """Return the backbone's connector, which trains beside a method; empty if the job does not train it."""
    if not settings.trains_connector:
        return {}
    if connector := getattr(backbone, "connector", None):
        return cast(Mapping[str, nn.Parameter], connector)
    raise FedpeftError(
        f"projection is {settings.projection!r}, and backbone {settings.name!r} has no connector: leave it out.",
        setting="backbone.projection",
    )


def with_connector(method: Trainable, connector: Mapping[str, nn.Parameter]) -> Trainable:
    """Return the trained part of a backbone: that of the method, and the connector if there is one."""
    return cast(Trainable, WithConnector(method, connector)) if connector else method


class Tuning(Protocol):
    """The code of a tuning method."""

    def prepare(self, backbone: Backbone, settings: Mapping[str, Any], *, seed: int) -> Trainable:
        """Add the trained part of a method to a backbone, in place, and freeze everything else.

        Settings are those of a job: one that is unknown or does not fit is refused. The seed is for first values.
        """

    def first_values(self, settings: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> FirstValues:
        """Return the distribution of an exchanged tensor's first values; by default any values up to 1000.

        In messages the layer in the key may have the number of another backbone.
        """
        return Bounded()


def parameter_count(backbone: Backbone, tuning: Tuning, settings: Mapping[str, Any]) -> ParameterCount:
    counts = parameter_counts(backbone, tuning, settings)
    private = sum(count for key, count in counts.items() if key.startswith(PRIVATE))
    return ParameterCount(trained=sum(counts.values()), exchanged=sum(counts.values()) - private)


def parameter_counts(backbone: Backbone, tuning: Tuning, settings: Mapping[str, Any]) -> dict[str, int]:
    """Count the parameters of a method by key, on the meta device without memory; the backbone does not change."""
    # warnings of PEFT and transformers are about training, and nothing is trained here
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        parameters = tuning.prepare(_copy_without_values(backbone), settings, seed=0).parameters()
    return {key: parameter.numel() for key, parameter in parameters.items()}


def _copy_without_values(backbone: Backbone) -> Backbone:
    """Return a copy on the meta device."""
    copies: dict[int, Any] = {id(buffer): buffer.detach().to("meta") for buffer in backbone.buffers()}
    copies |= {id(one): nn.Parameter(one.detach().to("meta")) for one in backbone.parameters()}
    for module in backbone.modules():
        # a module has a dozen empty dictionaries of hooks, and `deepcopy` needs as long for each as for a layer
        for value in vars(module).values():
            if type(value) is OrderedDict and not value:
                copies[id(value)] = OrderedDict()
    return copy.deepcopy(backbone, copies)
