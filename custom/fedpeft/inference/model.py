# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Build a site's model again from what it kept, and answer examples with it as the run did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fedpeft.answering.answering import Batch, Batches, Scored
from fedpeft.backbones import BACKBONES, BackboneSettings, skeleton
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.readable import misfits
from fedpeft.data.remarks import cut_questions
from fedpeft.data.schema import Example
from fedpeft.inference.global_adapter import load_with_head
from fedpeft.inference.kept_model import KeptModel
from fedpeft.job.federation import site_backbone
from fedpeft.job.settings import CommonSettings
from fedpeft.methods.settings import MethodSettings
from fedpeft.methods.trainable import parameter_count
from fedpeft.site import computing
from fedpeft.site.metrics import THRESHOLD, Measure, new_measure
from fedpeft.site.site_model import SiteModel
from fedpeft.site.site_state import ModelRecord


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a model says of an example.

    Args:
        example: with its answer, class or labels.
        known: whether these are known.
        answers: the most probable ones, the most probable first; of labels all.
        applies: of labels, those whose probability reaches their threshold; None: there are no labels.
        spellings: see `ModelRecord`.
    """

    example: Example
    known: bool
    answers: Sequence[Scored]
    applies: tuple[str, ...] | None = None
    spellings: Mapping[str, str] = field(default_factory=dict)

    def spelled(self, text: str) -> str:
        """Return an answer, class or label as the site writes it."""
        return self.spellings.get(text, text)

    @property
    def right(self) -> bool | None:
        """Whether the first answer is accepted, or the labels are the example's; None: unknown."""
        if not self.known:
            return None
        if self.applies is not None:
            unknown = set(self.example.unknown_labels)
            return set(self.applies) - unknown == set(self.example.labels or ())
        return bool(self.answers) and self.answers[0].text in (self.example.answer, *self.example.alternatives)


class Predictor:
    """A site's model that answers.

    Args:
        kept: what the site kept.
        adapter: a PEFT folder or a file that is predicted with; None: the site's own adapter.
    """

    def __init__(self, kept: KeptModel, adapter: Path | None = None) -> None:
        self.record = kept.record
        self._min_images = kept.policy.min_class_images if kept.policy else 1
        self.model = model_of(kept, adapter)
        self.thresholds = dict.fromkeys(self.record.answers, THRESHOLD)
        if self.record.thresholds:
            self.thresholds = dict(zip(self.record.answers, self.record.thresholds, strict=True))

    def batches(self, examples: Sequence[Example]) -> Batches:
        """Return examples in the batches of an evaluation in training."""
        settings = self.model.training
        size = settings.evaluation_batch_size
        return Batches(examples, self.model.answering.collate, batch_size=size, workers=settings.workers)

    def remarks(self, examples: Sequence[Example]) -> tuple[str, ...]:
        """Return what a user should know of examples before they are answered: whether texts are cut."""
        name = site_backbone(self.record.sections["backbone"], self.record.site)["name"]
        images = {example.image_id: example.image for example in examples}
        problems = {} if BACKBONES.get(name).any_size else misfits(images, self.model.backbone, name)
        for problem in problems.values():
            raise problem
        return tuple(cut_questions((example.question for example in examples), self.model.backbone))

    def measure(self, unseen: int) -> Measure:
        """Return an empty measure of the site's metric, with the thresholds of the run."""
        measure = new_measure(self.record.metric, labelled=self.record.labelled)
        measure.min_images, measure.unseen, measure.thresholds = self._min_images, unseen, self.record.thresholds
        return measure

    def predictions(
        self, examples: Sequence[Example], known: Sequence[bool], *, max_answers: int, measure: Measure | None = None
    ) -> Iterator[Prediction]:
        """Answer examples batch by batch.

        Args:
            examples: in the order of the predictions.
            known: of each, whether its answer is known.
            max_answers: answers of each; labels are all listed.
            measure: gets every batch, where all answers are known.
        """
        done = 0
        for batch in self.batches(examples):
            for scored in self._answered(batch.to(self.model.device), max_answers, measure):
                yield self._prediction(examples[done], known[done], scored)
                done += 1

    @torch.inference_mode()
    def _answered(self, batch: Batch, max_answers: int, measure: Measure | None) -> list[list[Scored]]:
        model = self.model
        with computing.as_trained(model.backbone, model.training, model.features):
            answering = model.answering.eval()
            if measure:
                measure.add(answering, batch)
            return answering.answers(batch, max_answers)

    def _prediction(self, example: Example, known: bool, scored: Sequence[Scored]) -> Prediction:
        applies = None
        if self.record.labelled:
            applies = tuple(sorted(s.text for s in scored if s.probability >= self.thresholds[s.text]))
        return Prediction(
            example=example, known=known, answers=scored, applies=applies, spellings=self.record.spellings
        )


def model_of(kept: KeptModel, adapter: Path | None = None) -> SiteModel:
    """Build a site's model with the tensors of a round; layers are not compiled, which differs by rounding."""
    record, sections = kept.record, kept.record.sections
    _check_sections(record)
    method, training, schedule = CommonSettings.from_sections(sections)
    training = replace(training, compile=False)
    if kept.policy and training.device == "auto":
        training = replace(training, device=kept.policy.device)
    backbone = build(BackboneSettings, site_backbone(sections["backbone"], record.site), section="backbone")
    if kept.exported:
        _check_size(kept, backbone, method)
    model = SiteModel(
        site=record.site,
        backbone=backbone,
        method=method,
        training=training,
        schedule=schedule,
        vocabulary=AnswerVocabulary(record.answers),
        labelled=record.labelled,
        metric=record.metric,
    )
    if adapter:
        load_with_head(model, adapter, method, kept.state)
    else:
        model.restore(kept.state)
    return model


def _check_size(kept: KeptModel, backbone: BackboneSettings, method: MethodSettings) -> None:
    """Refuse settings of an export that make a larger adapter than it holds, before memory is taken for it."""
    held = sum(tensor.numel() for tensor in kept.state.adapter.values())
    empty = skeleton(backbone.name, backbone.source)
    made = parameter_count(empty, method.method.tuning(), method.settings_of(kept.record.site)).trained
    if made > held:
        raise FedpeftError(
            f"the settings of the export {kept.folder} make an adapter of {made:,} parameters, it holds {held:,}: "
            f"export the model again."
        )


def _check_sections(record: ModelRecord) -> None:
    for name in ("backbone", "method", "training"):
        if not isinstance(record.sections.get(name), dict):
            raise FedpeftError(f"the model of site {record.site} has no section {name!r}: train again with a job.")
