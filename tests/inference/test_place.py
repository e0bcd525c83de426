# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`fedpeft export` writes only where a site may: not to what the server serves, not over anything else."""

import pytest
from trained_sites import trained

from fedpeft.cli import main
from fedpeft.core.errors import FedpeftError
from fedpeft.inference.exported import ANSWERS, HEAD, check_place
from fedpeft.site.site_state import RECORD


def touch(file):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


@pytest.mark.parametrize(
    ("there", "out", "sentence"),
    [
        ("server/startup/fed_server.json", "server/export", "the server's workspace"),
        ("server/startup/fed_server.json", "server/run_1/fedpeft/export", "the server's workspace"),
        ("ws/server/simulate_job/fedpeft/history.json", "ws/server/simulate_job/fedpeft/export", "the server keeps"),
        ("ws/server/simulate_job/fedpeft/history.json", "ws/slake/export", "which the next run deletes"),
        ("ws_state/simulator_server/job-1/round-00001/x", "ws_state/simulator_server/export", "the server keeps"),
        ("result/manifest.json", "result/export", "the server keeps"),
        ("mine/letter.txt", "mine", "is no export"),
        ("mine", "mine", "is no export"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_other_places_are_refused(tmp_path, there, out, sentence, force):
    touch(tmp_path / there)
    with pytest.raises(FedpeftError, match=sentence):
        check_place(tmp_path / out, force=force)


def test_a_link_into_the_servers_folder_is_no_way_around(tmp_path):
    touch(tmp_path / "server" / "startup" / "fed_server.json")
    (tmp_path / "mine").symlink_to(tmp_path / "server")
    with pytest.raises(FedpeftError, match="the server's workspace"):
        check_place(tmp_path / "mine" / "export", force=False)


def test_an_earlier_export_is_replaced_with_force_alone(tmp_path):
    for name in (RECORD, HEAD, ANSWERS):
        touch(tmp_path / "out" / name)
    with pytest.raises(FedpeftError, match="replace it with --force"):
        check_place(tmp_path / "out", force=False)
    check_place(tmp_path / "out", force=True)
    check_place(tmp_path / "new", force=False)
    (tmp_path / "empty").mkdir()
    check_place(tmp_path / "empty", force=False)


@pytest.mark.slow
def test_the_export_command_writes_once_and_overwrites_nothing(sections, tmp_path, tiny_source, capsys):
    folder, _ = trained(sections("training.rounds=1"), tmp_path / "state")["slake"]
    command = ["export", str(folder), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert "Handing it over is the site's decision." in capsys.readouterr().out
    assert main(command) == 1
    assert "earlier export" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0
    capsys.readouterr()
    trusted = ["--backbone", tiny_source]
    for arguments, sentence in (
        ([*trusted, "--round", "2"], "only holds round 1"),
        ([*trusted, "--site", "north"], "is of site slake"),
        ([], "chosen by its exporter: name with --backbone"),
    ):
        assert main(["predict", str(tmp_path / "out"), "--image", str(tmp_path), *arguments]) == 1
        assert sentence in capsys.readouterr().err
    (tmp_path / "out" / "head.safetensors").write_bytes(b"none")
    assert main(["predict", str(tmp_path / "out"), "--image", str(tmp_path)]) == 1
    assert "cannot be read" in capsys.readouterr().err
