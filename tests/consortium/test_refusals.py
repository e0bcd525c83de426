# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Who has no right is refused, and nothing of theirs runs."""

import json
import shutil
import socket
import ssl

import pytest
from kits import ABSENT, LEAD, MEMBER, SITES, connected, provision, session, started, wait_until
from nvflare.fuel.flare_api.api_spec import NoConnection

pytestmark = pytest.mark.consortium


@pytest.fixture
def changed(small_job, tmp_path):
    """Function: a copy of the small job with one more component in the configuration of a role."""

    def change(role, component):
        folder = tmp_path / "job"
        shutil.copytree(small_job, folder)
        file = folder / "app" / "config" / f"config_fed_{role}.json"
        config = json.loads(file.read_text())
        config["components"].append(component)
        file.write_text(json.dumps(config))
        return folder

    return change


@pytest.fixture(scope="module")
def foreign(federation, tmp_path_factory):
    """Kits of the same names for the same server, from another certificate authority."""
    return provision(tmp_path_factory.mktemp("foreign"), port=federation.port, sites=(*SITES, ABSENT))


def answer(federation, kit=None):
    """What the server says to a program that trusts it and shows the certificate of a kit, or none."""
    trusting = ssl.create_default_context(cafile=federation.kits / LEAD / "startup" / "rootCA.pem")
    trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as gRPC, which asks for no key identifier
    if kit:
        trusting.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    plain = socket.create_connection(("localhost", federation.port), timeout=60)
    with trusting.wrap_socket(plain, server_hostname="localhost") as secured:
        try:
            secured.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return secured.recv(4)
        except (ssl.SSLError, ConnectionError):
            return b""


def test_the_server_answers_nobody_without_a_certificate_of_its_authority(federation, foreign):
    assert answer(federation, federation.kits / SITES[0]) == b"HTTP"
    assert answer(federation, foreign / SITES[0]) == b""
    assert answer(federation) == b""


@pytest.mark.parametrize("target", ["server", *SITES])
@pytest.mark.parametrize("command", ["process_info {}", "show_config_vars {}", "speed {} {} 1 1"])
def test_no_process_answers_the_network_diagnosis(federation, command, target):
    said = str(federation.lead.api.do_command(command.format(target, target)))
    assert "invalid_request" in said
    assert "Process ID" not in said


def test_a_site_of_another_authority_stays_out(federation, foreign):
    with started(foreign / ABSENT):
        wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in (foreign / ABSENT / "console.txt").read_text())
        assert connected(federation) == set(SITES)


def test_a_user_of_another_authority_stays_out(foreign):
    with pytest.raises(NoConnection):
        session(foreign / LEAD, seconds=3)


def test_a_site_under_the_name_of_another_is_refused(federation, tmp_path):
    kit = tmp_path / SITES[0]
    shutil.copytree(federation.kits / SITES[0] / "startup", kit / "startup")
    shutil.copytree(federation.kits / SITES[0] / "local", kit / "local")
    start = kit / "startup" / "sub_start.sh"
    start.write_text(start.read_text().replace(f"uid={SITES[0]}", f"uid={ABSENT}"))
    refused = f"authenticated as '{SITES[0]}' but claimed endpoint '{ABSENT}'"
    with started(kit):
        wait_until(lambda: refused in (federation.kits / "server" / "log.txt").read_text())
        assert connected(federation) == set(SITES)


def test_a_member_may_look_and_not_submit(federation, small_job):
    member = session(federation.kits / MEMBER)
    known = [job["job_id"] for job in member.list_jobs()]
    with pytest.raises(Exception, match="not authorized"):
        member.submit_job(str(small_job))
    assert [job["job_id"] for job in member.list_jobs()] == known
    member.close()


def submission(federation, job):
    """The answer to a submission that is refused; no job comes of it."""
    known = [one["job_id"] for one in federation.lead.list_jobs()]
    with pytest.raises(Exception, match="not admitted") as caught:
        federation.lead.submit_job(str(job))
    assert [one["job_id"] for one in federation.lead.list_jobs()] == known
    return str(caught.value)


def test_a_job_with_code_is_refused(federation, changed, tmp_path):
    job, mark = changed("client", {"id": "own", "path": "own.Own", "args": {}}), tmp_path / "ran"
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "own.py").write_text(f"open({str(mark)!r}, 'w')\n")
    assert "the job is not admitted (file)" in submission(federation, job)
    assert not mark.exists()


@pytest.mark.parametrize("role", ["server", "client"])
def test_a_job_that_names_another_class_is_refused(federation, changed, role, tmp_path):
    page = tmp_path / "page"
    arguments = {"arguments": ["report", str(tmp_path), "--out", str(page)]}
    job = changed(role, {"id": "cli", "path": "fedpeft.cli.main", "args": arguments})
    assert "the job is not admitted (class)" in submission(federation, job)
    assert not page.exists()


def test_a_copy_of_the_servers_kit_does_not_start_beside_it(federation, tmp_path):
    """It would finish the jobs of the first, in the store that both have."""
    copied = tmp_path / "server"
    for part in ("startup", "local"):
        shutil.copytree(federation.kits / "server" / part, copied / part)
    file = copied / "local" / "resources.json.default"
    settings = json.loads(file.read_text())
    next(one for one in settings["components"] if one["id"] == "stale_jobs")["args"]["patience"] = 0
    file.write_text(json.dumps(settings))
    with started(copied):
        wait_until(lambda: "another server works with the jobs in" in (copied / "console.txt").read_text())
    assert connected(federation) == set(SITES)
