# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Everything that travels between server and sites, and the check that nothing else does.

A message is a dataclass: its fields, plain values, and under `state` the adapter's tensors by wire key. Heads, answers,
images and questions have no field here, so they have no way out.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar, get_type_hints

import torch

import fedpeft
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY, BELOW_CONSTANT, ENDS, VALIDATION
from fedpeft.core.states import StoredState
from fedpeft.protocol.fields import REFUSED, Unread, check_fields, shown, some

HELLO, SCORE, TRAIN = "hello", "score", "train"
TOO_LARGE = "message-too-large"
ACCURACIES = ("overall", "open", "closed")
FRACTIONS = (*ACCURACIES, VALIDATION)
METRICS = (*FRACTIONS, "loss", "loss_first", *ENDS, BELOW_CONSTANT)
SPLITS = ("train", "validation", "test")
Schema = dict[str, list[int]]


@dataclass(frozen=True, kw_only=True)
class _Message:
    carries_state: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Hello(_Message):
    """Server to site, round 0: who I am.

    Args:
        version: the server's fedpeft version.
        initial: whether the site sends the adapter that it starts from.
        lineage: name of this job and of those that resume it; a site keeps its state under it.
        finished: rounds that are finished already, in a job that is resumed.
        session: name of this job among those of its lineage.
        sessions: the earlier jobs that made these rounds, in their order, with the last round of each that counts.
    """

    version: str
    initial: bool = False
    lineage: str = ""
    finished: int = 0
    session: str = ""
    sessions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Introduction(_Message):
    """Site to server, round 0: what this site brings, or why it cannot take part.

    Args:
        version: the site's fedpeft version.
        schema: shape of every tensor the site will send, by wire key.
        classes: size of the site's label space; the labels themselves stay at the site. With `sum_with` of its site
            policy it is rounded as `samples`, unless the head is federated.
        samples: number of samples in each split (`train`, `validation`, `test`); with `sum_with` of the site policy
            rounded to two digits, and to tens at least.
        dataset: registered name of the data set.
        procedural: whether that data set is computed and not measured on people.
        metric: of the site's model: `accuracy`, `balanced_accuracy` or `macro_f1`.
        backbone: registered name of the backbone.
        tiny: whether that backbone is too small for figures of medical meaning.
        width: of that backbone's features.
        family: the backbone's kind, which says where its layers are (`fedpeft.backbones.slots`).
        slots: slot -> module path with `{layer}` of the adapter, for a kind whose modules that table does not have.
        dtype: of every tensor that the site will send, as torch names it.
        budget: how many transformer layers the site can train in a round.
        finished: the last round, up to the one that the server named, for which the site has its own state.
        baseline: what a constant answer reaches on the test split; only in the simulator, because it tells how
            often an answer occurs.
        start_digest: SHA-256 of the adapter that the site starts from (`fedpeft.core.states.digest`), where all sites
            can compute it and one of them sends it to all, or may, where relays add up; it depends on no data.
        problem: why the site cannot take part, a code of `fedpeft.protocol.fields`; empty when it can.
        setting: the name of the job's setting that the problem is about, if it is about one.
        sum_key: the site's public key for the first secure sum, with its certificate and signature; empty without
            `method.secure_sum`.
        state: the adapter that the site starts from, where the server asked for it.
    """

    carries_state: ClassVar[bool] = True
    version: str
    schema: Schema = field(default_factory=dict)
    classes: int = 0
    samples: dict[str, int] = field(default_factory=dict)
    dataset: str = ""
    procedural: bool = False
    metric: str = ACCURACY
    backbone: str = ""
    tiny: bool = False
    width: int = 0
    family: str = ""
    slots: dict[str, str] = field(default_factory=dict)
    dtype: str = "float32"
    budget: int = 0
    finished: int = 0
    baseline: float | None = None
    start_digest: str = ""
    problem: str = ""
    setting: str = ""
    sum_key: dict[str, list[str]] = field(default_factory=dict)
    state: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ScoreOrder(_Message):
    """Server to site: score the layers of the global adapter.

    Args:
        lineage: as in Hello.
        round: the round that the scores are for.
        base: the version of the global adapter on the site's disk, which `state` completes; 0: `state` is whole.
        version: the version that results; 0: it need not be kept.
        state: the tensors that changed since `base`.
    """

    carries_state: ClassVar[bool] = True
    lineage: str
    round: int
    base: int
    version: int
    state: dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class ScoreReply(_Message):
    """Site to server: one score for each transformer layer that can be trained, or why there are none.

    Args:
        round: the round that the scores are for.
        scores: one for each layer; empty where there is a problem.
        seconds: wall time of the local work.
        problem: why there are no scores, a code as in Introduction; empty when there are.
        setting: the name of the job's setting that the problem is about, if it is about one.
    """

    round: int
    scores: list[float]
    seconds: float
    problem: str
    setting: str = ""


@dataclass(frozen=True, kw_only=True)
class TrainOrder(_Message):
    """Server to site: train this round, from this global adapter.

    Args:
        lineage: as in Hello.
        round: counted from 1.
        base, version: as in ScoreOrder.
        layers: the transformer layers to train and send; None: all.
        scored: send scores of the trained model along, for the next round.
        part: the site's weight in the mean that formed the global adapter, where the site needs it (`share:
            agreement`). From it the site can tell how many samples all sites have together. 0: none.
        sum_keys: the public key of every member of the round's secure sum; empty: send the adapter itself.
        relay: has the global adapter, and adds up the trained ones of its sites; empty: the server does.
        state: the tensors that changed since `base`; empty with base 0: start from your own, or fetch it at the relay.
    """

    carries_state: ClassVar[bool] = True
    lineage: str
    round: int
    base: int
    version: int
    layers: list[int] | None
    scored: bool
    part: float = 0.0
    sum_keys: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    relay: str = ""
    state: dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class TrainReply(_Message):
    """Site to server: the trained adapter, or why there is none.

    Args:
        round: the round it belongs to.
        samples: size n_k of the training split as it was announced, the site's weight.
        metrics: nine figures, None where one was not measured or is withheld: `overall` (of the test split), `open`
            and `closed` (of its questions of each kind), `validation` (as `overall`, of the validation split),
            `loss_first` and `loss` (mean training loss of the first and the last local epoch), `loss_start` and
            `loss_end` (with `training.measure: start`, mean loss on the probe samples before the first and after the
            last step), `below_constant` (1 where `overall` was no better than a constant answer in each of the
            last three rounds, else 0).
        scores: one for each transformer layer, where the server asked for them.
        seconds: wall time of the local work.
        problem: why the round failed here, a code as in Introduction; empty when it did not.
        setting: the name of the job's setting that the problem is about, if it is about one.
        attempts: how often the site began the round; more than once where its training process was lost.
        sum_key: the site's public key for the next round's secure sum, as in Introduction.
        state: the tensors of the layers that it was to train; masked in a secure sum, empty where a relay has them.
    """

    carries_state: ClassVar[bool] = True
    round: int
    samples: int
    metrics: dict[str, float | None]
    scores: list[float]
    seconds: float
    problem: str
    setting: str = ""
    attempts: int = 1
    sum_key: dict[str, list[str]] = field(default_factory=dict)
    state: dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class SumOrder(_Message):
    """Server to relay: add up what these sites will send in a round.

    Args:
        round: counted from 1.
        weights: by site behind the relay, its integer weight in the mean.
        together: number of sites of the round, behind all relays and none.
        dtype: of what the sites send, unless it is masked.
        masked: whether it is masked for a secure sum.
        state: the global adapter that the sites train.
    """

    carries_state: ClassVar[bool] = True
    round: int
    weights: dict[str, int]
    together: int
    dtype: str
    masked: bool
    state: dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Upload(_Message):
    """Site to relay: the trained adapter of a round, as in `TrainReply`. Relay to site: the global adapter."""

    carries_state: ClassVar[bool] = True
    round: int
    state: dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class SumQuery(_Message):
    """Server to relay: measure what has come, or add up these sites (`sites`).

    Args:
        round: counted from 1.
        sites: whose adapters go into the sum.
    """

    round: int
    sites: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Measured(_Message):
    """Relay to server: what has come of a round.

    Args:
        round: counted from 1.
        lengths: by site, how far it moved its adapter (root mean square); 0 where it is masked.
        refused: by site, why its adapter is not used.
    """

    round: int
    lengths: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PartialSum(_Message):
    """Relay to server: the sum of the weighted adapters of the named sites, as integers modulo 2^64."""

    carries_state: ClassVar[bool] = True
    round: int
    sites: list[str]
    state: dict[str, torch.Tensor]


Order = Hello | ScoreOrder | TrainOrder
Reply = Introduction | ScoreReply | TrainReply
M = TypeVar("M", bound=_Message)


class Task(NamedTuple):
    """What the server sends for a task, and what the site answers."""

    order: type[Order]
    reply: type[Reply]


TASKS = {HELLO: Task(Hello, Introduction), SCORE: Task(ScoreOrder, ScoreReply), TRAIN: Task(TrainOrder, TrainReply)}


def fields_of(message: _Message) -> dict[str, Any]:
    """Return all fields of a message but its tensors."""
    return {field.name: getattr(message, field.name) for field in dataclasses.fields(message) if field.name != "state"}


def message_from(kind: type[M], values: Any, tensors: Any, *, sender: str) -> M:
    """Build a message from its received fields and tensors; refuse anything that its kind does not declare."""
    check_fields(values, _declared(kind), message=kind.__name__, sender=sender)  # type: ignore[arg-type]  # a class can be hashed
    tensors = {} if tensors is None else tensors
    if not isinstance(tensors, Mapping):
        raise FedpeftError(f"{sender} sent {shown(tensors)} instead of tensors by name.", code=REFUSED)
    held = () if isinstance(tensors, StoredState) else tensors.values()
    if unread := next((value for value in held if isinstance(value, Unread)), None):
        raise FedpeftError(f"{sender} sent {unread.reason}", code=TOO_LARGE)
    if kind.carries_state:
        state = tensors if isinstance(tensors, StoredState) else dict(tensors)
        return kind(**{**values, "state": state})
    if tensors:
        raise FedpeftError(f"{sender} sent tensors in a {kind.__name__} message: {some(tensors)}.", code=REFUSED)
    return kind(**values)


@functools.cache  # the types are written as strings, which take longer to read than a message
def _declared(kind: type[_Message]) -> dict[str, Any]:
    """Return the type of every field but the tensors."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.name != "state"}


def empty_reply(
    kind: type[Reply], *, round: int, problem: str, setting: str = "", seconds: float = 0.0, attempts: int = 1
) -> Reply:
    """Return a reply without a result; `problem` is the code of `fedpeft.protocol.fields` that says why."""
    if kind is Introduction:
        return Introduction(version=fedpeft.__version__, problem=problem, setting=setting)
    common: dict[str, Any] = {"round": round, "seconds": seconds, "problem": problem, "setting": setting, "scores": []}
    if kind is ScoreReply:
        return ScoreReply(**common)
    return TrainReply(**common, samples=0, metrics=dict.fromkeys(METRICS), attempts=attempts, state={})
