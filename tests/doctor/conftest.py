# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Kits and jobs to examine."""

import pytest
from kit_samples import Authority, write_kit

from fedpeft.job.composing import write_job


@pytest.fixture(scope="session")
def authority():
    """The consortium's own."""
    return Authority()


@pytest.fixture
def make_kit(tmp_path, authority, small_policy):
    """Function: write the kit of a server, a site or an administrator into a folder."""

    def make(role, **changes):
        return write_kit(tmp_path / f"kit-{role}", role, **{"authority": authority, "policy": small_policy, **changes})

    return make


@pytest.fixture
def make_job(tmp_path, sections):
    """Function from overrides to a small job's folder."""

    def make(*overrides):
        write_job(tmp_path / "job", "small", sections(*overrides))
        return tmp_path / "job"

    return make
