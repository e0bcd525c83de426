# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One federation over mutual TLS for all tests: a server and two sites, each from its own start-up kit.

A third site has a kit, too, and is never started.
"""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from kits import ABSENT, LEAD, MEMBER, SITES, connected, free_port, provision, session, started, wait_until
from nvflare.recipe import ProdEnv
from rich.console import Console

from fedpeft.flare.job_session import JobSession
from fedpeft.job.composing import write_job
from fedpeft.report.status import follow
from fedpeft.run.recipe import FedPIARecipe

CONFIGS = Path(__file__).parents[2] / "app_configs"
TWO_SITES = f"federation.sites=[{', '.join(SITES)}]", "federation.hello_timeout=600"


@pytest.fixture(scope="session")
def small_job(tmp_path_factory, sections):
    """The folder of a job of two rounds on a few samples of two sites."""
    folder = tmp_path_factory.mktemp("job") / "small"
    write_job(folder, "small", sections(*TWO_SITES))
    return folder


@pytest.fixture(scope="session")
def true_sites():
    """Sites whose processes are as in production; those of the others have their imports already.

    A file of tests that kill processes has its own, because what is killed must be all that runs. There a job that is
    finished waits five seconds for a lost site.
    """
    return ()


@pytest.fixture(scope="session")
def federation(tmp_path_factory, small_policy, true_sites):
    """The running federation: `kits`, the folder of the start-up kits, `lead`, a session of the lead, and `port`."""
    port = free_port()
    settings = {"sites": (*SITES, ABSENT), "policy": small_policy, "patience": 5 if true_sites else None}
    kits = provision(tmp_path_factory.mktemp("federation"), port=port, **settings)
    with started(*(kits / name for name in ("server", *SITES)), true=true_sites):
        lead = session(kits / LEAD)
        federation = SimpleNamespace(kits=kits, lead=lead, port=port)
        wait_until(lambda: connected(federation) == set(SITES))
        yield federation
        federation.lead.close()


@pytest.fixture(scope="session")
def finished(federation, small_settings, tmp_path_factory):
    """The small job at its end: `followed` by lead and member (what each saw last), and the lead's `download`.

    It was submitted as FedPIA's recipe.
    """
    kit = federation.kits / LEAD
    environment = ProdEnv(startup_kit_location=str(kit), username=LEAD, login_timeout=60)
    recipe = FedPIARecipe("fedpia_task1", [*small_settings, *TWO_SITES], configs=CONFIGS)
    job = recipe.execute(environment).get_job_id()

    def last_seen(name):
        with JobSession(federation.kits / name, job) as opened:
            return follow(opened.progress, console=Console(file=io.StringIO(), width=120))

    with ThreadPoolExecutor() as pool:
        followed = dict(zip((LEAD, MEMBER), pool.map(last_seen, (LEAD, MEMBER)), strict=True))
    # the job's part is over before its sites have ended theirs
    assert federation.lead.wait_for_job(job, timeout=900, poll_interval=0.3)["status"] == "FINISHED:COMPLETED"
    download = Path(federation.lead.download_job_result(job, str(tmp_path_factory.mktemp("download"))))
    return SimpleNamespace(followed=followed, download=download)
