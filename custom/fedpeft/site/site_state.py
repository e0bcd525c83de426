# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Save and load a site's state between rounds, on its own disk only: adapter, private tensors, head and optimizer.

A round's folder is written under a temporary name and renamed once it is complete, because a process can die. Beside
the tensors are a record of the model, so that it can be built again without the training data, and facts that must be
equal when the state is read back: a digest of the site's answers and examples, and a few settings.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import fedpeft
from fedpeft import backbones
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.files import (
    check_regular,
    digest,
    drop,
    number_of,
    read_json,
    replacing,
    round_name,
    rounds_in,
)
from fedpeft.core.metrics import ROUNDS_BELOW, TITLES, VALIDATION
from fedpeft.core.settings import build, one_of
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.images import ChosenImage, EncodedImage, ImageSource
from fedpeft.data.registry import is_procedural
from fedpeft.data.schema import Example, SiteData

Figures = Mapping[str, float | int | None]
ROUNDING = 1e-6  # of means in single precision


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """A site's model after a round. It contains the site's answers and stays with its head.

    Args:
        site: the site's name.
        fedpeft: version that wrote it.
        sections: of the job; empty: the learner was made without a job.
        answers: the classes of the head, or the answers of training; labels if images have labels.
        spellings: by class or label, the site's own spelling if it differs from the answer.
        labelled: whether images have labels instead of a question with one answer.
        asks: whether its examples have questions.
        reads_text: whether images had texts in training; None: the version that wrote it did not say.
        metric: of the site (`fedpeft.core.metrics`).
        thresholds: probability from which on each label counts as predicted; None: one half, or there are no labels.
        share: of the tensors beside the trained ones in the output of an adapter (`SiteState.beside`).
        window: gray window of its images (`fedpeft.data.settings`), if they have more than 8 bits.
        procedural, tiny: whether the data are computed, and whether the backbone is too small for medicine.
        source: one sentence on the origin of the data.
        samples: of each split.
        rounds: the figures of every round until this one, with its number as `round`.
    """

    site: str
    fedpeft: str
    sections: Mapping[str, Any]
    answers: tuple[str, ...]
    labelled: bool
    asks: bool
    metric: str
    thresholds: tuple[float, ...] | None = None
    share: float = 0.0
    window: Mapping[str, Any] = field(default_factory=dict)
    procedural: bool = False
    tiny: bool = False
    source: str = ""
    samples: Mapping[str, int] = field(default_factory=dict)
    rounds: tuple[Figures, ...] = ()
    spellings: Mapping[str, Any] = field(default_factory=dict)
    reads_text: bool | None = None

    def __post_init__(self) -> None:
        one_of("metric", self.metric, TITLES)
        if not self.answers or (self.thresholds is not None and len(self.thresholds) != len(self.answers)):
            raise FedpeftError(
                f"a model has {len(self.answers)} answers and {len(self.thresholds or ())} thresholds: it needs one "
                f"answer at least, and as many thresholds or none."
            )
        if not all(type(figures.get("round")) is int for figures in self.rounds):
            raise FedpeftError("rounds has an entry without a number as round: leave it out.")
        if not all(isinstance(spelling, str) for spelling in self.spellings.values()):
            raise FedpeftError("spellings has a value that is no text: leave it out.")


def record_as_json(record: ModelRecord) -> dict[str, Any]:
    """Return a record without its None values, as `fedpeft.core.settings.build` reads it back."""
    return {name: value for name, value in asdict(record).items() if value is not None}


def with_round(rounds: tuple[Figures, ...], number: int, figures: Figures) -> tuple[Figures, ...]:
    """Return the figures of the rounds before this one, followed by its own."""
    return (*(former for former in rounds if former["round"] < number), {"round": number, **figures})


def course_name(round: int) -> str:
    """Return the name of a round's course in `SiteState.losses`."""
    return f"{round:05d}"


def courses_until(own: SiteState | None, round: int, course: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return the loss curves up to a round; empty if they are not measured."""
    return {} if course is None else {**(own.losses if own else {}), course_name(round): course}


def below_constant(rounds: tuple[Figures, ...], constant: float | None) -> float | None:
    """Return 1 if the site's last rounds were no better than a constant answer, else 0; None: no figures."""
    figures = [values.get("overall") for values in rounds[-ROUNDS_BELOW:]]
    if constant is None or figures[-1] is None:
        return None
    below = [figure is not None and figure <= constant + ROUNDING and figure < 1 for figure in figures]
    return float(len(below) == ROUNDS_BELOW and all(below))


def best_round(rounds: tuple[Figures, ...]) -> int | None:
    """Return the round with the best figure on the validation split, the first of several; None: none was measured."""
    measured = {int(r["round"]): r[VALIDATION] for r in rounds if r.get(VALIDATION) is not None}
    return max(measured, key=lambda number: (measured[number], -number)) if measured else None


KEPT_ROUNDS = 4  # the three that the server can resume from by default, and an unfinished one
_PARTS = ("adapter", "head", "optimizer")
_OPTIONAL = (  # written if there are such tensors
    "private",
    "received",
    "started",
    "orders",
    "trained",
    "beside",
    "exchanged",
    "personal",
    "control",
    "losses",
)
RECORD = "model.json"


@dataclass(frozen=True, kw_only=True)
class SiteState:
    """The state after one round.

    Args:
        round: number of the round, counted from 1.
        adapter: the site's own adapter, wire keys.
        head: the classifier's tensors.
        private: other trained tensors, which are never sent, by key.
        received: the global adapter of the round, if the next one is compared with it (`fedpeft.site.client_round`).
        started: the start of training, kept for the same purpose.
        orders: by place (r,), the order of the adapter's neurons against the received ones: its neuron order[j] is
            neuron j there; only places that differ. The optimizer's moments are in the order of the adapter.
        trained: the result of training, if the site keeps another adapter for the next round.
        beside: frozen tensors of the measured model beside the trained ones: the aligned global adapter, a received
            one, or the factors whose products are in the frozen weights.
        exchanged: head and private tensors of the exchanged model, if a personal one was measured, which then has
            `head`, `private` and `trained`.
        personal: tensors that a personalization needs in the next round (`fedpeft.site.loop.Personalization`).
        losses: by round, the course of the loss in it (`training.measure: steps`).
        control: tensors that SCAFFOLD needs in the next round (`fedpeft.site.scaffold`).
        changes: by layer, the score of its last change, if the score of layers uses it.
        agreement: of the site's training with the others', up to the round before; None: nothing was compared.
        optimizer: AdamW's moments and step counts, by parameter name.
        facts: must be equal when the state is read back, e.g. the digest of the answer vocabulary.
        record: of the model; None: the state contains only tensors.
    """

    round: int
    adapter: dict[str, torch.Tensor]
    head: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    private: dict[str, torch.Tensor] = field(default_factory=dict)
    received: dict[str, torch.Tensor] = field(default_factory=dict)
    started: dict[str, torch.Tensor] = field(default_factory=dict)
    orders: Mapping[str, torch.Tensor] = field(default_factory=dict)
    trained: dict[str, torch.Tensor] = field(default_factory=dict)
    beside: dict[str, torch.Tensor] = field(default_factory=dict)
    exchanged: dict[str, torch.Tensor] = field(default_factory=dict)
    personal: dict[str, torch.Tensor] = field(default_factory=dict)
    control: dict[str, torch.Tensor] = field(default_factory=dict)
    losses: dict[str, torch.Tensor] = field(default_factory=dict)
    changes: dict[int, float] = field(default_factory=dict)
    agreement: float | None = None
    facts: dict[str, str | int] = field(default_factory=dict)
    record: ModelRecord | None = None


def save(folder: Path, state: SiteState, *, best: int | None = None) -> Path:
    """Write the state of one round atomically, and remove all but the last `KEPT_ROUNDS` up to it, and the best one."""
    final = folder / round_name(state.round)
    with replacing(final) as draft:
        draft.mkdir(mode=0o700)  # the answers are in it in words
        for part in (*_PARTS, *(part for part in _OPTIONAL if getattr(state, part))):
            tensors = {key: tensor.contiguous() for key, tensor in getattr(state, part).items()}
            save_file(tensors, draft / f"{part}.safetensors")
        values = {"round": state.round, "facts": state.facts, "agreement": state.agreement}
        if state.changes:
            values["changes"] = {str(layer): value for layer, value in state.changes.items()}
        (draft / "state.json").write_text(json.dumps(values, sort_keys=True))
        if state.record:
            # not sorted: of PEFT's patterns of names the first that matches counts
            (draft / RECORD).write_text(json.dumps(record_as_json(state.record), indent=1))
    for old in [path for path in rounds_in(folder) if number_of(path) <= state.round][:-KEPT_ROUNDS]:
        if number_of(old) != best:
            drop(old)
    return final


def clear(folder: Path) -> None:
    """Remove the states of a run before another one begins in the same folder."""
    for path in rounds_in(folder):
        drop(path)


def load_before(folder: Path, round: int, *, facts: Facts | None = None) -> SiteState | None:
    """Load the newest complete state older than `round`, or None, so that a repeated round starts from the same state.

    If `facts` are given, a state with other facts is refused.
    """
    older = [path for path in rounds_in(folder) if number_of(path) < round]
    if not older:
        return None
    own = load(older[-1])
    if facts is not None and own.facts != facts:
        raise LocalError(
            f"the state of site {facts['site']} in {folder} belongs to other data, another backbone, another seed or "
            f"another site: remove that folder, or restore what the site had."
        )
    return own


def load(path: Path) -> SiteState:
    """Load the state in a round's folder."""
    try:
        values = read_json(path / "state.json")
        files = {part: path / f"{part}.safetensors" for part in (*_PARTS, *_OPTIONAL)}
        parts = {
            part: load_file(check_regular(file)) for part, file in files.items() if part in _PARTS or file.exists()
        }
        record = read_record(path / RECORD) if (path / RECORD).exists() else None
        round, facts, agreement = int(values["round"]), dict(values["facts"]), values["agreement"]
        changes = {int(layer): float(value) for layer, value in dict(values.get("changes", {})).items()}
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise LocalError(
            f"the site state {path} cannot be read ({error}): remove that folder to continue from the round before."
        ) from error
    return SiteState(round=round, facts=facts, agreement=agreement, changes=changes, record=record, **parts)


def read_record(file: Path) -> ModelRecord:
    """Read the record of a model.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not JSON.
        FedpeftError: it lacks a field, or has one of another type.
    """
    return build(ModelRecord, read_json(file), section=file.name)


Facts = dict[str, str | int]


def facts_of(site: str, data: SiteData, vocabulary: AnswerVocabulary, *, backbone: str, seed: int) -> Facts:
    """Return what a state must belong to: site, answers, examples, backbone and seed."""
    answers = hashlib.sha256("\n".join(vocabulary.answers).encode()).hexdigest()
    facts: Facts = {"site": site, "answers": answers, "examples": examples_digest(data), "backbone": backbone}
    return facts | {"train": len(data.train), "seed": seed}


def examples_digest(data: SiteData) -> str:
    """Return a digest of all examples without their images."""
    rows = [
        f"{split} {e.image_id} {e.question} {_target(e)}" for split, examples in data.splits().items() for e in examples
    ]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def images_digest(data: SiteData) -> str:
    """Return a digest of the bytes of all images, in the order of the examples: a file may change under its name."""
    images = {str(e.image_id): e.image for examples in data.splits().values() for e in examples}
    return hashlib.sha256("\n".join(map(_bytes_digest, images.values())).encode()).hexdigest()


def _bytes_digest(image: ImageSource) -> str:
    if isinstance(image, Path | str | ChosenImage):
        return digest(image.file if isinstance(image, ChosenImage) else Path(image))
    return hashlib.sha256(image.read() if isinstance(image, EncodedImage) else image.tobytes()).hexdigest()


def _target(example: Example) -> str:
    if example.labels is None:
        return example.answer
    return f"{'|'.join(example.labels)} not {'|'.join(example.unknown_labels)}"


@dataclass(frozen=True, kw_only=True)
class SiteRecord:
    """The facts of a site that are the same in all rounds.

    Args:
        site: the site's name.
        data: its splits.
        dataset: registered name of the data set.
        vocabulary: the classes of its head.
        backbone: name of the backbone.
        seed: of the training.
        sections: of the job; empty: there is none.
        window: gray window of the site's images (`fedpeft.data.settings`).
    """

    site: str
    data: SiteData
    dataset: str
    vocabulary: AnswerVocabulary
    backbone: str
    seed: int
    sections: Mapping[str, Any]
    window: Mapping[str, Any]

    @functools.cached_property
    def facts(self) -> Facts:
        """Facts that must be equal when a state is read back."""
        return facts_of(self.site, self.data, self.vocabulary, backbone=self.backbone, seed=self.seed)

    @functools.cached_property
    def images(self) -> str:
        """A digest of its images, computed at the first access."""
        return images_digest(self.data)

    def model_record(
        self, rounds: tuple[Figures, ...], *, thresholds: Sequence[float] | None, share: float
    ) -> ModelRecord:
        """Return the record of the model after a round."""
        texts = any(example.question for example in self.data.train)
        return ModelRecord(
            site=self.site,
            fedpeft=fedpeft.__version__,
            sections=self.sections,
            answers=self.vocabulary.answers,
            labelled=bool(self.data.labels),
            asks=texts and not self.data.labels,
            metric=self.data.metric,
            thresholds=None if thresholds is None else tuple(thresholds),
            share=share,
            window=self.window,
            procedural=is_procedural(self.dataset),
            tiny=backbones.is_tiny(self.backbone),
            source=self.data.source,
            samples={split: len(examples) for split, examples in self.data.splits().items()},
            rounds=rounds,
            spellings=self.data.spellings(),
            reads_text=texts,
        )
