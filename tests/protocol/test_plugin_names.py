# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A plugin that a site has not listed is not imported for a job, and the answer does not tell that it is installed."""

import json
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace

import peft
import pytest
from harness import introduction

from fedpeft.alignment import neurons
from fedpeft.answering import ANSWERING
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import BACKBONES
from fedpeft.core import registry
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.registry import Registry
from fedpeft.core.settings import build
from fedpeft.data import class_folders
from fedpeft.data.registry import DATASETS
from fedpeft.flare import executor
from fedpeft.importance.registry import SCORES
from fedpeft.job.site_policy import SitePolicy, check_plugins, keep_to
from fedpeft.methods import METHODS
from fedpeft.methods.method import names as adapter_names
from fedpeft.methods.peft_types import register_all
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.reply_contract import check_announcement
from fedpeft.scheduling.solvers import SOLVERS, names_with_front
from fedpeft.server.run_recorder import RunRecorder

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
    monkeypatch.setattr(f"fedpeft.job.site_policy.{name}", Registry("thing", "fedpeft.things"))
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
    monkeypatch.setattr("fedpeft.job.site_policy.BACKBONES", Registry("thing", "fedpeft.things"))
    with pytest.raises(FedpeftError, match=r"not in local/fedpeft\.json"):
        check_plugins(SitePolicy(), {"backbone": {"name": "tiny-vilt", "sites": {"south": {"name": "research"}}}})


@dataclass
class Unusable:
    """A section that names a plugin which cannot be imported."""

    def __post_init__(self):
        raise FedpeftError("cannot be used", code="plugin-unusable")


def test_a_plugin_that_cannot_be_used_has_its_code_in_a_section():
    with pytest.raises(FedpeftError) as refused:
        build(Unusable, {}, section="method")
    assert (refused.value.code, refused.value.setting) == ("plugin-unusable", "method")


def test_a_plugin_that_is_listed_is_not_refused(setting):
    check_plugins(SitePolicy(**{KINDS[setting][1]: ("research",)}), sections(setting, "research"))


@pytest.mark.parametrize("value", [None, 3, ["research"], {"research": 1}, "unknown"])
def test_a_value_that_names_no_plugin_is_not_refused_here(setting, value):
    check_plugins(SitePolicy(), sections(setting, value))


def test_the_data_of_other_sites_are_looked_at_too(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()])
    monkeypatch.setattr("fedpeft.job.site_policy.DATASETS", Registry("data set", "fedpeft.datasets"))
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


REGISTRIES = (METHODS, BACKBONES, DATASETS, SCORES, SOLVERS, ANSWERING)


@pytest.fixture
def imported(monkeypatch):
    """What is imported of a plugin of every kind that is installed: nothing as yet."""
    loaded = []

    class Noted(Point):
        def load(self):
            loaded.append(self)
            raise ImportError("it is broken")

    for kind in (*REGISTRIES, neurons._PLUGINS):
        monkeypatch.setattr(kind, "_plugins", {"research": Noted()})
    monkeypatch.setattr(neurons, "_add_kinds_of_plugins", neurons._add_kinds_of_plugins.__wrapped__)
    return loaded


LOOPS = {
    "usable": lambda: [name for kind in REGISTRIES for name, _ in kind.usable()],
    "PEFT's types": lambda: register_all(peft),
    "kinds of neurons": lambda: neurons.neurons_of(["of no kind"]),
    "adapters": adapter_names,
    "solvers": names_with_front,
    "data sets of folders": class_folders._others,
}


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_that_looks_at_all_names_imports_a_plugin_that_is_not_listed(loop, imported):
    keep_to(SitePolicy())
    LOOPS[loop]()
    assert not imported
    keep_to(None)
    LOOPS[loop]()
    assert imported, "as the simulator would"


@pytest.mark.parametrize("field", ["dataset", "backbone"])
def test_the_server_imports_no_plugin_that_a_site_names(field, imported, tmp_path):
    keep_to(None)  # a server has no list
    named = introduction("north", **{field: "research"})
    check_announcement(named, site="north")
    record = RunRecorder(tmp_path, job="test")
    record.record_handshake(MethodSettings(), TrainingSettings(rounds=1), {"north": named}, problems={})
    assert not imported


def test_a_listed_plugin_is_known_and_only_as_its_kind(imported):
    keep_to(SitePolicy(solvers=("research",)))
    assert "research" in SOLVERS.names()
    assert not any("research" in kind.names() for kind in REGISTRIES if kind is not SOLVERS)
    with pytest.raises(FedpeftError, match="score 'research' is unknown"):
        SCORES.get("research")
    keep_to(None)
    assert all("research" in kind.names() for kind in REGISTRIES)
    assert not imported


def test_the_sites_job_process_keeps_to_the_file_and_without_one_to_nothing(imported, monkeypatch):
    monkeypatch.setattr(executor, "policy_of", lambda fl_ctx: SitePolicy(datasets=("research",)))
    executor._read_site_policy(SimpleNamespace())
    assert [kind for kind in REGISTRIES if "research" in kind.names()] == [DATASETS]
    monkeypatch.setattr(executor, "policy_of", lambda fl_ctx: None)
    executor._read_site_policy(SimpleNamespace())
    assert all("research" in kind.names() for kind in REGISTRIES), "the simulator has no list"

    def missing(fl_ctx):
        raise LocalError("there is no file")

    monkeypatch.setattr(executor, "policy_of", missing)
    with pytest.raises(LocalError):
        executor._read_site_policy(SimpleNamespace())
    assert not any("research" in kind.names() for kind in REGISTRIES)


TRAINED = """
import json, sys, threading
from multiprocessing import Pipe
from pathlib import Path
from fedpeft.site import training_process
from fedpeft.site.connection import receive, send, unpack

folder, requests, answers = Path(sys.argv[1]), json.loads(sys.argv[2]), []
ours, theirs = sys.ends = Pipe()  # kept: the process would end with the pipe, before it has said how this went
for request in requests:
    send(ours, request, {})
reader = threading.Thread(target=lambda: answers.extend(unpack(receive(ours))[0] for _ in requests[1:]))
reader.start()
sys.argv = ["", str(theirs.fileno())]
training_process.main()  # ends after a request that it does not know
reader.join()
assert ["values" in answer for answer in answers] == [True] * (len(answers) - 1) + [False], answers
assert not (folder / "imported").exists(), "the plugin is imported"
"""


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [["method.name=lora"], ["schedule.solver=exact", "schedule.budget=1"]], ids=str)
def test_a_training_process_imports_no_plugin_that_the_file_does_not_list(
    sections, small_policy, fresh_processes, tmp_path, chosen
):
    (tmp_path / "mine.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'imported')!r}).touch()\n")
    information = tmp_path / "mine-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    groups = (f"[{kind.group}]\nmine = mine:MINE\n" for kind in REGISTRIES)
    (information / "entry_points.txt").write_text("\n".join(groups))
    opening = {"do": "open", "sections": sections(*chosen), "site": "slake", "log": str(tmp_path / "log")}
    own = asdict(SitePolicy(**small_policy))
    folder = {"folder": str(tmp_path / "state")}
    requests = [
        {**opening, "policy": own},
        {"do": "introduce", "initial": False, "finished": 0, "own": 0, **folder},
        {"do": "train", "round": 1, "layers": None, "scored": False, **folder},
        {"do": "no such request", **folder},
    ]
    arguments = str(tmp_path), json.dumps(requests)
    assert not fresh_processes.run(TRAINED, *arguments, path=[str(tmp_path)])
