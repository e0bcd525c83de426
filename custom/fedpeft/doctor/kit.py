# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read a participant's start-up kit, as `nvflare provision` or `nvflare poc prepare` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import read_json

SERVER, SITE, ADMIN = "server", "site", "admin"
CONFIGURATIONS = {SERVER: "fed_server.json", SITE: "fed_client.json", ADMIN: "fed_admin.json"}
UNSECURED = "clear"
RESOURCES = ("resources.json", "resources.json.default")


@dataclass(frozen=True, kw_only=True)
class Kit:
    """A start-up kit: its participant, and where the server is."""

    folder: Path  # holds `startup/` and `local/`
    role: str  # server, site or admin
    name: str
    host: str
    port: int
    scheme: str = ""  # http, grpc or tcp
    secured: bool = True

    @property
    def certificate(self) -> Path:
        """The participant's own certificate."""
        return self.folder / "startup" / ("server.crt" if self.role == SERVER else "client.crt")

    @property
    def key(self) -> Path:
        """The private key of the certificate."""
        return self.certificate.with_suffix(".key")

    @property
    def root(self) -> Path:
        """The certificate of the consortium's authority."""
        return self.folder / "startup" / "rootCA.pem"

    @property
    def resources_file(self) -> Path:
        """The file that FLARE reads: `resources.json`, or else the default one of the kit."""
        for name in RESOURCES:
            if (file := self.folder / "local" / name).is_file():
                return file
        raise FedpeftError(f"{self.folder / 'local'} has neither {' nor '.join(RESOURCES)}: unpack the kit again.")

    def resources(self) -> dict[str, Any]:
        """The content of the participant's resources.json."""
        return read_object(self.resources_file)


def read_kit(folder: Path) -> Kit:
    """Read a kit from its folder, or from the `startup/` folder in it."""
    folder = folder.parent if folder.name == "startup" else folder
    kinds = [kind for kind, name in CONFIGURATIONS.items() if (folder / "startup" / name).is_file()]
    if not kinds:
        raise FedpeftError(
            f"{folder} is not a start-up kit, its startup/ has none of {', '.join(CONFIGURATIONS.values())}: name the "
            f"participant's folder that `nvflare provision` wrote."
        )
    role = kinds[0]
    file = folder / "startup" / CONFIGURATIONS[role]
    content = read_object(file)
    try:
        if role == ADMIN:
            own = content["admin"]
            name, host, port = own["username"], own["host"], own["port"]
            scheme = own.get("scheme", "")
        else:
            server = content["servers"][0]
            own = content["client"] if role == SITE else server
            name = own["fqsn"].split(".")[-1] if role == SITE else own["admin_server"]
            host, _, port = server["service"]["target"].rpartition(":")
            scheme = server["service"].get("scheme", "")
        secured = own.get("connection_security") != UNSECURED
        return Kit(
            folder=folder, role=role, name=name, host=host, port=int(port), scheme=scheme.lower(), secured=secured
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise FedpeftError(
            f"{file} does not name the participant and the server ({error!r}): unpack the kit again."
        ) from error


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    try:
        content = read_json(file)
    except FileNotFoundError as error:
        raise FedpeftError(f"{file} is missing: restore it.") from error
    except (OSError, ValueError) as error:
        raise FedpeftError(f"{file} cannot be read as JSON ({error}): correct or restore it.") from error
    if not isinstance(content, dict):
        raise FedpeftError(f"{file} must be a JSON object, not {type(content).__name__}: correct or restore it.")
    return content
