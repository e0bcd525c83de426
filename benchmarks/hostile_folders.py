# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Run folders and exports of a stranger, read by every command that reads one; visitors of the live page; ledgers.

Each command is a process of its own. What was lost names commands that end in a traceback, by a signal or not at all,
and control characters that reach the terminal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from measured import ROOT, sections

from fedpeft.backbones.registry import TINY_FOLDER
from fedpeft.core.errors import FedpeftError
from fedpeft.inference.export import export
from fedpeft.inference.kept_model import find
from fedpeft.protocol.differential_privacy import add_releases

sys.path.insert(0, str(ROOT / "tests" / "support"))

from histories import complete
from mutations import TERMINAL, text
from serving import serving
from trained_sites import table, trained

VERBS = (("status",), ("verify",), ("report", "--out"))
CODES = set("\x1b\x07\r\u202e\u200b\x9b")
SECONDS = 600  # for the slowest, on a busy machine
VISITORS, DEADLINE = 300, 2.0
Row = tuple[str, str, str]
Change = Callable[[Path], None]


def _history(**values: Any) -> Change:
    return lambda folder: (folder / "history.json").write_text(text(complete(2) | values))


def _loss(value: float) -> Change:
    def change(folder: Path) -> None:
        made = complete(2)
        made["rounds"][1]["sites"]["a"]["loss"] = value
        (folder / "history.json").write_text(json.dumps(made))

    return change


def _special(make: Change) -> Change:
    def change(folder: Path) -> None:
        (folder / "history.json").unlink()
        make(folder / "history.json")

    return change


FOLDERS: dict[str, Change] = {
    "ESC bytes in the job's name": _history(job=TERMINAL),
    "ESC bytes in a site's name": lambda folder: (folder / "history.json").write_text(
        json.dumps(complete(2)).replace('"a"', json.dumps(TERMINAL))
    ),
    "ESC bytes in the reason of a failure": lambda folder: (folder / "manifest.json").write_text(
        json.dumps({"job": "j", "status": "failed", "reason": TERMINAL, "rounds": 2, "files": {}})
    ),
    "a whole number of 401 digits as the seed": lambda folder: (folder / "history.json").write_text(
        json.dumps(complete(2)).replace('"seed": 0', f'"seed": {"9" * 401}')
    ),
    "a loss of 1e308": _loss(1e308),
    "a loss of infinity": _loss(float("inf")),
    "text as the number of rounds": _history(settings={"training": {"rounds": "many"}}),
    "JSON of 100,000 lists in lists": lambda folder: (folder / "history.json").write_text("[" * 10**5),
    "a named pipe": _special(os.mkfifo),
    "a link to /dev/zero": _special(lambda file: file.symlink_to("/dev/zero")),
    "a link to itself": _special(lambda file: file.symlink_to(file.name)),
    "a file of 8 GB": lambda folder: os.truncate(folder / "history.json", 2**33),
}
LEDGERS = {
    "noise that is a text": '{"job": "a", "noise": "2"}\n',
    "noise that is true": '{"job": "a", "noise": true}\n',
    "noise of infinity": '{"job": "a", "noise": Infinity}\n',
    "noise of 0": '{"job": "a", "noise": 0}\n',
    "half a line": '{"job": "a", "noise": 2}\n{"job',
}


def run_rows() -> Iterator[Row]:
    """Run folders."""
    for name, change in FOLDERS.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "run"
            folder.mkdir()
            _history()(folder)
            (folder / "manifest.json").write_text(
                json.dumps({"job": "j", "status": "completed", "rounds": 2, "files": {}, "sites": {"a": {}, "b": {}}})
            )
            change(folder)
            ends = [
                (v, *_ended(v, str(folder), *more, *[f"{scratch}/out"] * len(more), scratch=scratch))
                for v, *more in VERBS
            ]
            ends.append(("serve", *_served(Path(scratch))))
        said = "; ".join(f"{verb}: {what}" for verb, what, _ in ends)
        yield name, said, ", ".join(f"{verb}: {lost}" for verb, _, lost in ends if lost) or "nothing"


def _served(folder: Path) -> tuple[str, str]:
    """What the live page of a folder of runs shows of the one in it, and what was lost by it."""
    command = [sys.executable, "-m", "fedpeft.cli", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdout
        try:
            server.stdout.readline()
            address = server.stdout.readline().decode().split()[-1].rstrip("/")
            with urllib.request.urlopen(address, timeout=SECONDS) as answer:
                found = re.search(r"/run/[0-9a-f]{16}", answer.read().decode())
            with urllib.request.urlopen(address + (found[0] if found else "/"), timeout=SECONDS) as answer:
                page = answer.read().decode()
        except OSError as error:  # no answer in time, or one that is no page
            return "no page", f"{type(error).__name__}: {error}"
        finally:
            server.terminate()
            printed, error = (stream.decode(errors="replace") for stream in server.communicate())
    if "Traceback" in error:
        return "a page", "a traceback in its log"
    lost = "a terminal would obey it" if CODES & set(printed + error) else ""
    return "a page" if "cannot be read" not in page else "a page that says that the run cannot be read", lost


def _ended(*words: str, scratch: str) -> tuple[str, str]:
    """What a command said at its end, and what was lost by it."""
    command = [sys.executable, "-m", "fedpeft.cli", *words]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "no end", f"it hangs for more than {SECONDS} s"
    printed, error = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
    shown = error.replace(scratch, "…").replace(str(ROOT), "…")
    what = " ".join(shown.split())[:200] if done.returncode else "read"
    if "Traceback" in error or done.returncode not in (0, 1):
        return what, f"exit code {done.returncode}"
    return what, "a terminal would obey it" if CODES & set(printed + error) else ""


def _record(**values: Any) -> Change:
    def change(folder: Path) -> None:
        made = json.loads((folder / "model.json").read_text())
        made["record"] |= values
        (folder / "model.json").write_text(json.dumps(made))

    return change


def _answers_with_codes(folder: Path) -> None:
    answers = json.loads((folder / "answers.json").read_text())
    (folder / "answers.json").write_text(json.dumps([f"{answer}\n{TERMINAL}" for answer in answers]))


def _instead(name: str, make: Change) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


EXPORTS: dict[str, Change] = {
    "nothing wrong": lambda folder: None,
    "ESC bytes in the site's name": _record(site=f"site {TERMINAL}"),
    "ESC bytes in the answers": _answers_with_codes,
    "ESC bytes in the name of the backbone's source": _record(source=TERMINAL),
    "a named pipe as the head": _instead("head.safetensors", os.mkfifo),
    "a link to /dev/zero as the adapter": _instead(
        "adapter_model.safetensors", lambda file: file.symlink_to("/dev/zero")
    ),
    "JSON of 100,000 lists in lists as the record": lambda folder: (folder / "model.json").write_text("[" * 10**5),
}


def export_rows() -> Iterator[Row]:
    """Exports of a model, of a stranger, with which `fedpeft predict` answers."""
    with tempfile.TemporaryDirectory() as scratch:
        tables = table(Path(scratch) / "table", "classes")
        chosen = sections(["training.rounds=1", "method.aggregation=fedavg"]) | {
            "data": {"dataset": "manifest", "root": str(tables)}
        }
        site, _ = trained(chosen, Path(scratch) / "sites", sites=("slake",))["slake"]
        export(find(site, site=None), Path(scratch) / "sound")
        for name, change in EXPORTS.items():
            folder = shutil.copytree(Path(scratch) / "sound", Path(scratch) / "out")
            change(folder)
            image = str(tables / "test-0.png")
            more = ("--image", image, "--backbone", str(TINY_FOLDER))
            what, lost = _ended("predict", str(folder), *more, scratch=scratch)
            shutil.rmtree(folder)
            yield f"an export with {name}", f"predict: {what}", lost or "nothing"


def ledger_rows() -> Iterator[Row]:
    """Ledgers of noise that say what no site wrote."""
    for name, content in LEDGERS.items():
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "ledger"
            file.write_text(content)
            try:
                spent = add_releases(file, "b", [{"noise": 2.0}], delta=1e-5, limit=0)
                yield name, f"epsilon is {spent}", "the count of what was released"
            except FedpeftError as error:
                yield name, str(error).replace(scratch, "…"), "nothing: nothing leaves the site until it is mended"


def visitor_rows() -> Iterator[Row]:
    """Connections to `fedpeft serve` that send a byte now and then."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), deadline=DEADLINE) as server:
        open_ones, began = set(), time.monotonic()
        for _ in range(VISITORS):
            open_ones.add(socket.create_connection(server.server_address))
        most = len(open_ones)
        while open_ones and time.monotonic() < began + SECONDS:
            for one in [*open_ones]:
                one.settimeout(0.001)
                try:
                    one.sendall(b"x")
                    ended = not one.recv(1000)
                except TimeoutError:
                    ended = False
                except OSError:
                    ended = True
                if ended:
                    one.close()
                    open_ones.discard(one)
        seconds = time.monotonic() - began
        answered = _answers(server.server_address)
        for one in open_ones:
            one.close()
    what = f"{most - len(open_ones)} were closed within {seconds:.0f} s, with {DEADLINE:g} s for a request"
    meanwhile = "others read that the server is busy while all its connections are taken"
    lost = f"{meanwhile}; a page is served after them" if answered and not open_ones else "the page for everybody else"
    yield f"{VISITORS} connections that trickle", what, lost


def _answers(address: Any) -> bool:
    with socket.create_connection(address) as one:
        one.settimeout(SECONDS)
        one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return one.makefile("rb").readline().startswith(b"HTTP/1.0 200")


def rows() -> Iterator[Row]:
    """All of them."""
    yield from run_rows()
    yield from export_rows()
    yield from visitor_rows()
    yield from ledger_rows()
