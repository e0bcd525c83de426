# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site does what its job's own settings provide for, whatever the server asks."""

import pytest
import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import SET_ASIDE, number_of, round_name, rounds_in
from fedpeft.core.locks import StateLock
from fedpeft.job.settings import SiteJob
from fedpeft.protocol.types import Hello, Introduction, ScoreOrder, TrainOrder
from fedpeft.site.orders import (
    REPEATS,
    accept,
    apply_delta,
    check_accepted,
    check_order,
    lost_state,
    newest_round,
    note_order,
    note_own_round,
)
from fedpeft.site.site_tasks import SitePlace, SiteTasks

PLAIN = {"backbone": {}, "method": {}, "training": {"rounds": 5}, "data": {}, "schedule": {}}
SCHEDULED = {**PLAIN, "schedule": {"solver": "exact", "budget": 2}}
DRAWN = {**PLAIN, "method": {"name": "sba"}}
WITH_REPLY = {**PLAIN, "schedule": {"solver": "exact", "budget": 2, "scoring": "with_reply"}}


def hello(**changes):
    return Hello(**{"version": "1", "lineage": "small-1", **changes})


def train(**changes):
    values = {"lineage": "small-1", "round": 1, "base": 0, "version": 0, "layers": None, "scored": False, "state": {}}
    return TrainOrder(**{**values, **changes})


def score(**changes):
    return ScoreOrder(**{"lineage": "small-1", "round": 1, "base": 0, "version": 1, "state": {}, **changes})


ALLOWED = [
    (PLAIN, hello()),
    (PLAIN, hello(finished=4)),
    (PLAIN, hello(finished=5)),
    (PLAIN, train(round=5)),
    (SCHEDULED, score(round=5)),
    (SCHEDULED, train(layers=[0, 3])),
    (SCHEDULED, train(layers=[])),
    (WITH_REPLY, train(layers=[1], scored=True)),
]


@pytest.mark.parametrize(("sections", "order"), ALLOWED)
def test_an_order_that_the_job_provides_for_is_not_refused(sections, order):
    check_order(order, SiteJob.from_sections(sections, site="north"))


REFUSED = [
    (PLAIN, hello(finished=6), "after round 6 of 5"),
    (PLAIN, hello(finished=-1), "after round -1"),
    (PLAIN, hello(finished=2, sessions={"a": 3}), "with later ones"),
    (PLAIN, train(round=0), "for round 0 of 5"),
    (PLAIN, train(round=6), "for round 6 of 5"),
    (PLAIN, train(round=10**12), "of 5"),
    (PLAIN, train(layers=[1]), "none are scheduled"),
    (PLAIN, train(scored=True), "scores with the reply"),
    (PLAIN, train(part=1.5), "1.5 as the site's part"),
    (PLAIN, train(part=-0.1), "-0.1 as the site's part"),
    (PLAIN, train(part=float("nan")), "nan as the site's part"),
    (PLAIN, score(), "none are scored"),
    (DRAWN, score(), "none are scored"),
    (DRAWN, train(layers=[1, 2]), "2 layers, the budget is 1"),
    (DRAWN, train(layers=[1], scored=True), "scores with the reply"),
    (PLAIN, train(version=-1), "version -1"),
    (SCHEDULED, score(round=6), "for round 6 of 5"),
    (SCHEDULED, train(), "to train all layers"),
    (SCHEDULED, train(layers=[0, 1, 2]), "3 layers, the budget is 2"),
    (SCHEDULED, train(layers=[1, 1]), "to train layers"),
    (SCHEDULED, train(layers=[-1]), "to train layers"),
    (SCHEDULED, train(layers=["0"]), "to train layers"),
    (SCHEDULED, train(layers=[True]), "to train layers"),
    (SCHEDULED, train(layers=[[1]]), "to train layers"),
    (SCHEDULED, train(layers=[1], scored=True), "scores with the reply"),
]


@pytest.mark.parametrize(("sections", "order", "what"), REFUSED)
def test_more_than_the_job_says_is_refused(sections, order, what):
    with pytest.raises(FedpeftError, match=what) as refused:
        check_order(order, SiteJob.from_sections(sections, site="north"))
    assert refused.value.code == "order-refused"


def test_no_more_layers_are_trained_than_the_site_has_measured_a_budget_for(tmp_path):
    for budget in (2, 1):  # measured again, for a first adapter: the server counts with the first
        accept(Introduction(version="1", schema={}, budget=budget), tmp_path)
    check_accepted(train(layers=[0, 1]), tmp_path, any_width=False)
    with pytest.raises(FedpeftError, match="3 layers, the budget is 2") as refused:
        check_accepted(train(layers=[0, 1, 2]), tmp_path, any_width=False)
    assert refused.value.code == "order-refused"


def noted(folder, *orders):
    for order in orders:
        note_order(order, folder)


def test_the_orders_of_an_ordinary_job_are_not_refused(tmp_path):
    noted(tmp_path, hello(), hello(), score(), train(), score(round=2), train(round=2), train(round=5))


def test_the_repeated_orders_to_a_site_that_was_killed_are_not_refused(tmp_path):
    noted(tmp_path, hello(), *[train(round=2)] * REPEATS, train(round=3))


BACK = [
    ([hello(), train(lineage="victim-1")], "victim-1"),
    ([hello(), train(), hello()], "to begin anew"),
    ([hello(), score(), hello()], "to begin anew"),
    ([hello(), train(round=2), train(round=1)], "round 1 after round 2"),
    ([hello(), score(round=2), score(round=1)], "round 1 after round 2"),
    ([hello(), *[train(round=2)] * (REPEATS + 1)], f"for the {REPEATS + 1}th time"),
]


@pytest.mark.parametrize(("orders", "what"), BACK)
def test_a_job_has_one_state_and_its_rounds_rise(tmp_path, orders, what):
    noted(tmp_path, *orders[:-1])
    with pytest.raises(FedpeftError, match=what) as refused:
        note_order(orders[-1], tmp_path)
    assert refused.value.code == "order-refused"


@pytest.fixture
def site(tmp_path):
    """Function: the tasks of a site in a job's run of this name; all runs share the site's state."""

    def of_run(name):
        run = tmp_path / name
        run.mkdir(exist_ok=True)
        if not (run / "accepted.json").exists():
            accept(Introduction(version="1", schema={}), run)
        place = SitePlace(site="north", run=run, lineages=tmp_path / "state", job_id=name)
        return SiteTasks(PLAIN, place, None, request=None, lock=StateLock())

    return of_run


def kept(folder):
    return [number_of(path) for path in rounds_in(folder)]


def test_a_job_that_is_refused_after_the_handshake_sets_no_state_aside(site, tmp_path):
    """Another site may be unable to take part; what this one has is still there for a job from the newest round."""
    folder = site("first").folder_of(hello())
    for number in (1, 2, 3):
        (folder / round_name(number)).mkdir()
    for _ in range(2):
        site("refused").folder_of(hello(finished=1))
    assert kept(folder) == [1, 2, 3]
    site("resumed").folder_of(hello(finished=2))
    assert kept(folder) == [1, 2, 3]
    site("resumed").folder_of(train(round=4))
    assert kept(folder) == [1, 2]
    (folder / round_name(4)).mkdir()
    for order in (train(round=4), train(round=5)):  # what this job has made stays
        site("resumed").folder_of(order)
    assert kept(folder) == [1, 2, 4]
    assert len(list((folder / SET_ASIDE).iterdir())) == 1


def test_a_site_without_an_order_does_not_go_on_from_rounds_that_no_longer_count(site, tmp_path):
    """The job resumed after round 3 and gave this site no order; the next one resumes after round 6."""
    folder = site("first").folder_of(hello(session="a"))
    for number in (1, 2, 3, 4):
        site("first").folder_of(train(round=number))
        (folder / round_name(number)).mkdir()
    site("undrawn").folder_of(hello(finished=2, session="b", sessions={"a": 2}))
    of_b, of_a = {"a": 2, "b": 4}, {"a": 4}
    assert (newest_round(folder, 4, of_b), newest_round(folder, 4, of_a), newest_round(folder, 3, of_a)) == (2, 4, 3)
    site("again").folder_of(hello(finished=4, session="c", sessions=of_b))
    assert kept(folder) == [1, 2, 3, 4]
    site("again").folder_of(train(round=5))
    assert kept(folder) == [1, 2]
    (folder / round_name(5)).mkdir()
    assert newest_round(folder, 5, {**of_b, "c": 5}) == 5
    assert newest_round(folder, 5, {}) == 5  # the checkpoint of a version that noted no jobs


def test_a_site_notices_that_its_state_of_the_round_before_is_gone(tmp_path):
    run, state = tmp_path / "run", tmp_path / "state"
    kept(state)
    note_order(hello(), run)
    note_own_round(0, run)
    assert lost_state(state, run, 1) == ""
    for number in (1, 2):
        note_order(train(round=number), run)
        (state / round_name(number)).mkdir(parents=True)
        note_own_round(number, run)
    assert [lost_state(state, run, number) for number in (2, 3, 5)] == ["", "", ""]  # also where a round comes again
    (state / round_name(2)).rmdir()
    assert "the state of round 2 is no longer in" in lost_state(state, run, 3)
    assert "went on from that of round 1:" in lost_state(state, run, 3)
    (state / round_name(1)).rmdir()
    note_order(train(round=3), run)
    assert "went on from none:" in lost_state(state, run, 3)
    note_own_round(3, run)
    (state / round_name(3)).mkdir()
    assert lost_state(state, run, 4) == ""


@pytest.mark.parametrize("stacked", [False, True])
def test_an_order_that_comes_again_after_a_kill_finds_what_it_made(tmp_path, stacked):
    """Also a site whose processes ended after the global adapter was written has to do its round."""
    first = {"layer.0.query.A": torch.zeros(1, 2), "layer.0.query.B": torch.zeros(2, 1)}
    apply_delta(tmp_path, first, base=0, version=1)
    changed = {key: tensor + 1 for key, tensor in first.items()}
    after = apply_delta(tmp_path, changed, base=1, version=2, stacked=stacked)
    again = apply_delta(tmp_path, changed, base=1, version=2, stacked=stacked)
    assert after.keys() == again.keys()
    assert all(torch.equal(after[key], again[key]) for key in after)
    with pytest.raises(FedpeftError, match="is version 2, the server builds on 1: it will be sent whole"):
        apply_delta(tmp_path, changed, base=1, version=3)
