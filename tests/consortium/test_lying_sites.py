# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site that nobody outvotes lies past its own filters: of two sites, in the handshake or in every update."""

import json
import os
import sys
from pathlib import Path

import pytest
from kits import ROOT, SITES, connected, start, wait_until

from fedpeft.core.processes import end
from fedpeft.job.composing import write_job
from fedpeft.report.history_reader import verify
from fedpeft.report.status import run_folder

pytestmark = pytest.mark.consortium
HONEST, LIAR = SITES
BENCHMARKS = ROOT / "benchmarks"
SCHEDULED = ("schedule.solver=exact", "schedule.budget=4", "schedule.score_samples=8")
START = "all values 0.02, and their digest"
LIES = {  # what it says, settings, and why it takes no part; empty: it does, and no honest site is refused
    "the start of all": ({"hello": START}, SCHEDULED, f"site {LIAR} sent a first adapter with"),
    "the form of its adapter": ({"hello": "twice as many neurons"}, (), f"site {LIAR} announces 8 neurons in"),
    "an update that hardly moves": ({"train": "its update times 1e-6"}, (), ""),
}


@pytest.fixture(scope="module")
def lies(federation, tmp_path_factory):
    """The file of what the liar says, as its process of a job reads it; afterwards the site is an honest one again."""
    folder, kit = tmp_path_factory.mktemp("lies"), federation.kits / LIAR
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from lying_processes import CUSTOM, LIES
    finally:
        sys.path.remove(str(BENCHMARKS))
    (folder / "sitecustomize.py").write_text(CUSTOM)
    # an empty entry would be the current folder
    paths = os.pathsep.join(filter(None, [str(folder), str(BENCHMARKS), os.environ.get("PYTHONPATH")]))
    filters = kit / "local" / "privacy.json"
    before = filters.read_text()
    filters.unlink()
    try:
        restart(federation, kit, true=True, PYTHONPATH=paths, **{LIES: str(folder / "lies.json")})
        yield folder / "lies.json"
    finally:
        filters.write_text(before)
        restart(federation, kit)


def restart(federation, kit, **more):
    end(int(file.read_text()) for file in kit.glob("*pid.fl"))
    for file in kit.glob("*pid.fl"):
        file.unlink()
    start(kit, **more)
    wait_until(lambda: "Successfully registered" in (kit / "console.txt").read_text())
    wait_until(lambda: connected(federation) == set(SITES))


@pytest.mark.parametrize("case", LIES)
def test_one_of_two_sites_lies_and_the_other_trains_on(federation, lies, sections, tmp_path, case):
    told, overrides, reason = LIES[case]
    lies.write_text(json.dumps({"hello": "", "rounds": {}, **told}))
    fixed = f"federation.sites=[{LIAR}, {HONEST}]", "federation.hello_timeout=600", "federation.quorum=1"
    write_job(tmp_path / "job", "lied-to", sections(*fixed, "method.aggregation=fedavg", *overrides))
    job = federation.lead.submit_job(str(tmp_path / "job"))
    assert federation.lead.wait_for_job(job, timeout=900, poll_interval=0.3)["status"] == "FINISHED:COMPLETED"
    run = run_folder(Path(federation.lead.download_job_result(job, str(tmp_path / "download"))))
    manifest = verify(run)
    assert reason in manifest["sites"][LIAR].get("problem", "")
    assert manifest["faults"] == []
    rounds = json.loads((run / "history.json").read_text())["rounds"]
    assert [set(one["sites"]) for one in rounds] == [{HONEST} if reason else set(SITES)] * 2
