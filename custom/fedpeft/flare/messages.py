# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Everything that travels between server and sites, and the check that nothing else does.

A message is an FLModel: `params` holds adapter tensors under wire keys, `meta["fedpeft"]` one JSON object whose fields
are those of the dataclass. Heads, answers, images and questions have no field here, so they have no way out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, get_type_hints

import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedpeft import backbones, data
from fedpeft.errors import FedpeftError
from fedpeft.privacy.problem_codes import sentence
from fedpeft.settings import fits
from fedpeft.training.worker_trainer import ATTEMPTS

HELLO, SCORE, TRAIN = "hello", "score", "train"
FIELDS = "fedpeft"
MESSAGE = "message-refused"
ACCURACIES = ("overall", "open", "closed")
METRICS = (*ACCURACIES, "loss", "loss_first")
SPLITS = ("train", "validation", "test")
Schema = dict[str, list[int]]
M = TypeVar("M", bound="_Message")


@dataclass(frozen=True, kw_only=True)
class _Message:
    carries_state: ClassVar[bool] = False

    def to_model(self, *, round: int | None = None, rounds: int | None = None) -> FLModel:
        """The message as FLARE sends it."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "state"}
        state = getattr(self, "state", {}) if self.carries_state else {}
        return FLModel(
            params_type=ParamsType.FULL, params=state, current_round=round, total_rounds=rounds, meta={FIELDS: values}
        )

    @classmethod
    def from_model(cls: type[M], model: FLModel, *, sender: str = "the server") -> M:
        """Read a message; FedpeftError naming its sender if its fields are not exactly the declared ones."""
        values = model.meta.get(FIELDS)
        declared = {f.name for f in dataclasses.fields(cls)} - {"state"}
        if not isinstance(values, Mapping) or set(values) != declared:
            got = sorted(values) if isinstance(values, Mapping) else type(values).__name__
            raise FedpeftError(
                f"{sender} sent no {cls.__name__} message with {sorted(declared)}, but {got}: "
                f"install the same fedpeft version everywhere.",
                code=MESSAGE,
            )
        hints = get_type_hints(cls)
        for name, value in values.items():
            if not fits(value, hints[name]):
                raise FedpeftError(
                    f"{sender} sent {value!r:.60} as {name} of a {cls.__name__} message: wrong type.", code=MESSAGE
                )
        if not cls.carries_state:
            if model.params:
                raise FedpeftError(
                    f"{sender} sent tensors in a {cls.__name__} message: {_some(sorted(model.params))}.", code=MESSAGE
                )
            return cls(**values)
        return cls(**values, state=dict(model.params or {}))


@dataclass(frozen=True, kw_only=True)
class Hello(_Message):
    """Server to site, round 0: who I am.

    Args:
        version: the server's fedpeft version.
        initial: whether the site shall send the adapter that it starts from.
        lineage: name of this job and of those that resume it; a site's state lies under it.
        finished: rounds that are finished already, in a job that is resumed.
    """

    version: str
    initial: bool = False
    lineage: str = ""
    finished: int = 0


@dataclass(frozen=True, kw_only=True)
class Introduction(_Message):
    """Site to server, round 0: what this site brings, or why it cannot take part.

    Args:
        version: the site's fedpeft version.
        schema: shape of every tensor the site will send, by wire key.
        classes: size of the site's label space; the labels themselves stay at the site.
        samples: size of each split.
        dataset: registered name of the data set.
        backbone: registered name of the backbone.
        family: the backbone's kind, which says where its layers are (`fedpeft.backbones.sites`).
        budget: how many transformer layers the site can train in a round.
        finished: the last round, up to the one that the server named, of which the site has its own state.
        problem: why the site cannot take part, a code of `fedpeft.privacy.problem_codes`; empty when it can.
        setting: the name of the job's setting that the problem is about, if it is about one.
        sum_key: the site's public key for the first secure sum, see `fedpeft.privacy.signed_keys`.
        state: the adapter that the site starts from, where the server asked for it.
    """

    carries_state: ClassVar[bool] = True
    version: str
    schema: Schema = field(default_factory=dict)
    classes: int = 0
    samples: dict[str, int] = field(default_factory=dict)
    dataset: str = ""
    backbone: str = ""
    family: str = ""
    budget: int = 0
    finished: int = 0
    problem: str = ""
    setting: str = ""
    sum_key: dict[str, list[str]] = field(default_factory=dict)
    state: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ScoreOrder(_Message):
    """Server to site: score the layers of the global adapter.

    Args:
        lineage: as in `Hello`.
        round: the round that the scores are for.
        base: the version of the global adapter that the site has on disk and `state` completes; 0: `state` is whole.
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
        round: as in `ScoreOrder`.
        scores: one for each layer.
        seconds: wall time of the local work.
        problem, setting: as in `Introduction`.
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
        lineage: as in `Hello`.
        round: counted from 1.
        base, version: as in `ScoreOrder`.
        layers: the transformer layers to train and send; None: all.
        scored: send scores of the trained model along, for the next round.
        sum_keys: the public key of every member of the round's secure sum; empty: send the adapter itself.
        state: the tensors that changed since `base`; empty with base 0: go on from your own.
    """

    carries_state: ClassVar[bool] = True
    lineage: str
    round: int
    base: int
    version: int
    layers: list[int] | None
    scored: bool
    sum_keys: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    state: dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class TrainReply(_Message):
    """Site to server: the trained adapter, or why there is none.

    Args:
        round: the round it belongs to.
        samples: size n_k of the training split, the site's weight.
        metrics: the names of `METRICS`, fractions, losses or None.
        scores: one for each transformer layer, where the server asked for them.
        seconds: wall time of the local work.
        problem, setting: why the round failed here, as in `Introduction`; empty when it did not.
        sum_key: the site's public key for the next round's secure sum.
        attempts: how often the site began the round; more than once where its training process was lost.
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


def problem_of(model: FLModel) -> str:
    """The problem that a reply tells of, empty where it tells of none or is no message of ours."""
    values = model.meta.get(FIELDS)
    return str(values.get("problem") or "") if isinstance(values, Mapping) else ""


def check_introduction(introduction: Introduction, *, site: str) -> None:
    """Accept an introduction only if its names are known and its numbers are counts.

    Raises:
        FedpeftError: naming the site and the field.
    """
    for name, known in (("dataset", data.names()), ("backbone", backbones.names())):
        if getattr(introduction, name) not in known:
            raise FedpeftError(f"site {site} names an unknown {name}: install the same fedpeft version everywhere.")
    counts = introduction.samples
    if set(counts) != set(SPLITS) or not all(isinstance(n, int) and n >= 0 for n in counts.values()):
        raise FedpeftError(f"site {site} sent no counts of {', '.join(SPLITS)} samples.")
    for key, shape in introduction.schema.items():
        if not isinstance(shape, list) or not all(isinstance(n, int) and n > 0 for n in shape):
            raise FedpeftError(f"site {site} announces {key!r:.60} with shape {shape!r:.40}, which is no shape.")


def check_reply(
    reply: TrainReply, *, site: str, round: int, schema: Schema, samples: int, masked: bool = False
) -> None:
    """Accept a reply only if it is what the site announced, and finite.

    Raises:
        FedpeftError: with the site, the key and what is wrong; such a reply must not reach the global adapter.
    """
    if reply.problem:
        attempts = f" in {ATTEMPTS} attempts" if reply.attempts == ATTEMPTS else ""
        raise FedpeftError(
            f"site {site} could not finish round {round}{attempts}: {sentence(reply.problem, reply.setting)}"
        )
    if reply.round != round:
        raise FedpeftError(f"site {site} answered for round {reply.round} in round {round}.")
    if reply.samples != samples:
        raise FedpeftError(f"site {site} reports {reply.samples} training samples, it announced {samples}.")
    if not (math.isfinite(reply.seconds) and reply.seconds >= 0):
        raise FedpeftError(f"site {site} reports {reply.seconds} seconds of work: it must be a finite number.")
    if not 1 <= reply.attempts <= ATTEMPTS:
        raise FedpeftError(f"site {site} reports {reply.attempts} attempts, a site makes 1 to {ATTEMPTS}.")
    _check_metrics(reply.metrics, site)
    check_state(reply.state, site=site, schema=schema, masked=masked)


def check_state(state: Mapping[str, Any], *, site: str, schema: Schema, masked: bool = False) -> None:
    """Exactly the announced keys, shapes and a finite floating dtype, or FedpeftError naming site and key.

    Masked tensors are int64, and every value of theirs is as likely as any other.
    """
    missing, extra = sorted(set(schema) - set(state)), sorted(set(state) - set(schema))
    if missing or extra:
        what = f"lacks {_some(missing)}" if missing else f"has unannounced keys {_some(extra)}"
        raise FedpeftError(f"the adapter of site {site} {what}: it must send exactly the tensors of its schema.")
    for key, tensor in state.items():
        if masked and getattr(tensor, "dtype", None) != torch.int64:
            raise FedpeftError(f"site {site} sent {key} without a mask in a secure sum: this round is lost.")
        if not isinstance(tensor, torch.Tensor) or not (masked or tensor.is_floating_point()):
            kind = getattr(tensor, "dtype", type(tensor).__name__)
            raise FedpeftError(f"site {site} sent {key} as {kind}: only floating-point tensors are accepted.")
        if list(tensor.shape) != list(schema[key]):
            raise FedpeftError(f"site {site} sent {key} with shape {list(tensor.shape)}, announced was {schema[key]}.")
        if not torch.isfinite(tensor).all():
            raise FedpeftError(f"site {site} sent NaN or infinity in {key}: its training diverged.")


def _check_metrics(metrics: Mapping[str, Any], site: str) -> None:
    if set(metrics) != set(METRICS):
        raise FedpeftError(f"site {site} sent metrics {sorted(metrics)}, declared are {sorted(METRICS)}.")
    for name, value in metrics.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise FedpeftError(f"site {site} sent {value!r:.40} as metric {name}: it must be a finite number.")
        if name in ACCURACIES and not 0 <= value <= 1:
            raise FedpeftError(f"site {site} sent {value!r} as metric {name}: it must be a fraction from 0 to 1.")


def _some(keys: Sequence[str], most: int = 3) -> str:
    return ", ".join(keys[:most]) + (f" and {len(keys) - most} more" if len(keys) > most else "")
