# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""docs/consortium.md followed to the letter by two hospitals with tables of their own ends in a finished job.

Each block of "From installation to a finished job" is run or written as it stands, on one machine: only folders, port
and the server's name are others, and what the page shows for north is done for south as well.
"""

import re
import shutil
import socket
import subprocess
import tempfile

import numpy as np
import pytest
import yaml
from kits import ENVIRONMENT, ROOT, free_port, processes_below, wait_until
from PIL import Image

from fedpeft.core.processes import end

pytestmark = pytest.mark.consortium
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"# (\S+\.yml)(?:, (.*))?\n")
PAGE = ROOT / "docs" / "consortium.md"
SCANS = 60


@pytest.fixture
def machine(tmp_path):
    """A folder with a clone's configuration in `clone`; whatever is started below it is ended."""
    for name in ("app_configs", "provisioning"):
        shutil.copytree(ROOT / name, tmp_path / "clone" / name)
    (tmp_path / "srv" / "vqa").mkdir(parents=True)
    yield tmp_path
    end(int(file.read_text()) for file in (tmp_path / "srv").glob("*/*pid.fl"))


def own_data(folder, name):
    """A table and images that no other hospital has."""
    (folder / "scans").mkdir(parents=True)
    random = np.random.default_rng(len(name) + ord(name[0]))
    rows = ["image,question,answer"]
    for number in range(SCANS):
        scan = f"scans/{name}-{number}.png"
        Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / scan)
        rows.append(f"{scan},Is there a fracture?,{'yes' if number % 2 else 'no'}")
        rows.append(f"{scan},Which bone is shown?,{'tibia' if number % 3 else 'femur'}")
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n")


def steps(*, folder, port):
    """The blocks of the page, with this machine's values."""
    ours = {"/srv/": f"{folder}/srv/", "/srv\n": f"{folder}/srv\n", "8002": str(port), "fl.example.org": "localhost"}
    page = PAGE.read_text().partition("## From installation to a finished job")[2].partition("\n## ")[0]
    for language, text in BLOCK.findall(page):
        if "git clone" in text:
            continue
        for theirs, own in ours.items():
            text = text.replace(theirs, own)
        yield language, text


def run(folder, text):
    """A block of commands as one person types them, after the one before."""
    with tempfile.TemporaryFile("w+") as screen:  # no pipe: what start.sh leaves running would hold it open
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=folder / "clone",
            env={**ENVIRONMENT, "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=screen,
            stderr=screen,
            check=False,
        )
        screen.seek(0)
        printed = screen.read()
    assert done.returncode == 0, f"{text}\n{printed}"
    return printed


def write(folder, text):
    """Write a YAML block where its first line says: anew, at the end, or instead of the same keys."""
    place, how = PLACE.match(text).groups()
    file, content = folder / "clone" / place, text.partition("\n")[2]
    if how == "one more line":
        content = file.read_text() + content
    elif how:
        described = {**yaml.safe_load(file.read_text()), **yaml.safe_load(content)}
        next(b for b in described["builders"] if "storage" in b.get("args", {}))["args"]["storage"] = str(
            folder / "kept"
        )
        content = yaml.safe_dump(described)
    file.write_text(content)


def listens(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def joined(folder, name):
    return f"New client {name}@" in (folder / "srv" / "server" / "log.txt").read_text()


def test_two_hospitals_follow_the_page(machine):
    for name in ("north", "south"):
        own_data(machine / "srv" / "vqa" / name, name)
    job, printed, port = "JOB_ID", "", free_port()
    for language, text in steps(folder=machine, port=port):
        if language == "yaml":
            write(machine, text)
            continue
        hospitals = ("north", "south") if "/srv/north/startup" in text else ("north",)
        if "nvflare system status" in text:  # a person who is told that no client is there yet tries again
            wait_until(lambda: all(joined(machine, name) for name in ("north", "south")))
        for name in hospitals:
            printed = run(machine, text.replace("north", name).replace("JOB_ID", job))
        if "/srv/server/startup/start.sh" in text:
            wait_until(lambda: listens(port))
        if "nvflare job submit" in text:
            job = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", printed)[0]
        if "fedpeft verify" in text:
            assert "complete 10 rounds" in printed
            assert "north" in printed
            assert "south" in printed
    wait_until(lambda: not processes_below(machine / "srv"))
