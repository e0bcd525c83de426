# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One federation over mutual TLS for all tests: a server and two sites, each from its own start-up kit.

A third site has a kit, too, and is never started.
"""

from types import SimpleNamespace

import pytest
from kits import ABSENT, LEAD, SITES, connected, free_port, provision, session, started, wait_until

from fedpeft.jobs import write_job


@pytest.fixture(scope="session")
def small_job(tmp_path_factory, sections):
    """Two rounds on a few samples of two sites."""
    folder = tmp_path_factory.mktemp("job") / "small"
    write_job(folder, "small", sections(f"federation.sites=[{', '.join(SITES)}]", "federation.hello_timeout=600"))
    return folder


@pytest.fixture(scope="session")
def federation(tmp_path_factory, small_policy):
    """The running federation: `kits`, the folder of the start-up kits, `lead`, a session of the lead, and `port`."""
    port = free_port()
    kits = provision(tmp_path_factory.mktemp("federation"), port=port, sites=(*SITES, ABSENT), policy=small_policy)
    with started(*(kits / name for name in ("server", *SITES))):
        lead = session(kits / LEAD)
        federation = SimpleNamespace(kits=kits, lead=lead, port=port)
        wait_until(lambda: connected(federation) == set(SITES))
        yield federation
        federation.lead.close()
