# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A plugin that a site has not listed is not imported for a job, and the answer does not tell that it is installed."""

from dataclasses import replace

import pytest

from fedpeft import registry
from fedpeft.backbones import BACKBONES
from fedpeft.client.answering import ANSWERING
from fedpeft.data.registry import DATASETS
from fedpeft.errors import FedpeftError
from fedpeft.importance.registry import SCORES
from fedpeft.methods import METHODS
from fedpeft.privacy.plugin_names import check_plugins
from fedpeft.privacy.site_policy import SitePolicy
from fedpeft.registry import Registry
from fedpeft.scheduling.solvers import SOLVERS

KINDS = {
    "method.name": ("METHODS", "methods"),
    "backbone.name": ("BACKBONES", "backbones"),
    "data.dataset": ("DATASETS", "datasets"),
    "schedule.score": ("SCORES", "score_methods"),
    "schedule.solver": ("SOLVERS", "solvers"),
    "training.answering": ("ANSWERING", "answering"),
}


class Point:
    """An entry point that must not be loaded."""

    name, value, module, dist = "research", "no_such_module_at_all:thing", "no_such_module_at_all", None

    def load(self):
        raise AssertionError("the plugin is imported")


@pytest.fixture(params=KINDS)
def setting(request, monkeypatch):
    """A setting that names a plugin of its kind."""
    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()])
    name, _ = KINDS[request.param]
    monkeypatch.setattr(f"fedpeft.privacy.plugin_names.{name}", Registry("thing", "fedpeft.things"))
    return request.param


def sections(setting, value):
    section, name = setting.split(".")
    return {section: {name: value}}


def test_a_plugin_that_is_not_listed_is_answered_as_an_unknown_name(setting):
    with pytest.raises(FedpeftError, match=r"not in local/fedpeft\.json") as refused:
        check_plugins(SitePolicy(), sections(setting, "research"))
    assert (refused.value.setting, refused.value.code) == (setting, "setting-refused")


def test_what_a_job_names_for_a_single_site_is_looked_at_too(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()])
    monkeypatch.setattr("fedpeft.privacy.plugin_names.BACKBONES", Registry("thing", "fedpeft.things"))
    with pytest.raises(FedpeftError, match=r"not in local/fedpeft\.json"):
        check_plugins(SitePolicy(), {"backbone": {"name": "tiny-vilt", "sites": {"south": {"name": "research"}}}})


def test_a_plugin_that_is_listed_is_not_refused(setting):
    check_plugins(SitePolicy(**{KINDS[setting][1]: ("research",)}), sections(setting, "research"))


@pytest.mark.parametrize("value", [None, 3, ["research"], {"research": 1}, "unknown"])
def test_a_value_that_names_no_plugin_is_not_refused_here(setting, value):
    check_plugins(SitePolicy(), sections(setting, value))


def test_the_data_of_other_sites_are_looked_at_too(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()])
    monkeypatch.setattr("fedpeft.privacy.plugin_names.DATASETS", Registry("data set", "fedpeft.datasets"))
    for data in ({"sites": {"south": {"dataset": "research"}}}, {"dataset": "research"}):
        with pytest.raises(FedpeftError, match="research"):
            check_plugins(SitePolicy(), {"data": data})


def test_what_ships_is_allowed_by_default_and_no_plugin(monkeypatch):
    before = SitePolicy()
    for kind in (METHODS, BACKBONES, DATASETS, SCORES, SOLVERS, ANSWERING):
        assert kind.own_names()
        monkeypatch.setattr(kind, "_plugins", {"research": Point()})
        assert "research" in kind.names()
    assert SitePolicy() == before
    assert before.score_methods == SCORES.own_names()
    assert before.solvers == SOLVERS.own_names()
    assert before.answering == ANSWERING.own_names()
    assert before.backbones == BACKBONES.own_names()


def test_a_new_name_of_the_package_is_allowed_without_a_second_line(monkeypatch):
    monkeypatch.setattr(SCORES, "_own", {**SCORES._own, "new": "somewhere:new"})
    assert SitePolicy().score_methods[-1] == "new"
    sending = replace(METHODS.get("full"), label="all of it again")
    monkeypatch.setattr(METHODS, "_own", {**METHODS._own, "new": METHODS.get("lora"), "all": sending})
    assert "new" in SitePolicy().methods
    assert "all" not in SitePolicy().methods
