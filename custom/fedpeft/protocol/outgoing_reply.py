# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Decide what leaves a site: only messages whose every field is known and expected, in the form that was announced.

What a site announced in round 0 is stored in the job's run folder: the simulator runs every task in a new process.

Accuracies, losses and layer scores leave rounded, once per round of a job. The server chooses the model that they
measure: exact numbers of two models, or of a group of one question, would reveal how single samples are answered.
Rounding only delays that; `metrics: false` prevents it, and `scores: false` for the scores. Numbers of samples are
rounded for secure sums.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

import fedpeft
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.files import replacing, write_json
from fedpeft.core.keys import CONNECTOR, HEAD
from fedpeft.core.metrics import BELOW_CONSTANT, ENDS, VALIDATION
from fedpeft.core.states import State, digest
from fedpeft.job.site_policy import SitePolicy
from fedpeft.protocol.fields import BLOCKED, MAX_ATTEMPTS, is_known
from fedpeft.protocol.reply_contract import check_announcement, check_score_reply, check_tensors, check_train_reply
from fedpeft.protocol.types import (
    METRICS,
    Hello,
    Introduction,
    Order,
    Reply,
    ScoreOrder,
    ScoreReply,
    TrainOrder,
    TrainReply,
    empty_reply,
    fields_of,
)

FOLDER = "outgoing"
ANNOUNCED, TRAINED, INITIAL = "announced.json", "trained", "initial.safetensors"


@dataclass(frozen=True, slots=True)
class Announced:
    """What a site announced for all later replies: shapes by wire key, dtype, and size of the training split."""

    shapes: dict[str, list[int]]
    dtype: str
    samples: int

    @classmethod
    def of(cls, introduction: Introduction) -> Announced:
        """Read it from an introduction that carries the site's initial adapter."""
        return cls(
            shapes={key: list(tensor.shape) for key, tensor in introduction.state.items()},
            dtype=introduction.dtype,
            samples=introduction.samples["train"],
        )


class AnnouncementStore:
    """A site's announcement on its disk, with its initial adapter and a note whether it has trained since."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    @property
    def trained(self) -> bool:
        """Whether this site has had an order to train or score in this job; its adapter then depends on its data."""
        return (self.folder / TRAINED).exists()

    def note_training(self) -> None:
        """Record that this site had an order to train or score."""
        (self.folder / TRAINED).touch()

    def save(self, introduction: Introduction) -> None:
        """Store an introduction's announcement and its initial adapter, which does not depend on data yet."""
        announced = Announced.of(introduction)
        with replacing(self.folder / INITIAL) as draft:
            save_file({k: t.contiguous() for k, t in introduction.state.items()}, draft)
        write_json(
            self.folder / ANNOUNCED,
            {"shapes": announced.shapes, "dtype": announced.dtype, "samples": announced.samples},
        )

    def load(self) -> Announced | None:
        """Load the announcement; None before the introduction."""
        file = self.folder / ANNOUNCED
        if not file.exists():
            return None
        try:
            return Announced(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise LocalError(f"what this site announced cannot be read from {file} ({error}).") from error

    def first_adapter(self) -> State:
        """Return the adapter that the site started from, which depends on no data."""
        return load_file(self.folder / INITIAL)


# listed in full, so that a new field leaves a site only once it has a rule of its own
_PROBLEM = ("problem", "setting")
KNOWN: dict[type[Reply], set[str]] = {
    Introduction: {
        *("version", "schema", "classes", "samples", "dataset", "procedural", "metric", "backbone", "tiny", "width"),
        *("family", "slots", "dtype", "budget", "finished", "baseline", "start_digest", "sum_key", "state", *_PROBLEM),
    },
    ScoreReply: {"round", "scores", "seconds", *_PROBLEM},
    TrainReply: {"round", "samples", "metrics", "scores", "seconds", "attempts", "sum_key", "state", *_PROBLEM},
}


def refuse_others(what: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuse all names but the allowed ones."""
    for name in sorted(map(str, set(names) - set(allowed))):
        raise FedpeftError(f"unexpected {what} {name!r:.120}.")


def check_known(kind: type[Reply], names: Iterable[str]) -> None:
    """Refuse fields of a reply for which this file has no rule."""
    refuse_others("field", names, KNOWN[kind] - {"state"})
    if unknown := {f.name for f in dataclasses.fields(kind)} - KNOWN[kind]:
        raise FedpeftError(f"the field {min(unknown)} of {kind.__name__}, which this filter has no rule for.")


PERMISSIONS = {HEAD: ("head", "a classifier's head"), CONNECTOR: ("connector", "a backbone's connector")}


def permissions_needed(reply: Reply) -> list[tuple[str, str]]:
    """List the policy settings that must be on for this reply to leave, each with what it lets out in words."""
    keys = [str(key) for key in (*getattr(reply, "state", {}), *getattr(reply, "schema", {}))]
    return [needed for prefix, needed in PERMISSIONS.items() if any(key.startswith(prefix) for key in keys)]


def without_withheld(reply: Reply, policy: SitePolicy | None) -> Reply:
    """Return a reply without what the site policy withholds; refuse a head or connector that it keeps at the site."""
    if policy is None:
        return reply
    if isinstance(reply, TrainReply) and (policy.sum_with or not policy.metrics):
        reply = dataclasses.replace(reply, metrics=dict.fromkeys(METRICS))
    if isinstance(reply, Introduction):
        reply = dataclasses.replace(reply, baseline=None)
    for setting, what in permissions_needed(reply):
        if not getattr(policy, setting):
            raise FedpeftError(f"the reply has {what}, and {setting} is off in this site's policy.", code=BLOCKED)
    return reply


def rebuilt(reply: Reply, order: Order, announced: Announced | None, *, site: str, trained: bool) -> Reply:
    """Check a reply against its order and the announcement, and build the message to send from the checked values."""
    if reply.problem or reply.setting:
        return _problem(reply, order)
    if isinstance(reply, Introduction) and isinstance(order, Hello):
        return _introduction(reply, order, announced, site, trained)
    if announced is None:
        raise FedpeftError("a reply of a site that has not introduced itself.")
    if isinstance(reply, ScoreReply) and isinstance(order, ScoreOrder):
        return _scores(reply, order, announced, site)
    if isinstance(reply, TrainReply) and isinstance(order, TrainOrder):
        return _training(reply, order, announced, site)
    raise FedpeftError(f"a {type(reply).__name__} in reply to a {type(order).__name__}: they belong to two tasks.")


def _problem(reply: Reply, order: Order) -> Reply:
    if not is_known(reply.problem, reply.setting):
        raise FedpeftError(
            f"the problem {reply.problem!r:.60} with setting {reply.setting!r:.60}, which are not declared."
        )
    sent = empty_reply(
        type(reply),
        round=0 if isinstance(order, Hello) else order.round,
        problem=reply.problem,
        setting=reply.setting,
        attempts=_attempts(reply) if isinstance(reply, TrainReply) else 1,
    )
    expected = {**fields_of(sent), "seconds": getattr(reply, "seconds", None)}
    for name, value in fields_of(reply).items():
        if value != expected[name]:
            raise FedpeftError(f"{name} of a reply with a problem: it must be empty.")
    refuse_others("tensor", getattr(reply, "state", {}), ())
    return sent


def _introduction(
    reply: Introduction, order: Hello, announced: Announced | None, site: str, trained: bool
) -> Introduction:
    if reply.version != fedpeft.__version__:
        raise FedpeftError(f"version {reply.version!r:.40}, installed is {fedpeft.__version__}.")
    check_announcement(reply, site=site)
    if trained and reply.state:
        raise FedpeftError("the adapter in an introduction: this site has trained, so it depends on its data.")
    if not trained:
        check_tensors(reply.state, site=site, schema=reply.schema, dtype=reply.dtype)
    if reply.start_digest and (trained or reply.start_digest != digest(reply.state)):
        raise FedpeftError("the digest of another adapter than the one that this site starts from.")
    own = (reply.schema, reply.dtype, reply.samples["train"])
    if announced and own != (announced.shapes, announced.dtype, announced.samples):
        raise FedpeftError("a second introduction with another schema, dtype or number of training samples.")
    if not 0 <= reply.finished <= order.finished:
        raise FedpeftError(f"finished is {reply.finished}, the server named round {order.finished}.")
    sent = _copies(reply.state) if order.initial else {}
    return dataclasses.replace(reply, state=sent, baseline=None)  # it would tell how often an answer occurs here


def _scores(reply: ScoreReply, order: ScoreOrder, announced: Announced, site: str) -> ScoreReply:
    check_score_reply(reply, site=site, round=order.round, schema=announced.shapes)
    scores = [float(score) for score in reply.scores]
    seconds = float(reply.seconds)
    return ScoreReply(round=reply.round, scores=scores, seconds=seconds, problem="")


def _training(reply: TrainReply, order: TrainOrder, announced: Announced, site: str) -> TrainReply:
    check_train_reply(
        reply, site=site, order=order, schema=announced.shapes, dtype=announced.dtype, samples=announced.samples
    )
    return TrainReply(
        round=reply.round,
        samples=reply.samples,
        metrics={name: None if value is None else float(value) for name, value in reply.metrics.items()},
        scores=[float(score) for score in reply.scores],
        seconds=float(reply.seconds),
        problem="",
        attempts=reply.attempts,
        sum_key=reply.sum_key,
        state=_copies(reply.state),
    )


def _copies(state: State) -> State:
    """Return copies of tensors, without attributes and without the rest of the memory behind a view."""
    return {key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in state.items()}


def _attempts(reply: TrainReply) -> int:
    if reply.attempts not in range(1, MAX_ATTEMPTS + 1):
        raise FedpeftError(f"attempts is {reply.attempts!r:.40}, it must be from 1 to {MAX_ATTEMPTS}.")
    return reply.attempts


ACCURACY_DECIMALS = 2  # whole percent
LOSS_DIGITS = 3
OVERALL = "overall"
METRICS_FILE, SCORES_FILE = "released-metrics.json", "released-scores-{task}.json"
SCORE_DIGITS = 3
COUNT_STEP = 10
Metrics = dict[str, float | None]


def rounded_count(count: int) -> int:
    """Round a number of samples to two digits, and to tens at least, so that one sample rarely shows; 0 stays 0."""
    step = max(COUNT_STEP, 10 ** (len(str(count)) - 2))
    return max(step, (count + step // 2) // step * step) if count else 0


def probe_size(count: int, samples: int) -> int:
    """Return how many of a site's samples a loss or score that leaves is of, if a job asks for `count`: a power of two.

    Two jobs could otherwise ask for n and n + 1 of the same samples, and the difference would tell that of one.
    """
    return 1 << (min(count, samples).bit_length() - 1)


def released_metrics(
    measured: Mapping[str, float | None],
    questions: Mapping[str, int],
    *,
    min_questions: int,
    enough_validation: bool = True,
    enough_probe: bool = True,
) -> Metrics:
    """Round accuracies to whole percent and losses to three digits; withheld values become None.

    If one group has fewer questions than `min_questions`, all groups are withheld, because it could be computed from
    the others and the overall accuracy; and `below_constant`, as a constant answer may be the small group's.
    """
    small = any(0 < count < min_questions for count in questions.values())
    withheld = {*questions, BELOW_CONSTANT} if small else set()
    withheld |= set() if enough_validation else {VALIDATION}
    withheld |= set() if enough_probe else set(ENDS)
    fractions = {OVERALL, VALIDATION, *questions}
    return {
        name: None if value is None or name in withheld else _rounded_value(value, fraction=name in fractions)
        for name, value in measured.items()
    }


def first_of_round(metrics: Metrics, round: int, folder: Path) -> Metrics:
    """Return the metrics already sent in this round, else these, so that a repeated order reveals nothing new."""
    before = _first_value(metrics, round, folder / METRICS_FILE)
    return {name: before.get(name) for name in metrics}


def first_scores_of_round(scores: Sequence[float], task: str, round: int, folder: Path) -> list[float]:
    """Return the layer scores already sent in this round for the task, else these, rounded to three digits."""
    rounded = [float(f"{score:.{SCORE_DIGITS}g}") for score in scores]
    return list(_first_value(rounded, round, folder / SCORES_FILE.format(task=task)))


def _first_value(value: Any, round: int, file: Path) -> Any:
    try:
        before: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"round": 0}
        if before["round"] == round:
            return before["value"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalError(f"{file} cannot be read ({error}): submit the job again.") from error
    write_json(file, {"round": round, "value": value})
    return value


def _rounded_value(value: float, *, fraction: bool) -> float:
    return round(value, ACCURACY_DECIMALS) if fraction else float(f"{value:.{LOSS_DIGITS}g}")
