# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The site's privacy.json: written by us, read by FLARE, put into the job where FLARE's simulator reads none."""

import json

import pytest
from nvflare.apis.fl_constant import FilterKey
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import create_privacy_manager

from fedpeft.core.errors import FedpeftError
from fedpeft.core.workspace import COMPONENTS, seed
from fedpeft.flare.filters import AdapterOnly, RememberOrder
from fedpeft.flare.policy import SCOPE, add_site_filters, default_scope, main
from fedpeft.job.composing import write_job
from fedpeft.protocol import PrivacySettings
from fedpeft.run.simulate import simulate

PRIVACY = PrivacySettings(clip=1.0, noise=2.0)


def manager(folder, policy, *, server=False):
    for name in ("startup", "local"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "local" / "privacy.json").write_text(json.dumps(policy))
    return create_privacy_manager(Workspace(str(folder), "slake"), names_only=False, is_server=server)


@pytest.mark.parametrize("server", [False, True])
def test_flare_reads_the_scope_and_runs_it_at_sites_only(tmp_path, server):
    scope = manager(tmp_path, default_scope(PRIVACY), server=server).get_scope("")
    assert scope.name == SCOPE
    assert [type(one) for one in scope.task_data_filters[FilterKey.IN]] == [RememberOrder]
    assert [type(one) for one in scope.task_result_filters[FilterKey.OUT]] == [AdapterOnly]
    assert not scope.task_data_filters[FilterKey.OUT]
    assert not scope.task_result_filters[FilterKey.IN]


def test_a_job_cannot_choose_another_scope(tmp_path):
    assert manager(tmp_path, default_scope()).get_scope("open") is None


def test_the_command_prints_the_file(capsys):
    assert main(["clip=1", "noise=2", "metrics=pass"]) == 0
    assert json.loads(capsys.readouterr().out) == default_scope(PrivacySettings(clip=1.0, noise=2.0, metrics="pass"))
    assert main([]) == 0
    assert json.loads(capsys.readouterr().out) == default_scope()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["noise=2"], "privacy lacks clip"),
        (["clip=1", "nois=2"], "did you mean 'noise'"),
        (["clip=1", "noise"], "not of the form name=value"),
        (["clip=1", "noise=x"], "noise is 'x', it must be a number"),
        (["clip=nan", "noise=1"], "clip is nan"),
    ],
)
def test_the_command_refuses_what_the_filter_would(arguments, message, capsys):
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


@pytest.fixture
def job(tmp_path, sections):
    """A job folder."""
    write_job(tmp_path / "job", "small", sections())
    return tmp_path / "job"


def test_for_the_simulator_the_filters_go_into_the_job(job, tmp_path):
    file = tmp_path / "privacy.json"
    assert add_site_filters(job, file, tmp_path / "out") == job
    file.write_text(json.dumps(default_scope(PRIVACY)))
    filtered = add_site_filters(job, file, tmp_path / "out")
    assert filtered.name == job.name
    client = json.loads((filtered / "app/config/config_fed_client.json").read_text())
    for chain in ("task_data_filters", "task_result_filters"):
        (only,) = client[chain]
        assert only["tasks"] == ["hello", "score", "train"]
        assert only["filters"][0]["path"] in COMPONENTS
    assert only["filters"][0]["args"]["privacy"]["noise"] == 2.0


@pytest.mark.parametrize("policy", ["{", "[]", "{}", json.dumps({"scopes": [], "default_scope": "fedpeft"})])
def test_a_policy_that_cannot_be_read_starts_no_run(job, tmp_path, policy):
    (tmp_path / "ws" / "local").mkdir(parents=True)
    (tmp_path / "ws" / "local" / "privacy.json").write_text(policy)
    with pytest.raises(FedpeftError, match="has no default scope"):
        simulate(job, workspace=tmp_path / "ws", threads=1)


def test_a_workspace_may_begin_with_a_policy(tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "privacy.json").write_text(json.dumps(default_scope()))
    seed(tmp_path)
    assert (tmp_path / "local" / "resources.json").is_file()
