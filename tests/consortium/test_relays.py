# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Three sites behind two relays run a job to its end, over mutual TLS on both legs."""

import json
import socket
import ssl
import subprocess
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from kits import (
    ABSENT,
    ENVIRONMENT,
    LEAD,
    SITES,
    connected,
    free_port,
    processes_below,
    provision,
    session,
    started,
    wait_until,
)
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from safetensors.torch import load_file

from fedpeft.core.states import digest
from fedpeft.job.composing import write_job
from fedpeft.report.history_reader import verify
from fedpeft.report.status import run_folder

pytestmark = pytest.mark.consortium

FORGER = "vqa-med-2020"  # behind a relay, too; its processes are not started
RELAYS = {"relay-a": list(SITES), "relay-b": [ABSENT, FORGER]}
MEMBERS = (*SITES, ABSENT)
TRUE_SITE = SITES[0]
ROUNDS = 2


@pytest.fixture(scope="module")
def behind_relays(tmp_path_factory, small_policy):
    """The running federation of three sites, none of which is connected to the server."""
    folder = tmp_path_factory.mktemp("relays")
    port = free_port()
    kits = provision(folder, port=port, sites=(*MEMBERS, FORGER), policy=small_policy, relays=RELAYS)
    with started(*(kits / name for name in ("server", *RELAYS, *MEMBERS)), true=("relay-a", TRUE_SITE)):
        federation = SimpleNamespace(kits=kits, lead=session(kits / LEAD), port=port)
        wait_until(lambda: connected(federation) == set(MEMBERS))
        yield federation
        federation.lead.close()


def port_of(kits, relay):
    return json.loads((kits / relay / "local" / "comm_config.json").read_text())["internal"]["resources"]["port"]


def test_a_job_of_sites_behind_relays_runs_to_its_end(behind_relays, sections, tmp_path):
    write_job(
        tmp_path / "small",
        "small",
        sections(f"federation.sites=[{', '.join(MEMBERS)}]", "federation.hello_timeout=600"),
    )
    job = behind_relays.lead.submit_job(str(tmp_path / "small"))
    status = behind_relays.lead.wait_for_job(job, timeout=900, poll_interval=0.3)["status"]
    assert status == "FINISHED:COMPLETED"
    manifest = verify(run_folder(Path(behind_relays.lead.download_job_result(job, str(tmp_path / "download")))))
    assert set(manifest["sites"]) == set(MEMBERS)


SUMS = (
    f"federation.sites=[{', '.join(MEMBERS)}]",
    "federation.hello_timeout=600",
    "federation.sums_at_relays=true",
    "method.aggregation=fedavg",
)


def added_up(kits, relay):
    """How many sums of its sites a relay has made."""
    there = len(set(RELAYS[relay]) & set(MEMBERS))
    return (kits / relay / "log.txt").read_text().count(f"the adapters of {there} sites are added up")


def test_relays_add_up_the_adapters_of_their_sites(behind_relays, sections, tmp_path):
    """The server gets two sums and no adapter, and makes the global one that it makes where there is no relay."""
    write_job(tmp_path / "sums", "sums", sections(*SUMS))
    job = behind_relays.lead.submit_job(str(tmp_path / "sums"))
    status = behind_relays.lead.wait_for_job(job, timeout=900, poll_interval=0.3)["status"]
    assert status == "FINISHED:COMPLETED"
    folder = run_folder(Path(behind_relays.lead.download_job_result(job, str(tmp_path / "result"))))
    assert verify(folder)["faults"] == []
    rounds = json.loads((folder / "history.json").read_text())["rounds"]
    assert [set(one["sites"]) for one in rounds] == [set(MEMBERS)] * ROUNDS
    for relay in RELAYS:
        assert added_up(behind_relays.kits, relay) == ROUNDS
    command = ["fedpeft", "simulate", str(tmp_path / "sums"), "--engine", "pool", "-w", str(tmp_path / "pool")]
    subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
    assert digest(load_file(folder / "global.safetensors")) == digest(
        load_file(next((tmp_path / "pool").glob("server/*/fedpeft/global.safetensors")))
    )


def test_a_secure_sum_passes_the_relays(behind_relays, sections, tmp_path):
    """Relays add masked adapters, that of a single site among them, and the masks vanish at the server."""
    added = {relay: added_up(behind_relays.kits, relay) for relay in RELAYS}
    files = [behind_relays.kits / name / "local" / "fedpeft.json" for name in MEMBERS]
    before = [file.read_text() for file in files]
    for file, text in zip(files, before, strict=True):
        file.write_text(json.dumps({**json.loads(text), "sum_with": list(MEMBERS)}))
    settings = (*SUMS, "method.secure_sum=true", "training.batch_size=4")
    try:
        write_job(tmp_path / "sums", "sums", sections(*settings))
        job = behind_relays.lead.submit_job(str(tmp_path / "sums"))
        status = behind_relays.lead.wait_for_job(job, timeout=900, poll_interval=0.3)["status"]
    finally:
        for file, text in zip(files, before, strict=True):
            file.write_text(text)
    assert status == "FINISHED:COMPLETED"
    folder = run_folder(Path(behind_relays.lead.download_job_result(job, str(tmp_path / "result"))))
    assert verify(folder)["faults"] == []
    rounds = json.loads((folder / "history.json").read_text())["rounds"]
    assert [set(one["sites"]) for one in rounds] == [set(MEMBERS)] * ROUNDS
    for relay, before in added.items():
        assert added_up(behind_relays.kits, relay) - before == ROUNDS
    size = max(tensor.abs().max() for tensor in load_file(folder / "global.safetensors").values())
    assert size < 10  # a mask that is left has numbers of up to 2^31


def test_a_site_behind_a_relay_is_connected_to_it_alone(behind_relays):
    process = psutil.Process(int((behind_relays.kits / TRUE_SITE / "pid.fl").read_text()))
    remote = {connection.raddr.port for connection in process.net_connections("tcp") if connection.raddr}
    assert port_of(behind_relays.kits, "relay-a") in remote
    assert behind_relays.port not in remote


def answer(kits, relay, kit=None):
    """What a relay says to a program that trusts it and shows the certificate of a kit, or none."""
    trusting = ssl.create_default_context(cafile=kits / LEAD / "startup" / "rootCA.pem")
    trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if kit:
        trusting.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    plain = socket.create_connection(("localhost", port_of(kits, relay)), timeout=60)
    with trusting.wrap_socket(plain, server_hostname="localhost") as secured:
        try:
            secured.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return secured.recv(4)
        except (ssl.SSLError, ConnectionError):
            return b""


@pytest.mark.parametrize("relay", RELAYS)
def test_a_relay_answers_nobody_without_a_certificate_of_the_consortium(behind_relays, relay):
    kits = behind_relays.kits
    assert answer(kits, relay, kits / ABSENT) == b"HTTP"
    assert answer(kits, relay) == b""


@pytest.mark.parametrize("command", ["process_info {}", "show_config_vars {}", "speed {} {} 1 1"])
def test_a_relay_does_not_answer_the_network_diagnosis(behind_relays, command):
    said = str(behind_relays.lead.api.do_command(command.format("relay-a", "relay-a")))
    assert "invalid_request" in said
    assert "Process ID" not in said


@pytest.fixture
def forger(behind_relays):
    """A cell with the certificate of a site behind a relay, connected to it, that names its neighbor as origin."""
    startup = behind_relays.kits / FORGER / "startup"
    credentials = {
        DriverParams.CA_CERT.value: str(startup / "rootCA.pem"),
        DriverParams.CLIENT_KEY.value: str(startup / "client.key"),
        DriverParams.CLIENT_CERT.value: str(startup / "client.crt"),
    }
    url = f"https://localhost:{port_of(behind_relays.kits, 'relay-b')}"
    cell = Cell(f"relay-b.{FORGER}", None, True, credentials, parent_url=url, auth_identity=FORGER)
    send = cell.core_cell._send_to_endpoint

    def forged(to_endpoint, message):
        message.set_header(MessageHeaderKey.ORIGIN, f"relay-b.{ABSENT}")
        return send(to_endpoint, message)

    cell.start()
    wait_until(lambda: cell.is_cell_connected("relay-b"))
    cell.core_cell._send_to_endpoint = forged
    yield cell
    cell.stop()


def test_a_relay_passes_on_nothing_that_a_site_says_under_its_neighbors_name(behind_relays, forger):
    nothing = new_cell_message({}, None)
    forger.fire_and_forget(CellChannel.SERVER_MAIN, CellChannelTopic.Challenge, "server", nothing)
    said = f"a message of 'relay-b.{FORGER}' is dropped: it says that it comes from 'relay-b.{ABSENT}'"
    wait_until(lambda: said in (behind_relays.kits / "relay-b" / "log.txt").read_text())


def test_a_job_goes_on_without_the_sites_of_a_relay_that_ends_in_mid_round(behind_relays, sections, tmp_path):
    """The last test of these processes: one of the relays is gone then."""
    kits, lead = behind_relays.kits, behind_relays.lead
    chosen = sections(*SUMS, "training.rounds=4", "federation.quorum=2", "federation.grace=5")
    write_job(tmp_path / "lost", "lost", chosen)
    job = lead.submit_job(str(tmp_path / "lost"))
    log = kits / "server" / job / "log.txt"
    wait_until(lambda: log.exists() and "round 1" in log.read_text())
    for process in processes_below(kits / "relay-b"):
        process.kill()
    assert lead.wait_for_job(job, timeout=900, poll_interval=0.3)["status"] == "FINISHED:COMPLETED"
    folder = run_folder(Path(lead.download_job_result(job, str(tmp_path / "result"))))
    rounds = json.loads((folder / "history.json").read_text())["rounds"]
    assert [set(one["sites"]) for one in rounds][1:] == [set(SITES)] * 3
    assert ABSENT in rounds[-1]["rejected"]
