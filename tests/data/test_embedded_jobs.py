# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every task of the papers has a job on procedural data, which runs: here two rounds in one process, few images."""

import math
from pathlib import Path

import pytest

from fedpeft.data import is_procedural
from fedpeft.federate import federate
from fedpeft.job.composing import compose, read_yaml, recipes
from fedpeft.job.federation import site_data
from fedpeft.site.learner import Learner

CONFIGS = Path(__file__).parents[2] / "app_configs"
PAPERS = "paper/"
TASKS = sorted(read_yaml(CONFIGS / "papers.yml"))
SMALL = ("training.rounds=2", "training.local_epochs=1", "data.train_size=12", "data.validation_size=4")
QUICK = ("method.probe_samples=8", "schedule.score_samples=8")


def test_there_is_one_job_for_each_of_the_fifteen_tasks():
    assert len(TASKS) == 15
    assert set(TASKS) <= recipes(CONFIGS).keys()
    assert {PAPERS + task for task in TASKS} <= recipes(CONFIGS).keys()


@pytest.mark.parametrize("job", sorted(job for job in recipes(CONFIGS) if job.startswith(PAPERS)))
def test_every_published_recipe_is_a_task_or_a_variant_that_differs_in_backbone_or_schedule(job):
    task = max((each for each in TASKS if job.removeprefix(PAPERS).startswith(each)), key=len)
    varied = ("backbones/", "answering/", "schedules/")
    own, first = ([p for p in recipes(CONFIGS)[name] if not p.startswith(varied)] for name in (job, PAPERS + task))
    assert own == first


@pytest.mark.parametrize("task", TASKS)
def test_both_jobs_of_a_task_have_as_many_sites(task):
    own, published = (compose(CONFIGS, name)["federation"]["sites"] for name in (task, PAPERS + task))
    assert len(own) == len(published)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_it_starts_and_ends_two_rounds(task, tmp_path):
    sections = compose(CONFIGS, task, [*SMALL, *QUICK, "data.test_size=8"])
    sites = sections["federation"]["sites"]
    chosen = (sites[0], sites[-1])
    assert all(is_procedural(site_data(sections["data"], site)["dataset"]) for site in sites)
    sections["federation"] = {**sections["federation"], "sites": list(chosen)}
    learners = {site: Learner.from_sections(sections, site=site, folder=tmp_path / site) for site in chosen}
    *_, last = federate(learners)
    assert last.round == 2
    for update in last.updates.values():
        assert math.isfinite(update.metrics["loss"])


@pytest.mark.slow
def test_the_job_on_another_backbone_is_the_first_task_and_learns_in_the_bare_loop(tmp_path):
    job, first = (compose(CONFIGS, name) for name in ("fedpia_task1_albef", "fedpia_task1"))
    assert job["backbone"] == {"name": "tiny-albef"}
    assert {name: job[name] for name in job if name != "backbone"} == {n: first[n] for n in first if n != "backbone"}
    fewer = ["training.rounds=3", "training.validate=false", "data.validation_size=4", "data.test_size=60"]
    sections = compose(CONFIGS, "fedpia_task1_albef", fewer)
    sites = sections["federation"]["sites"][:2]
    learners = {site: Learner.from_sections(sections, site=site, folder=tmp_path / site) for site in sites}
    accuracy = [sum(update.metrics["overall"] for update in one.updates.values()) / 2 for one in federate(learners)]
    assert accuracy[-1] > accuracy[0] + 0.1
