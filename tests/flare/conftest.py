# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import json

import pytest
from harness import Harness

from fedpeft.flare import controller as module


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "run_folder", lambda fl_ctx: tmp_path)
    monkeypatch.setattr(module, "lineages_folder", lambda fl_ctx: tmp_path / "state")
    monkeypatch.setattr(module, "state_folder", lambda fl_ctx, lineage: tmp_path / "state" / lineage)

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
