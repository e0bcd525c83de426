# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The site policy, `local/fedpeft.json`: what only the site decides, and the limits that it sets for jobs.

python -m fedpeft.job.site_policy > local/fedpeft.json     # the defaults

No plugin is imported that the file does not list: neither by a name in a job, nor by a loop over all names.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpeft.answering import ANSWERING
from fedpeft.backbones import BACKBONES
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.files import read_json
from fedpeft.core.registry import Registry, only_plugins
from fedpeft.core.settings import build, check_ranges, one_of, within
from fedpeft.data.registry import DATASETS
from fedpeft.data.settings import SPLITS, check_columns, check_unreadable, listed_answers, window_of
from fedpeft.importance.registry import SCORES
from fedpeft.methods import METHODS
from fedpeft.scheduling.solvers import SOLVERS

RECEIVED, ZERO = "received", "zero"
WITHHOLD, PASS = "withhold", "pass"
FILE = "fedpeft.json"
WRITE = "python -m fedpeft.job.site_policy > local/fedpeft.json"
ONE_OR_MORE, NOT_NEGATIVE = within(1), within(0)
MIN_MEMBERS = 3
FORMER_PREFIXES = {"most_": "max_", "least_": "min_"}  # of the limits, in files written before November 2026


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """How much of its data a site may reveal: the `privacy` argument of `AdapterOnly`.

    Args:
        clip: largest L2 norm of the adapter's difference to `reference`, over all tensors of a reply together.
        noise: standard deviation of the Gaussian noise on the adapter, in units of its sensitivity 2 * `clip`; 0: clip
            only, which is no differential privacy.
        score_clip: largest L2 norm of a reply's layer scores; 0: with noise on, no scores may leave.
        score_noise: as `noise`, for the scores, in units of their sensitivity sqrt(2) * `score_clip`.
        delta: the delta at which epsilon is given.
        limit: the largest epsilon of all releases together; a reply that would exceed it does not leave. 0: none.
        reference: `received` (what is clipped is the difference to the global adapter that the server sent) or `zero`
            (the adapter itself is clipped).
        metrics: `withhold` (losses and accuracies become "not measured") or `pass` (they leave as the site
            policy lets them, and the guarantee does not cover them).
    """

    clip: float = field(metadata=within(0, exclusive=True))
    noise: float = field(metadata=within(0))
    score_clip: float = field(default=0.0, metadata=within(0))
    score_noise: float = field(default=0.0, metadata=within(0))
    delta: float = field(default=1e-5, metadata=within(0, exclusive=True))
    limit: float = field(default=0.0, metadata=within(0))
    reference: str = RECEIVED
    metrics: str = WITHHOLD

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.delta >= 1:
            raise FedpeftError(f"delta is {self.delta!r}, it must be below 1.")
        one_of("reference", self.reference, (RECEIVED, ZERO))
        one_of("metrics", self.metrics, (WITHHOLD, PASS))
        if self.score_noise and not self.score_clip:
            raise FedpeftError("score_noise needs score_clip: noise without a bound on what it hides protects nothing.")
        if bool(self.score_noise) != bool(self.noise) and self.score_clip:
            raise FedpeftError(
                f"noise is {self.noise!r} and score_noise {self.score_noise!r}: both must be above 0, or both 0, "
                f"because one without noise reveals what the other hides."
            )
        if self.limit and not self.noise:
            raise FedpeftError("limit needs noise: without noise, epsilon is infinite from the first reply on.")

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on every number of the adapter."""
        return self.noise * 2 * self.clip

    @property
    def score_deviation(self) -> float:
        """Standard deviation of the noise on every score."""
        return self.score_noise * math.sqrt(2) * self.score_clip


def default_methods() -> tuple[str, ...]:
    """Return the methods of the package that do not send the whole backbone."""
    return tuple(name for name in METHODS.own_names() if not METHODS.get(name).sends_backbone)


def default_datasets() -> tuple[str, ...]:
    """Return the data sets of the package that read no other folder than their own."""
    return tuple(name for name in DATASETS.own_names() if DATASETS.get(name).allowed_by_default)


@dataclass(frozen=True, kw_only=True)
class SitePolicy:
    """What a site decides itself; a job that exceeds it is refused with the name of its setting.

    Args:
        datasets: registered data sets that a job may name; `class_folders` has to be added, because any folder of
            folders with images would do for it.
        roots: folder by data set name, absolute; a data set that is not listed is looked for under FEDPEFT_DATA of the
            environment in which the site was started.
        columns: what the columns of its tables are called, as `data.columns` of `hugging_face`; a job cannot set it.
        window: which part of the range of its images is shown, as `data.window` of `manifest`; a job cannot set it.
        answers: list of answers by data set name, for jobs whose head is federated. A job that sets `data.answers` must
            name the same ones, so that no job can ask with its own list which answers this site has. Training rows with
            other answers take part in no job with that data set. A data set that declares its answers itself needs no
            list.
        site: the name under which the data sets know this site; empty: its name in the consortium.
        exclude: ids of images that take part in nothing.
        unreadable: as in the section `data`: share of the images that may be unreadable and are then skipped. An image
            that can be read and does not fit a job's backbone is refused: exclude it.
        splits: what a job may choose as `data.split`; each is one fixed way to cut the data.
        validation_fraction: share of the images that become the validation split, where the data have none.
        test_fraction: share of the images that become the test split, where the data have none.
        seed: of the cuts by `splits` and fractions.
        min_train_samples: a job with fewer training samples, after the cuts, is refused: an adapter trained on few
            samples reveals each of them. Where a job has all classes count alike, they are as many as the weighted
            ones are worth: `(sum w)^2 / sum w^2`.
        min_train_images: the same for different images.
        min_answers: the same for different answers in training.
        min_test_samples: the same for the samples on which accuracies are measured.
        min_validation_samples: samples of the validation split, where a job has the site choose by them
            (`method.pia.share: validation`).
        min_class_images: test images that a class or label must have to be part of balanced accuracy or macro-F1. A
            single image of a class would show in them whether it is recognized.
        min_score_samples: samples over which a layer score is formed, a power of two of them.
        min_batch_size: samples per training step, and so at least for training; what would be left for a smaller last
            step of a pass joins the step before it.
        min_probe_samples: training samples whose activations decide the order of neurons.
        max_rounds: rounds that a job may have.
        max_local_epochs: passes over this site's training split in one round.
        max_batch_size: samples per step, of training and of evaluation.
        max_probe_samples: samples whose activations a job may compare neurons by.
        max_score_samples: samples that a job may score layers on.
        max_image_size: pixels that a job may set as `backbone.image_size`.
        max_text_length: tokens that a job may set as `backbone.text_length`.
        max_learning_rate: a larger one lets the last few samples decide what leaves.
        max_weight_decay: a larger one lets the last few samples decide what leaves.
        max_proximal_mu: a larger one lets the last few samples decide what leaves.
        max_ala_rate: a larger one lets the last few samples decide where a site's training starts, and so what leaves.
        max_samples: samples in each split of data that are drawn by program.
        methods: what a job may choose as `method.name`; `full` sends the whole backbone.
        max_trained_parameters: parameters beside the head that a job may train here; ViLT-B/32 has 112 million.
        max_message_mb: megabytes that one message of the server may bring to a job's process at this site; 1024 in the
            simulator.
        device: where this site trains; a job may ask for it, for `auto`, or for `cpu`. `auto`: CUDA where there is one.
        max_threads: torch threads of the training process.
        max_workers: processes that decode images.
        max_kept_mib: main memory that a job may fill with features, and the same with decoded images.
        memory_gib: largest memory of the training process, and of its share of the GPU; 0: no limit.
        compile: whether a job may have this machine's compiler run (`training.compile`).
        backbones: registered backbones that a job may name.
        sources: folders and hub names that a job may name as `backbone.source`, beside the backbones' default weights;
            as the job has them, with @ and the commit too.
        download: whether a job may fetch what the hub's cache lacks of a hub name, with this machine's account. Off: a
            job uses what is there, and is refused where that is not enough.
        score_methods: what a job may name as `schedule.score`; a plugin has to be listed.
        solvers: what a job may name as `schedule.solver`; a plugin has to be listed.
        answering: what a job may name as `training.answering`; a plugin has to be listed.
        max_score_rows: rows of a Jacobian that a score may ask for: samples, times answers where a score
            differentiates every logit (where answers are written or ranked, times the bytes of the longest). A number
            that comes from the site's data is rounded up to a power of two before, so that refusals do not give it.
            Memory grows with the square of the rows.
        scores: whether layer scores leave, of a power of two of samples that the site draws; off: scheduled jobs are
            refused.
        metrics: whether accuracies and losses leave, accuracies to whole percent and losses to three digits. Those of
            open and closed questions leave only where there are `min_test_samples` of each, and means over answers or
            classes only over as many. Losses of `training.measure` are of a power of two of samples that the site
            draws, so that those of two jobs do not differ by one sample. Off, the safe choice, and
            with `sum_with`: they become "not measured".
        head: whether a classifier's head may leave, which a job with `method.head: federated` needs; its biases show
            how often each answer occurs.
        scaffold: whether a job may set `training.scaffold`. Its steps move the model by the difference of two received
            adapters, so that whoever sends them can choose which samples change it.
        connector: whether a backbone's connector may leave, which a job with `backbone.projection: trained` needs; its
            change is made of features of the site's images.
        sum_with: names of all sites, this one and at least two others, of whose adapters only the sum may leave. A job
            without `method.secure_sum`, with other sites, or with a setting for single sites, is refused. Empty:
            adapters leave as they are, and a job with `method.secure_sum` is refused, because its members would be for
            the server to choose.
        sum_noise: with `sum_with`: `clip`, `noise` and the others of `privacy` in `local/privacy.json`, with which an
            adapter is clipped and noised before it is masked. Empty: it is not.
        kept_days: what jobs keep at this site (own adapter, head, optimizer) is not removed before it has been unused
            for this time, whatever the server says.
        kept_gib: room for it; when that is used up, what is older than `kept_days` is removed, then jobs are refused.
    """

    datasets: tuple[str, ...] = field(default_factory=default_datasets)
    roots: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    window: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    site: str = ""
    exclude: tuple[str, ...] = ()
    unreadable: float = 0.0
    splits: tuple[str, ...] = SPLITS
    validation_fraction: float = 0.1
    test_fraction: float = 0.2
    seed: int = field(default=0, metadata=NOT_NEGATIVE)
    min_train_samples: int = field(default=30, metadata=ONE_OR_MORE)
    min_train_images: int = field(default=20, metadata=ONE_OR_MORE)
    min_answers: int = field(default=2, metadata=ONE_OR_MORE)
    min_test_samples: int = field(default=10, metadata=ONE_OR_MORE)
    min_validation_samples: int = field(default=10, metadata=ONE_OR_MORE)
    min_class_images: int = field(default=5, metadata=ONE_OR_MORE)
    min_score_samples: int = field(default=8, metadata=ONE_OR_MORE)
    min_batch_size: int = field(default=4, metadata=ONE_OR_MORE)
    min_probe_samples: int = field(default=8, metadata=ONE_OR_MORE)
    max_rounds: int = field(default=200, metadata=ONE_OR_MORE)
    max_local_epochs: int = field(default=20, metadata=ONE_OR_MORE)
    max_batch_size: int = field(default=512, metadata=NOT_NEGATIVE)
    max_probe_samples: int = field(default=1024, metadata=NOT_NEGATIVE)
    max_score_samples: int = field(default=1024, metadata=NOT_NEGATIVE)
    max_image_size: int = field(default=1024, metadata=NOT_NEGATIVE)
    max_text_length: int = field(default=512, metadata=NOT_NEGATIVE)
    max_learning_rate: float = field(default=0.1, metadata=NOT_NEGATIVE)
    max_weight_decay: float = field(default=0.1, metadata=NOT_NEGATIVE)
    max_proximal_mu: float = field(default=1.0, metadata=NOT_NEGATIVE)
    max_ala_rate: float = field(default=1.0, metadata=NOT_NEGATIVE)
    max_samples: int = field(default=10_000, metadata=NOT_NEGATIVE)
    methods: tuple[str, ...] = field(default_factory=default_methods)
    max_trained_parameters: int = field(default=20_000_000, metadata=NOT_NEGATIVE)
    max_message_mb: float = field(default=1024.0, metadata=ONE_OR_MORE)
    device: str = "auto"
    max_threads: int = field(default=16, metadata=ONE_OR_MORE)
    max_workers: int = field(default=8, metadata=NOT_NEGATIVE)
    max_kept_mib: float = field(default=4096.0, metadata=NOT_NEGATIVE)
    compile: bool = False
    memory_gib: float = field(default=0.0, metadata=NOT_NEGATIVE)
    backbones: tuple[str, ...] = field(default_factory=BACKBONES.own_names)
    sources: tuple[str, ...] = ()
    download: bool = False
    score_methods: tuple[str, ...] = field(default_factory=SCORES.own_names)
    solvers: tuple[str, ...] = field(default_factory=SOLVERS.own_names)
    answering: tuple[str, ...] = field(default_factory=ANSWERING.own_names)
    max_score_rows: int = field(default=4096, metadata=NOT_NEGATIVE)
    scores: bool = True
    metrics: bool = True
    head: bool = False
    scaffold: bool = False
    connector: bool = False
    sum_with: tuple[str, ...] = ()
    sum_noise: Mapping[str, Any] = field(default_factory=dict)
    kept_days: float = field(default=7.0, metadata=NOT_NEGATIVE)
    kept_gib: float = field(default=100.0, metadata=NOT_NEGATIVE)

    def __post_init__(self) -> None:
        for name, root in self.roots.items():
            if not isinstance(root, str) or not os.path.isabs(os.path.expanduser(root)):
                raise FedpeftError(f"roots.{name} is {root!r}, it must be the whole path of a folder.")
        check_columns(self.columns)
        window_of(self.window)
        listed = {name: listed_answers(answers) for name, answers in self.answers.items()}
        object.__setattr__(self, "answers", listed)
        check_unreadable(self.unreadable)
        for name, value in vars(self).items():
            if isinstance(value, tuple) and not all(isinstance(item, str) for item in value):
                raise FedpeftError(f"{name} is {list(value)!r:.80}, it must be a list of texts.")
        if self.sum_with and len(set(self.sum_with)) < MIN_MEMBERS:
            raise FedpeftError(
                f"sum_with is {list(self.sum_with)!r:.200}, it must name all sites of the sum, at least "
                f"{MIN_MEMBERS}, because each of two learns the other's adapter."
            )
        if self.noise_of_sums and not self.sum_with:
            raise FedpeftError("sum_noise is set without sum_with: name the sites of the sum, or leave it out.")
        for split in self.splits:
            one_of("splits", split, SPLITS)
        check_ranges(self)
        if not (self.validation_fraction >= 0 and self.test_fraction > 0):
            raise FedpeftError("validation_fraction must be at least 0, and test_fraction above 0.")
        if self.validation_fraction + self.test_fraction >= 1:
            raise FedpeftError("validation_fraction and test_fraction leave nothing to train on: lower them.")

    @property
    def noise_of_sums(self) -> PrivacySettings | None:
        """The settings of `sum_noise`; None if it is empty."""
        return build(PrivacySettings, self.sum_noise, section="sum_noise", source=FILE) if self.sum_noise else None


LIMITS = {one.name for one in dataclasses.fields(SitePolicy) if one.name.startswith(("max_", "min_"))}


def build_policy(values: Any, *, section: str, source: str) -> SitePolicy:
    """Build a policy from the values of a site policy, in which limits may have their former names."""
    if isinstance(values, Mapping):
        renamed = {_name_of_today(name): value for name, value in values.items()}
        twice = next((name for name in values if _name_of_today(name) != name and _name_of_today(name) in values), None)
        if twice is not None:
            raise FedpeftError(
                f"{section} sets {twice}, the former name of {_name_of_today(twice)}, which it sets too: leave out the "
                f"former."
            )
        values = renamed
    return build(SitePolicy, values, section=section, source=source)


def _name_of_today(name: Any) -> Any:
    for former, today in FORMER_PREFIXES.items():
        if isinstance(name, str) and name.startswith(former) and today + name.removeprefix(former) in LIMITS:
            return today + name.removeprefix(former)
    return name


def read_policy(file: Path) -> SitePolicy:
    """Read the site policy."""
    try:
        values = read_json(file, by_hand=True)
    except FileNotFoundError as error:
        raise LocalError(
            f"there is no {file}, without which this site takes part in no job: {WRITE}", code="site-file-missing"
        ) from error
    except (OSError, ValueError) as error:
        raise LocalError(
            f"{file} cannot be read as JSON ({error}): repair it, or write a new one with {WRITE}",
            code="site-file-unusable",
        ) from error
    try:
        return build_policy(values, section=FILE, source=str(file))
    except FedpeftError as error:
        raise LocalError(str(error), code="site-file-unusable") from error


def main() -> int:
    """Print the default values as JSON."""
    print(json.dumps(dataclasses.asdict(SitePolicy()), indent=2))
    return 0


def keep_to(policy: SitePolicy | None) -> None:
    """Have this process look up no other plugins than those of the site policy."""
    only_plugins(None if policy is None else {kind.group: allowed for _, kind, allowed in _listed_plugins(policy)})


def check_plugins(policy: SitePolicy, sections: Mapping[str, Any]) -> None:
    """Refuse a plugin that is not listed like an unknown name: what is installed is the site's business."""
    for setting, registry, allowed in _listed_plugins(policy):
        for name in _named_plugins(sections, setting):
            if name not in allowed and isinstance(name, str) and registry.is_plugin(name):
                raise FedpeftError(
                    f"{setting} is {name!r:.60}, a plugin that is installed here and not in local/fedpeft.json: list "
                    f"it there, or change the job.",
                    setting=setting,
                )


def _listed_plugins(policy: SitePolicy) -> tuple[tuple[str, Registry[Any], tuple[str, ...]], ...]:
    """Return each setting that names a plugin, the registry of its kind, and the names that the file lists."""
    return (
        ("method.name", METHODS, policy.methods),
        ("backbone.name", BACKBONES, policy.backbones),
        ("data.dataset", DATASETS, policy.datasets),
        ("schedule.score", SCORES, policy.score_methods),
        ("schedule.solver", SOLVERS, policy.solvers),
        ("training.answering", ANSWERING, policy.answering),
    )


def _named_plugins(sections: Mapping[str, Any], setting: str) -> Iterator[Any]:
    """Yield the plugins that a job names in a setting, for this site or for any other."""
    section, name = setting.split(".")
    values = sections.get(section)
    if not isinstance(values, Mapping):
        return
    yield values.get(name)
    if section == "method" and isinstance(values.get("settings"), Mapping):
        yield from values["settings"]
    if section in ("backbone", "data") and isinstance(values.get("sites"), Mapping):
        yield from (own.get(name) for own in values["sites"].values() if isinstance(own, Mapping))


if __name__ == "__main__":
    sys.exit(main())
