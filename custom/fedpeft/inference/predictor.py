# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Build a site's model again from what it kept, and answer examples with it as the run did.

Instead of the site's own adapter it can predict with another one:

global                                the result of the run, which a simulator's workspace has
a run's folder, a downloaded job      its global.safetensors
a file *.safetensors                  the same; history.json or adapter/ beside it has its configuration
a folder with adapter_config.json     as PEFT, the server (adapter/) and fedpeft export write it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedpeft.alignment.factors import fresh_factors, is_factor
from fedpeft.alignment.low_rank import fitted, lower_ranks
from fedpeft.alignment.neurons import neurons_of
from fedpeft.alignment.settings import PIASettings
from fedpeft.answering.answering import Batch, Batches, Scored
from fedpeft.answering.training_settings import NONE, PERSONALIZATIONS
from fedpeft.backbones import BACKBONES, BackboneSettings, skeleton
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import MAX_HISTORY, check_regular, read_json
from fedpeft.core.keys import LayerNumbers, group_by_place, only_head, without_head
from fedpeft.core.settings import build
from fedpeft.core.states import State, first_misfit, select_keys
from fedpeft.core.workspace import GLOBAL_ADAPTER, HISTORY
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.readable import misfits
from fedpeft.data.remarks import cut_questions
from fedpeft.data.schema import Example
from fedpeft.inference.exported import BESIDE, EXCHANGED, is_exported
from fedpeft.inference.kept_model import KeptModel
from fedpeft.job.federation import site_backbone
from fedpeft.job.settings import CommonSettings
from fedpeft.methods import METHODS
from fedpeft.methods.adapters import read_config, read_state, tuning_of
from fedpeft.methods.setting_limits import check_strangers_settings
from fedpeft.methods.settings import MethodSettings
from fedpeft.methods.trainable import parameter_count
from fedpeft.report.status import PLACES, SIMULATED
from fedpeft.site import computing
from fedpeft.site.client_round import as_wide
from fedpeft.site.metrics import THRESHOLD, Measure, new_measure
from fedpeft.site.site_model import SiteModel, exchanged
from fedpeft.site.site_state import ModelRecord

if TYPE_CHECKING:
    from peft import PeftConfig

    from fedpeft.methods.slot_tuning import SlotTuning

GLOBAL, CONFIG, ADAPTER = "global", "adapter_config.json", "adapter"
CUT = (
    "The adapter in {} has rank {} and this site's model {}: it is cut to its best approximation, with which a round "
    "of this site would begin. The figures are not those of the whole adapter."
)
FOLDED = (
    "The adapter in {} has {} neurons in a place and this site's model {}: it is aligned to these by weights. "
    "The figures are not those of the whole adapter."
)
UNCHECKED = (
    "neither {1} nor {2}/ is beside {0}: whether its settings are this model's was not checked, only keys and shapes."
)


def find_adapter(named: str, run: Path) -> Path:
    """Return the PEFT folder or file of tensors that the user names, as in the module's list; `global` is in `run`."""
    path = Path(named)
    if named == GLOBAL:
        return _global_adapter_of(run)
    if path.is_file() or (path / CONFIG).is_file():
        return path
    if not path.is_dir():
        raise FedpeftError(
            f"--adapter is {named!r:.200}, which does not exist: name {GLOBAL!r}, a PEFT folder, or the folder of the "
            f"server's result."
        )
    for place in PLACES:
        if (path / place / GLOBAL_ADAPTER).is_file():
            return path / place / GLOBAL_ADAPTER
    raise FedpeftError(
        f"{path} holds neither {CONFIG} nor {GLOBAL_ADAPTER}: name a PEFT folder, or the folder of the server's result."
    )


def load_with_head(model: SiteModel, adapter: Path, method: MethodSettings, kept: KeptModel) -> None:
    """Load an adapter together with a site's head, and with what else the method keeps at the site.

    It is the model from which the site would start its next round, before FedPIA or FedALA mixes adapters. An adapter
    with a federated head brings its own.
    """
    _check_same_function(model, adapter, method, kept)
    received, state = _read_adapter(model, adapter), kept.state
    if not received:
        raise FedpeftError(f"{adapter} holds nothing, the sites of its run exchange nothing: leave --adapter out.")
    way = PERSONALIZATIONS[kept.record.sections["training"].get("personalization", NONE)]
    if kept.exported and way.models and state.head and not (state.exchanged or only_head(received)):
        raise FedpeftError(f"{kept.folder} lacks {EXCHANGED}, the head for another adapter: export the model again.")
    if broken := [key for key, tensor in received.items() if not tensor.isfinite().all()]:
        raise FedpeftError(f"{adapter} holds NaN or infinite values in {broken[0]}: take the adapter of another round.")
    own = model.trainable.state()
    chosen = without_head(received)
    # the server's tensors have the numbers of the deepest backbone's layers, some of which this one lacks
    if method.matched_layers is not None and chosen.keys() != own.keys():
        numbers = LayerNumbers.for_backbone(model.backbone.num_layers, method.matched_layers)
        chosen = numbers.received(select_keys(chosen, numbers.renumber_to_send(own)))
    try:
        if method.site_settings and method.aligns:
            chosen = as_wide(chosen, dict(state.adapter) or own, cast(PIASettings, method.pia))
        _check_fits(chosen, own, whole=not method.rule.unequal_ranks)
        if model.products:
            model.products.set(chosen)
            chosen = fresh_factors({**own, **{key: t for key, t in chosen.items() if not is_factor(key)}}, seed=0)
        elif method.rule.unequal_ranks:
            chosen = fitted(chosen, own)
        _check_fits(chosen, own)
        head, private = exchanged(state)
        model.trainable.load_private(private)
        model.trainable.start(chosen, dict(state.adapter) or None)
        model.answering.head.load_state_dict(only_head(received) or head)
    except (FedpeftError, RuntimeError, KeyError) as error:
        raise FedpeftError(
            f"{adapter} does not fit this model, method {method.name!r} on {model.backbone.family}: "
            f"{' '.join(str(error).split()):.200}: name an adapter of the same method, settings and backbone."
        ) from error


def _lower_widths(received: State, model: SiteModel) -> list[tuple[int, int]]:
    """Return numbers of neurons, of an adapter and of the model, at the places where the model has fewer."""
    own, found = model.trainable.state(), []
    for names in group_by_place(without_head(received)).values():
        neurons = neurons_of(names)
        if neurons is None or not own.keys() >= set(names.values()):
            continue
        theirs, ours = (neurons.width({name: state[key] for name, key in names.items()}) for state in (received, own))
        found += [(theirs, ours)] * (theirs > ours)
    return found


def _global_adapter_of(run: Path) -> Path:
    if not (run / SIMULATED).is_dir():
        raise FedpeftError(
            f"--adapter is {GLOBAL!r}, and {run} is no workspace of `fedpeft simulate`: download the server's result "
            f"and name its folder."
        )
    file = run / SIMULATED / GLOBAL_ADAPTER
    if not file.is_file():
        raise FedpeftError(f"the run in {run} has no global adapter: leave --adapter out.")
    return file


def read_tensors(file: Path) -> State:
    """Return the tensors of a file of the server under their keys in messages."""
    try:
        return load_file(check_regular(file))
    except (SafetensorError, OSError) as error:
        raise FedpeftError(f"{file} cannot be read ({error}): download the server's result again.") from error


def _read_adapter(model: SiteModel, adapter: Path) -> State:
    """Return the tensors of an adapter under their keys in messages."""
    if adapter.is_file():
        return read_tensors(adapter)
    return read_state(adapter, read_config(adapter), model.backbone.family)


def _check_same_function(model: SiteModel, adapter: Path, method: MethodSettings, kept: KeptModel) -> None:
    """Refuse an adapter that would compute something else in this model, as far as its files say."""
    from fedpeft.inference.same_function import alike, difference, frozen_model, frozen_model_of, reading_scales

    if (adapter / BESIDE).is_dir():
        raise FedpeftError(
            f"{adapter} holds a second adapter that runs beside the first, and one alone is another model: name that "
            f"folder itself as the model, or {GLOBAL!r} as the adapter."
        )
    family, record = model.backbone.family, kept.record
    if is_exported(adapter):
        own_backbone = site_backbone(record.sections["backbone"], record.site)
        theirs, ours = (
            frozen_model_of(adapter),
            frozen_model_of(kept.folder) if kept.exported else frozen_model(family, own_backbone),
        )
        if not alike(theirs, ours):
            raise FedpeftError(
                f"the adapter in {adapter} is for the model {theirs!r:.200}, and this one is {ours!r:.200}: name one "
                f"that was trained in the same, or call the folders of the same weights alike."
            )
    file, configs = _read_configs(adapter)
    own = model.trainable.peft_config()
    for config, mine in zip(configs, [own] if own else _configs(method, record.site), strict=False):
        if config.peft_type != mine.peft_type:
            kinds = [str(getattr(one.peft_type, "value", one.peft_type)) for one in (config, mine)]
            raise FedpeftError(
                f"the adapter in {adapter} is of PEFT's type {kinds[0]}, and this model's is {kinds[1]}: name one that "
                f"the same method has trained."
            )
        with reading_scales(file):
            found = difference(config, mine, family=family)
        if found := found or _other_places(config, mine, family):
            setting, theirs, ours = found
            raise FedpeftError(
                f"the adapter in {adapter} has {setting}={theirs!r:.80}, and this model {ours!r:.80}, so it would "
                f"compute something else: name one of the same settings."
            )


def _other_places(one: PeftConfig, other: PeftConfig, family: str) -> tuple[str, Any, Any] | None:
    """Return a slot for which two configurations name other modules, and these; None: there is none."""
    tuning = tuning_of(other)
    try:
        theirs, ours = tuning.templates(one, family), tuning.templates(other, family)
    except (FedpeftError, TypeError):  # of a configuration without roles, or of another's making
        return None
    slot = next((slot for slot, path in theirs.items() if ours.get(slot, path) != path), None)
    return None if slot is None else (f"target_modules.{slot}", theirs[slot], ours[slot])


def _file_beside(adapter: Path) -> Path:
    """Return the file, which may not exist, with the configurations of an adapter."""
    folder = adapter if adapter.is_dir() else adapter.parent / ADAPTER
    return folder / CONFIG if adapter.is_dir() or (folder / CONFIG).is_file() else adapter.parent / HISTORY


def _read_configs(adapter: Path) -> tuple[Path, list[PeftConfig]]:
    """Return the file beside an adapter and its configurations; empty if there is no file."""
    file = _file_beside(adapter)
    if file.name == CONFIG:
        return file, [read_config(file.parent)]
    if not file.is_file():
        return file, []
    try:
        method = read_json(file, max_bytes=MAX_HISTORY)["settings"]["method"]
        chosen = {name: method[name] for name in ("name", "settings")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedpeftError(f"{file} cannot be read ({error!r:.120}): take it from the run again.") from error
    described = build(MethodSettings, chosen, section="method", source=str(file))
    check_strangers_settings(described.settings_of(""), str(file))
    return file, _configs(described, site="")


def _configs(method: MethodSettings, site: str) -> list[PeftConfig]:
    """Return the configurations, in PEFT's form, of what a method trains, or of its parts that have one."""
    settings, name = method.settings_of(site), method.exported
    parts = {name: settings} if name else {part: settings.get(part, {}) for part in method.registered.parts}
    tunings = {part: cast("SlotTuning", METHODS.get(part).tuning()) for part in parts if METHODS.get(part).exports}
    return [tuning.config(tuning.peft_settings(parts[part])) for part, tuning in tunings.items()]


def _check_fits(adapter: State, own: State, *, whole: bool = True) -> None:
    """Refuse an adapter with other keys than the model's own, or with other shapes if these are compared."""
    misfit = first_misfit(adapter, {key: tuple(tensor.shape) for key, tensor in own.items()})
    if misfit and misfit.what == "keys":
        lacks = bool(misfit.missing)
        raise FedpeftError(f"it {'lacks' if lacks else 'has'} {(misfit.missing or misfit.unknown)[0]}")
    if misfit and (whole or misfit.what != "shape"):
        here, there = (tuple(state[misfit.key].shape) for state in (own, adapter))
        raise FedpeftError(f"{misfit.key} is of shape {there} and not {here}")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a model answers to an example."""

    example: Example  # with its answer, class or labels
    known: bool  # whether its answer, class or labels are known
    answers: Sequence[Scored]  # the most probable ones, the most probable first; of labels all
    # of labels, those whose probability reaches their threshold; None: there are no labels
    applies: tuple[str, ...] | None = None
    spellings: Mapping[str, str] = field(default_factory=dict)  # see `ModelRecord`
    # from an answer to another of the same tokens, which a ranking has chosen for both
    same: Mapping[str, str] = field(default_factory=dict)

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
        return bool(self.answers) and self.accepts(self.answers[0].text)

    def accepts(self, text: str) -> bool:
        """Return whether an answer is the example's, or one of its alternatives."""
        return text in {self.same.get(one, one) for one in (self.example.answer, *self.example.alternatives)}


class Predictor:
    """A site's model that answers, with its own adapter or the one of a PEFT folder or file."""

    def __init__(self, kept: KeptModel, adapter: Path | None = None) -> None:
        self.record, self._adapter = kept.record, adapter
        self._min_images = kept.min_class_images
        self.model = model_of(kept, adapter)
        answers, first = self.record.answers, getattr(self.model.answering, "first", ())
        self._same = {answers[number]: answers[one] for number, one in enumerate(first) if number != one}
        self.thresholds = dict.fromkeys(answers, THRESHOLD)
        if self.record.thresholds:
            self.thresholds = dict(zip(self.record.answers, self.record.thresholds, strict=True))

    def batches(self, examples: Sequence[Example]) -> Batches:
        """Return examples in the batches of an evaluation in training."""
        settings = self.model.training
        size = settings.evaluation_batch_size
        return Batches(examples, self.model.answering.collate, batch_size=size, workers=settings.workers)

    def remarks(self, examples: Sequence[Example]) -> tuple[str, ...]:
        """Return what a user should know first: cut texts, an adapter without configuration, a cut rank."""
        name = site_backbone(self.record.sections["backbone"], self.record.site)["name"]
        images = {example.image_id: example.image for example in examples}
        problems = {} if BACKBONES.get(name).any_size else misfits(images, self.model.backbone, name)
        for problem in problems.values():
            raise problem
        cut = cut_questions((example.question for example in examples), self.model.backbone)
        if not self._adapter:
            return tuple(cut)
        unchecked = not _file_beside(self._adapter).is_file()
        method = CommonSettings.from_sections(self.record.sections).method
        unequal = method.rule.unequal_ranks and not self.model.products
        ranks = lower_ranks(_read_adapter(self.model, self._adapter), self.model.trainable.state()) if unequal else []
        widths = _lower_widths(_read_adapter(self.model, self._adapter), self.model) if method.site_settings else []
        return (
            *cut,
            *([FOLDED.format(self._adapter, *max(widths))] if widths else []),
            *([UNCHECKED.format(self._adapter, HISTORY, ADAPTER)] if unchecked else []),
            *([CUT.format(self._adapter, *max(ranks))] if ranks else []),
        )

    def measure(self, unseen: int, rare: frozenset[int] = frozenset()) -> Measure:
        """Return an empty measure of the site's metric, with the thresholds of the run."""
        measure = new_measure(self.record.metric, labelled=self.record.labelled)
        measure.min_images, measure.rare, measure.unseen = self._min_images, rare, unseen
        measure.thresholds = self.record.thresholds
        return measure

    def predictions(
        self, examples: Sequence[Example], known: Sequence[bool], *, max_answers: int, measure: Measure | None = None
    ) -> Iterator[Prediction]:
        """Answer examples batch by batch, in their order, with at most `max_answers` of each; of labels all.

        `known` says whether the answer of each is known, as `measure` needs it.
        """
        if measure and not all(known):
            raise FedpeftError(
                "a measure needs the answer of every example: leave out those without one, or the measure."
            )
        done = 0
        for batch in self.batches(examples):
            for scored in self._answered(batch.to(self.model.device), max_answers, measure):
                yield self._prediction(examples[done], known[done], scored)
                done += 1

    @torch.inference_mode()
    def _answered(self, batch: Batch, max_answers: int, measure: Measure | None) -> list[list[Scored]]:
        model = self.model
        with computing.shortcuts(model.backbone, model.training, model.features):
            answering = model.answering.eval()
            if measure:
                measure.add(answering, batch)
            return answering.answers(batch, max_answers)

    def _prediction(self, example: Example, known: bool, scored: Sequence[Scored]) -> Prediction:
        applies = None
        if self.record.labelled:
            applies = tuple(sorted(s.text for s in scored if s.probability >= self.thresholds[s.text]))
        return Prediction(
            example=example,
            known=known,
            answers=scored,
            applies=applies,
            spellings=self.record.spellings,
            same=self._same,
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
        policy=kept.policy,
    )
    if adapter:
        load_with_head(model, adapter, method, kept)
    else:
        model.restore(kept.state)
    return model


def _check_size(kept: KeptModel, backbone: BackboneSettings, method: MethodSettings) -> None:
    """Refuse settings of an export that make a larger adapter than it holds, before memory is taken for it."""
    check_strangers_settings(method.settings_of(kept.record.site), f"the export {kept.folder}")
    held = sum(tensor.numel() for tensor in kept.state.adapter.values())
    empty = skeleton(backbone.name, backbone.source)
    made = parameter_count(empty, method.registered.tuning(), method.settings_of(kept.record.site)).trained
    if made > held:
        raise FedpeftError(
            f"the settings of the export {kept.folder} make an adapter of {made:,} parameters, it holds {held:,}: "
            f"export the model again."
        )


def _check_sections(record: ModelRecord) -> None:
    for name in ("backbone", "method", "training"):
        if not isinstance(record.sections.get(name), dict):
            raise FedpeftError(f"the model of site {record.site} has no section {name!r}: train again with a job.")
