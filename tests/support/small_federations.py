# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Two sites with a few samples each, in this process: their learners, and the comparison of their rounds."""

from __future__ import annotations

import torch

from fedpeft.site.learner import Learner

SITES = ("slake", "vqa-rad")
RUN = (
    f"federation.sites=[{','.join(SITES)}]",
    "data.train_size=16",
    "training.batch_size=4",
    "training.rounds=3",
    "training.local_epochs=1",
    "training.learning_rate=5e-3",
)
FEDAVG = "method.aggregation=fedavg"
LAYERS = (FEDAVG, "schedule.solver=exact", "schedule.score=lntk", "schedule.budget=1")
EXACT = {"rtol": 0, "atol": 0}


def learners_of(sections, folder, sites=SITES, *, shared=None):
    """By site its learner, whose state lies in a folder of its name."""
    return {s: Learner.from_sections(sections, site=s, folder=folder / s, shared=shared) for s in sites}


def learner_builder(sections, tmp_path_factory):
    """Return a function from settings, and a class of learners, to a learner of each site."""

    def build(*settings, kind=Learner, folder=None):
        folder = folder or tmp_path_factory.mktemp("sites")
        job = sections(*RUN, *settings)
        return {site: kind.from_sections(job, site=site, folder=folder / site) for site in SITES}

    return build


def assert_same(rounds, others, **tolerance):
    for one, other in zip(rounds, others, strict=True):
        torch.testing.assert_close(one.state, other.state, **(tolerance or EXACT))
