# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the outgoing filter lets out and what it blocks, by name, whatever the executor puts into its reply."""

import dataclasses

import pytest
import torch
from filtered_site import KEYS, Site, adapter, introduction, score_order, score_reply, train_order, train_reply
from nvflare.apis.filter import FilterSource
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpeft.core.files import write_json
from fedpeft.core.states import digest
from fedpeft.flare.filters import HEADERS
from fedpeft.protocol.fields import BLOCKED
from fedpeft.protocol.outgoing_reply import KNOWN
from fedpeft.protocol.types import METRICS, Hello, Introduction, ScoreReply, TrainReply

HELLO = Hello(version="1")
CODE = "out-of-memory"
SECRET = "Jane Doe, born 1970, adenocarcinoma"


@pytest.fixture
def site(tmp_path):
    """A site that has introduced itself."""
    made = Site(tmp_path / "run")
    assert made.hello().problem == ""
    return made


def test_an_ordinary_job_passes_unchanged(tmp_path):
    site = Site(tmp_path / "run")
    hello = site.message("hello", HELLO, introduction())
    assert hello == dataclasses.replace(introduction(), state={})
    scores = site.score()
    assert scores == score_reply()
    reply = site.train(train_order(layers=[1], scored=True), scores=[0.1, 0.2], state=adapter(keys=KEYS[2:]))
    assert sorted(reply.state) == sorted(KEYS[2:])
    assert all(torch.equal(reply.state[key], adapter()[key]) for key in reply.state)
    assert reply.metrics == dict.fromkeys(METRICS, 0.5)
    assert (reply.samples, reply.scores, reply.seconds) == (5, [0.1, 0.2], 1.0)


def test_the_first_adapter_leaves_only_where_the_server_requested_it(tmp_path):
    sent = Site(tmp_path / "a").message("hello", Hello(version="1", initial=True), introduction())
    assert sorted(sent.state) == sorted(KEYS)
    site = Site(tmp_path / "b")
    assert site.hello().state == {}
    assert FLModelUtils.from_shareable(site.received).meta["fedpeft"]["initial"] is True


def test_an_adapter_that_has_trained_does_not_leave_through_the_handshake(site):
    site.train()
    sent = site.message("hello", Hello(version="1", initial=True), introduction())
    assert sent.problem == BLOCKED
    assert "this site has trained, so it depends" in site.problem
    assert site.message("hello", HELLO, introduction(schema=introduction().schema, state={})).problem != BLOCKED


def test_a_digest_leaves_only_if_it_is_that_of_the_first_adapter(tmp_path, site):
    right, other = digest(adapter()), digest(adapter(0.75))
    assert Site(tmp_path / "a").hello(start_digest=right).start_digest == right
    assert Site(tmp_path / "b").hello(start_digest=other).problem == BLOCKED
    assert site.hello(start_digest=right).start_digest == right
    site.train()
    for named in (right, other):
        assert site.hello(start_digest=named, state={}, schema=introduction().schema).problem == BLOCKED
    assert "the digest of another adapter than the one that this site starts from" in site.problem


def test_bfloat16_passes_the_filters_unchanged(tmp_path):
    site = Site(tmp_path / "run")
    site.hello(state=adapter(dtype=torch.bfloat16))
    reply = site.train(state=adapter(0.75, torch.bfloat16))
    assert all(tensor.dtype == torch.bfloat16 for tensor in reply.state.values())


def changed(key, tensor):
    return {**adapter(), key: tensor}


METRICS_OF = dict.fromkeys(METRICS, 0.5)
TRAIN = [
    ("extra tensor", {"state": {**adapter(), "head.weight": torch.ones(2)}}, "unannounced keys head.weight"),
    ("missing tensor", {"state": adapter(keys=KEYS[1:])}, "lacks layer.0"),
    ("wrong shape", {"state": changed(KEYS[0], torch.ones(3, 2))}, f"{KEYS[0]} with shape [3, 2]"),
    ("wrong dtype", {"state": changed(KEYS[0], torch.ones(2, 3).double())}, "torch.float64"),
    ("whole numbers", {"state": changed(KEYS[1], torch.ones(2).long())}, f"{KEYS[1]} as torch.strided of torch.int64"),
    ("NaN", {"state": changed(KEYS[1], torch.tensor([1.0, float("nan")]))}, "NaN or infinity"),
    ("infinity", {"state": changed(KEYS[1], torch.tensor([1.0, float("inf")]))}, "NaN or infinity"),
    ("no tensor", {"state": changed(KEYS[1], [1.0, 2.0])}, f"{KEYS[1]} as a value of type 'list'"),
    ("sparse tensor", {"state": changed(KEYS[0], torch.ones(2, 3).to_sparse())}, "only dense"),
    (
        "tensor with attributes",
        {"state": changed(KEYS[1], torch.nn.Parameter(torch.ones(2)))},
        "only dense",
    ),
    ("unknown metric", {"metrics": {**METRICS_OF, "answers": 1.0}}, "sent metrics answers, below_constant, closed"),
    ("missing metric", {"metrics": {"loss": 1.0}}, "sent metrics loss, declared"),
    ("text in a metric", {"metrics": {**METRICS_OF, "loss": SECRET}}, "as metrics.loss"),
    ("list in a metric", {"metrics": {**METRICS_OF, "loss": [1.0, 2.0]}}, "as metrics.loss"),
    ("NaN in a metric", {"metrics": {**METRICS_OF, "loss": float("nan")}}, "as metric loss"),
    ("accuracy above 1", {"metrics": {**METRICS_OF, "overall": 17.0}}, "as metric overall"),
    ("huge number in a metric", {"metrics": {**METRICS_OF, "loss": 10**400}}, "too large"),
    ("other round", {"round": 2}, "answered for round 2 in round 1"),
    ("other sample count", {"samples": 6}, "6 training samples"),
    ("unexpected scores", {"scores": [0.1, 0.2]}, "2 layer scores, 0 were asked for"),
    ("endless seconds", {"seconds": float("inf")}, "seconds"),
    ("encoded seconds", {"seconds": 10**30}, "seconds"),
    ("text as seconds", {"seconds": SECRET}, "as seconds"),
    ("endless attempts", {"attempts": 1000}, "1000 attempts"),
    ("text as samples", {"samples": SECRET}, "as samples"),
    ("problem in words", {"problem": SECRET, "samples": 0, "state": {}}, "the problem 'Jane Doe"),
    ("problem with a line", {"problem": f"{CODE}\n{SECRET}", "samples": 0, "state": {}}, "as problem"),
    ("problem of a value", {"problem": CODE, "setting": SECRET, "samples": 0, "state": {}}, "with setting 'Jane"),
    ("setting alone", {"setting": "training.seed"}, "the problem ''"),
    ("problem and tensors", {"problem": CODE, "samples": 0, "metrics": dict.fromkeys(METRICS)}, "tensor 'layer.0"),
    ("problem and metrics", {"problem": CODE, "samples": 0, "state": {}}, "metrics of a reply with a problem"),
]


@pytest.mark.parametrize(("what", "changes", "reason"), TRAIN, ids=[row[0] for row in TRAIN])
def test_a_reply_with_something_else_in_it_stays_at_the_site(site, what, changes, reason):
    reply = site.message("train", train_order(), train_reply(**changes))
    assert reply == dataclasses.replace(train_reply(), **_empty(TrainReply))
    assert reason in site.problem


def test_unassigned_layers_stay_at_the_site(site):
    assert site.train(train_order(layers=[1])).problem == BLOCKED
    assert "has unannounced keys layer.0" in site.problem


def test_a_view_does_not_take_its_storage_along(site):
    whole = torch.full((1000, 3), 0.75)
    shareable = site.answer("train", train_order(), train_reply(state=changed(KEYS[0], whole[:2])))
    sent = FLModelUtils.from_shareable(shareable).params[KEYS[0]]
    assert sent.untyped_storage().nbytes() == 2 * 3 * 4


SCORES = [
    ("too many", {"scores": [0.1] * 3}, "3 layer scores, 2 were asked for"),
    ("negative", {"scores": [0.1, -1.0]}, "as the score of layer 1"),
    ("text", {"scores": [0.1, SECRET]}, "as scores[1]"),
    ("NaN", {"scores": [0.1, float("nan")]}, "as the score of layer 1"),
    ("other round", {"round": 3}, "answered for round 3 in round 1"),
]


@pytest.mark.parametrize(("what", "changes", "reason"), SCORES, ids=[row[0] for row in SCORES])
def test_scores_that_are_none_stay_at_the_site(site, what, changes, reason):
    reply = site.score(**changes)
    assert reply == ScoreReply(round=1, **_empty(ScoreReply))
    assert reason in site.problem


HELLOS = [
    ("other version", {"version": SECRET}, "version 'Jane Doe"),
    ("unknown data set", {"dataset": SECRET}, "unknown dataset"),
    ("unknown metric", {"metric": SECRET}, "unknown metric"),
    ("unknown backbone", {"backbone": SECRET}, "unknown backbone"),
    ("unknown family", {"family": SECRET}, "unknown family"),
    ("splits by name", {"samples": {SECRET: 1}}, "counts of train"),
    ("negative count", {"samples": {"train": -1, "validation": 0, "test": 0}}, "-1 as samples.train"),
    ("encoded count", {"classes": 2**200}, "as classes"),
    ("a round the server did not name", {"finished": 7}, "finished is 7"),
    ("no fraction", {"baseline": 2.0}, "2.0 as baseline"),
    ("encoded budget", {"budget": -1}, "-1 as budget"),
    ("schema key of words", {"schema": {SECRET: [1]}}, "not a tensor's name"),
    ("schema key of the head", {"schema": {**introduction().schema, "head.weight": [1]}}, "lacks head.weight"),
    ("schema key like the head's", {"schema": {**introduction().schema, "head. x": [1]}}, "not a tensor's name"),
    ("schema shape of text", {"schema": {KEYS[0]: [SECRET]}}, "as schema.layer.0"),
    ("schema without tensors", {"state": {}, "schema": introduction().schema}, "lacks layer.0"),
    ("tensors without schema", {"schema": {}}, "unannounced keys layer.0"),
    ("problem in words", {"problem": SECRET}, "the problem 'Jane Doe"),
    ("problem and facts", {"problem": CODE}, "of a reply with a problem"),
]


@pytest.mark.parametrize(("what", "changes", "reason"), HELLOS, ids=[row[0] for row in HELLOS])
def test_an_introduction_with_something_else_in_it_stays_at_the_site(tmp_path, what, changes, reason):
    site = Site(tmp_path / "run")
    assert site.message("hello", HELLO, introduction(**changes)) == Introduction(
        version=introduction().version, problem=BLOCKED
    )
    assert reason in site.problem


def test_the_baseline_does_not_pass_and_does_not_keep_the_introduction_back(tmp_path):
    """It tells how often an answer occurs; in the simulator it is measured, and a privacy.json may be there too."""
    sent = Site(tmp_path / "run").message("hello", HELLO, introduction(baseline=0.25))
    assert sent.problem == ""
    assert sent.baseline is None


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": {KEYS[0]: [2, 3]}, "state": adapter(keys=KEYS[:1])},
        {"samples": {"train": 6, "validation": 1, "test": 2}},
    ],
)
def test_a_site_cannot_announce_something_else_later(site, changes):
    assert site.message("hello", HELLO, introduction(**changes)).problem == BLOCKED
    assert "a second introduction" in site.problem


@pytest.mark.parametrize(
    ("own", "reason"), [({}, "head is off"), (None, "takes part in no job"), ({"head": True}, "")], ids=str
)
def test_a_head_leaves_only_where_the_site_allows_it(tmp_path, own, reason):
    site = Site(tmp_path / "run")
    if own is not None:
        (tmp_path / "run" / "local").mkdir()
        write_json(tmp_path / "run" / "local" / "fedpeft.json", own)
    sent = site.message("hello", HELLO, introduction(state={**adapter(), "head.0.weight": torch.ones(3, 2)}))
    assert (sent.problem == BLOCKED) == bool(reason)
    assert not reason or reason in site.problem


def put(**parts):
    def spoil(shareable):
        shareable.update(parts)

    return spoil


def head(shareable):
    shareable.set_header("patient", SECRET)


def kind(shareable):
    shareable["DXO"]["kind"] = "WEIGHT_DIFF"


def content(shareable):
    shareable["DXO"]["notes"] = SECRET


def meta(shareable):
    shareable["DXO"]["meta"]["initial_metrics"] = {"labels": [SECRET]}


def field(shareable):
    shareable["DXO"]["meta"]["fedpeft"]["labels"] = [SECRET]


SPOILS = [
    ("part", put(images=[SECRET]), "part 'images'"),
    ("header", head, "header 'patient'"),
    ("params type", kind, "content of kind 'WEIGHT_DIFF'"),
    ("content", content, "part of the content 'notes'"),
    ("meta", meta, "meta field 'initial_metrics'"),
    ("field", field, "field 'labels'"),
    ("no content", lambda shareable: shareable.pop("DXO") and None, "content of kind 'NoneType'"),
    ("no message", lambda shareable: shareable["DXO"].update(meta={}), "no TrainReply message"),
]


@pytest.mark.parametrize(("what", "spoil", "reason"), SPOILS, ids=[row[0] for row in SPOILS])
def test_nothing_but_the_message_travels_with_a_reply(site, what, spoil, reason):
    shareable = site.answer("train", train_order(), train_reply(), spoil=spoil)
    assert FLModelUtils.from_shareable(shareable).meta["fedpeft"]["problem"] == BLOCKED
    assert SECRET not in repr(shareable)
    assert reason in site.problem


def test_a_problem_passes_and_brings_nothing_along(site):
    empty = {**_empty(TrainReply), "problem": CODE, "seconds": 3.0, "attempts": 2}
    assert site.train(**empty) == train_reply(**{**empty, "seconds": 0.0, "attempts": 2})


def test_an_error_code_passes_without_content(site):
    failed = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    failed["trace"] = SECRET
    shareable = site.answer("train", train_order(), train_reply(), spoil=lambda _: failed)
    assert shareable.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert "trace" not in shareable
    odd = make_reply(SECRET)
    shareable = site.answer("train", train_order(), train_reply(), spoil=lambda _: odd)
    assert shareable.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR


def test_a_task_of_another_job_gets_no_reply(tmp_path):
    site = Site(tmp_path / "run")
    context = site._context("validate")
    site.answer("hello", HELLO, introduction())
    from fedpeft.flare.filters import AdapterOnly

    filter = AdapterOnly()
    filter.set_prop("__source", FilterSource.SITE)
    assert filter.process(Shareable({"x": 1}), context).get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR
    assert "not a task of fedpeft" in site.problem


CLOSED = [
    ("no order", {}, {"forget": True}, "RememberOrder must be"),
    ("unknown argument", {"remember": {"order": 1}}, {}, "RememberOrder has no argument 'order'"),
    ("unknown argument of the other", {"privaci": {}}, {}, "AdapterOnly has no argument 'privaci'"),
    ("undefined variable", {"privacy": None}, {}, "privacy is None"),
    ("undefined setting", {"privacy": {"clip": None, "noise": 1}}, {}, "privacy.clip is None"),
    ("unknown setting", {"privacy": {"clip": 1, "nois": 1}}, {}, "privacy.nois is not a setting"),
    ("noise without clipping", {"privacy": {"noise": 1.0}}, {}, "privacy lacks clip"),
    ("empty settings", {"privacy": {}}, {}, "privacy lacks clip, noise"),
    ("not a number", {"privacy": {"clip": float("nan"), "noise": 1}}, {}, "clip is nan"),
    ("text as settings", {"privacy": "on"}, {}, "privacy must be an object"),
    ("in a job", {"source": FilterSource.JOB}, {}, "only a site's own privacy.json"),
]


@pytest.mark.parametrize(("what", "settings", "how", "reason"), CLOSED, ids=[row[0] for row in CLOSED])
def test_a_filter_that_is_not_in_order_lets_nothing_out(tmp_path, what, settings, how, reason):
    site = Site(tmp_path / "run", **settings)
    assert site.message("hello", HELLO, introduction(), **how).problem == BLOCKED
    assert reason in site.problem


def test_a_broken_memory_lets_nothing_out(site):
    (site.folder / "fedpeft" / "outgoing" / "announced.json").write_text("{")
    assert site.train().problem == BLOCKED
    (site.folder / "fedpeft" / "outgoing" / "announced.json").unlink()
    assert site.train().problem == BLOCKED
    assert "has not introduced itself" in site.problem


def test_every_field_of_every_reply_has_a_rule():
    for message, fields in KNOWN.items():
        assert {field.name for field in dataclasses.fields(message)} == fields
    assert "current_round" in HEADERS


def _empty(message):
    empty = {"scores": [], "seconds": 0.0, "problem": BLOCKED}
    if message is TrainReply:
        empty |= {"samples": 0, "metrics": dict.fromkeys(METRICS), "state": {}}
    return empty


def test_an_adapter_that_scoring_has_loaded_does_not_leave_through_the_handshake(site):
    site.message("score", score_order(), score_reply())
    sent = site.message("hello", Hello(version="1", initial=True), introduction())
    assert sent.problem == BLOCKED
    assert "this site has trained, so it depends" in site.problem
