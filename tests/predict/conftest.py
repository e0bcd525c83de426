# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Sites that have finished two rounds, on questions, classes or labels."""

import json

import pytest
from trained_sites import COLUMNS, table, trained


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """By kind, a folder with a manifest."""
    folder = tmp_path_factory.mktemp("tables")
    return {kind: table(folder / kind, kind) for kind in COLUMNS}


@pytest.fixture(scope="session")
def of_tables(tables, sections, tmp_path_factory):
    """By kind, a site that was trained on that table, and the metrics of its last round."""
    folder = tmp_path_factory.mktemp("trained")
    done = {}
    for kind, root in tables.items():
        chosen = sections("method.aggregation=fedavg", "training.local_epochs=2", "training.thresholds=validation")
        chosen = json.loads(json.dumps(chosen)) | {"data": {"dataset": "manifest", "root": str(root)}}
        done[kind] = trained(chosen, folder / kind, sites=("slake",))["slake"]
    return done
