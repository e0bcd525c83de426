# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Jobs without any code that read a machine's environment, files or network, or keep it busy, if FLARE reads them.

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
        at_site: whether it concerns a site as well, which checks what the server sends it.
    """

    name: str
    change: Callable[[Path, Target], None]
    at_site: bool = True


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
        Attack(name="a class deep in data.sites", change=_class_in_data_sites),
        Attack(name="a class by its name in a score's settings", change=_class_by_name),
        Attack(name="a wait of a nanosecond between requests", change=_interval),
        Attack(name="a round of 10**18 seconds", change=_federation(round_timeout=10**18), at_site=False),
        Attack(name="10**9 rounds", change=_rounds, at_site=False),
        Attack(name="a path to resume from", change=_federation(resume_from="../.."), at_site=False),
        Attack(name="a site named twice", change=_named_twice, at_site=False),
    )


def app_archive(job: Path) -> bytes:
    """The app of a job folder as a server sends it to its sites."""
    return _zip(job / "app", "")


def job_archive(job: Path) -> bytes:
    """A job folder as a lead sends it to the server."""
    return _zip(job, f"{job.name}/")


@contextmanager
def listener() -> Iterator[tuple[str, list[str]]]:
    """A web server on the loopback: its address, and the requested paths."""
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


def _class_in_data_sites(job: Path, _: Target) -> None:
    """FLARE's scanner finds it when the job starts, which then ends without a manifest."""
    entry = {"path": "nvflare.app_common.np.np_trainer.NPTrainer", "args": {}}

    def edit(client: dict[str, Any]) -> None:
        client["executors"][0]["executor"]["args"]["data"]["sites"] = {"slake": entry}

    _edited(job / CLIENT, edit)


def _class_by_name(job: Path, _: Target) -> None:
    def edit(server: dict[str, Any]) -> None:
        server["workflows"][0]["args"]["schedule"]["score_settings"] = {"name": "FedAvg"}

    _edited(job / SERVER, edit)


def _interval(job: Path, _: Target) -> None:
    _edited(job / SERVER, lambda server: server["server"].update(task_request_interval=1e-9))
    _edited(job / CLIENT, lambda client: client.update(get_task_timeout=1e-9))


def _federation(**values: Any) -> Callable[[Path, Target], None]:
    def change(job: Path, _: Target) -> None:
        _edited(job / SERVER, lambda server: server["workflows"][0]["args"]["federation"].update(values))

    return change


def _rounds(job: Path, _: Target) -> None:
    _edited(job / SERVER, lambda server: server["workflows"][0]["args"]["training"].update(rounds=10**9))
    _edited(job / CLIENT, lambda client: client["executors"][0]["executor"]["args"]["training"].update(rounds=10**9))


def _named_twice(job: Path, _: Target) -> None:
    def edit(server: dict[str, Any]) -> None:
        sites = server["workflows"][0]["args"]["federation"]["sites"]
        sites.append(sites[0])

    _edited(job / SERVER, edit)
