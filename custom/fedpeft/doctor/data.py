# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Load the data of the sites that train here: samples, answers, and whether the images can be opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedpeft.answering import ANSWERING
from fedpeft.core.errors import FedpeftError
from fedpeft.core.run_names import DATA_VARIABLE
from fedpeft.data.answer_space import UNLISTED, vocabulary_of
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.cut_texts import cut_texts_of
from fedpeft.data.duplicates import fingerprints
from fedpeft.data.readable import images_of, refusal, unreadable
from fedpeft.data.remarks import remarks, unread_questions, without_variety
from fedpeft.data.schema import SiteData
from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed, warned
from fedpeft.job.site_job import SiteJob
from fedpeft.protocol.site_check import admitted, load_data
from fedpeft.report.overlap import Overlap

MOST_OPENED = 2000  # images of all sites together, and
MOST_BYTES = 2**30  # of them, so that it takes about a minute at most; `fedpeft data` opens all


def check(context: Context) -> Iterator[Finding]:
    """Count the samples of every site, decode its images, of many a part, and compare those of all sites."""
    folder = os.environ.get(DATA_VARIABLE, "")
    if context.kit and context.sites and folder and not Path(folder).is_absolute():
        yield warned(
            f"{DATA_VARIABLE} is {folder!r}, and FLARE runs in another folder: use an absolute path when you start the "
            f"site."
        )
    whole: list[SiteData] = []
    for site in context.sites:
        try:
            job = SiteJob.from_sections(context.job.sections, site=site, policy=context.policy)
            job = admitted(context.policy, job) if context.policy else job
            loaded = load_data(context.policy, job)
            opened = _open(loaded, decoded=job.data.unreadable > 0, sites=len(context.sites))
            answers = vocabulary_of(loaded, job.answers)
        except FedpeftError as error:
            yield failed(f"site {site}: {error}")
            continue
        counts = ", ".join(f"{name} {len(examples)}" for name, examples in loaded.splits().items())
        yield passed(f"site {site}: {counts}; {_answers(loaded, answers)}; {opened}.")
        whole += [loaded] * opened.startswith("all")
        serious = set(without_variety(loaded))
        for remark in (*unread_questions(loaded, job.backbone.name), *_cut_texts(loaded, job, context.downloads)):
            yield warned(f"site {site}: {remark}")
        for remark in remarks(loaded):
            yield (warned if remark in serious or UNLISTED in remark else passed)(f"site {site}: {remark}")
    if len(whole) == len(context.sites) and any(map(images_of, whole)):
        for remark in Overlap([mark for loaded in whole for mark in fingerprints(loaded)]).remarks():
            yield warned(remark)


def _cut_texts(loaded: SiteData, job: SiteJob, download: bool) -> list[str]:
    answers = not ANSWERING.get(job.training.answering).head
    try:
        return list(cut_texts_of(loaded, job.backbone, answers=answers, download=download))
    except FedpeftError as error:
        return [f"Whether the backbone reads all of each text cannot be said: {error}"]


def _answers(loaded: SiteData, vocabulary: AnswerVocabulary) -> str:
    if loaded.labels:
        return f"{loaded.answers_in_training} of {len(vocabulary)} labels in training"
    return f"{len(vocabulary)} answers, {loaded.unseen(vocabulary)} test questions with none of them"


def _open(loaded: SiteData, *, decoded: bool, sites: int = 1) -> str:
    """Decode the images, of many some that are spread evenly over all splits.

    Args:
        loaded: data of the site.
        decoded: all of them have been, when the data were loaded.
        sites: that share the number of images that are opened.

    Raises:
        DataError: some cannot be.
    """
    images = images_of(loaded)
    if not images:
        return "all images drawn by program"
    if decoded:
        return f"all {len(images):,} images opened"
    chosen = dict(list(images.items())[:: _step(list(images.values()), sites)])
    if problems := unreadable(chosen):
        raise refusal(loaded.site, problems.values(), of=len(chosen))
    if len(chosen) == len(images):
        return f"all {len(images):,} images opened"
    return f"{len(chosen):,} of {len(images):,} images opened, `fedpeft data` opens the others"


def _step(images: list[Any], sites: int) -> int:
    step = -(-len(images) * sites // MOST_OPENED)
    files = (getattr(image, "file", image) for image in images[::step])
    size = sum(file.stat().st_size for file in files if isinstance(file, Path))
    return step * max(1, -(-size * sites // MOST_BYTES))
