# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's learner: combines backbone, adapters, head and data into the local half of a round.

A site's training process and a federation in one process both call this class, so both compute the same numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedpeft.answering.answering import Batch
from fedpeft.answering.training_settings import BEST, LINEAR, PERSONALIZATIONS, TrainingSettings
from fedpeft.backbones import BackboneSettings
from fedpeft.core.keys import HEAD, LayerNumbers, belongs, layer_numbers, layers_of, without_head
from fedpeft.core.metrics import BELOW_CONSTANT
from fedpeft.core.registry import imported
from fedpeft.core.seeds import derive
from fedpeft.core.states import State, copied, digest, equal
from fedpeft.data.answer_space import vocabulary_of
from fedpeft.data.remarks import baseline
from fedpeft.data.schema import Example, SiteData
from fedpeft.job.settings import SiteJob
from fedpeft.job.site_policy import SitePolicy
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.job_against_policy import admitted, load_data
from fedpeft.protocol.outgoing_reply import rounded_count
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.site import client_round, computing, site_state
from fedpeft.site.client_round import Mixed, compares_received, own_trained
from fedpeft.site.fedprox import held_near
from fedpeft.site.loop import (
    Evaluation,
    OnStep,
    build_optimizer,
    mean_loss,
    moments,
    no_step,
    rate_factor,
    restore_moments,
    train_epochs,
)
from fedpeft.site.metrics import Measure, Measured
from fedpeft.site.moon import contrasted
from fedpeft.site.scaffold import ControlVariates
from fedpeft.site.scoring import check_trains, compares_with_previous, measure_budget, score_changes, score_layers
from fedpeft.site.site_batches import SiteBatches
from fedpeft.site.site_model import RoundValues, SharedModels, SiteModel, head_state
from fedpeft.site.site_state import Facts, SiteRecord, SiteState, below_constant, best_round, with_round


@dataclass(frozen=True, slots=True)
class Update:
    """Result of a round: the upload (wire keys), n_k, and metrics on the site's own test split."""

    state: State
    samples: int
    metrics: dict[str, float | None]


class Learner:
    """Trains one site round by round; all state between rounds is on the site's disk.

    Args:
        site: the site's name.
        backbone: which foundation model.
        method: what is trained and how it is integrated.
        training: the local recipe.
        site_data: the site's splits.
        dataset: registered name of the data set.
        folder: the site's state folder.
        schedule: how layers are scored and how many the site may train; None: all layers, without scores.
        policy: the site policy; None in the simulator and in a notebook, where the job's settings apply.
        answers: the classes of a federated head, the same at all sites; None: the site's own answers.
        sections: of the job that these settings are from, kept with the site's state; None: there is no job.
        window: gray window of the site's images, kept there too (`fedpeft.data.settings`).
        shared: models of the other sites that take turns in this process; None: the site has one of its own.

    Attributes:
        constant: score of a constant answer on the test split; None: nothing can be measured.
        record: what the states of all rounds have in common.
        on_step: called after each step of a round, as `train_epochs` does.
        salt: part of every seed of the next round's training, secret in secure sums; empty: only the job's seed counts.

    Raises:
        FedpeftError: a setting is wrong, or the trained part is larger than the site allows.
    """

    def __init__(
        self,
        *,
        site: str,
        backbone: BackboneSettings,
        method: MethodSettings,
        training: TrainingSettings,
        site_data: SiteData,
        dataset: str,
        folder: Path,
        schedule: ScheduleSettings | None = None,
        policy: SitePolicy | None = None,
        answers: tuple[str, ...] | None = None,
        sections: Mapping[str, Any] | None = None,
        window: Mapping[str, Any] | None = None,
        shared: SharedModels | None = None,
    ) -> None:
        self.site, self.method, self.training, self.data, self.folder = site, method, training, site_data, folder
        self.salt, self._policy, self.vocabulary = "", policy, vocabulary_of(site_data, answers)
        self.on_step: OnStep = no_step
        self.dataset, self.backbone_name, self.schedule = dataset, backbone.name, schedule or ScheduleSettings()
        self.pia = method.pia if method.aligns else None
        if self.pia:
            method.registered.neuron_layout()  # fail now if a plugin's cannot be imported
        self.model = SiteModel(
            site=site,
            backbone=backbone,
            method=method,
            training=training,
            schedule=self.schedule,
            vocabulary=self.vocabulary,
            labelled=bool(site_data.labels),
            metric=site_data.metric,
            train=site_data.train,
            policy=policy,
            shared=shared,
        )
        self.device, self.backbone, self.trainable = self.model.device, self.model.backbone, self.model.trainable
        self.answering, self.head = self.model.answering, self.model.answering.head
        shapes = {key: tuple(tensor.shape) for key, tensor in self.trainable.state().items()}
        deepest = method.matched_layers if method.exchanges else None
        self._numbers = LayerNumbers.for_adapter(shapes, layers=self.backbone.num_layers, deepest=deepest)
        self.batches = SiteBatches(
            site,
            site_data,
            self.answering.collate,
            training,
            device=self.device,
            smallest=policy.min_batch_size if policy else 1,
            site_seed=policy.seed if policy else None,
        )
        least = {"min_images": policy.min_class_images, "min_samples": policy.min_test_samples} if policy else {}
        self.counted: dict[str, Any] = {"answers": self.vocabulary.answers, **least}  # in a figure, see `baseline`
        self.constant = baseline(site_data, **self.counted)
        self._evaluation = Evaluation(self.model, site_data, self.batches.draw, policy=policy)
        self.values = RoundValues(site, self.model, method)
        self._personalization = imported(PERSONALIZATIONS[training.personalization].home)
        self.record = SiteRecord(
            site=site,
            data=site_data,
            dataset=dataset,
            vocabulary=self.vocabulary,
            backbone=backbone.name,
            seed=training.seed,
            sections=sections or {},
            window=window or {},
        )

    @classmethod
    def from_sections(
        cls,
        sections: Mapping[str, Any],
        *,
        site: str,
        folder: str | Path,
        policy: SitePolicy | None = None,
        shared: SharedModels | None = None,
    ) -> Learner:
        """Build a learner from a job's sections `backbone`, `method`, `training`, `data` and `schedule`.

        Raises:
            FedpeftError: a setting is wrong, or the site does not allow it.
        """
        sections = copy.deepcopy(dict(sections))  # the caller may change them, for another learner
        job = SiteJob.from_sections(sections, site=site, policy=policy)
        job = admitted(policy, job) if policy else job
        return cls(
            site=site,
            backbone=job.backbone,
            method=job.method,
            training=job.training,
            site_data=load_data(policy, job),
            dataset=job.dataset,
            folder=Path(folder),
            schedule=job.schedule,
            policy=policy,
            answers=job.answers,
            sections=sections,
            window=job.data.window,
            shared=shared,
        )

    def first_state(self) -> State:
        """Return what this site begins with, before any data, for a server that asks for it."""
        if not self.method.exchanges:
            return {}
        head = head_state(self.values.first_head) if self.method.federates_head else {}
        return copied(self._numbers.renumber_to_send(self.values.first)) | head

    def start_digest(self) -> str:
        """Return the digest of `first_state` if all sites begin with the values of one; otherwise an empty text."""
        needed = self.method.starts_from_one(scheduled=self.schedule.active) or self.method.sums  # maybe at relays
        return digest(self.first_state()) if needed and not self.model.init_site else ""

    def train_round(
        self, round: int, received: State, layers: Iterable[int] | None = None, *, part: float = 0.0
    ) -> Update:
        """Start from the global adapter (and the site's own), train, evaluate, save the state, return the upload.

        Args:
            round: counted from 1; repeating a round gives the same result.
            received: the global adapter under wire keys, with the head if that is federated; empty: continue from the
                site's own.
            layers: train and upload these transformer layers only; None: all.
            part: weight of the site in the mean that made `received`; 0: it had none.
        """
        layers, received = layer_numbers(layers), self._numbers.received(received)
        own = self._own_state(round)
        torch.manual_seed(self.seed_for("train", round))
        first_head = self.model.drawn_head(self.seed_for("head", round)) if self.salt and own is None else None
        self.values.restore(own, received, folder=self.folder, first_head=first_head)
        given, received = bool(received), without_head(received)
        compares = self.pia is not None and self.pia.follows_agreement
        agree = partial(client_round.next_agreement, own, received, self.pia, round=round, part=part)
        agreed = agree(joined=round - 1 in self.schedule.joins.values()) if compares else None
        integration = self.integrate(round, own.adapter if own else None, received, agreed)
        own = integration.reordered(own, self.pia)
        near = integration.near | (head_state(self.head.state_dict()) if self.method.federates_head else {})
        held = near if given or (round == 1 and not self.model.init_site) else {}  # what sites have in common
        personal = self._personalization(self, round=round, own=own, near=near, held=held, layers=layers)
        scores_change = compares_with_previous(self.schedule)
        started = self.trainable.state() if compares or scores_change else {}
        started_private = self.trainable.private_state() if scores_change else {}
        self.trainable.train_only(layers)
        control = ControlVariates.start_round(self, round, own, near if received or round == 1 else {})
        optimizer, metrics = self._fitted(round, own, near, held, integration.mix, control)
        changed = self._changes(round, layers, started | started_private) if scores_change else {}
        trained = self.trainable.state()
        upload, kept, orders = integration.end(control.uncorrected(trained))
        beside, sent = self.model.beside(received), self._uploaded(upload, layers, control)
        metrics |= personal.train()
        measured = self.trainable.state()
        figures, thresholds = self._evaluation.measure_round()
        metrics |= figures
        rounds = with_round(own.record.rounds if own and own.record else (), round, metrics | integration.figures)
        metrics[BELOW_CONSTANT] = below_constant(rounds, self.constant)
        state = SiteState(
            round=round,
            adapter=kept,
            trained={} if equal(measured, kept) and not (orders and personal.exchanged) else measured,
            beside=beside.state,
            private=self.trainable.private_state(),
            head={key: value.detach().cpu() for key, value in self.head.state_dict().items()},
            optimizer=moments(optimizer),
            changes={**(own.changes if own else {}), **changed},
            exchanged=personal.exchanged,
            personal=personal.kept,
            control=control.kept,
            losses=site_state.courses_until(own, round, self._evaluation.course),
            agreement=agreed,
            facts=self.facts,
            record=self.record.model_record(rounds, thresholds=thresholds, share=beside.share),
            received=(received or self.values.first_in_common) if compares_received(self.pia, orders) else {},
            started=started if compares else {},
            orders=orders,
        )
        site_state.save(self.folder, state, best=best_round(rounds) if self.training.keep == BEST else None)
        personal.restore(trained)
        return Update(state=sent, samples=self.announced["train"], metrics=metrics)

    def _fitted(
        self, round: int, own: SiteState | None, near: State, held: State, mix: Mixed | None, control: ControlVariates
    ) -> tuple[torch.optim.Optimizer, dict[str, float | None]]:
        """Train a round's epochs with the terms that settings add to the loss; return optimizer and losses."""
        optimizer, named = self.optimizer(), self.parameters()
        if own is not None and self.training.optimizer_state == "keep":
            restore_moments(optimizer, self.values.moments(own, round))
        probe = partial(self.batches.lasting_sample, self.method.probe_samples)
        pull = held_near(named, optimizer, held, self.training.proximal_mu)
        with pull, own_trained(named, optimizer, mix), control.correcting(optimizer), contrasted(self, near, own):
            return optimizer, self._evaluation.measure_training(partial(self.fit, optimizer, round), probe)

    def _own_state(self, round: int) -> SiteState | None:
        """Return the site's newest state of an earlier round; None: it has none yet."""
        return site_state.load_before(self.folder, round, facts=self.facts)

    def _uploaded(self, upload: State, layers: Sequence[int] | None, control: ControlVariates) -> State:
        """Return what leaves the site: the trained layers of the adapter, and a federated head."""
        sent = {key: tensor for key, tensor in upload.items() if belongs(key, layers)} if self.method.exchanges else {}
        head = control.uncorrected(head_state(self.head.state_dict())) if self.method.federates_head else {}
        return self._numbers.renumber_to_send(sent) | head

    def score_layers(self, round: int, received: State) -> list[float]:
        """Score each layer of the global adapter, or of the site's own if there is none, on random training samples."""
        own, received = self._own_state(round), self._numbers.received(received)
        self.values.restore(own, received, folder=self.folder)
        self.trainable.set_companion(None)  # one of an earlier round may still be in the model
        kept = own.adapter if own else None
        self.trainable.start(self.values.adapter(round, kept, received), kept)
        return self._score(round, own)

    def score_trained(self, round: int) -> list[float]:
        """Score each transformer layer of the model that a round has just trained, on random training samples."""
        return self._score(round, self._own_state(round + 1) if compares_with_previous(self.schedule) else None)

    def _score(self, round: int, own: SiteState | None) -> list[float]:
        seed, samples = self._score_samples(round)
        self.trainable.train_only(None)
        parameters, changes = self.trainable.parameters(), own.changes if own else {}
        return score_layers(self.answering.eval(), parameters, samples, self.schedule, seed=seed, changes=changes)

    def _changes(self, round: int, layers: Sequence[int] | None, started: State) -> dict[int, float]:
        """Score what the training of these layers has just changed; `started` is what it started from."""
        seed, samples = self._score_samples(round)
        trained = {key: tensor for key, tensor in self.trainable.parameters().items() if belongs(key, layers)}
        return score_changes(self.answering.eval(), trained, samples, self.schedule, seed=seed, previous=started)

    def _score_samples(self, round: int) -> tuple[int, list[Batch]]:
        purpose = "score", self.site, round
        samples = self.batches.released_sample(self.schedule.score_samples, *purpose)
        return derive(self.training.seed, *purpose), samples

    def layer_budget(self) -> int:
        """Return how many layers this site can train, set by the job or measured; refuse 0 if nothing else trains."""
        if not self.schedule.active:
            return len(layers_of(self.trainable.parameters()))
        budget = self.schedule.budget_of(self.site, seed=self.training.seed)
        known = self._measured_budget() if budget is None else budget
        return check_trains(known, self.parameters(), site=self.site, measured=budget is None)

    def _measured_budget(self) -> int:
        training, parameters = self.training, self.trainable.parameters()
        batch = self.batches.largest_step(derive(training.seed, "budget", self.site))
        self.trainable.train_only(layers_of(parameters)[:1])  # with what trains beside any layer, and nothing else
        with computing.shortcuts(self.backbone, training):
            return measure_budget(self.answering.train(), parameters, batch, self.schedule, training)

    def finished(self, last: int) -> int:
        """Return the last round up to `last` with a state at this site; 0: none."""
        return own.round if (own := self._own_state(last + 1)) else 0

    @property
    def facts(self) -> Facts:
        """What a state of this site belongs to, with a digest of its examples; it never leaves the site."""
        return self.record.facts

    @property
    def announced(self) -> dict[str, int]:
        """The number of samples in each split as the server gets it; rounded if only sums may leave the site."""
        counts = {split: len(examples) for split, examples in self.data.splits().items()}
        if self._policy and self._policy.sum_with:
            return {split: rounded_count(count) for split, count in counts.items()}
        return counts

    @property
    def announced_classes(self) -> int:
        """The size of the label space as the server gets it: rounded as `announced`, unless all sites share it."""
        rounded = self._policy and self._policy.sum_with and not self.method.federates_head
        return rounded_count(len(self.vocabulary)) if rounded else len(self.vocabulary)

    @property
    def unanswerable(self) -> int:
        """Number of test questions that the site can never answer; they always count as wrong."""
        return self.answering.unanswerable(self.data.test)

    @property
    def questions(self) -> dict[str, int]:
        """Number of open and closed test questions."""
        closed = sum(example.closed for example in self.data.test)
        return {"open": len(self.data.test) - closed, "closed": closed}

    def evaluate(self, examples: Sequence[Example] | None = None) -> Measured:
        """Measure the current model (after a round with Ditto the exchanged one) on the test split, or on examples."""
        return self.measured(self.data.test if examples is None else examples).figures()

    def measured(self, examples: Sequence[Example]) -> Measure:
        """Answer examples, to measure the current model by the metric of the site's data."""
        return self._evaluation.measure(examples)

    def recognized(self) -> dict[str, tuple[int, int]]:
        """Return by class the test images and how many the last round recognized; empty without balanced accuracy."""
        return self._evaluation.recognized(self.vocabulary)

    def integrate(
        self, round: int, own: State | None, received: State, agreement: float | None = None
    ) -> client_round.Integration:
        """Load the start of a round from the site's adapter of its last round and the global one, if there are any."""
        probe = partial(self.probe, round)
        return client_round.start(
            self.trainable,
            own=own,
            first=self.values.first,
            received=self.values.adapter(round, own, received),
            settings=self.pia,
            share=client_round.share_in_round(self.pia, agreement, round=round, rounds=self.training.rounds),
            samples=client_round.Samples(probe=probe, validation=self.batches.validation, loss=self.loss),
        )

    def probe(self, round: int) -> list[Batch]:
        """Return the m random training samples whose activations align the global adapter."""
        return self.batches.sample(self.method.probe_samples, self.seed_for("probe", round))

    def loss(self, batches: Sequence[Batch], state: State) -> float:
        """Return the mean loss of an adapter with the current head, without dropout, over samples with a target."""
        self.trainable.load(state)
        with computing.shortcuts(self.backbone, self.training, self.model.features):
            return mean_loss(self.answering.eval(), batches)

    def optimizer(self) -> torch.optim.Optimizer:
        """Build the optimizer of all parameters that train now."""
        settings = self.training
        return build_optimizer(
            self.trainable.parameters().items(),
            ((f"head.{name}", parameter) for name, parameter in self.head.named_parameters()),
            kind=settings.optimizer,
            learning_rate=settings.learning_rate,
            head_learning_rate=settings.head_learning_rate or settings.learning_rate,
            weight_decay=settings.weight_decay,
        )

    def fit(self, optimizer: torch.optim.Optimizer, round: int) -> dict[str, float]:
        """Train the epochs of a round; return the mean losses."""
        settings, rows = self.training, self.batches.training(self.seed_for("order", round))
        first = self.schedule.first_round(self.site)
        total = len(rows) * settings.epochs_before(settings.rounds + 1, first=first)
        with computing.shortcuts(self.backbone, settings, self.model.features):
            return train_epochs(
                self.answering.train(),
                rows,
                optimizer,
                partial(rate_factor, total_steps=total, warmup=settings.warmup, decays=settings.decay == LINEAR),
                first_step=len(rows) * settings.epochs_before(round, first=first),
                epochs=settings.epochs_in(round, first=first),
                device=self.device,
                train_step=self.trainable.step,
                micro_batch=settings.micro_batch,
                on_step=self.on_step,
                on_loss=self._evaluation.note,
            )

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return all parameters that can train, by key."""
        return {**self.trainable.parameters(), **{f"{HEAD}{name}": p for name, p in self.head.named_parameters()}}

    def seed_for(self, purpose: str, round: int) -> int:
        return derive(self.training.seed, purpose, self.site, round, *filter(None, [self.salt]))
