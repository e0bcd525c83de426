# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's model: a backbone with a method's tensors in it, and a way to answer with its features.

Learner, predictions and doctor all build their model here, so that all compute the same numbers.

A round starts from the global values, the site's own of the round before, or its first ones. The tensors of a head that
is averaged over the sites travel beside the adapter's, under `head.<parameter>`.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedpeft import answering as ways
from fedpeft import backbones
from fedpeft.alignment.factors import FrozenProducts, fresh_factors, is_factor, product_pairs
from fedpeft.alignment.low_rank import fitted
from fedpeft.answering.answering import Answering
from fedpeft.answering.training_settings import BALANCED, TrainingSettings
from fedpeft.backbones.matrices import matrices, seen_in_float32
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.keys import HEAD, only_head, without_head
from fedpeft.core.seeds import derive
from fedpeft.core.settings import about
from fedpeft.core.states import State
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example
from fedpeft.job import catalog
from fedpeft.job.settings import check_schemes
from fedpeft.job.site_policy import SitePolicy
from fedpeft.methods.settings import MethodSettings
from fedpeft.methods.trainable import Beside, connector_of, parameter_count, with_connector
from fedpeft.protocol.job_against_policy import check_parameters
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.site import computing
from fedpeft.site.kept_features import drops
from fedpeft.site.metrics import check_metric
from fedpeft.site.site_state import SiteState

if TYPE_CHECKING:
    from fedpeft.backbones.images import EncodedImages


class SharedModels:
    """Models of a process in which several sites take turns: equal ones are built once, with one frozen backbone.

    A site has a head of its own and loads all trained values before it computes; nothing of another site is left.

    Args:
        images: store of the outputs of frozen image encoders, for several runs of a process (`training.features_mib`);
            None: each model keeps its own.
    """

    def __init__(self, images: EncodedImages | None = None) -> None:
        self.images = images
        self._models: dict[str, SiteModel] = {}

    def like(self, built_from: Mapping[str, Any]) -> SiteModel | None:
        """Return the model that was built from these settings; None: there is none yet."""
        return self._models.get(_text_of(built_from))

    def keep(self, model: SiteModel, built_from: Mapping[str, Any]) -> None:
        """Keep a model for the sites that follow."""
        self._models[_text_of(built_from)] = model


def _text_of(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, default=str)  # of PEFT's patterns of names the first that matches counts


class SiteModel:
    """A site's model with its first values.

    Args:
        site: the site's name.
        backbone: which foundation model.
        method: what is trained.
        training: how it answers and computes.
        schedule: of layers.
        vocabulary: the site's answers or labels, or those of a federated head.
        labelled: whether its images have labels.
        metric: of its data; empty: nobody has looked at them yet.
        train: the training split, whose classes `training.class_weights` counts; empty: nothing is trained.
        policy: the site policy; None in the simulator and in a notebook.
        shared: models of the other sites of this process; None: this site has one of its own.

    Raises:
        FedpeftError: a setting is wrong, or the trained part is larger than the site allows.
    """

    def __init__(
        self,
        *,
        site: str,
        backbone: backbones.BackboneSettings,
        method: MethodSettings,
        training: TrainingSettings,
        schedule: ScheduleSettings,
        vocabulary: AnswerVocabulary,
        labelled: bool,
        metric: str,
        train: Sequence[Example] = (),
        policy: SitePolicy | None = None,
        shared: SharedModels | None = None,
    ) -> None:
        torch.set_num_threads(training.threads)
        # a batch's few questions take longer on many threads, most of all beside other sites
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.training, self.vocabulary = training, vocabulary
        # in a notebook there is no job that was checked before
        method.check_schedule(active=schedule.active, joins=schedule.joins)
        check_schemes(method, training, joins=schedule.joins)
        self.device = computing.device_of(training)
        self._labelled, self._own_head = labelled, not method.federates_head
        own_start = method.initialization == "own" or site in schedule.joins
        self.init_site = (
            site if own_start else ""
        )  # the site whose seed draws the first values; empty: all sites have one
        own = method.settings_of(site)
        sections = {"training": asdict(training), "schedule": asdict(schedule), "backbone": asdict(backbone)}
        built_from = {**sections, "method": method.name, "own": own, "start": self.init_site, "labelled": labelled}
        self._shares = shared is not None and not own_start and ways.get(training.answering).head
        like = shared.like(built_from) if shared and self._shares else None
        if like is None:
            self._build(backbone, method, own, schedule, policy)
        else:
            self._take_over(like)
        with about("training"):
            self.answering = self._answering(derive(training.seed, "head", site if self._own_head else ""))
            if train and training.class_weights == BALANCED:
                self.answering.weigh(train)
            if like is None:
                computing.keep_frozen(self.backbone, training, self._weights, self.device, method)
            self.answering.to(self.device)
            if metric:
                check_metric(metric, self.answering)
            if like is None:
                self._set_up(schedule, shared.images if shared else None)
        if like is None:
            self.products = FrozenProducts(self.trainable.products()) if method.rule.stacks else None
            if shared and self._shares:
                shared.keep(self, built_from)
        self._check_trained(method)

    @property
    def own_bytes(self) -> int:
        """Memory of the backbone that no other site uses; 0: all sites of the process share it."""
        tensors = chain(self.backbone.parameters(), self.backbone.buffers())
        return 0 if self._shares else sum(tensor.nbytes for tensor in tensors)

    def _build(
        self,
        backbone: backbones.BackboneSettings,
        method: MethodSettings,
        own: Mapping[str, Any],
        schedule: ScheduleSettings,
        policy: SitePolicy | None,
    ) -> None:
        """Build the backbone with the method's tensors in it."""
        with about("backbone"):
            self.backbone = backbones.build(
                backbone,
                half=computing.reads_half(self.training, method.registered, own),
                download=policy is None or policy.download,
            )
            connector = connector_of(self.backbone, backbone)
        tuning = method.registered.tuning()
        with about("method.settings"):
            if policy:
                beside = sum(parameter.numel() for parameter in connector.values())
                check_parameters(policy, method, parameter_count(self.backbone, tuning, own).trained + beside)
            self._weights = matrices(self.backbone.model)
            seed = derive(self.training.seed, "adapter", self.init_site)
            # PEFT's use of transformers
            with warnings.catch_warnings(action="ignore", category=FutureWarning), seen_in_float32(self._weights):
                self.trainable = with_connector(tuning.prepare(self.backbone, own, seed=seed), connector)
        self._check_start(method)
        self.first, self.first_private = self.trainable.state(), self.trainable.private_state()

    def _check_start(self, method: MethodSettings) -> None:
        """Refuse first values that the aggregation would discard, or that sites do not share."""
        if method.rule.stacks and (asked := self.trainable.started_by()):
            raise FedpeftError(
                f"{asked} asks for first values, and aggregation={method.aggregation!r} draws new factors in every "
                f"round, whose products are 0: leave it out.",
                setting="method.settings",
            )
        apart = method.site_settings or self.init_site
        if apart and method.exchanges and (changed := self.trainable.changed_by()):
            raise FedpeftError(
                f"{changed} takes the first values of an adapter out of the frozen weights, and those of sites of "
                f"another rank or start differ then: leave it out.",
                setting="method.settings",
            )

    def _set_up(self, schedule: ScheduleSettings, images: EncodedImages | None) -> None:
        """Prepare the model to compute as `training` says."""
        computing.set_up(self.backbone, self.training)
        if self.training.reuse_passes:
            self.trainable.reuse_passes()
            if drops(self.backbone):
                raise FedpeftError(
                    "reuse_passes is true, and dropout makes the features of every pass other ones: leave it out.",
                    setting="training.reuse_passes",
                )
        self.features = computing.kept_features(
            self.backbone, self.trainable, self.training, some_layers=schedule.active, images=images
        )

    def _take_over(self, like: SiteModel) -> None:
        """Take the backbone of another site's model, with first values in all trained parameters."""
        self.backbone, self.trainable, self.features = like.backbone, like.trainable, like.features
        self.products, self.first, self.first_private = like.products, like.first, like.first_private
        self.trainable.set_companion(None)
        self.trainable.load(self.first)
        self.trainable.load_private(self.first_private)
        if self.products:
            self.products.set({})

    def _check_trained(self, method: MethodSettings) -> None:
        """Refuse a way of answering without a head if only a head would train, or be averaged."""
        if any(True for _ in self.answering.head.parameters()):
            return
        name = self.training.answering
        if method.federates_head:
            raise FedpeftError(
                f"head is 'federated', and with training.answering={name!r} there is none: leave it out.",
                setting="method.head",
            )
        if not self.trainable.parameters():
            raise FedpeftError(catalog.without_head(method.name, name), setting="method.name")

    def _answering(self, seed: int) -> Answering:
        generator = torch.Generator().manual_seed(seed)
        return ways.build(self.backbone, self.vocabulary, self.training, generator, labelled=self._labelled)

    def drawn_head(self, seed: int) -> State:
        """Return first values of the site's head from another seed; empty if it is federated, or there is none."""
        if not self._own_head or not self.answering.head.state_dict():
            return {}
        return {key: value.detach().cpu() for key, value in self._answering(seed).head.state_dict().items()}

    def beside(self, received: State) -> Beside:
        """Return the tensors of the measured model that are frozen in this round."""
        return Beside(dict(received)) if self.products else self.trainable.beside()

    def restore(self, state: SiteState) -> None:
        """Load the model that was measured at the end of a round."""
        beside = Beside(state.beside, state.record.share if state.record else 0.0)
        try:
            self.answering.head.load_state_dict(state.head)
            self.trainable.load_private(state.private)
            if self.products:
                self.products.set(beside.state)
                beside = Beside({})
            self.trainable.restore(state.trained or state.adapter, beside)
        except (RuntimeError, KeyError) as error:
            raise FedpeftError(
                f"the tensors of round {state.round} do not fit this model ({error!r:.200}): name the folder of a run "
                f"that this version of fedpeft wrote."
            ) from error


def head_state(head: Mapping[str, Tensor]) -> State:
    """Return copies of a head's tensors on the CPU, under their keys in messages."""
    return {f"{HEAD}{name}": tensor.detach().cpu().clone() for name, tensor in head.items()}


def exchanged(own: SiteState) -> tuple[State, State]:
    """Return head and private tensors of the model that a site exchanges, even if it measured a personal one."""
    if own.exchanged:
        return only_head(own.exchanged), without_head(own.exchanged)
    return own.head, own.private


class RoundValues:
    """Loads the start of each round into a model, which is built with first values."""

    def __init__(self, site: str, model: SiteModel, method: MethodSettings) -> None:
        self._site, self._model = site, model
        self._unequal_ranks = method.rule.unequal_ranks
        pairs = [] if method.rule.averages else product_pairs(model.first)
        self._new_in_every_round = {key for pair in pairs for key in (pair.down, *pair.ups)}
        self.first, self._first_private = model.first, model.first_private
        self._exchanged = set(model.first) if method.exchanges else set()
        self.first_head = {k: value.detach().cpu().clone() for k, value in model.answering.head.state_dict().items()}
        self._exchanged |= {f"{HEAD}{name}" for name in self.first_head} if method.federates_head else set()

    @property
    def first_in_common(self) -> State:
        """The first adapter if all sites have the same; empty: this site has one of its own."""
        return {} if self._model.init_site else self.first

    def restore(self, own: SiteState | None, received: State, *, folder: Path, first_head: State | None = None) -> None:
        """Load the head, the global one if it is federated, and the tensors that never leave the site.

        They come from the site's state after its last round, or from the received global values. `first_head` replaces
        the first values that the head was built with; `folder`, of the state, is for errors.
        """
        first = first_head or self.first_head
        head, private = exchanged(own) if own else (first, self._first_private)
        self._model.answering.head.load_state_dict(only_head(received) or head)
        try:
            self._model.trainable.load_private(private)
        except FedpeftError as error:
            raise LocalError(
                f"the state of site {self._site} in {folder} is not of this method ({error}): remove that folder."
            ) from error

    def adapter(self, round: int, own: State | None, received: State) -> State:
        """Return the global adapter as this site can load it; without one, that of its last round, or its first one.

        New factors are drawn with the seed of the round, counted from 1.
        """
        received = without_head(received)
        if products := self._model.products:
            products.set(received)
            start = {**self.first, **{key: t for key, t in (received or own or {}).items() if not is_factor(key)}}
            seed = derive(self._model.training.seed, "adapter", self._model.init_site, round)
            return fresh_factors(start, seed, start_std=self._model.trainable.start_std)
        if self._unequal_ranks and received:
            return fitted(received, self.first)
        return received or own or self.first

    def moments(self, own: SiteState, round: int) -> State:
        """Return the optimizer's moments of the last round that still apply.

        Those of factors that every round draws anew do not, nor those of exchanged tensors if the site missed a round.
        """
        gone = self._new_in_every_round | (self._exchanged if own.round != round - 1 else set())
        return {key: tensor for key, tensor in own.optimizer.items() if key.rpartition("/")[0] not in gone}
