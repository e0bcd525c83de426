# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`federate` as a notebook calls it: results are the caller's own, and learners are of one job."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small_federations import learners_of

from fedpeft.core.errors import FedpeftError
from fedpeft.federate import federate
from fedpeft.job.settings import CommonSettings
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.site.learner import Learner

SITES = ("slake", "vqa-rad")


@pytest.mark.slow
def test_what_is_done_to_a_result_changes_no_later_round(sections, tmp_path):
    """Its folders may be written as text."""
    made = sections("training.rounds=2")

    def last(name, *, spoil):
        learners = {site: Learner.from_sections(made, site=site, folder=str(tmp_path / name / site)) for site in SITES}
        for result in federate(learners):
            state = {key: tensor.clone() for key, tensor in result.state.items()}
            if spoil:
                for one in (result.state, *(update.state for update in result.updates.values())):
                    for tensor in one.values():
                        tensor.fill_(9.0)
        return state

    left, spoiled = last("left", spoil=False), last("spoiled", spoil=True)
    assert all(torch.equal(spoiled[key], tensor) for key, tensor in left.items())


@pytest.mark.slow
def test_draws_and_threads_of_the_caller_are_as_before(sections, tmp_path):
    threads = torch.get_num_threads()
    chosen = sections("method.aggregation=fedavg", "training.threads=1", "schedule.solver=exact", "schedule.budget=1")
    learners = learners_of(chosen, tmp_path)
    torch.set_num_threads(2)
    try:
        draws = torch.get_rng_state()
        list(federate(learners))
        assert torch.equal(torch.get_rng_state(), draws)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("section", "changed"),
    [
        ("method", {"aggregation": "pia"}),
        ("method", {"settings": {"lora": {"alpha_pattern": {"value": 8, "query": 4}}}}),  # in another order
        ("training", {"rounds": 9}),
        ("schedule", {"every": 3}),
    ],
)
def test_learners_of_unlike_jobs_are_refused(sections, section, changed):
    patterns = "method.settings={lora: {alpha_pattern: {query: 4, value: 8}}}"
    common = CommonSettings.from_sections(sections("method.name=lora", "method.aggregation=svd", patterns))
    other = common._replace(**{section: replace(getattr(common, section), **changed)})
    learners = {"a": SimpleNamespace(**common._asdict()), "b": SimpleNamespace(**other._asdict())}
    ((name, value),) = changed.items()
    said = rf"{section}\.{name} is {re.escape(repr(value))} at b and .* at a: all learners"
    with pytest.raises(FedpeftError, match=said):
        next(federate(learners))


def test_no_learners_are_refused():
    with pytest.raises(FedpeftError, match="there are no learners"):
        next(federate({}))


@pytest.mark.slow
def test_sites_whose_adapters_are_of_other_kinds_are_not_averaged(sections, tmp_path):
    """Theirs have the same keys and shapes; a server would compare families, too."""
    job = sections("method.aggregation=fedavg", "backbone.sites={vqa-rad: {name: tiny-vit}}")
    made = learners_of(job, tmp_path)
    with pytest.raises(FedpeftError, match="backbone of family"):
        next(federate(made))


@pytest.mark.slow
@pytest.mark.parametrize("tolerant", [True, False])
def test_a_reply_that_a_server_refuses_is_in_no_mean(sections, tmp_path, monkeypatch, tolerant):
    made = learners_of(sections("method.aggregation=fedavg", "training.rounds=1"), tmp_path)
    true = made["slake"].train_round

    def spoilt(*order, **more):
        update = true(*order, **more)
        return replace(update, state={key: torch.full_like(t, float("nan")) for key, t in update.state.items()})

    monkeypatch.setattr(made["slake"], "train_round", spoilt)
    if not tolerant:
        with pytest.raises(FedpeftError, match="site slake sent NaN"):
            next(federate(made))
        return
    (result,) = federate(made, tolerant=True)
    assert "sent NaN" in result.refused["slake"]
    assert all(bool(t.isfinite().all()) for t in result.state.values())


@pytest.mark.slow
def test_any_error_of_a_tolerated_site_costs_it_the_round_and_otherwise_ends_the_run(sections, tmp_path, monkeypatch):
    made = learners_of(sections("method.aggregation=fedavg", "training.rounds=1"), tmp_path)

    def fail(*_, **__):
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(made["vqa-rad"], "train_round", fail)
    with pytest.raises(RuntimeError, match="no kernel image"):
        next(federate(made))
    (result,) = federate(made, tolerant=True, quorum=1)
    assert result.refused == {"vqa-rad": "site vqa-rad: RuntimeError: no kernel image"}
    assert set(result.updates) == {"slake"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (("method.initialization=own",), "lets every site start from its own adapter"),
        (("method.secure_sum=true",), "schedule no layers or sites"),
    ],
)
def test_what_a_job_refuses_is_refused_in_a_notebook(sections, tmp_path, settings, reason):
    made = learners_of(sections("method.aggregation=fedavg", *settings), tmp_path)
    for learner in made.values():
        learner.schedule = ScheduleSettings(solver="own", budget=1)
    with pytest.raises(FedpeftError, match=reason):
        next(federate(made))
