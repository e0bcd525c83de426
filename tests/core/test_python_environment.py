# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Python processes that fedpeft starts import nothing from the current folder, and their sockets have room."""

import os
import subprocess
import sys
import tempfile
from multiprocessing.connection import Listener

import pytest
from warm_python import TRUE_PYTHON

from fedpeft.core import processes as module
from fedpeft.core.errors import FedpeftError
from fedpeft.core.processes import SOCKET, no_sockets, python_environment, socket_folder

NAMES = ("random", "types", "json", "statistics")
NESTED = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-m', 'fedpeft.core.processes']).returncode)"


@pytest.mark.slow
@pytest.mark.parametrize("places", [None, "", ":", "{own}:", ":{own}", "{own}::{own}"])
def test_a_users_script_is_not_imported_in_place_of_pythons_own_module(tmp_path, places):
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a script of the user ran')\n")
    before = {**os.environ, "FEDPEFT_TEST": "kept"}
    own = before.pop("PYTHONPATH", "")
    if places is not None:
        before["PYTHONPATH"] = places.format(own=own)
    environment = python_environment(before)
    assert environment["FEDPEFT_TEST"] == "kept"
    command = [sys.executable, "-c", f"import sys; {'; '.join(f'import {name}' for name in NAMES)}; {NESTED}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


POOL = f"""
import multiprocessing, os
multiprocessing.set_executable(os.environ["{TRUE_PYTHON}"])
"""
COMPARISON = """
from pathlib import Path
from fedpeft.compare.experiment import Run, run_missing
run = Run(task="none", method="none", seed=0, sections={})
print(run_missing(Path("out"), [run], processes=1, finished=print))
"""
MEASUREMENT = """
from pathlib import Path
from fedpeft.core.errors import FedpeftError
from fedpeft.doctor import memory
memory._driver = lambda: True
try:
    memory.sites_at_once(Path("no-such-job"), 1, workspace=Path("ws"))
except FedpeftError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"), [(COMPARISON, "none, seed 0: KeyError: 'federation'"), (MEASUREMENT, "no-such-job")]
)
def test_a_pool_of_processes_imports_no_script_of_the_user_either(tmp_path, code, said, warm_python):
    """What starts the pool has its imports already; the processes of the pool are true Pythons."""
    (tmp_path / "types.py").write_text("open('ran', 'w').close()")
    main = tmp_path / "main" / "main.py"  # a pool imports the main module anew in each of its processes
    main.parent.mkdir()
    code = POOL + code
    main.write_text("if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in code.splitlines()))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [warm_python, str(main)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert said in done.stdout, done.stderr
    assert "killed" not in done.stdout
    assert not (tmp_path / "ran").exists()


def test_relative_places_become_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    given = os.pathsep.join(["", "custom", str(tmp_path / "other"), ""])
    assert python_environment({"PYTHONPATH": given})["PYTHONPATH"].split(os.pathsep) == [
        str(tmp_path / "custom"),
        str(tmp_path / "other"),
    ]
    assert "PYTHONPATH" not in python_environment({})


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Function: make the temporary folder one whose path has so many bytes."""

    def make(length):
        folder = tmp_path / ("x" * (length - len(str(tmp_path)) - 1))
        folder.mkdir()
        assert len(os.fsencode(folder)) == length
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return folder

    return make


@pytest.mark.skipif(sys.platform != "linux", reason="other systems allow other lengths")
@pytest.mark.parametrize(("length", "fits"), [(107 - len(SOCKET), True), (108 - len(SOCKET), False), (140, False)])
def test_a_socket_fits_where_the_path_has_room(temporary, length, fits):
    folder = temporary(length)
    assert (no_sockets() == "") == fits
    with socket_folder() as other:
        place = other.get("TMPDIR", str(folder))
        assert (place == str(folder)) == fits
        address = tempfile.mkdtemp(prefix="pymp-", dir=place) + SOCKET[SOCKET.rindex("/") :]
        Listener(address, "AF_UNIX").close()
    assert fits or not os.path.exists(place)


def test_where_no_short_folder_can_be_made_the_remedy_is_named(temporary, monkeypatch):
    temporary(140)
    monkeypatch.setattr(module, "SHORT_PLACES", ("/proc/none",))
    with pytest.raises(FedpeftError, match="set TMPDIR to a folder of at most"), socket_folder():
        pass
