# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a browser gets of a workspace, and what nobody gets."""

import http.client
import json
import os
import re
import socket
import threading
from pathlib import Path

import pytest
from histories import record, write
from serving import serving

from fedpeft.cli import main
from fedpeft.core.errors import FedpeftError
from fedpeft.core.locks import held
from fedpeft.report.page_parts import Picture
from fedpeft.report.status import COMPLETED, SIMULATED, Progress
from fedpeft.serve import pages
from fedpeft.serve.pages import WorkspacePages, find_runs
from fedpeft.serve.server import BUSY, Server

SECRET = "the answers of a hospital"


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A simulator's workspace without a run; pictures are not drawn."""
    monkeypatch.setattr(pages, "pictures", lambda _: {"curves": Picture(b"")})
    folder = tmp_path / "ws"
    (folder / SIMULATED).mkdir(parents=True)
    return folder


@pytest.fixture
def server(workspace):
    """A running server."""
    with serving(workspace) as made:
        yield made


def get(server, path="/", *, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()


def only(workspace):
    (key,) = find_runs(workspace)
    return f"/run/{key}"


def test_the_page_of_an_empty_workspace_says_that_there_is_no_run_yet(server):
    status, headers, text = get(server)
    assert status == 200
    assert "No run yet" in text
    assert "<title>Runs in ws</title>" in text
    assert headers["Refresh"] == "5"
    assert headers["Content-Security-Policy"].startswith("default-src 'none';")


def test_a_run_that_grows_between_two_requests(server, workspace):
    folder = workspace / SIMULATED
    write(folder, record(rounds=1) | {"rounds": []})
    assert "No round has ended yet." in get(server, only(workspace))[2]
    for rounds in (1, 2):
        made = record(rounds=rounds)
        made["settings"]["training"] = {"rounds": 4}
        write(folder, made)
        assert f"{rounds} of 4 rounds" in get(server)[2]
        status, headers, text = get(server, only(workspace))
        assert (status, headers["Refresh"]) == (200, "5")
        assert f"after round {rounds}" in text
    (folder / "manifest.json").write_text(json.dumps({"job": "j", "status": "completed"}))
    _, headers, text = get(server, only(workspace))
    assert "Refresh" not in headers
    assert "completed" in text


def test_earlier_runs_and_a_folder_of_runs(workspace):
    write(workspace / SIMULATED, record(rounds=1))
    write(workspace.with_name("ws_runs") / "20260101-000000-a" / SIMULATED, record(rounds=1))
    assert {run.name for run in find_runs(workspace).values()} == {"ws", "20260101-000000-a"}
    assert {run.name for run in find_runs(workspace.parent).values()} == {"ws"}


def test_a_folder_that_may_not_be_read_hides_no_run(workspace, monkeypatch, capsys):
    write(workspace / SIMULATED, record(rounds=1))
    (workspace.parent / "lost+found").mkdir()
    is_dir = Path.is_dir

    def refused(path, **named):
        if "lost+found" in path.parent.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path, **named)

    monkeypatch.setattr(Path, "is_dir", refused)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "lost+found")
    assert {run.name for run in find_runs(workspace.parent).values()} == {"ws"}
    assert main(["status", str(workspace.parent)]) == 1
    assert "holds 1 earlier run" in capsys.readouterr().err


def test_a_link_whose_target_may_not_be_read_hides_no_run(workspace, monkeypatch):
    write(workspace / SIMULATED, record(rounds=1))
    (workspace.parent / "a link").symlink_to(workspace.parent / "private" / "runs")
    is_dir = Path.is_dir

    def refused(path, **named):
        if path.name == "a link":
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path, **named)

    monkeypatch.setattr(Path, "is_dir", refused)
    assert {run.name for run in find_runs(workspace.parent).values()} == {"ws"}


def test_a_run_is_listed_once_under_the_folder_that_the_user_knows(tmp_path):
    folder = tmp_path / "job"
    write(folder / "fedpeft", record(rounds=1))  # a place of `job`, and a folder in it
    assert [run.name for run in find_runs(folder).values()] == ["job"]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"rounds": 3}',
        '{"job": {}, "rounds": [{"round": 1, "sites": {}}]}',
        '{"settings": {"training": {"rounds": "<script>"}}, "rounds": []}',
        '{"rounds": [{"round": 1, "sites": {"a": {"overall": NaN}}}]}',
        '{"rounds": [{"round": 1, "sites": {"a": {"overall": 0.5}}}]}',
    ],
)
def test_a_damaged_history_costs_no_other_page_and_names_no_path(server, workspace, content):
    (workspace / SIMULATED / "history.json").write_text(content)
    for path in ("/", only(workspace)):
        status, _, text = get(server, path)
        assert status == 200
        assert str(workspace.parent) not in text
        assert "<script" not in text
    assert "cannot be read" in get(server, only(workspace))[2]


def test_a_run_that_was_killed_is_shown_as_failed_though_its_files_stay_the_same(server, workspace):
    with held(workspace):
        write(workspace / SIMULATED, record(rounds=1))
        assert "running" in get(server, only(workspace))[2]
    _, headers, text = get(server, only(workspace))
    assert "failed" in text
    assert "cut off" in text
    assert "Refresh" not in headers


def test_texts_of_a_history_are_text(server, workspace):
    made = record(("<script>alert(1)</script>",), 1) | {"job": "<img src=x onerror=alert(1)>"}
    made["rounds"][0]["rejected"] = {"b": "<b onclick=x>"}
    write(workspace / SIMULATED, made)
    for path in ("/", only(workspace)):
        text = get(server, path)[2]
        assert not [tag for tag in ("<script", "<img src=x", "<b onclick") if tag in text]


@pytest.mark.parametrize(
    "path",
    [
        "/../secret",
        "/run/../../secret",
        "/run/%2e%2e%2fsecret",
        "/run/..%2f..%2fetc%2fpasswd",
        "//etc/passwd",
        "/etc/passwd",
        "/history.json",
        "/server/simulate_job/fedpeft/history.json",
        "/slake/secret",
        "/run/",
        "/run/0123456789abcdef",
        "/run/0123456789abcdef/../..",
        "http://127.0.0.1/",
        "/?x",
        "*",
    ],
)
def test_there_is_no_path_to_a_file(server, workspace, path):
    write(workspace / SIMULATED, record(rounds=1))
    (workspace / "slake").mkdir()
    (workspace / "slake" / "secret").write_text(SECRET)
    status, _, text = get(server, path)
    assert status == 404
    assert SECRET not in text


def test_what_lies_in_a_sites_folder_is_no_run(workspace):
    for place in ("", "fedpeft", "workspace/fedpeft"):
        write(workspace / "slake" / place, record(rounds=1))
    assert find_runs(workspace) == {}


def test_links_are_not_followed(workspace):
    outside = write(workspace.parent / "outside", record(rounds=1))
    os.symlink(outside, workspace / SIMULATED / "history.json")
    runs = workspace.parent / "runs"
    runs.mkdir()
    os.symlink(outside.parent, runs / "a")
    assert find_runs(workspace) == find_runs(runs) == {}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8765", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:8765", 421),
        ("evil.example@127.0.0.1.nip.io", 421),
        ("192.168.0.1", 421),
        ("[", 421),
        ("", 421),
    ],
)
def test_only_requests_that_name_this_server_are_answered(server, host, status):
    assert get(server, Host=host)[0] == status


def test_a_server_of_all_addresses_is_named_by_each_of_them_and_by_no_other_name(workspace):
    with Server(WorkspacePages(workspace), host="0.0.0.0", port=0) as made:
        named = {host: made.is_named(host) for host in ("192.168.0.1:8765", "localhost", "evil.example")}
    assert named == {"192.168.0.1:8765": True, "localhost": True, "evil.example": False}


@pytest.mark.parametrize(
    ("host", "url"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "localhost"), ("localhost", "localhost")]
)
def test_the_address_of_a_server_can_be_opened_on_its_machine(workspace, host, url):
    with Server(WorkspacePages(workspace), host=host, port=0) as made:
        assert made.url == f"http://{url}:{made.server_port}/"


def test_whoever_uses_another_name_of_a_server_of_all_addresses_is_told_no_address_that_leads_nowhere(workspace):
    with serving(workspace, host="0.0.0.0") as server:
        status, _, text = get(server, Host="evil.example")
    assert status == 421
    assert not re.search(r"http://|0\.0\.0\.0|localhost", text)
    assert f"the IP address of this machine, with port {server.server_port}" in text


@pytest.mark.parametrize("lines", [["GET / HTTP/1.1"], ["GET / HTTP/1.1", "Host: localhost", "Host: evil.example"]])
def test_no_host_or_two_are_refused(server, lines):
    with socket.create_connection(server.server_address) as connection:
        connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        assert b" 421 " in connection.makefile("rb").readline()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "<script>"])
def test_only_get_is_answered(server, method):
    status, headers, text = get(server, method=method)
    assert status == 501
    assert "<script" not in text
    assert "Content-Security-Policy" in headers


def answer(connection):
    """What a connection gets until the server closes it."""
    try:
        return connection.makefile("rb").read()
    except ConnectionResetError:
        return b""


@pytest.mark.slow
def test_a_request_that_trickles_is_ended_at_its_deadline(workspace):
    """A byte now and then must not keep a connection open, as it would if each had the whole time."""
    with serving(workspace, deadline=0.2) as server, socket.create_connection(server.server_address) as connection:
        connection.settimeout(0.02)
        for byte in b"GET / HTTP/1.1\r\nX-Slow: " + b"x" * 1000:
            try:
                connection.sendall(bytes([byte]))
                assert connection.recv(1) == b""
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the server took more than a thousand slow bytes")


@pytest.mark.slow
def test_more_connections_than_there_may_be_are_refused_and_the_others_served(workspace):
    with serving(workspace, connections=2, deadline=60) as server:
        idle = [socket.create_connection(server.server_address) for _ in range(2)]
        refused = [socket.create_connection(server.server_address) for _ in range(5)]
        assert all(answer(connection) in (BUSY, b"") for connection in refused)
        for connection in idle:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"No run yet" in answer(connection)
        while (status := get(server)[0]) == 503:  # until the threads have ended
            pass
        assert status == 200


def test_a_thread_that_cannot_start_frees_its_place(workspace, monkeypatch):
    def fails(_):
        raise RuntimeError("can't start new thread")

    with serving(workspace, connections=2) as server:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", fails)
            for _ in range(5):
                with socket.create_connection(server.server_address) as connection:
                    assert answer(connection) == b""
        assert get(server)[0] == 200


def test_an_error_of_a_page_is_one_page(server, monkeypatch):
    monkeypatch.setattr(WorkspacePages, "page", lambda self, path: 1 / 0)
    status, _, text = get(server)
    assert status == 500
    assert "ZeroDivision" not in text


def test_a_port_in_use_is_one_sentence(server, workspace):
    with pytest.raises(FedpeftError, match=r"is in use: name another with --port"):
        Server(WorkspacePages(workspace), host="127.0.0.1", port=server.server_port)


@pytest.mark.parametrize(
    ("more", "expected"), [(["--port", "70000"], "from 0 to 65535"), (["--host", "192.0.2.1"], "name an address of it")]
)
def test_wrong_arguments_are_one_sentence(workspace, capsys, more, expected):
    assert main(["serve", str(workspace), *more]) == 1
    assert expected in capsys.readouterr().err


def test_no_folder_is_one_sentence(tmp_path, capsys):
    assert main(["serve", str(tmp_path / "none")]) == 1
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_server_that_others_can_reach_says_so(workspace, capsys, monkeypatch, host, warned):
    monkeypatch.setattr(Server, "serve_forever", lambda self: None)
    assert main(["serve", str(workspace), "--host", host, "--port", "0"]) == 0
    assert ("without a password" in capsys.readouterr().err) == warned


def completed(folder, *, method="FedPIA", seed=0, **changed):
    made = record(("a", "b"), 2, seed=seed) | {"method": method, "job": "j", **changed}
    write(folder, made | {"settings": {"training": {"seed": seed}}})
    (folder / "manifest.json").write_text(json.dumps({"job": "j", "status": "completed"}))
    return folder


@pytest.fixture
def compare_page(workspace, server, monkeypatch):
    """Function: the page that the list of runs links to, if it links to one; its picture is not drawn."""
    monkeypatch.setattr(pages, "picture", lambda _: Picture(b""))

    def read():
        links = re.findall(r'href="(/compare/[0-9a-f]{16})"', get(server)[2])
        return get(server, links[0])[2] if links else None

    return read


def test_the_order_in_which_sites_were_drawn_makes_no_other_task(compare_page, workspace):
    drawn = [record(("a", "b"), 2)["rounds"], record(("b", "a"), 2)["rounds"]]
    for number in (0, 1):  # each site has the samples that it has in the other run
        for one in drawn[number]:
            one["sites"] = {site: {**figures, "samples": 200} for site, figures in one["sites"].items()}
    completed(workspace / SIMULATED, rounds=drawn[0])
    completed(workspace.with_name("ws_runs") / "1" / SIMULATED, seed=1, rounds=drawn[1])
    assert compare_page().count('<th scope="row">') == 1  # one method with two seeds


def test_completed_runs_of_a_job_can_be_compared(compare_page, workspace):
    earlier = workspace.with_name("ws_runs")
    completed(workspace / SIMULATED)
    assert compare_page() is None
    os.utime(completed(earlier / "1" / SIMULATED, method="FedAvg <b>") / "history.json", (0, 0))
    completed(earlier / "2" / SIMULATED, method="unfinished")
    (earlier / "2" / SIMULATED / "manifest.json").unlink()
    text = compare_page()
    assert text.count('<th scope="row">') == 2
    assert "FedAvg &lt;b&gt;" in text
    assert "unfinished" not in text


def test_of_many_runs_of_a_job_the_newest_are_compared_and_the_page_says_how_many_are_older(compare_page, workspace):
    for number in range(30):
        folder = workspace.with_name("ws_runs") / str(number) / SIMULATED
        completed(folder, method="recent" if number < 24 else "past", seed=number)
        for file in folder.iterdir():
            os.utime(file, (1000 - number, 1000 - number))
    rows = [(run, Progress(state=COMPLETED, job="j")) for run in find_runs(workspace).values()]
    (group,) = pages.groups(rows).values()
    assert {run.name for run in group.runs} == {str(number) for number in range(24)}
    assert group.older == 6
    text = compare_page()
    assert "Left out as older: 6 runs." in text
    assert "past" not in text


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({}, "nothing to compare"),
        ({"method": "FedAvg", "source": "other data"}, "or other data: there is nothing to compare"),
        ({"rounds": []}, "cannot be compared"),
    ],
)
def test_runs_that_cannot_be_compared_are_one_sentence_without_a_path(other, words, compare_page, workspace):
    completed(workspace / SIMULATED)
    completed(workspace.with_name("ws_runs") / "1" / SIMULATED, **other)
    text = compare_page()
    assert words in text
    assert str(workspace.parent) not in text


def test_there_is_no_page_of_a_comparison_that_is_not_listed(server, workspace):
    assert get(server, f"/compare/{'0' * 16}")[0] == 404


def test_a_run_that_is_being_drawn_keeps_nobody_from_the_list(server, workspace, monkeypatch):
    drawing, go_on = threading.Event(), threading.Event()

    def slow(_):
        drawing.set()
        assert go_on.wait(60)
        return {"curves": Picture(b"")}

    monkeypatch.setattr(pages, "pictures", slow)
    write(workspace / SIMULATED, record(rounds=1))
    asked = threading.Thread(target=get, args=(server, only(workspace)))
    asked.start()
    assert drawing.wait(60)
    try:
        assert "Runs in ws" in get(server)[2]
        assert asked.is_alive()
        assert not go_on.is_set()
    finally:
        go_on.set()
        asked.join()


def test_a_host_that_no_machine_can_have_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(FedpeftError, match="not a valid host name"):
        Server(WorkspacePages(tmp_path), host="192.168..5", port=0)
