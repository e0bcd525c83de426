# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Interfaces of a tuning method's code: `Tuning` prepares a backbone, `Trainable` is what is trained in it.

KL(teacher || learner) is for methods that distill. A way to answer says which it is (`Answering.divergence`): that of
one choice, of labels each for itself, or of the tokens of an answer.
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
    """Return KL of two distributions over sets of labels (B, L), each of which applies or not whatever the others do.

    It is the sum over labels of `p log(p / q) + (1 - p) log((1 - p) / (1 - q))` with sigmoid, mean over the batch.
    """
    learned, taught = (torch.stack((F.logsigmoid(z), F.logsigmoid(-z)), dim=-1) for z in (logits, teacher))
    return F.kl_div(learned, taught, reduction="batchmean", log_target=True)


def kl_of_tokens(logits: Tensor, teacher: Tensor, answered: Tensor) -> Tensor:
    """Return KL of the distributions over the next token (B, T, V), given the right ones before it.

    It is summed over an answer, (B,): the tokens of (B, T) that are `answered`; those behind its end do not count.
    """
    tokens = F.kl_div(logits.log_softmax(-1), teacher.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    return (tokens * answered).sum(-1)


@dataclass(frozen=True)
class Part:
    """Samples of a batch that are computed at once."""

    forward: Callable[[], torch.Tensor]  # their logits, by the model as it stands
    loss: Callable[[torch.Tensor], torch.Tensor]  # from those logits to what they add to the batch's mean loss
    share: float = 1.0  # of the batch's samples that they are
    # from logits and those of a teacher to their KL, mean over these samples, for methods that distill
    divergence: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = kl_of_choices


Step = Callable[[Sequence[Part], torch.optim.Optimizer], torch.Tensor]


class ParameterCount(NamedTuple):
    """Numbers of parameters, without the head: that are trained, and that are exchanged."""

    trained: int
    exchanged: int


class Beside(NamedTuple):
    """Frozen tensors that run beside the trained ones, by key, and their share in the output."""

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

    Tensors whose key begins with `private.` stay at the site, on its disk between rounds; all others are exchanged.
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
        """Write what `private_state` returned back; of a misfit nothing is written."""
        private = {key: parameter for key, parameter in self.parameters().items() if key.startswith(PRIVATE)}
        check_state(state, {key: tuple(parameter.shape) for key, parameter in private.items()})
        with torch.no_grad():
            for key, parameter in private.items():
                parameter.copy_(state[key])

    def start(self, received: State, own: State | None) -> None:
        """Load what a round starts from: the global tensors, or what the site kept of its last round, if anything."""
        self.load(received)

    def beside(self) -> Beside:
        """Return copies on the CPU of what is frozen, was received and belongs to the model; of most methods none."""
        return Beside({})

    def restore(self, state: State, beside: Beside) -> None:
        """Load the model that was trained: what `state` and `beside` returned then."""
        self.load(state)

    def peft_config(self) -> Any:
        """Return the configuration with which PEFT loads the trained tensors; None: it cannot."""
        return None

    def merge(self) -> None:
        """Write what is trained into the backbone's own weights, and take everything else out of the backbone."""
        raise FedpeftError("what this method trains is no change of the backbone's weights: keep it beside them.")

    def step(self, parts: Sequence[Part], optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """Train on the parts of one batch, and return the loss before it.

        Several calls of `forward` see the parameters as they then stand; the optimizer is that of all, head included.
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
        """Compute passes of a step only once that have the same parameters of the backbone."""
        raise FedpeftError(
            "reuse_passes is true, and no two passes of this method's step are equal: leave it out.",
            setting="training.reuse_passes",
        )

    def slots(self) -> dict[str, str]:
        """Return slot -> module path with `{layer}`, where the server must know it to write a PEFT folder."""
        return {}

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return everything that could be trained, by key."""
        raise NotImplementedError

    def _copies(self, *, private: bool) -> State:
        chosen = {key: value for key, value in self.parameters().items() if key.startswith(PRIVATE) == private}
        return {key: parameter.detach().cpu().clone() for key, parameter in chosen.items()}

    def train_only(self, layers: Sequence[int] | None) -> None:
        """Freeze all but these layers; None: train everything, also what belongs to no layer."""
        for key, parameter in self.parameters().items():
            parameter.requires_grad_(belongs(key, layers))

    def products(self) -> Mapping[str, Product]:
        """Return the frozen matrices that products of its factors are added to, by place; none without factors."""
        return {}

    def changed_by(self) -> str:
        """Return the settings with which its first values changed the frozen weights, as text; empty: they did not."""
        return ""

    def started_by(self) -> str:
        """Return the setting that asks for other first values than the default, as text; empty: none does."""
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
    """A `Trainable` and the connector of its backbone: all else is as the method has it.

    The connector trains whatever layers do. A round begins with the received one, also where a method goes on with
    tensors of the site's own; a state may lack it, and it then stays as it is.
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
    """Return what of a backbone trains beside a method; a member of that name is none where the job trains none."""
    if not settings.trains_connector:
        return {}
    if connector := getattr(backbone, "connector", None):
        return cast(Mapping[str, nn.Parameter], connector)
    raise FedpeftError(
        f"projection is {settings.projection!r}, and backbone {settings.name!r} has no connector: leave it out.",
        setting="backbone.projection",
    )


def with_connector(method: Trainable, connector: Mapping[str, nn.Parameter]) -> Trainable:
    """Return what trains in a backbone: what the method trains, and the backbone's connector where it has one."""
    return cast(Trainable, WithConnector(method, connector)) if connector else method


class Tuning(Protocol):
    """The code of a tuning method."""

    def prepare(self, backbone: Backbone, settings: Mapping[str, Any], *, seed: int) -> Trainable:
        """Make the part of a backbone that the method trains, in place, and freeze everything else.

        Settings are those of a job: one that is unknown or does not fit is refused. The seed is that of first values.
        """

    def first_values(self, settings: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> FirstValues:
        """Return how the first values of an exchanged tensor are distributed; here they may be any up to 1000.

        In messages the number of the key's layer may be that of another backbone.
        """
        return Bounded()


def parameter_count(backbone: Backbone, tuning: Tuning, settings: Mapping[str, Any]) -> ParameterCount:
    counts = parameter_counts(backbone, tuning, settings)
    private = sum(count for key, count in counts.items() if key.startswith(PRIVATE))
    return ParameterCount(trained=sum(counts.values()), exchanged=sum(counts.values()) - private)


def parameter_counts(backbone: Backbone, tuning: Tuning, settings: Mapping[str, Any]) -> dict[str, int]:
    """Count the parameters of a method by key, on the meta device, where they take no memory; the backbone stays."""
    # what PEFT and transformers warn of is about training, and nothing is trained here
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        parameters = tuning.prepare(_copy_without_values(backbone), settings, seed=0).parameters()
    return {key: parameter.numel() for key, parameter in parameters.items()}


def _copy_without_values(backbone: Backbone) -> Backbone:
    """Return a copy on the meta device."""
    copies: dict[int, Any] = {id(buffer): buffer.detach().to("meta") for buffer in backbone.buffers()}
    copies |= {id(one): nn.Parameter(one.detach().to("meta")) for one in backbone.parameters()}
    for module in backbone.modules():
        # a module has a dozen empty dictionaries of hooks, and `deepcopy` takes as long for each as for a layer
        for value in vars(module).values():
            if type(value) is OrderedDict and not value:
                copies[id(value)] = OrderedDict()
    return copy.deepcopy(backbone, copies)
