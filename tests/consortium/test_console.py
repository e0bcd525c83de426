# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FLARE's admin console, driven through a terminal as a person types; the last tests shut the federation down."""

import re
from contextlib import contextmanager
from pathlib import Path

import pexpect
import psutil
import pytest
from kits import ADMIN, LEAD, MEMBER, SITES, TRUE_ENVIRONMENT, connected, wait_until

from fedpeft.job.composing import write_job
from fedpeft.report.history_reader import verify
from fedpeft.report.status import run_folder

pytestmark = pytest.mark.consortium
AWAY = SITES[1]
PROMPT = r"Done \[\d+ usecs\].*?\n> "


class Console:
    """One person's console."""

    def __init__(self, kit):
        self.name = kit.name
        environment = {**TRUE_ENVIRONMENT, "TERM": "dumb"}
        script = str(kit / "startup" / "fl_admin.sh")
        self._screen = pexpect.spawn("bash", [script], env=environment, encoding="utf-8", timeout=120)
        self._screen.expect("User Name: ")
        self._screen.sendline(self.name)
        self._screen.expect("list commands.*> ")

    def type(self, command, *, confirm=None, until=PROMPT):
        """Type a command, answer what the console asks back, and return what it prints."""
        self._screen.sendline(command)
        if confirm:
            question, answer = confirm
            self._screen.expect(question)
            self._screen.sendline(answer)
        self._screen.expect(until)
        return self._screen.before

    def leave(self):
        if self._screen.isalive():
            self._screen.sendline("bye")
            self._screen.expect(pexpect.EOF)
        self._screen.close()


@contextmanager
def console(federation, name):
    opened = Console(federation.kits / name)
    yield opened
    opened.leave()


def by_name(person):
    """The console wants the user's name once more."""
    return "Confirm with User Name: ", person.name


def submitted(printed):
    return re.search(r"Submitted job: (\S+)", printed)[1]


def wait_for(person, job, status):
    wait_until(lambda: re.search(rf"{job}.*{status}", person.type("list_jobs")))


def test_the_lead_submits_lists_and_downloads(federation, small_job):
    with console(federation, LEAD) as lead:
        status = lead.type("check_status server")
        assert all(site in status for site in SITES)
        job = submitted(lead.type(f"submit_job {small_job}"))
        wait_for(lead, job, "FINISHED:COMPLETED")
        assert all(site in lead.type("check_status client") for site in SITES)
        lead.type(f"download_job {job}")
    assert verify(run_folder(federation.kits / LEAD / "transfer" / job))["rounds"] == 2


def test_the_lead_aborts_and_deletes_a_job(federation, sections, tmp_path):
    write_job(tmp_path / "long", "long", sections(f"federation.sites=[{', '.join(SITES)}]", "training.rounds=500"))
    with console(federation, LEAD) as lead:
        job = submitted(lead.type(f"submit_job {tmp_path / 'long'}"))
        wait_for(lead, job, "RUNNING")
        lead.type(f"abort_job {job}", confirm=(r"\(y/N\): ", "y"))
        wait_for(lead, job, "FINISHED:ABORTED")
        lead.type(f"delete_job {job}", confirm=by_name(lead))
        assert job not in lead.type("list_jobs")


def test_a_member_may_look_only(federation, small_job):
    with console(federation, MEMBER) as member:
        known = member.type("list_jobs")
        assert "not authorized" in member.type(f"submit_job {small_job}")
        refused = member.type(f"shutdown client {AWAY}", confirm=by_name(member))
        assert "not authorized" in refused
        assert member.type("list_jobs").count("small") == known.count("small")


def test_a_lead_of_the_servers_organization_neither_stops_it_nor_shuts_out_a_site(federation):
    with console(federation, LEAD) as lead:
        for command in (f"disable_client {AWAY}", f"remove_client {AWAY}", "restart server", "shutdown server"):
            assert "not authorized" in lead.type(command, confirm=by_name(lead))
        assert AWAY in connected(federation)


def test_a_disabled_site_is_out_until_it_is_enabled(federation):
    with console(federation, ADMIN) as admin:
        assert "disabled" in admin.type(f"disable_client {AWAY}", confirm=by_name(admin))
        assert AWAY not in connected(federation)
        admin.type(f"enable_client {AWAY}", confirm=by_name(admin))
        wait_until(lambda: AWAY in connected(federation))


def test_shutdown_ends_the_processes_of_sites_and_server(federation):
    with console(federation, ADMIN) as admin:
        admin.type(f"shutdown client {AWAY}", confirm=by_name(admin))
        wait_until(lambda: not alive(federation.kits / AWAY))
        assert connected(federation) == {SITES[0]}
        admin.type("shutdown client", confirm=by_name(admin))
        wait_until(lambda: not alive(federation.kits / SITES[0]))
        admin.type("shutdown server", confirm=by_name(admin), until=pexpect.EOF)
    wait_until(lambda: not alive(federation.kits / "server"))


def alive(kit: Path):
    """Whether the kit's own loop, which starts FLARE's process again, still runs."""
    numbers = [int(file.read_text()) for file in kit.glob("*pid.fl")]
    return any(psutil.pid_exists(number) for number in numbers)
