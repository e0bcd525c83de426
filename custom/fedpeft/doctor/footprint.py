# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Measure what one site of a job needs: memory for a training step, and disk for its state between rounds.

On CUDA one step runs with the job's whole batch, and the allocator's peak is read. Without a GPU two steps run, with
one and with two examples; what backpropagation stores is read from autograd and extrapolated to the job's batch. Images
are square and questions have the maximum length. The model is the one that the learner trains; if a schedule assigns
layers, all of them train in the measured step, since a site may score all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import psutil
import torch

from fedpeft import answering as ways
from fedpeft import backbones
from fedpeft.alignment.settings import PIASettings
from fedpeft.answering.training_settings import BEST, PERSONALIZATIONS
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import MACRO_F1
from fedpeft.core.settings import about
from fedpeft.core.states import State
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.registry import DATASETS
from fedpeft.data.schema import Example
from fedpeft.doctor.context import Context, DataFacts
from fedpeft.importance.memory_budget import layer_memory
from fedpeft.importance.registry import MemorySettings
from fedpeft.job.settings import SiteJob
from fedpeft.job.site_policy import SitePolicy
from fedpeft.methods.settings import MethodSettings
from fedpeft.methods.trainable import Trainable, parameter_count
from fedpeft.site import computing
from fedpeft.site.client_round import compares_received
from fedpeft.site.kept_features import MIB
from fedpeft.site.loop import KEPT_TENSORS
from fedpeft.site.metrics import check_metric
from fedpeft.site.site_model import SiteModel
from fedpeft.site.site_state import KEPT_ROUNDS

# a site's answers or labels are known only where its data are; heads are small compared with the rest
STAND_INS = [f"answer {number}" for number in range(500)]
BUFFERS = 1.25  # temporary buffers that autograd does not store; ViLT-B/32 with a batch of 16: up to a fifth


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Memory and disk in bytes."""

    process: int  # with libraries, backbone, kept features and images, in main memory
    weights: int  # backbone and trained parameters, on the device
    step: int  # additional memory of a training step, on the device
    state: int  # of the site, on disk
    device: str
    method: str  # how `step` was measured, in words
    lower: str = "training.batch_size"  # the setting that `step` follows


def largest(context: Context) -> str:
    """Return the site whose model needs most, by layers, sizes of inputs and what it trains; of equals the first."""
    sections = context.job.sections
    if not sections["backbone"].get("sites") and not sections["method"].get("site_settings"):
        return context.sites[0]

    def size(site: str) -> tuple[float, ...]:
        job = context.at(site)
        empty = backbones.skeleton(job.backbone.name, job.backbone.source, download=context.downloads)
        own = job.method.settings_of(site)
        trained = parameter_count(empty, job.method.registered.tuning(), own).trained
        return empty.num_layers, job.backbone.image_size or empty.image_size or 0, job.backbone.text_length, trained

    return max(context.sites, key=size)


def footprint(
    job: SiteJob, *, policy: SitePolicy | None = None, data: Mapping[str, DataFacts] | None = None
) -> Footprint:
    """Build the network of a site that allows the job, and measure its footprint; no policy: in the simulator.

    `data` has the facts of loaded data by site: the network must answer and be measured as they need it.
    """
    training, method = job.training, job.method
    declared, data = DATASETS.get(job.dataset).metric, data or {}
    facts = data.get(job.site) or DataFacts(declared == MACRO_F1, job.data.metric or declared)
    vocabulary = AnswerVocabulary(job.answers or STAND_INS)
    sample = Example(np.zeros((1, 1, 3), dtype=np.uint8), "", vocabulary.answers[-1], closed=False, image_id="")
    model = SiteModel(
        site=job.site,
        backbone=job.backbone,
        method=method,
        training=training,
        schedule=job.schedule,
        vocabulary=vocabulary,
        labelled=facts.labelled,
        metric=facts.metric,
        train=(sample,),  # for the weights of classes, if the job asks for them
        policy=policy,
    )
    _check_others(model, {site: other for site, other in data.items() if other != facts})
    device, body, answering = model.device, model.trainable, model.answering.train()
    trained = [*body.parameters().values(), *answering.head.parameters()]
    size = model.backbone.image_size

    def step(examples: int) -> float:
        image = np.zeros((size, size, 3), dtype=np.uint8)
        example = replace(sample, image=image, question="word " * job.backbone.text_length)
        batch = answering.collate([image] * examples, [example] * examples).to(device)
        memory = MemorySettings(optimizer_tensors=KEPT_TENSORS[training.optimizer])
        fixed, costs = layer_memory(
            lambda rows: answering(rows.inputs),
            {0: trained},
            batch,
            lambda logits, rows: answering.loss(logits, rows.target, reduction="none"),
            model=answering,
            settings=memory,
        )
        return fixed + float(costs.sum())

    # the last samples of an epoch join the batch before if the site policy asks for more in a step
    whole = training.batch_size + (min(policy.min_batch_size, training.batch_size) - 1 if policy else 0)
    at_once = min(training.micro_batch or whole, whole) + whole * training.reuse_passes
    try:
        with computing.shortcuts(model.backbone, training, model.features):
            if device.type == "cuda":
                needed, how = step(at_once), f"measured with a batch of {at_once}"
            else:
                one, two = step(1), step(2)
                needed = (one + (at_once - 1) * (two - one)) * BUFFERS
                how = f"extrapolated from batches of 1 and 2 to {at_once}"
    except torch.OutOfMemoryError:
        needed = math.inf
    lower = "training.micro_batch" if training.micro_batch and not training.reuse_passes else "training.batch_size"
    if not math.isfinite(needed):
        raise FedpeftError(f"a batch of {at_once} does not fit on {device}: lower {lower}.")
    kept = sum(p.numel() * p.element_size() for p in trained) * (1 + KEPT_TENSORS[training.optimizer])
    scheme = PERSONALIZATIONS[training.personalization]
    pia = cast(PIASettings, method.pia) if method.aligns else None
    received, began = compares_received(pia, {}), bool(pia and pia.follows_agreement)
    # control variates, the last global adapter and what was trained; the received adapter and what training began with
    copies = scheme.adapters + 3 * training.scaffold + received + began
    return Footprint(
        process=psutil.Process().memory_info().rss + round((training.features_mib + training.kept_images_mib) * MIB),
        weights=sum(p.numel() * p.element_size() for p in answering.parameters()),
        step=round(needed),
        state=(kept * (1 + scheme.models) + copies * _bytes(body.state()) + _beside(body, method))
        * (KEPT_ROUNDS + (training.keep == BEST)),
        device=str(device),
        method=how,
        lower=lower,
    )


def _check_others(model: SiteModel, data: Mapping[str, DataFacts]) -> None:
    """Refuse sites whose data cannot be answered or measured as the job says; all heads are built on one backbone."""
    answering = {model.answering.labelled: model.answering}
    for site, (labelled, metric) in data.items():
        with about("training.answering", where=f"site {site}"):
            if labelled not in answering:
                parts = (model.backbone, model.vocabulary, model.training, torch.Generator())
                answering[labelled] = ways.build(*parts, labelled=labelled)
            check_metric(metric, answering[labelled])


def _beside(body: Trainable, method: MethodSettings) -> int:
    """Return the bytes that a site keeps of a round, beside what it trains, to build its model again."""
    state = body.beside().state
    if method.aligns and method.pia.client and method.pia.form.second_branch:
        state = state | {f"{part} {key}": tensor for part in ("own", "frozen") for key, tensor in body.state().items()}
    return _bytes(state)


def _bytes(state: State) -> int:
    return sum(tensor.nbytes for tensor in state.values())
