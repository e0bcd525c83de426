# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Clipped and noised replies as they leave a site: what is counted, what is repeated, and what stays when in doubt."""

import builtins
import json
import math
import stat

import pytest
import torch
from filtered_site import KEYS, SHAPES, Site, adapter, introduction, score_order, train_order
from full_disk import full_disk
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpeft.protocol import epsilon
from fedpeft.protocol.fields import BLOCKED
from fedpeft.protocol.types import METRICS, Hello

TINY = 1e-9
PRIVACY = {"clip": 1.0, "noise": 2.0, "score_clip": 1.0, "score_noise": 4.0}
CLIPPED = {"clip": 1.0, "noise": 0.0}
NUMBERS = sum(math.prod(shape) for shape in SHAPES)


@pytest.fixture
def site(tmp_path):
    """Function: a site with privacy settings that has introduced itself."""

    def make(name="run", dtype=torch.float32, **settings):
        made = Site(tmp_path / name, **{"privacy": PRIVACY, **settings})
        made.hello(state=adapter(0.5, dtype))
        return made

    return make


def outgoing(site):
    return site.folder / "fedpeft" / "outgoing"


def book_of(site):
    return site.workspace / "fedpeft" / "book.jsonl"


def book(site):
    return [json.loads(line) for line in book_of(site).read_text().splitlines()]


def distance(state, value):
    return math.sqrt(sum(float((tensor.double() - value).square().sum()) for tensor in state.values()))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_that_leaves_is_noised_counted_and_reported(site, dtype):
    made = site(dtype=dtype)
    reply = made.train(state=adapter(0.75, dtype))
    assert reply.problem == ""
    assert all(tensor.dtype == dtype for tensor in reply.state.values())
    assert distance(reply.state, 0.75) > 1
    assert reply.metrics == dict.fromkeys(METRICS)
    assert reply.samples == 5
    assert book(made) == [{"job": "small-1", "round": 1, "what": "adapter", "noise": 2.0, "bound": 1.0}]
    spent = json.loads((made.folder / "fedpeft" / "spent.json").read_text())
    assert spent["epsilon"] == pytest.approx(epsilon([2.0], 1e-5))
    assert "not covered" in spent["covers"]


def test_adapter_and_scores_of_all_rounds_are_composed(site):
    made = site()
    made.score()
    made.train(train_order(scored=True), scores=[0.5, 0.5])
    made.train(train_order(round=2, scored=True), scores=[0.5, 0.5])
    assert sorted(line["what"] for line in book(made)) == ["adapter"] * 2 + ["scores"] * 3
    spent = json.loads((made.folder / "fedpeft" / "spent.json").read_text())
    assert spent["epsilon"] == pytest.approx(epsilon([2.0, 2.0, 4.0, 4.0, 4.0], 1e-5))
    assert spent["releases"] == 5


def test_the_book_is_for_its_owner_only(site):
    made = site()
    made.train()
    assert stat.S_IMODE(book_of(made).stat().st_mode) == 0o600


@pytest.mark.parametrize("task", ["train", "score"])
def test_the_same_order_again_gets_the_same_bytes_and_costs_nothing(site, task):
    made = site()
    first, other = (getattr(made, task)() for _ in range(2))
    assert first.scores == other.scores
    if task == "train":
        assert all(torch.equal(first.state[key], other.state[key]) for key in KEYS)
    assert len(book(made)) == 1


def test_a_repeated_round_that_trained_to_something_else_tells_nothing_new(site):
    made = site()
    first, other = made.train(state=adapter(0.75)), made.train(state=adapter(-3.0))
    assert all(torch.equal(first.state[key], other.state[key]) for key in KEYS)


@pytest.mark.parametrize(
    "other",
    [{"round": 2}, {"lineage": "small-2"}, {"layers": [0, 1]}, {"state": adapter(0.26)}, {"scored": True}],
)
def test_any_other_order_gets_fresh_noise_and_is_counted(site, other):
    made = site()
    first = made.train()
    again = made.train(train_order(**other), scores=[0.5, 0.5] if "scored" in other else [])
    assert not any(torch.equal(first.state[key], again.state[key]) for key in KEYS)
    assert [line["what"] for line in book(made)].count("adapter") == 2


def test_two_sites_with_the_same_job_seed_have_other_noise(site):
    first, other = site("a").train(), site("b").train()
    assert not any(torch.equal(first.state[key], other.state[key]) for key in KEYS)


def test_updates_are_clipped_against_the_adapter_that_was_received(site):
    reply = site(privacy=CLIPPED).train(train_order(state=adapter(0.25)), state=adapter(0.26))
    assert distance(reply.state, 0.26) < 1e-6
    reply = site("far", privacy=CLIPPED).train(train_order(state=adapter(0.25)), state=adapter(100.0))
    assert distance(reply.state, 0.25) == pytest.approx(1.0, rel=1e-5)


def test_what_is_clipped_does_not_leave_where_a_site_takes_what_it_trained_off_the_mean(site):
    made = site(privacy=CLIPPED)
    assert made.train(train_order(state=adapter(0.25), part=0.3)).problem == BLOCKED
    assert "ask for a job with a number as method.pia.share" in made.problem
    assert site("off", privacy="off").train(train_order(state=adapter(0.25), part=0.3)).problem == ""


def test_what_is_masked_for_a_sum_is_not_clipped(site):
    made = site(privacy=CLIPPED)
    key = {"public": ["a" * 64], "start": [], "certificate": [], "signature": []}
    masked = {name: tensor.long() for name, tensor in adapter(0.5).items()}
    assert made.train(train_order(sum_keys={"slake": key}), state=masked, sum_key=key).problem == BLOCKED
    assert "set sum_noise in its fedpeft.json" in made.problem


def test_in_the_first_round_they_are_clipped_against_the_adapter_the_site_started_from(site):
    reply = site(privacy=CLIPPED).train(train_order(state={}), state=adapter(100.0))
    assert distance(reply.state, 0.5) == pytest.approx(1.0, rel=1e-5)


def test_the_received_adapter_is_completed_from_disk(site):
    made = site(privacy={**CLIPPED, "score_clip": 1.0})
    made.score(score_order(base=0, version=3, state=adapter(0.25)))
    changed = {KEYS[0]: adapter(2.0)[KEYS[0]]}
    reply = made.train(train_order(base=3, version=4, state=changed), state=adapter(0.25))
    expected = {key: 2.0 if key == KEYS[0] else 0.25 for key in KEYS}
    moved = math.sqrt(sum(float((reply.state[k].double() - expected[k]).square().sum()) for k in KEYS))
    assert moved == pytest.approx(1.0, rel=1e-5)
    assert made.train(train_order(base=9, version=10, state=changed)).problem == BLOCKED


def test_with_reference_zero_the_adapter_itself_is_clipped(site):
    reply = site(privacy={**CLIPPED, "reference": "zero"}).train()
    assert distance(reply.state, 0.0) == pytest.approx(1.0, rel=1e-5)


def test_metrics_pass_where_the_site_says_so(site):
    made = site(privacy={**PRIVACY, "metrics": "pass"})
    assert made.train().metrics == dict.fromkeys(METRICS, 0.5)
    assert "nor are overall" in json.loads((made.folder / "fedpeft" / "spent.json").read_text())["covers"]


def test_a_site_without_an_adapter_to_send_releases_nothing(tmp_path):
    made = Site(tmp_path / "run", privacy=PRIVACY)
    made.hello(state={})
    assert made.train(train_order(state={}), state={}).problem == ""
    assert not book_of(made).exists()


def test_a_problem_is_no_release(site):
    made = site()
    empty = {"problem": "out-of-memory", "samples": 0, "metrics": dict.fromkeys(METRICS), "state": {}, "seconds": 0.0}
    assert made.train(**empty).problem == "out-of-memory"
    assert not book_of(made).exists()


def test_the_limit_holds_over_all_jobs_of_a_site(site):
    most = epsilon([2.0] * 3, 1e-5) + TINY
    settings = {"privacy": {**PRIVACY, "limit": most}}
    one, other = site(job="one", **settings), site(job="other", **settings)
    assert one.train(train_order(lineage="one")).problem == ""
    assert other.train(train_order(lineage="other")).problem == ""
    assert one.train(train_order(lineage="one", round=2)).problem == ""
    spent = json.loads((one.folder / "fedpeft" / "spent.json").read_text())
    assert (spent["releases_of_job"], spent["releases"]) == (2, 3)
    assert spent["epsilon_of_job"] == pytest.approx(epsilon([2.0] * 2, 1e-5))
    assert other.train(train_order(lineage="other", round=2)).problem == BLOCKED
    assert "over the limit" in other.problem
    assert one.train(train_order(lineage="one", round=2)).problem == ""  # the same update again


def break_book(site):
    book_of(site).parent.mkdir()
    book_of(site).write_text('{"noise": 2.0}\n{"noi')


def zero_book(site):
    book_of(site).parent.mkdir()
    book_of(site).write_text('{"job": "a", "noise": 0.0}\n')


def book_of_texts(site):
    book_of(site).parent.mkdir()
    book_of(site).write_text('{"job": "a", "noise": "2"}\n')


def book_of_truths(site):
    book_of(site).parent.mkdir()
    book_of(site).write_text('{"job": "a", "noise": true}\n')


def no_book(site):
    book_of(site).mkdir(parents=True)


def no_initial(site):
    (outgoing(site) / "initial.safetensors").unlink()


@pytest.mark.parametrize(
    ("harm", "order", "message"),
    [
        (break_book, {}, "ledger of releases"),
        (zero_book, {}, "a release without noise"),
        (book_of_texts, {}, "noise that is no number"),
        (book_of_truths, {}, "noise that is no number"),
        (no_book, {}, "ledger of releases"),
        (no_initial, {"state": {}}, "initial.safetensors"),
    ],
)
def test_with_broken_files_nothing_leaves(site, harm, order, message):
    made = site()
    harm(made)
    assert made.train(train_order(**order)).problem == BLOCKED
    assert message in made.problem


def test_a_diverged_site_sends_nothing(site):
    made = site()
    state = adapter(0.75)
    state[KEYS[0]][0, 0] = float("nan")
    assert made.train(state=state).problem == BLOCKED
    assert not book_of(made).exists()


def test_a_release_that_cannot_be_recorded_leaves_no_half_line_and_says_that_the_disk_is_full(site):
    made = site()
    assert made.train(train_order()).problem == ""
    before = book_of(made).read_bytes()
    with full_disk(len(before) + 10):
        assert made.train(train_order(round=2)).problem == "disk-full"
    assert book_of(made).read_bytes() == before
    assert made.train(train_order(round=2)).problem == ""


def test_scores_do_not_leave_without_noise_of_their_own(site):
    made = site(privacy={"clip": 1.0, "noise": 2.0})
    assert made.score().problem == BLOCKED
    assert "set score_clip and score_noise" in made.problem
    assert made.train().problem == ""


def test_without_its_accountant_a_site_does_not_even_introduce_itself(tmp_path, monkeypatch):
    original = builtins.__import__

    def without(name, *rest):
        if name.startswith("opacus"):
            raise ImportError("No module named 'opacus'")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    made = Site(tmp_path / "run", privacy=PRIVACY)
    sent = FLModelUtils.from_shareable(made.answer("hello", Hello(version="1"), introduction()))
    assert sent.meta["fedpeft"]["problem"] == BLOCKED
    assert "pip install" in made.problem


def test_a_width_of_its_own_needs_reference_zero(site):
    made = site()
    wide = {**adapter(0.25), KEYS[0]: torch.ones(5, 3)}
    assert made.train(train_order(state=wide)).problem == BLOCKED
    assert "reference='zero'" in made.problem
    assert site("zero", privacy={**PRIVACY, "reference": "zero"}).train(train_order(state=wide)).problem == ""
