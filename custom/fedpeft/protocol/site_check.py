# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check a job against a site's own file, and replace the job's values by the site's.

Settings are checked before anything is loaded, the amount of data before anything is trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from fedpeft import answering, data, importance
from fedpeft.alignment.settings import VALIDATION
from fedpeft.backbones import usual_source
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.data import DataSettings, SiteData
from fedpeft.data.answer_space import with_answers
from fedpeft.data.partition import centralized
from fedpeft.data.registry import DATASETS
from fedpeft.data.settings import NATURAL
from fedpeft.job.site_policy import SitePolicy
from fedpeft.methods.setting_limits import refused_settings
from fedpeft.protocol.released_metrics import rounded_count
from fedpeft.scheduling.settings import ALL
from fedpeft.scheduling.settings import OWN as OWN_LAYERS

if TYPE_CHECKING:
    from fedpeft.job.site_job import SiteJob
    from fedpeft.methods.settings import MethodSettings

NOT_ALLOWED, TOO_FEW = "setting-not-allowed", "data-too-few"
MIN_STEPS = 4  # of an epoch where only a sum may leave: in fewer, the secret order of the samples changes little
MAX = {
    "training.rounds": "most_rounds",
    "training.local_epochs": "most_local_epochs",
    "training.first_epochs": "most_local_epochs",
    "training.batch_size": "most_batch_size",
    "training.evaluation_batch_size": "most_batch_size",
    "training.learning_rate": "most_learning_rate",
    "training.head_learning_rate": "most_learning_rate",
    "training.weight_decay": "most_weight_decay",
    "training.threads": "most_threads",
    "training.workers": "most_workers",
    "training.features_mib": "most_kept_mib",
    "training.images_mib": "most_kept_mib",
    "method.probe_samples": "most_probe_samples",
    "schedule.score_samples": "most_score_samples",
    "backbone.image_size": "most_image_size",
    "backbone.text_length": "most_text_length",
    "data.train_size": "most_samples",
    "data.validation_size": "most_samples",
    "data.test_size": "most_samples",
}
MIN = {"training.batch_size": "least_batch_size", "method.probe_samples": "least_probe_samples"}
SCORED = {"schedule.score_samples": "least_score_samples"}  # where layers are scored at all
OWN = ("seed", "validation_fraction", "test_fraction", "unreadable")  # of `data`


def refusals(policy: SitePolicy, job: SiteJob) -> Iterator[tuple[str, str]]:
    """Yield every setting of a job that a site's file does not allow, with the reason for the site's own log."""
    yield from _of_data(policy, job)
    if job.backbone.name not in policy.backbones:
        yield "backbone.name", f"is {job.backbone.name!r}, backbones has {', '.join(policy.backbones) or 'none'}"
    source = job.backbone.source
    if source is not None and source not in (usual_source(job.backbone.name), *policy.sources):
        yield "backbone.source", f"is {source!r:.120}, which sources does not list"
    tokens = job.backbone.text_length + len(job.backbone.prompt or "")  # a character is at most one token
    if job.backbone.prompt and tokens > policy.most_text_length:
        yield "backbone.prompt", f"makes {tokens} tokens at most, most_text_length is {policy.most_text_length}"
    for setting, limit in MAX.items():
        value, most = _value(job, setting), getattr(policy, limit)
        if value is not None and value > most:
            yield setting, f"is {value!r}, {limit} is {most!r}"
    for setting, limit in (MIN | SCORED if job.schedule.scored else MIN).items():
        value, least = _value(job, setting), getattr(policy, limit)
        if value < least:
            yield setting, f"is {value!r}, {limit} is {least!r}"
    yield from _of_training(policy, job)
    if policy.sum_with:
        for setting in job.single_sites:
            yield setting, "is set: what differs between single sites shows one site's part of a sum, or of two"
        if job.method.aligns and job.method.pia.follows_agreement:
            yield "method.pia", "has share='agreement', for which the server sends a number to each site by itself"
    if job.method.exchanges and job.method.secure_sum != bool(policy.sum_with):
        named = f"sum_with has {', '.join(policy.sum_with) or 'no sites'}"
        yield "method.secure_sum", f"is {job.method.secure_sum}, {named}"
    if (job.method.secure_sum or policy.sum_with) and job.schedule.active:
        yield "schedule.solver", f"is {job.schedule.solver!r}, and with secure sums no layer scores leave"
    if job.method.federates_head and not policy.head:
        yield "method.head", "is 'federated', and head is off: with it the classifier leaves this site, set it to true"
    devices = {"auto", "cpu", policy.device} | ({"cuda"} if policy.device == "auto" else set())
    if job.training.device not in devices:
        yield "training.device", f"is {job.training.device!r:.60}, this site trains on {policy.device!r}"
    if job.schedule.active:
        yield from _of_schedule(policy, job)
    if job.schedule.scored and not policy.scores:
        yield "schedule.solver", f"is {job.schedule.solver!r}, which needs layer scores, and scores is off"


def _value(job: SiteJob, setting: str) -> float | None:
    section, name = setting.split(".")
    return getattr(getattr(job, section), name)


def _of_training(policy: SitePolicy, job: SiteJob) -> Iterator[tuple[str, str]]:
    name = job.method.name
    if name not in policy.methods:
        yield "method.name", f"is {name!r}, methods has {', '.join(policy.methods) or 'none'}"
        return
    if job.training.answering not in policy.answering:
        allowed = ", ".join(policy.answering) or "none"
        yield "training.answering", f"is {job.training.answering!r:.60}, answering has {allowed}"
    if job.training.compile and not policy.compile:
        yield "training.compile", "is true, and compile is off: with it this machine's compiler runs, set it to true"
    measured = job.method.aligns and (job.method.pia.accept or job.method.pia.share == VALIDATION)
    if measured and (policy.sum_with or not policy.metrics):
        yield "method.pia", "has the site choose by losses (share, accept), which show in what it sends; metrics is off"
    for why in refused_settings(job.method.settings_of(job.site), job.method.method.limits):
        yield "method.settings", f"{why} for {name}, which no job may set at a site"


def _of_schedule(policy: SitePolicy, job: SiteJob) -> Iterator[tuple[str, str]]:
    of_scores = (("score", policy.score_methods),) if job.schedule.scored else ()
    for setting, allowed in (*of_scores, ("solver", (ALL, OWN_LAYERS, *policy.solvers))):
        if (name := getattr(job.schedule, setting)) not in allowed:
            yield f"schedule.{setting}", f"is {name!r:.60}, allowed here are {', '.join(allowed)}"


def _of_data(policy: SitePolicy, job: SiteJob) -> Iterator[tuple[str, str]]:
    chosen = job.data
    if chosen.dataset not in policy.datasets:
        yield "data.dataset", f"is {chosen.dataset!r}, datasets has {', '.join(policy.datasets) or 'none'}"
    if chosen.root is not None:
        yield "data.root", "is set: a job names a data set, and this site's roots or FEDPEFT_DATA say where it is"
    if chosen.pool:
        yield "data.pool", "is set: a site trains on its own data, pooled data are for the simulator"
    if chosen.partition != NATURAL:
        yield (
            "data.partition",
            "is set: a site trains on all of its own data, partitions are for the simulator",
        )
    if chosen.samples is not None:
        yield "data.samples", "is set: a site trains on all of its own data, a part of them is for the simulator"
    if chosen.columns and chosen.columns != policy.columns:
        yield "data.columns", "is set: only this site decides what is read as question and answer, columns names them"
    if chosen.window and chosen.window != policy.window:
        yield "data.window", "is set: only this site decides which window of its images is shown, window says it"
    if chosen.exclude:
        yield "data.exclude", "is set: only this site decides which images are excluded"
    if chosen.site not in (job.site, policy.site):
        yield "data.site", f"is {chosen.site!r:.60}, the data know this site as {policy.site or job.site!r}"
    if chosen.split not in policy.splits:
        yield "data.split", f"is {chosen.split!r}, splits has {', '.join(policy.splits) or 'none'}"
    if data.is_procedural(chosen.dataset):
        return
    listed = policy.answers.get(chosen.dataset, ())
    if chosen.answers and set(chosen.answers) != set(listed):
        has = f"another list of {len(listed)}" if listed else "none"
        yield (
            "data.answers",
            f"names {len(chosen.answers)} answers, and answers of this site's file has {has} for {chosen.dataset!r}: a "
            f"list that only the job knows would ask which answers this site has, so name the same ones there",
        )
    usual = DataSettings()
    for name in OWN:
        value, own = getattr(chosen, name), getattr(policy, name)
        if value not in (getattr(usual, name), own):
            yield f"data.{name}", f"is {value!r}, here it is {own!r}"


def admitted(policy: SitePolicy, job: SiteJob) -> SiteJob:
    """Check a job and replace its values by the site's own.

    Raises:
        FedpeftError: the job asks for more than the file allows; names the first such setting.
    """
    for setting, why in refusals(policy, job):
        raise FedpeftError(
            f"{setting} {why}: change the job, or local/fedpeft.json of this site.", setting=setting, code=NOT_ALLOWED
        )
    own = {} if data.is_procedural(job.data.dataset) else {name: getattr(policy, name) for name in OWN}
    root, site = policy.roots.get(job.data.dataset), policy.site or job.site
    if "columns" in DATASETS.get(job.data.dataset).takes:
        own["columns"] = policy.columns
    if "window" in DATASETS.get(job.data.dataset).takes:
        own["window"] = policy.window
    chosen = replace(job.data, root=root, site=site, **own)
    device = policy.device if job.training.device == "auto" else job.training.device
    return replace(job, data=chosen, training=replace(job.training, device=device))


def check_parameters(policy: SitePolicy, method: MethodSettings, count: int) -> None:
    """Refuse a job that trains more parameters than the file allows.

    Args:
        policy: the site's own file.
        method: of the job.
        count: number of trained parameters without the head.

    Raises:
        FedpeftError: names the setting.
    """
    if count > policy.most_trained_parameters:
        setting = "method.settings" if method.settings_of("") else "method.name"
        raise FedpeftError(
            f"{setting} asks for {count:,} trained parameters, most_trained_parameters is "
            f"{policy.most_trained_parameters:,}: change the job, or local/fedpeft.json of this site.",
            setting=setting,
            code=NOT_ALLOWED,
        )


def load_data(policy: SitePolicy | None, job: SiteJob) -> SiteData:
    """Load a site's data without what it excludes or the head does not know, and check that there are enough samples.

    Args:
        policy: the site's own file; None in the simulator, where the job's settings apply.
        job: as `admitted` returned it.

    Raises:
        DataError: the data cannot be read.
        LocalError: there are fewer than the site's file requires.
    """
    from fedpeft.data.readable import fitting  # it imports Pillow, which a site's FLARE process does not need

    without = policy.exclude if policy else ()
    parts = [data.load(part, without=without) for part in job.pooled or (job.data,)]
    loaded = centralized(job.site, parts) if job.pooled else parts[0]
    for answers in (policy.answers.get(job.data.dataset) if policy else None, job.answers):
        loaded = with_answers(loaded, answers) if answers else loaded
    loaded = fitting(loaded, job.backbone, job.data.unreadable, download=policy is None or policy.download)
    if policy is None:
        return loaded
    counts = {
        "least_train_samples": len(loaded.train),
        "least_train_images": len({example.image_id for example in loaded.train}),
        "least_answers": loaded.answers_in_training,
        "least_test_samples": len(loaded.test),
    }
    if job.schedule.scored:
        counts["least_score_samples"] = min(len(loaded.train), job.schedule.score_samples)
    if job.method.aligns and job.method.pia.share == VALIDATION:
        counts["least_validation_samples"] = len(loaded.validation)
    for name, count in counts.items():
        if count < getattr(policy, name):
            raise LocalError(
                f"{name} is {getattr(policy, name)}, these data have {count}: this site takes no part in this job.",
                code=TOO_FEW,
            )
    if policy.sum_with and job.method.exchanges:
        _check_steps(job, len(loaded.train))
    if job.schedule.scored:
        outputs = len(job.answers or loaded.labels) or counts["least_answers"]
        if not loaded.labels and not answering.get(job.training.answering).head:
            outputs = max(len(example.answer.encode()) for example in loaded.train) + 2  # tokens, begin and end
        _check_score_rows(policy, job, samples=counts["least_score_samples"], outputs=outputs)
    return loaded


def _check_steps(job: SiteJob, samples: int) -> None:
    announced, size = rounded_count(samples), job.training.batch_size  # the refusal must tell nothing else
    if announced < MIN_STEPS * size:
        raise FedpeftError(
            f"training.batch_size is {size}, and with sum_with at least {MIN_STEPS} batches must be in about "
            f"{announced} training samples: lower it to {announced // MIN_STEPS}.",
            setting="training.batch_size",
            code=NOT_ALLOWED,
        )


def _check_score_rows(policy: SitePolicy, job: SiteJob, *, samples: int, outputs: int) -> None:
    settings = importance.method_settings(job.schedule.score, job.schedule.score_settings)
    rows = settings.rows(samples, outputs) if hasattr(settings, "rows") else samples
    if rows > policy.most_score_rows:
        raise FedpeftError(
            f"schedule.score {job.schedule.score!r} asks for {rows:,} rows of {samples} samples and {outputs} outputs, "
            f"most_score_rows is {policy.most_score_rows:,}: lower schedule.score_samples, or take fewer directions.",
            setting="schedule.score_settings",
            code=NOT_ALLOWED,
        )
