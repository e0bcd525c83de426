# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check a job against the site policy, and replace the job's values by the site's.

Settings are checked before anything is loaded, the amount of data before anything is trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedpeft import answering, data, importance
from fedpeft.alignment.settings import VALIDATION
from fedpeft.answering.training_settings import BALANCED
from fedpeft.backbones import BACKBONES, default_source
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.settings import MAX_BY, MIN_BY, unmet
from fedpeft.data import DataSettings, SiteData
from fedpeft.data.answer_space import keep_listed_answers
from fedpeft.data.partition import centralized
from fedpeft.data.registry import DATASETS
from fedpeft.data.schema import balancing
from fedpeft.data.settings import NATURAL
from fedpeft.job.site_policy import SitePolicy
from fedpeft.methods.setting_limits import refused_settings
from fedpeft.protocol.outgoing_reply import probe_size, rounded_count
from fedpeft.scheduling.settings import ALL
from fedpeft.scheduling.settings import OWN as OWN_LAYERS

if TYPE_CHECKING:
    from fedpeft.job.settings import SiteJob
    from fedpeft.methods.settings import MethodSettings

NOT_ALLOWED, TOO_FEW = "setting-not-allowed", "data-too-few"
MIN_STEPS = 4  # of an epoch where only a sum may leave: with fewer, the secret order of the samples changes little
SECTIONS = ("training", "method", "schedule", "backbone", "data")
# of `data`, from the policy
SITE_VALUES = ("seed", "validation_fraction", "test_fraction", "unreadable")
# that no site policy can allow
NEVER = {f"data.{name}" for name in ("root", "pool", "partition", "samples", "train_share", "exclude")}

Refusals = Iterator[tuple[str, str]]


def refusals(policy: SitePolicy, job: SiteJob) -> Refusals:
    """Yield every setting of a job that the site policy forbids, with the reason for the site's own log."""
    for rule in RULES:
        yield from rule(policy, job)


def remedy(setting: str, file: str | Path = "local/fedpeft.json of this site") -> str:
    """Return what to do about a setting that `refusals` names, where the site policy is that file."""
    return "change the job." if setting in {*NEVER, "method.settings"} else f"change the job, or {file}."


def _data_rule(policy: SitePolicy, job: SiteJob) -> Refusals:
    chosen = job.data
    if chosen.dataset not in policy.datasets:
        yield "data.dataset", f"is {chosen.dataset!r}, datasets has {_listed(policy.datasets)}"
    if chosen.root is not None:
        yield "data.root", "is set: a job names a data set, and this site's roots or FEDPEFT_DATA say where it is"
    if chosen.pool:
        yield "data.pool", "is set: a site trains on its own data, pooled data are for the simulator"
    if chosen.partition != NATURAL:
        yield "data.partition", "is set: a site trains on all of its own data, partitions are for the simulator"
    for name in ("samples", "train_share"):
        if getattr(chosen, name) != getattr(DataSettings, name):
            yield f"data.{name}", "is set: a site trains on all of its own data, a part of them is for the simulator"
    if chosen.columns and chosen.columns != policy.columns:
        yield "data.columns", "is set: only this site decides what is read as question and answer, columns names them"
    if chosen.window and chosen.window != policy.window:
        yield "data.window", "is set: only this site decides which window of its images is shown, window says it"
    if chosen.exclude:
        yield "data.exclude", "is set: only this site decides which images are excluded"
    if chosen.site not in (job.site, policy.site):
        yield "data.site", f"is {chosen.site!r:.60}, the data know this site as {policy.site or job.site!r}"
    if chosen.split not in policy.splits:
        yield "data.split", f"is {chosen.split!r}, splits has {_listed(policy.splits)}"


def _cut_and_answer_rule(policy: SitePolicy, job: SiteJob) -> Refusals:
    chosen, listed, default = job.data, policy.answers.get(job.data.dataset, ()), DataSettings()
    if data.is_procedural(chosen.dataset):
        return
    if chosen.answers and set(chosen.answers) != set(listed):
        has = f"another list of {len(listed)}" if listed else "none"
        yield (
            "data.answers",
            f"names {len(chosen.answers)} answers, and answers of this site's policy has {has} for {chosen.dataset!r}: "
            f"a list that only the job knows would ask which answers this site has, so name the same ones there",
        )
    for name in SITE_VALUES:
        value, own = getattr(chosen, name), getattr(policy, name)
        if value not in (getattr(default, name), own):
            yield f"data.{name}", f"is {value!r}, here it is {own!r}"


def _backbone_rule(policy: SitePolicy, job: SiteJob) -> Refusals:
    chosen = job.backbone
    if chosen.name not in policy.backbones:
        yield "backbone.name", f"is {chosen.name!r}, backbones has {_listed(policy.backbones)}"
    if chosen.source is not None and chosen.source not in (default_source(chosen.name), *policy.sources):
        yield "backbone.source", f"is {chosen.source!r:.120}, which sources does not list"
    default_image_source = BACKBONES.get(chosen.name).default_image_source
    if chosen.image_source is not None and chosen.image_source not in (default_image_source, *policy.sources):
        yield "backbone.image_source", f"is {chosen.image_source!r:.120}, which sources does not list"
    tokens = chosen.text_length + len((chosen.prompt or "").encode())  # a byte is at most one token
    if chosen.prompt and tokens > policy.max_text_length:
        yield "backbone.prompt", f"makes {tokens} tokens at most, max_text_length is {policy.max_text_length}"


def _amount_rule(policy: SitePolicy, job: SiteJob) -> Refusals:
    """Compare each number with the limits of the site policy that its field names (`fedpeft.core.settings.within`)."""
    for section in SECTIONS:
        settings = getattr(job, section)
        for field in fields(settings):
            highest, lowest = field.metadata.get(MAX_BY), field.metadata.get(MIN_BY)
            value = getattr(settings, field.name)
            if value is None or unmet(type(settings), vars(settings), field.name):
                continue
            if highest and value > getattr(policy, highest):
                yield f"{section}.{field.name}", f"is {value!r}, {highest} is {getattr(policy, highest)!r}"
            if section == "schedule" and not job.schedule.scored:
                continue  # where no layer is scored, too few samples of it reveal nothing
            if lowest and value < getattr(policy, lowest):
                yield f"{section}.{field.name}", f"is {value!r}, {lowest} is {getattr(policy, lowest)!r}"
    asked = job.schedule.score_samples
    if job.schedule.scored and (scored := probe_size(asked, asked)) < policy.min_score_samples <= asked:
        why = f"is {asked}, of which a site scores the power of two below, {scored}"
        yield "schedule.score_samples", f"{why}, and min_score_samples is {policy.min_score_samples}"


def _training_rule(policy: SitePolicy, job: SiteJob) -> Refusals:
    name, method = job.method.name, job.method
    if name not in policy.methods:
        yield "method.name", f"is {name!r}, methods has {_listed(policy.methods)}"
        return
    if job.training.images_mib is None and job.training.kept_images_mib > policy.max_kept_mib:
        kept = f"{job.training.kept_images_mib:g} MiB of images are kept, max_kept_mib is {policy.max_kept_mib:g}"
        yield "training.images_mib", f"is left out, with which {kept}"
    if job.training.answering not in policy.answering:
        yield "training.answering", f"is {job.training.answering!r:.60}, answering has {_listed(policy.answering)}"
    measured = method.aligns and method.pia.client and (method.pia.accept or method.pia.share == VALIDATION)
    if measured and (policy.sum_with or not policy.metrics):
        hidden = "only sums leave (sum_with)" if policy.sum_with else "metrics is false"
        yield "method.pia", f"has the site choose by losses (share, accept), which show in what it sends, and {hidden}"
    for why in refused_settings(method.settings_of(job.site), method.registered.limits):
        yield "method.settings", f"{why} for {name}, which no job may set at a site"


def _machine_rule(policy: SitePolicy, job: SiteJob) -> Refusals:
    if job.training.compile and not policy.compile:
        yield "training.compile", "is true, which runs this machine's compiler, and compile is false"
    devices = {"auto", "cpu", policy.device} | ({"cuda"} if policy.device == "auto" else set())
    if job.training.device not in devices:
        yield "training.device", f"is {job.training.device!r:.60}, this site trains on {policy.device!r}"


def _sum_rule(policy: SitePolicy, job: SiteJob) -> Refusals:
    method = job.method
    if policy.sum_with:
        for setting in job.single_sites:
            yield setting, "is set: what differs between single sites shows one site's part of a sum, or of two"
        if method.aligns and method.pia.follows_agreement:
            yield "method.pia", "has share='agreement', for which the server sends a number to each site by itself"
    if method.exchanges and method.secure_sum != bool(policy.sum_with):
        named = f"sum_with has {', '.join(policy.sum_with) or 'no sites'}"
        yield "method.secure_sum", f"is {method.secure_sum}, {named}"
    if (method.secure_sum or policy.sum_with) and job.schedule.active:
        yield "schedule.solver", f"is {job.schedule.solver!r}, and with secure sums no layer scores leave"


def _leaving_rule(policy: SitePolicy, job: SiteJob) -> Refusals:
    if job.training.scaffold and not policy.scaffold:
        yield "training.scaffold", "is true, with which the server moves the model between steps, and scaffold is false"
    if job.method.federates_head and not policy.head:
        yield "method.head", "is 'federated', with which the classifier leaves this site, and head is false"
    if job.backbone.trains_connector and job.method.exchanges and not policy.connector:
        yield (
            "backbone.projection",
            f"is {job.backbone.projection!r}, with which the projection leaves this site, and connector is false",
        )
    if job.schedule.scored and not policy.scores:
        yield "schedule.solver", f"is {job.schedule.solver!r}, which needs layer scores, and scores is false"


def _schedule_rule(policy: SitePolicy, job: SiteJob) -> Refusals:
    of_scores = (("score", policy.score_methods),) if job.schedule.scored else ()
    of_solver = (("solver", (ALL, OWN_LAYERS, *policy.solvers)),) if job.schedule.active else ()
    for setting, allowed in (*of_scores, *of_solver):
        if (name := getattr(job.schedule, setting)) not in allowed:
            yield f"schedule.{setting}", f"is {name!r:.60}, allowed here are {', '.join(allowed)}"
    first = job.schedule.first_round(job.site)
    epochs = job.training.epochs_in(first, first=first)
    if first > 1 and epochs > policy.max_local_epochs:
        yield (
            "schedule.joins",
            f"has this site train {epochs} epochs in round {first}, as many as the others have had, max_local_epochs "
            f"is {policy.max_local_epochs}",
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


RULES = (
    _data_rule,
    _cut_and_answer_rule,
    _backbone_rule,
    _amount_rule,
    _training_rule,
    _machine_rule,
    _sum_rule,
    _leaving_rule,
    _schedule_rule,
)


def admitted(policy: SitePolicy, job: SiteJob) -> SiteJob:
    """Check a job and replace its values by the site's own."""
    for setting, why in refusals(policy, job):
        raise FedpeftError(f"{setting} {why}: {remedy(setting)}", setting=setting, code=NOT_ALLOWED)
    own = {} if data.is_procedural(job.data.dataset) else {name: getattr(policy, name) for name in SITE_VALUES}
    root, site = policy.roots.get(job.data.dataset), policy.site or job.site
    if "columns" in DATASETS.get(job.data.dataset).takes:
        own["columns"] = policy.columns
    if "window" in DATASETS.get(job.data.dataset).takes:
        own["window"] = policy.window
    chosen = replace(job.data, root=root, site=site, **own)
    device = policy.device if job.training.device == "auto" else job.training.device
    return replace(job, data=chosen, training=replace(job.training, device=device))


def check_parameters(policy: SitePolicy, method: MethodSettings, count: int) -> None:
    """Refuse a job that trains more parameters than the site policy allows."""
    if count > policy.max_trained_parameters:
        setting = "method.settings" if method.settings_of("") else "method.name"
        raise FedpeftError(
            f"{setting} asks for {count:,} trained parameters, max_trained_parameters is "
            f"{policy.max_trained_parameters:,}: change the job, or local/fedpeft.json of this site.",
            setting=setting,
            code=NOT_ALLOWED,
        )


def load_data(policy: SitePolicy | None, job: SiteJob, *, trains: bool = True) -> SiteData:
    """Load a site's data, without excluded images and answers that the head lacks, and check that they are enough.

    At a site with a policy no job that `trains` leaves out an image by its choice of a backbone.
    """
    from fedpeft.data.readable import fitting  # imports Pillow, which a site's FLARE process does not need

    without = policy.exclude if policy else ()
    parts = [data.load(part, without=without) for part in job.pooled or (job.data,)]
    loaded = centralized(job.site, parts) if job.pooled else parts[0]
    for answers in (policy.answers.get(job.data.dataset) if policy else None, job.answers):
        loaded = keep_listed_answers(loaded, answers) if answers else loaded
    unreadable = None if policy and trains else job.data.unreadable
    loaded = fitting(loaded, job.backbone, unreadable, download=policy is None or policy.download)
    if policy is None:
        return loaded
    _check_counts(policy, job, loaded)
    if policy.sum_with and job.method.exchanges:
        _check_steps(job, len(loaded.train))
    if job.schedule.scored:
        _check_score_rows(policy, job, loaded)
    return loaded


def _check_counts(policy: SitePolicy, job: SiteJob, loaded: SiteData) -> None:
    evenly = BALANCED in (job.training.sampling, job.training.class_weights)
    counts = {
        "min_train_samples": effective_size(balancing(loaded.train)) if evenly else len(loaded.train),
        "min_train_images": len({example.image_id for example in loaded.train}),
        "min_answers": loaded.answers_in_training,
        "min_test_samples": len(loaded.test),
    }
    if job.schedule.scored:
        counts["min_score_samples"] = _scored_samples(job, loaded)
    counts["min_batch_size"] = min(len(loaded.train), job.training.batch_size)
    pia = job.method.pia
    if job.method.aligns and pia.client:
        if pia.share == VALIDATION:
            counts["min_validation_samples"] = len(loaded.validation)
        if pia.compares_activations or pia.accept:
            counts["min_probe_samples"] = min(len(loaded.train), job.method.probe_samples)
    for name, count in counts.items():
        if count < getattr(policy, name):
            weighed = evenly and name == "min_train_samples"
            raise LocalError(
                f"{name} is {getattr(policy, name)}, these data have {count}"
                f"{', where the job has all classes count alike' * weighed}: this site takes no part in this job.",
                code=TOO_FEW,
            )


def effective_size(weights: Sequence[float]) -> int:
    """Return how many samples of equal weight a weighted mean is worth, `(sum_i w_i)^2 / sum_i w_i^2`.

    Source: Kish 1965, Survey Sampling.
    """
    # rounding of the sums must not lower the result by one
    return int(sum(weights) ** 2 / sum(weight**2 for weight in weights) + 1e-6) if weights else 0


def _scored_samples(job: SiteJob, loaded: SiteData) -> int:
    return probe_size(job.schedule.score_samples, len(loaded.train))


def _check_steps(job: SiteJob, samples: int) -> None:
    announced, size = rounded_count(samples), job.training.batch_size  # a refusal may reveal only this number
    if announced < MIN_STEPS * size:
        raise FedpeftError(
            f"training.batch_size is {size}, and with sum_with at least {MIN_STEPS} batches must be in about "
            f"{announced} training samples: lower it to {announced // MIN_STEPS}.",
            setting="training.batch_size",
            code=NOT_ALLOWED,
        )


def _check_score_rows(policy: SitePolicy, job: SiteJob, loaded: SiteData) -> None:
    samples, outputs = _scored_samples(job, loaded), len(job.answers or loaded.labels)
    if not loaded.labels and not answering.get(job.training.answering).head:
        outputs = _rounded_up(max(len(example.answer.encode()) for example in loaded.train) + 2)  # begin and end
    elif not outputs:
        outputs = _rounded_up(loaded.answers_in_training)
    settings = importance.method_settings(job.schedule.score, job.schedule.score_settings)
    rows = settings.rows(samples, outputs) if hasattr(settings, "rows") else samples
    if rows > policy.max_score_rows:
        raise FedpeftError(
            f"schedule.score {job.schedule.score!r} asks for {rows:,} rows of {samples} samples and {outputs} outputs, "
            f"max_score_rows is {policy.max_score_rows:,}: lower schedule.score_samples, or take fewer directions.",
            setting="schedule.score_settings",
            code=NOT_ALLOWED,
        )


def _rounded_up(count: int) -> int:
    """Return the next power of two: exact numbers in refusals of several jobs would reveal an answer's length."""
    return 1 << (count - 1).bit_length()
