# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Names of every kind: the package's own and those of installed packages, each once."""

from importlib.metadata import EntryPoint

import pytest

from fedpeft.backbones import BACKBONES
from fedpeft.core import registry
from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import Registry
from fedpeft.data.registry import DATASETS
from fedpeft.doctor import CHECKS
from fedpeft.importance.registry import SCORES
from fedpeft.job.federation import TRACKERS
from fedpeft.methods import METHODS
from fedpeft.scheduling.solvers import SOLVERS

KINDS = [METHODS, BACKBONES, DATASETS, CHECKS, SCORES, SOLVERS, TRACKERS]


@pytest.fixture
def installed(monkeypatch):
    """Entry points of made-up packages, given as name -> place of the object."""

    def install(*points):
        listed = [EntryPoint(name=name, value=value, group="fedpeft.things") for name, value in points]
        monkeypatch.setattr(registry, "entry_points", lambda group: listed)

    return install


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.group)
def test_every_name_stands_for_something_and_can_be_taken_once(kind):
    assert kind.names()
    for name in kind.names():
        assert kind.get(name)
        with pytest.raises(FedpeftError, match=f"{kind.kind} '{name}' is registered by .* and by "):
            kind.register(name, "elsewhere:thing")


def test_an_unknown_name_is_answered_with_a_close_one():
    with pytest.raises(FedpeftError, match=r"score 'lntkk' is unknown: did you mean 'lntk'"):
        SCORES.get("lntkk")


def test_what_is_installed_stands_beside_the_own(installed):
    installed(("path", "os:sep"))
    things = Registry("thing", "fedpeft.things")
    things.register("own", "os:linesep")
    things.register("here", here := object())
    assert things.names() == ("own", "here", "path")
    assert [things.get(name) for name in things.names()] == ["\n", here, "/"]


@pytest.mark.parametrize(
    "points", [[("own", "os:sep")], [("other", "os:sep"), ("other", "os:linesep")]], ids=["own", "two plugins"]
)
def test_a_plugin_cannot_take_a_name_that_is_taken(installed, points):
    installed(*points)
    with pytest.raises(FedpeftError, match=r"thing '(own|other)' is registered by .* and by "):
        Registry("thing", "fedpeft.things").register("own", "os:linesep")


@pytest.mark.parametrize("value", ["no_such_module_at_all:thing", "os:no_such_thing"])
def test_a_plugin_that_cannot_be_imported_costs_its_own_name_only(installed, value):
    installed(("broken", value))
    things = Registry("thing", "fedpeft.things")
    things.register("own", "os:sep")
    assert things.get("own") == "/"
    with pytest.raises(FedpeftError, match=r"thing 'broken' cannot be used from .*: update or uninstall"):
        things.get("broken")


def test_what_is_left_out_is_logged_once(installed, caplog):
    installed(("broken", "no_such_module_at_all:thing"), ("path", "os:sep"), ("wrong", "os:getcwd"))
    things = Registry("thing", "fedpeft.things", str)
    things.register("own", "os:linesep")
    for _ in range(2):
        assert dict(things.usable()) == {"own": "\n", "path": "/"}
    assert [record.message.split(" cannot")[0] for record in caplog.records] == ["thing 'broken'", "thing 'wrong'"]
    with pytest.raises(FedpeftError, match=r"it is of type builtin_function_or_method, not str"):
        things.get("wrong")


def test_what_is_wrong_with_the_packages_own_is_an_error(installed):
    installed()
    things = Registry("thing", "fedpeft.things")
    things.register("own", "os:no_such_thing")
    with pytest.raises(AttributeError):
        list(things.usable())


@pytest.mark.parametrize("kind", [DATASETS, SCORES, METHODS], ids=lambda kind: kind.group)
def test_an_object_of_another_kind_is_refused_at_registration(kind):
    with pytest.raises(FedpeftError, match=f"{kind.kind} 'mine' is of type int, not "):
        kind.register("mine", 3)
    assert "mine" not in kind.names()
