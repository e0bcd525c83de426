# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Startup kits as `nvflare provision` lays them out, with certificates of our own making."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedpeft.core.workspace import GUARDS, resources

NAMES = {"server": "localhost", "site": "slake", "admin": "lead@lab.org"}


class Authority:
    """A certificate authority that writes certificates and keys into folders."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        self.root = self._sign(self.name, self.key.public_key(), 0, 365, authority=True)

    def write(self, folder: Path, stem: str, name: str, begins: int = -1, ends: int = 365) -> None:
        """A certificate that is valid from and until so many days from now, its key, and the root."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key.public_key(), begins, ends)
        (folder / f"{stem}.crt").write_bytes(_pem(certificate))
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        (folder / f"{stem}.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
        (folder / "rootCA.pem").write_bytes(_pem(self.root))

    def _sign(self, subject, public_key, begins, ends, *, authority=False):
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=begins, minutes=-5))
            .not_valid_after(now + timedelta(days=ends))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        )
        return builder.sign(self.key, hashes.SHA256())


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)


def write_kit(folder, role, *, authority, port=8002, begins=-1, ends=365, scheme="http", local=None, policy=None):
    """The kit of a server, a site or an administrator; `local` is its resources.json, `policy` its site policy."""
    (folder / "startup").mkdir(parents=True)
    (folder / "local").mkdir()
    service = {"service": {"target": f"localhost:{port}", "scheme": scheme}}
    configuration = {
        "server": ("fed_server.json", {"servers": [{**service, "admin_server": "localhost"}]}),
        "site": ("fed_client.json", {"servers": [service], "client": {"fqsn": "slake"}}),
        "admin": (
            "fed_admin.json",
            {"admin": {"username": NAMES["admin"], "host": "localhost", "port": port, "scheme": scheme}},
        ),
    }
    file, content = configuration[role]
    (folder / "startup" / file).write_text(json.dumps(content))
    authority.write(folder / "startup", "server" if role == "server" else "client", NAMES[role], begins, ends)
    guards = [GUARDS[role]] if role in GUARDS else []
    allowed = {**resources(), "components": guards, "allow_log_streaming": False} if local is None else local
    (folder / "local" / "resources.json.default").write_text(json.dumps(allowed))
    if role == "site" and policy is not None:
        (folder / "local" / "fedpeft.json").write_text(json.dumps(policy))
    return folder
