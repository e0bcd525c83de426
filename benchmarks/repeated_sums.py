# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Attacks on secure sums: what the difference of two jobs' sums tells of one site, and what repeating them adds.

All sums are computed in this process, as a consortium's members would. Two jobs differ at one site, by one training
sample. The difference of their sums holds what changed there, and what the other sites' randomness adds to it: that
is the error, relative to the length of the site's own update.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measured import sections
from small_run import FAULTY_SITE, SITES, SMALL

from fedpeft.federate import federate
from fedpeft.job.settings import SiteJob
from fedpeft.job.site_policy import PrivacySettings
from fedpeft.protocol.differential_privacy import release_adapter
from fedpeft.protocol.job_against_policy import load_data
from fedpeft.site.learner import Learner

REPEATS = (1, 4, 16)
VICTIM = FAULTY_SITE
SUMS = ("method.aggregation=fedavg", "method.secure_sum=true", "training.rounds=1", "training.batch_size=4")
NOISE = PrivacySettings(clip=1.0, noise=0.01)
Row = tuple[str, str, str]
State = Mapping[str, torch.Tensor]


def rows(repeats: Sequence[int] = REPEATS) -> Iterator[Row]:
    """One training sample fewer at one site, with and without the sites' secret seeds and noise."""
    known = Pair().error(1, secret=False)
    yield "the seeds known to the server, as in the simulator", *_read(1, known)
    pair = Pair()
    for number in repeats:
        yield f"secret seeds, each of the two jobs {number} times", *_read(number, pair.error(number, secret=True))
    noisy = Pair(NOISE)
    for number in repeats[:1]:
        named = f"sum_noise {{clip: {NOISE.clip:g}, noise: {NOISE.noise:g}}}"
        yield f"the same with {named}, {number} times", *_read(number, noisy.error(number, secret=True))


def _read(repeats: int, error: float) -> tuple[str, str]:
    lost = "what changed at that site" if error < 0.01 else "it within that error" if error < 1 else "nothing readable"
    return f"{2 * repeats} sums give what changed at one site with an error of {error:.2g} of its update", lost


class Pair:
    """Two jobs that differ by one training sample of one site; sums of both are added up as they are repeated.

    Args:
        noise: with which each site's adapter is clipped and noised; None: it is not.
    """

    def __init__(self, noise: PrivacySettings | None = None) -> None:
        self._noise = noise
        self._chosen = sections([*SMALL, *SUMS])
        self._scratch = tempfile.TemporaryDirectory()
        self._jobs = [{site: self._learner(site, fewer * (site == VICTIM)) for site in SITES} for fewer in (0, 1)]
        self._errors: list[dict[str, torch.Tensor]] = []
        self._lengths: list[float] = []

    def error(self, repeats: int, *, secret: bool) -> float:
        """Return the error after so many repetitions of both jobs, those of earlier calls included."""
        while len(self._errors) < repeats:
            one, other = (self._others(job, secret=secret) for job in self._jobs)
            self._errors.append({key: one[key] - other[key] for key in one})
        mean = [torch.stack([error[key] for error in self._errors]).mean(dim=0) for key in self._errors[0]]
        return _length(mean) / (sum(self._lengths) / len(self._lengths))

    def _learner(self, site: str, fewer: int) -> Learner:
        job = SiteJob.from_sections(self._chosen, site=site)
        data = load_data(None, job)
        return Learner(
            site=site,
            backbone=job.backbone,
            method=job.method,
            training=job.training,
            site_data=replace(data, train=data.train[fewer:]),
            dataset=job.data.dataset,
            folder=Path(),
        )

    def _others(self, job: Mapping[str, Learner], *, secret: bool) -> dict[str, torch.Tensor]:
        """Return the sum of a job's updates without what the one site has learned; all announce the same number."""
        folder = Path(tempfile.mkdtemp(dir=self._scratch.name))
        for site, learner in job.items():
            learner.folder = folder / site
            learner.trainable.load(learner.values.first)  # which all sites start from
        salts = (lambda *_: os.urandom(32).hex()) if secret else None
        (result,) = federate(job, salts)
        start = job[VICTIM].values.first
        sent = [self._update(update.state, start, self._noise) for update in result.updates.values()]
        without_noise = self._noise and replace(self._noise, noise=0.0)
        learned = self._update(result.updates[VICTIM].state, start, without_noise)
        self._lengths.append(_length(learned.values()))
        return {key: sum(update[key] for update in sent) - learned[key] for key in learned}

    def _update(self, state: State, start: State, settings: PrivacySettings | None) -> dict[str, torch.Tensor]:
        released = release_adapter(state, start, settings)[0] if settings else state
        return {key: released[key].double() - start[key].double() for key in start}


def _length(tensors: Any) -> float:
    return sum(float(tensor.square().sum()) for tensor in tensors) ** 0.5
