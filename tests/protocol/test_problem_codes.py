# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site says of a problem is a code and a setting's name, whatever went wrong and whoever reads it."""

import pytest

import fedpeft
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.settings import build
from fedpeft.data import DataError, DataSettings
from fedpeft.flare.messages import from_model, to_model
from fedpeft.job.strict_files import declared_part, setting_names
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.fields import CODES, is_known, sentence
from fedpeft.protocol.reply_contract import check_introduction
from fedpeft.protocol.types import Introduction
from fedpeft.site.connection import Failure

SECRET = "hospital-database-password"
UNKNOWN = "it sent an unknown problem code: install the same fedpeft version everywhere."
FORGED = f"out-of-memory\x1b[31m\n{SECRET}"


def problem_of(raising):
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of any kind
        raising()
    assert SECRET in str(raised.value) or SECRET in repr(raised.value.args)
    return Failure.of(raised.value)


def fail(error):
    raise error


def method_settings(**settings):
    return lambda: build(MethodSettings, settings, section="method")


RAISED = [
    ("a value", method_settings(aggregation=SECRET), "setting-refused", "method.aggregation"),
    ("a name", method_settings(**{SECRET: 1}), "setting-refused", "method"),
    (
        "a type",
        lambda: build(TrainingSettings, {"rounds": SECRET}, section="training"),
        "setting-refused",
        "training.rounds",
    ),
    ("a section", lambda: build(TrainingSettings, SECRET, section="training"), "setting-refused", "training"),
    (
        "data settings",
        lambda: build(DataSettings, {"dataset": SECRET}, section="data"),
        "setting-refused",
        "data.dataset",
    ),
    ("data", lambda: fail(DataError(f"{SECRET}.png is missing.")), "data-unusable", ""),
    ("a file", lambda: fail(LocalError(f"/{SECRET} cannot be read.")), "state-unusable", ""),
    ("an undeclared setting", lambda: fail(FedpeftError(SECRET, setting=SECRET)), "setting-refused", ""),
    ("any input", lambda: fail(FedpeftError(SECRET)), "job-refused", ""),
    ("any exception", lambda: fail(KeyError(SECRET)), "training-failed", ""),
    ("memory", lambda: fail(MemoryError(SECRET)), "out-of-memory", ""),
]


@pytest.mark.parametrize(("what", "raising", "code", "setting"), RAISED, ids=[row[0] for row in RAISED])
def test_of_an_error_only_its_code_and_the_settings_name_leave(what, raising, code, setting):
    problem = problem_of(raising)
    assert SECRET in problem.detail + problem.traceback
    assert (problem.code, problem.setting) == (code, setting)
    assert SECRET not in sentence(problem.code, problem.setting)


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_one_sentence_with_a_remedy(code):
    for setting in ("", "training.rounds"):
        printed = sentence(code, setting)
        assert printed.endswith(".")
        assert printed.isprintable()
        assert "{" not in printed
        assert ("training.rounds" in printed) == ("{setting}" in CODES[code] and bool(setting))


@pytest.mark.parametrize(
    ("code", "setting"),
    [
        (SECRET, ""),
        (FORGED, ""),
        ("x" * 2_000_000, ""),
        (7, ""),
        ([], ""),
        ("out-of-memory", FORGED),
        ("data-unusable", 3),
    ],
)
def test_what_is_no_code_is_never_repeated(code, setting):
    assert not is_known(code, setting)
    assert sentence(code, setting) == UNKNOWN


def test_a_problem_with_words_of_its_own_cannot_be_built():
    with pytest.raises(ValueError, match="not declared"):
        Failure(detail="", code=SECRET)
    with pytest.raises(ValueError, match="not declared"):
        Failure(detail="", code="setting-refused", setting=SECRET)


@pytest.mark.parametrize(
    ("path", "declared"),
    [
        ("method.settings.houlsby.width", "method.settings"),
        ("method.pia.gamma", "method.pia.gamma"),
        (f"data.{SECRET}", "data"),
        (SECRET, ""),
        ("", ""),
    ],
)
def test_names_below_a_declared_one_are_cut(path, declared):
    assert declared_part(path) == declared


def test_every_setting_of_a_job_is_declared():
    declared = {"training.rounds", "data.exclude", "backbone.source", "schedule.score_samples", "method.pia"}
    assert declared <= setting_names()


@pytest.mark.parametrize("problem", ["no such code", FORGED, "x" * 2_000_000])
def test_the_server_prints_one_short_line_whatever_a_site_says(problem):
    def read():
        model = to_model(Introduction(version=fedpeft.__version__, problem=problem))
        introduction = from_model(Introduction, model, sender="site north")
        check_introduction(introduction, site="north", initial=False, max_samples=100)

    with pytest.raises(FedpeftError) as refused:
        read()
    assert str(refused.value).startswith("site north ")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200
