# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A consortium over mutual TLS on this machine, for attacks: a server and its sites, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measured import ROOT, sections
from nvflare.fuel.flare_api.api_spec import NoConnection

sys.path.insert(0, str(ROOT / "tests" / "support"))
from warm_python import COMMAND

os.environ.setdefault(COMMAND, sys.executable)  # no process has its imports already

import kits

from fedpeft.core.errors import FedpeftError
from fedpeft.core.processes import end
from fedpeft.job.composing import write_job
from fedpeft.report.status import run_folder

GOOD, HOSTILE = kits.SITES
POLICY = dict.fromkeys(("min_train_samples", "min_train_images", "min_test_samples", "min_score_samples"), 4)
SMALL = (
    f"federation.sites=[{GOOD}, {HOSTILE}]",
    "federation.quorum=1",
    "federation.hello_timeout=60",
    "federation.grace=10",
    "method.aggregation=fedavg",
    "data.train_size=32",
    "data.validation_size=4",
    "data.test_size=16",
)
SECONDS = 60.0
Row = tuple[str, str, str]


class Consortium:
    """A server and sites with start-up kits in a folder."""

    def __init__(self, folder: Path, sites: Sequence[str] = kits.SITES) -> None:
        folder.mkdir()
        self.folder, self.port, self.used, self.sites = folder, kits.free_port(), set(), sites
        self.kits = kits.provision(folder, port=self.port, sites=sites, policy=POLICY, patience=5)

    def start(self, *folders: Path, **environment: str) -> None:
        """Start participants, and the lead's session once the server answers."""
        for kit in folders:
            self.used.add(kit)
            with (kit / "console.txt").open("a") as console:
                command, values = kit / "startup" / "start.sh", {**kits.TRUE_ENVIRONMENT, **environment}
                subprocess.run([command], check=True, stdout=console, stderr=console, env=values, cwd=kit.parent)
            if kit == self.kits / "server":
                self.lead = kits.session(self.kits / kits.LEAD, seconds=300)

    def stop(self, *folders: Path) -> None:
        """End participants, by default all."""
        for kit in folders or tuple(self.used):
            end(int(file.read_text()) for file in kit.glob("*pid.fl"))
            for file in kit.glob("*pid.fl"):
                file.unlink()
            if kit == self.kits / "server":
                self.lead.close()

    def restart(self, kit: Path, **environment: str) -> bool:
        """Start a site again; whether it registers."""
        self.stop(kit)
        (kit / "console.txt").unlink(missing_ok=True)
        self.start(kit, **environment)
        return comes(lambda: "Successfully registered" in (kit / "console.txt").read_text())

    def wait_for_sites(self) -> None:
        """Until all are connected."""
        kits.wait_until(lambda: kits.connected(self) == set(self.sites), seconds=300)

    def submit(self, *overrides: str, change: Callable[[Path], Any] = str) -> str:
        """Submit the small job."""
        folder = self.folder / secrets.token_hex(4)
        write_job(folder, "small", sections([*SMALL, "training.rounds=2", *overrides]))
        change(folder)
        known = {one["job_id"] for one in self.lead.list_jobs()}
        try:
            return self.lead.submit_job(str(folder))
        except NoConnection:  # FLARE waits five seconds for an answer, which a busy machine may not keep
            self.lead.close()
            self.lead = kits.session(self.kits / kits.LEAD, seconds=300)
            (job,) = kits.wait_until(lambda: {one["job_id"] for one in self.lead.list_jobs()} - known)
            return job

    def running(self, *overrides: str) -> str:
        """Submit a job; return its id once it has finished its first round."""
        states, before = self.kits / "server" / "fedpeft", set(self.lineages("server"))
        job = self.submit(*overrides)
        kits.wait_until(
            lambda: [new for new in set(self.lineages("server")) - before if list((states / new).glob("r*"))]
        )
        return job

    def ended(self, job: str) -> dict[str, Any]:
        """FLARE's status of a job once it has ended, its manifest, and its finished rounds."""
        status = self.lead.wait_for_job(job, timeout=400, poll_interval=0.3)["status"]
        found = {"status": status, "finished": []}
        downloaded = Path(self.lead.download_job_result(job, str(self.folder / "downloads")))
        try:
            run = run_folder(downloaded)
        except FedpeftError as error:  # the job ended before it wrote anything
            return {**found, "reason": str(error)}
        if (run / "manifest.json").exists():
            found |= json.loads((run / "manifest.json").read_text())
        if (run / "history.json").exists():
            found["finished"] = json.loads((run / "history.json").read_text())["rounds"]
        return found

    def lineages(self, site: str) -> list[str]:
        """Names of the states that a site keeps, the newest last."""
        return [path.name for path in sorted((self.kits / site / "fedpeft").glob("*-*"), key=os.path.getmtime)]


@contextmanager
def running_consortium(sites: Sequence[str] = kits.SITES) -> Iterator[Consortium]:
    """A consortium whose sites are connected."""
    with tempfile.TemporaryDirectory(prefix="machines-") as scratch:
        os.chmod(scratch, 0o755)  # another user comes as far as the kits
        consortium = Consortium(Path(scratch) / "first", sites)
        try:
            consortium.start(*(consortium.kits / name for name in ("server", *sites)))
            consortium.wait_for_sites()
            yield consortium
        finally:
            consortium.stop()


def comes(what: Callable[[], Any], seconds: float = SECONDS) -> bool:
    with contextlib.suppress(AssertionError):
        kits.wait_until(what, seconds=seconds)
        return True
    return False


def outcome(name: str, end: dict[str, Any], *, before: str = "", sites: Sequence[str] = kits.SITES) -> Row:
    """What the manifest says of the sites or of the job's end, and the replies that its rounds lack."""
    said = [f"{site}: {entry['problem']}" for site, entry in end.get("sites", {}).items() if "problem" in entry]
    said += [f"round {fault['round']}: {fault['what']}" for fault in end.get("faults", [])]
    if end.get("status") != "completed":
        said.append(f"{end.get('reason', 'no manifest')}")
    away = [site for entry in end["finished"] for site in sites if site not in entry["sites"]]
    lost = f"{len(away)} replies of {' and '.join(dict.fromkeys(away))}" if away else "no reply"
    what = before + ("; ".join(dict.fromkeys(said)) or "nothing was noticed")
    return name, shown(what), f"{lost}; {len(end['finished'])} rounds, {end['status']}"


def shown(text: str) -> str:
    """A text without the paths of this run."""
    return re.sub(r"/\S*/machines-[^/\s]+(/\S+)*/", "…/", text)
