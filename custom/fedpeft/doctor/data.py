# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Load the data of the sites that train here, and print numbers only: samples, answers, images opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedpeft.data.answer_space import vocabulary_of
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.folders import VARIABLE
from fedpeft.data.images import open_image
from fedpeft.data.schema import SiteData
from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed, warned
from fedpeft.errors import FedpeftError
from fedpeft.privacy.site_check import admitted, load_data
from fedpeft.site_job import SiteJob

OPENED = 12


def check(context: Context) -> Iterator[Finding]:
    """Count the samples of every site and decode some images."""
    folder = os.environ.get(VARIABLE, "")
    if context.kit and context.sites and folder and not Path(folder).is_absolute():
        yield warned(
            f"{VARIABLE} is {folder!r}, and FLARE runs in another folder: use an absolute path when you start the site."
        )
    for site in context.sites:
        try:
            job = SiteJob.from_sections(context.job.sections, site=site)
            loaded = load_data(context.policy, admitted(context.policy, job) if context.policy else job)
            opened = _open_some(loaded)
            answers = vocabulary_of(loaded, job.answers)
        except FedpeftError as error:
            yield failed(f"site {site}: {error}")
            continue
        counts = ", ".join(f"{name} {len(examples)}" for name, examples in loaded.splits().items())
        yield passed(f"site {site}: {counts}; {_answers(loaded, answers)}; {opened}.")


def _answers(loaded: SiteData, vocabulary: AnswerVocabulary) -> str:
    if loaded.labels:
        return f"{loaded.answers_in_training} of {len(vocabulary)} labels in training"
    return f"{len(vocabulary)} answers, {loaded.unseen(vocabulary)} test questions with none of them"


def _open_some(loaded: SiteData) -> str:
    """Decode images spread evenly over all splits."""
    images = {e.image_id: e.image for examples in loaded.splits().values() for e in examples}
    files = [image for image in images.values() if not isinstance(image, np.ndarray)]
    if not files:
        return f"{len(images)} images drawn by program"
    chosen = files[:: max(1, len(files) // OPENED)]
    for file in chosen:
        open_image(file)
    return f"{len(chosen)} of {len(images)} images opened"
