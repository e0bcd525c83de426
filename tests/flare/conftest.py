# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import json
from types import SimpleNamespace

import pytest
from harness import Harness
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from undrawn import leave_pictures_out

from fedpeft.flare import controller as module


@pytest.fixture
def pictures():
    """For tests of the pictures in a run's report; without it `run` draws none, which is most of a small run's time."""


@pytest.fixture
def run(request, tmp_path, monkeypatch):
    """Function: run a harness to its end; returns it, the manifest and the history."""
    if "pictures" not in request.fixturenames:
        leave_pictures_out(monkeypatch.setattr)
    monkeypatch.setattr(module, "run_folder", lambda fl_ctx: tmp_path)
    monkeypatch.setattr(module, "lineages_folder", lambda fl_ctx: tmp_path / "state")

    def start(*args, **kwargs):
        harness = Harness(*args, **kwargs)
        harness.run()
        history = tmp_path / "history.json"
        return (
            harness,
            json.loads((tmp_path / "manifest.json").read_text()),
            history.exists() and json.loads(history.read_text()),
        )

    return start


@pytest.fixture
def context(tmp_path):
    """Function: what FLARE says at a site, in the simulator or from a start-up kit."""

    def make(*, flag=None, kit=True):
        (tmp_path / "startup").mkdir(exist_ok=True)
        (tmp_path / "local").mkdir(exist_ok=True)
        if kit:
            (tmp_path / "startup" / "fed_client.json").write_text("{}")
        workspace = SimpleNamespace(
            get_startup_kit_dir=lambda: str(tmp_path / "startup"),
            get_site_config_dir=lambda: str(tmp_path / "local"),
            get_root_dir=lambda: str(tmp_path),
            get_run_dir=lambda job: str(tmp_path / "run"),
        )
        made = FLContext()
        made.set_prop(ReservedKey.ENGINE, SimpleNamespace(get_workspace=lambda: workspace), private=True)
        made.set_prop(ReservedKey.IDENTITY_NAME, "north")
        made.set_prop(ReservedKey.RUN_NUM, "job-1")
        if flag is not None:
            made.set_prop(FLContextKey.SIMULATE_MODE, flag, private=True, sticky=True)
        return made

    return make
