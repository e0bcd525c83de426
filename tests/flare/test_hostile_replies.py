# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a single site sends costs that site the round, or its part in the job, by name; the others go on."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from harness import (
    LAYERS,
    SCHEDULE,
    SCHEMA,
    SITES,
    START,
    Harness,
    assigned,
    but,
    introduction,
    reply,
    scheduled,
    scores,
    starting,
)
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.private.fed.server.server_runner import ServerRunner

from fedpeft.core.states import digest
from fedpeft.flare.messages import FIELDS, to_model
from fedpeft.protocol.types import METRICS

KEY = "layer.0.output.down.weight"
NESTED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def edited(site, order, **changes):
    """A sound reply with fields changed after it was built."""
    model = to_model(reply(site, order))
    model.meta[FIELDS] |= changes
    return model


def with_params(site, order, params):
    shareable = FLModelUtils.to_shareable(to_model(reply(site, order)))
    shareable["DXO"]["data"] = params(shareable["DXO"]["data"])
    return shareable


def without_fields(site, order):
    model = to_model(reply(site, order))
    model.meta.clear()
    return model


def of_kind(site, order, kind):
    """A sound reply whose content is declared as another kind."""
    shareable = FLModelUtils.to_shareable(to_model(reply(site, order)))
    shareable["DXO"]["kind"] = kind
    return shareable


REPLIES = {  # one of those that the contract refuses, tests/protocol/test_reply_contract.py, and all that is none
    "NaN": lambda s, o: reply(s, o, state={k: torch.full(shape, float("nan")) for k, shape in SCHEMA.items()}),
    "tensors of float64": lambda s, o: reply(s, o, state={k: torch.ones(n).double() for k, n in SCHEMA.items()}),
    "silence": lambda s, o: None,
    "no metrics": lambda s, o: reply(s, o, metrics=None),
    "text for seconds": lambda s, o: reply(s, o, seconds="patient 7"),
    "an introduction": lambda s, o: introduction(s),
    "an adapter declared as a difference": lambda s, o: of_kind(s, o, "WEIGHT_DIFF"),
    "an adapter declared as a collection": lambda s, o: of_kind(s, o, "COLLECTION"),
    "a nested tensor": lambda s, o: with_params(s, o, lambda params: {**params, KEY: NESTED}),
    "metrics with names of two types": lambda s, o: edited(s, o, metrics={**dict.fromkeys(METRICS), 1: 0.5}),
    "an integer of 5000 digits": lambda s, o: edited(s, o, samples=10**5000),
    "a tensor in place of a problem": lambda s, o: edited(s, o, problem=torch.ones(3)),
    "a problem of two million characters": lambda s, o: edited(s, o, problem="\x1b[31m\n" * 400_000),
    "a loss of 1e308": lambda s, o: edited(s, o, metrics={**dict.fromkeys(METRICS), "loss": 1e308}),
    "a number for a tensor's name": lambda s, o: with_params(s, o, lambda params: {**params, 7: torch.ones(2)}),
    "a tensor without a name": lambda s, o: with_params(s, o, lambda params: torch.ones(3)),
    "a list of tensors": lambda s, o: with_params(s, o, lambda params: list(params.values())),
    "no declared field": without_fields,
    "a return code that ends a job by default": lambda s, o: make_reply(ReturnCode.TASK_UNKNOWN),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", REPLIES)
def test_a_reply_costs_its_site_the_round(run, kind):
    harness, manifest, history = run(train=but("chest", REPLIES[kind], rounds=(2,)), quorum=2)
    assert manifest["status"] == "completed", manifest.get("reason")
    (fault,) = manifest["faults"]
    assert (fault["site"], fault["round"]) == ("chest", 2)
    assert "site chest " in fault["what"]
    assert fault["what"].isprintable()
    assert len(fault["what"]) < 300
    assert "chest" in history["rounds"][1]["rejected"]
    assert torch.equal(harness.saved[-1]["layer.0.output.down.weight"], torch.full((2, 3), 2.5))


NARROW = {"layer.0.output.down.weight": [2, 3]}
SAMPLES = {"train": 5, "validation": 1, "test": 2}
UNABLE = [
    ("chest", {"start_digest": "f" * 63}, "as start_digest, which is not a SHA-256"),
    ("chest", {"start_digest": "F" * 64}, "as start_digest, which is not a SHA-256"),
    ("chest", {"start_digest": "f" * 10**6}, "as start_digest of a Introduction message: wrong type or too large"),
    ("chest", {"start_digest": "\x1b[31m"}, "as start_digest of a Introduction message: wrong type or too large"),
    ("chest", {"start_digest": 64}, "site chest sent 64 as start_digest of a Introduction message"),
    ("chest", {"version": "0.0.1"}, "site chest runs fedpeft 0.0.1"),
    ("chest", {"schema": NARROW}, "the adapters of sites slake and chest differ"),
    ("slake", {"schema": NARROW}, "the adapters of sites vqa-rad and slake differ"),
    ("chest", {"dtype": "bfloat16"}, "site chest sends tensors of bfloat16, site slake of float32"),
    ("chest", {"dtype": "float64"}, "site chest announces tensors of 'float64'"),
    ("chest", {"samples": {**SAMPLES, "train": 0}}, "site chest announces 0 training samples"),
    ("chest", {"samples": {**SAMPLES, "train": 10**12}}, "(federation.max_samples)"),
    ("chest", {"samples": {**SAMPLES, "test": 2 * 10**15}}, "site chest announces 2000000000000000 as samples.test"),
    ("chest", {"samples": {**SAMPLES, "test": 10**12}}, "announces 1000000000000 test samples, allowed are 0 to"),
    ("chest", {"samples": {**SAMPLES, "validation": 10**12}}, "validation samples, allowed are 0 to"),
    ("chest", {"budget": 2 * 10**15}, "site chest announces 2000000000000000 as budget"),
    ("chest", {"samples": {**SAMPLES, "train": True}}, "site chest sent True as samples.train"),
    ("chest", {"budget": -5}, "site chest announces -5 as budget"),
    ("chest", {"width": -1}, "site chest announces -1 as width"),
    ("chest", {"width": 64}, "site chest has a backbone of width 64 and site slake one of width 0"),
    ("chest", {"procedural": False}, "site chest announces False as procedural of phantom, which is True"),
    ("chest", {"tiny": False}, "site chest announces False as tiny of tiny-vilt, which is True"),
    ("chest", {"dataset": "slake"}, "site chest announces True as procedural of slake, which is False"),
    ("slake", {"family": "unheard-of"}, "site slake names an unknown family"),
    (
        "slake",
        {"slots": {"output": "encoder.layer.{layer}.attention.output"}},
        "announces another place of slot output than family vilt has",
    ),
    (
        "slake",
        {"family": "siglip", "slots": {"output": "../{layer}"}},
        "the place of slot 'output', which is not a valid path",
    ),
    (
        "slake",
        {"family": "siglip", "slots": {"output": "(a+)+{layer}"}},
        "the place of slot 'output', which is not a valid path",
    ),
    (
        "slake",
        {"family": "siglip", "slots": {"shared": "a.{layer}"}},
        "the place of slot 'shared', which is not a valid path",
    ),
    ("slake", {"family": "siglip", "slots": {"query": "a.{layer}"}}, "tensors in slot output, but not where that is"),
    ("slake", {"family": "siglip", "slots": {"output": "a.{layer}"}}, "backbone of family"),
    ("chest", {"schema": {**NARROW, 5: [2]}}, "site chest sent 5 as a name in schema"),
    ("chest", {"schema": {"\x1b[31mred\n": [2, 3]}}, r"site chest sent '\x1b[31mred\n' as a name in schema"),
    ("chest", {"schema": {"layer.0.output.down.weight": [2**40, 3]}}, "which is not a valid shape"),
]


@pytest.mark.parametrize(("site", "changes", "problem"), UNABLE)
def test_a_site_that_does_not_fit_does_not_take_part(run, site, changes, problem):
    harness, manifest, history = run(lambda name: introduction(name, **(changes if name == site else {})), quorum=2)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert problem in manifest["sites"][site]["problem"]
    assert site not in history["rounds"][0]["sites"]
    assert len(harness.saved) == 2


@pytest.mark.parametrize("value", [None, 3e38])
def test_layers_start_from_another_site_where_the_first_sends_no_usable_adapter(run, value):
    state = {} if value is None else {key: torch.full(shape, value) for key, shape in LAYERS.items()}
    greeted = []

    def introduce(site):
        greeted.append(site)
        if site == "slake":
            return introduction(site, schema=LAYERS, budget=1, state=state)
        return introduction(site, schema=LAYERS, budget=1, state=scheduled("slake").state if len(greeted) > 4 else {})

    _, manifest, _ = run(introduce, assigned, quorum=2, schedule=SCHEDULE)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert "site slake" in manifest["sites"]["slake"]["problem"]
    assert greeted == [*SITES, "slake", "vqa-rad"]


def full_of(value):
    return {key: torch.full(shape, value) for key, shape in LAYERS.items()}


STARTS = {  # what the first site announces, and the others; why it is left out, or what is said of it
    "under the digest of most sites": (START, START, "site slake sent another first adapter than it and most sites"),
    "under its own digest": ("own", START, "site slake starts from another adapter than 2 of 3 sites"),
    "where no site announces a digest": (None, None, "site slake sent a first adapter with"),
}


@pytest.mark.parametrize("value", [0.3, 0.02, 1e6])
@pytest.mark.parametrize("announced", STARTS)
def test_the_adapter_that_all_start_from_is_not_that_of_one_hostile_site(run, announced, value):
    own, others, said = STARTS[announced]
    hostile, begins = full_of(value), []

    def introduce(site):
        lies = {"state": hostile, "announced": hostile if own == "own" else own}
        return starting(site, **lies) if site == "slake" else starting(site, announced=others)

    def score(site, order):
        begins.append(order.round > 1 or all(torch.equal(order.state[key], START[key]) for key in START))
        return scores(site, order)

    _, manifest, _ = run(introduce, assigned, score, quorum=2, schedule=SCHEDULE)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert begins
    assert all(begins)
    assert manifest["start"] == {"site": "vqa-rad", "digest": digest(START) if others else ""}
    heard = {fault["site"]: fault["what"] for fault in manifest["faults"] if fault["round"] == 0}
    assert said in (heard["slake"] if own == "own" else manifest["sites"]["slake"]["problem"])
    assert ("problem" in manifest["sites"]["slake"]) == (own != "own")
    assert set(heard) == ({"slake"} if own == "own" else set())


@pytest.mark.parametrize(("quorum", "status"), [(1, "completed"), (2, "failed")])
def test_of_two_sites_that_differ_neither_is_believed_and_the_method_says_what_a_start_is(run, quorum, status):
    hostile = full_of(0.02)

    def introduce(site):
        return starting(site, hostile, hostile) if site == "slake" else starting(site)

    _, manifest, _ = run(introduce, assigned, quorum=quorum, schedule=SCHEDULE, sites=SITES[:2])
    assert manifest["status"] == status
    said = manifest["sites"]["slake"]["problem"] if status == "completed" else manifest["reason"]
    assert "site slake sent a first adapter with values of root mean square 0.02 in 6 tensors together" in said


def test_a_second_introduction_changes_nothing_but_the_adapter(run):
    greeted = []

    def introduce(site):
        greeted.append(site)
        first = starting(site)
        return replace(first, samples={**first.samples, "train": 500_000}, budget=2) if len(greeted) > 3 else first

    _, manifest, history = run(introduce, assigned, schedule=SCHEDULE)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert greeted == [*SITES, "slake"]
    assert manifest["sites"]["slake"]["samples"]["train"] == 5
    assert all(len(layers) <= 1 for entry in history["rounds"] for layers in entry["schedule"]["layers"].values())


@pytest.mark.parametrize("huge", [1e308, 1e31, -1.0, True, None, [1.0]])
def test_scores_that_no_schedule_can_hold_cost_the_site_the_round(run, huge):
    def score(site, order):
        return scores(site, order, scores=[huge] * 3) if site == "chest" else scores(site, order)

    _, manifest, history = run(scheduled, assigned, score, quorum=2, schedule=SCHEDULE)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert "site chest sent" in history["rounds"][0]["rejected"]["chest"]


def test_scores_of_another_round_are_refused(run):
    def replayed(site, order):
        sent = scores(site, order)
        return replace(sent, round=order.round + 1) if site == "chest" else sent

    _, _, history = run(scheduled, assigned, replayed, quorum=2, schedule=SCHEDULE)
    assert "site chest answered for round 2 in round 1" in history["rounds"][0]["rejected"]["chest"]


def test_no_return_code_of_a_site_ends_the_job(run, monkeypatch):
    """FLARE's server ends a job for three return codes of a single site, before any of our code sees them."""
    runner = SimpleNamespace(ABORT_RETURN_CODES=ServerRunner.ABORT_RETURN_CODES)
    monkeypatch.setattr(Harness, "context_props", {FLContextKey.RUNNER: runner})
    _, manifest, _ = run()
    assert manifest["status"] == "completed"
    assert not runner.ABORT_RETURN_CODES


def test_an_aborted_job_names_the_sites_that_had_not_answered(run, tmp_path):
    def train(site, order):
        harness.abort_signal.trigger(True)
        return reply(site, order) if site == "slake" else None

    harness = Harness(train=train)
    harness.run()
    reason = json.loads((tmp_path / "manifest.json").read_text())["reason"]
    assert "without a reply: vqa-rad, chest" in reason
    assert harness.panics == [reason]
