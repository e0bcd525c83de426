# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Public keys that travel by way of the server, signed with the certificate of a site's start-up kit.

The server passes them on and could put in its own; a signature over job, round, site and key, by a certificate that the
consortium's authority issued to that site, is what it cannot make. Whoever holds the authority's private key can.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from fedpeft.errors import FedpeftError

LABEL = "fedpeft secure sum key 1"
PADDING = padding.PSS(mgf=padding.MGF1(SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)
FIELDS = ("public", "certificate", "signature")
LONGEST = 16_384  # characters of a field; a certificate of FLARE's has about 1,300
SignedKey = dict[str, str]


@dataclass(frozen=True, slots=True)
class Kit:
    """What a site proves itself with, and whom it believes: from `startup/` of its kit."""

    key: rsa.RSAPrivateKey
    certificate: str
    root: x509.Certificate

    @classmethod
    def load(cls, startup: Path) -> Kit:
        """Read client.key, client.crt and rootCA.pem.

        Raises:
            FedpeftError: one of them is missing or cannot be read.
        """
        try:
            key = load_pem_private_key((startup / "client.key").read_bytes(), password=None)
            certificate = (startup / "client.crt").read_text()
            x509.load_pem_x509_certificate(certificate.encode())
            root = x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise FedpeftError(
                f"the site's certificate cannot be read from {startup} ({error}): a secure sum needs the start-up kit."
            ) from error
        if not isinstance(key, rsa.RSAPrivateKey):
            raise FedpeftError(f"{startup / 'client.key'} is no RSA key: provision the kit with FLARE's CertBuilder.")
        return cls(key, certificate, root)


def signed(public: bytes, kit: Kit | None, *, job: str, round: int, site: str) -> SignedKey:
    """A public key as it travels; unsigned without a kit, as in the simulator."""
    if kit is None:
        return {"public": public.hex(), "certificate": "", "signature": ""}
    statement = _statement(public.hex(), job, round, site)
    signature = kit.key.sign(statement, PADDING, SHA256())
    return {"public": public.hex(), "certificate": kit.certificate, "signature": signature.hex()}


def verified(offered: Mapping[str, str], kit: Kit | None, *, job: str, round: int, site: str) -> bytes:
    """The public key of a site, once it is certain that this site offered it for this round of this job.

    Args:
        offered: what the server passed on.
        kit: whom to believe; None: in the simulator, where there are no certificates.
        job, round, site: what the signature must be about.

    Raises:
        FedpeftError: naming the site and what is wrong with its key.
    """
    check_form(offered, site=site)
    public = bytes.fromhex(offered["public"])
    if kit is None:
        return public
    certificate = _certificate(offered["certificate"], kit.root, site)
    try:
        statement = _statement(offered["public"], job, round, site)
        certificate.public_key().verify(bytes.fromhex(offered["signature"]), statement, PADDING, SHA256())
    except InvalidSignature as error:
        raise FedpeftError(
            f"the key of site {site} is not signed by it for round {round} of this job: do not trust this server."
        ) from error
    return public


def check_form(offered: Mapping[str, str], *, site: str) -> None:
    """Refuse anything but the three fields, each a text of bounded length, the key of 32 bytes."""
    wrong = FedpeftError(f"the key of site {site} is malformed: install the same fedpeft version everywhere.")
    if not isinstance(offered, Mapping) or set(offered) != set(FIELDS):
        raise wrong
    if not all(isinstance(text, str) and len(text) <= LONGEST and text.isascii() for text in offered.values()):
        raise wrong
    try:
        key, _ = (bytes.fromhex(offered[name]) for name in ("public", "signature"))
    except ValueError as error:
        raise wrong from error
    if len(key) != 32 or key.hex() != offered["public"]:
        raise wrong


def _certificate(text: str, root: x509.Certificate, site: str) -> x509.Certificate:
    """A site's certificate, once it is certain that the consortium's authority issued it to a site of this name."""
    try:
        certificate = x509.load_pem_x509_certificate(text.encode())
        certificate.verify_directly_issued_by(root)
        names = [name.value for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        roles = certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise FedpeftError(
            f"the certificate of site {site} was not issued by this consortium's authority: do not trust this server."
        ) from error
    if names != [site] or roles or not isinstance(certificate.public_key(), rsa.RSAPublicKey):
        raise FedpeftError(f"the certificate of site {site} belongs to another participant: do not trust this server.")
    if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
        raise FedpeftError(f"the certificate of site {site} is not valid now: renew its kit, or set the clock.")
    return certificate


def _statement(public: str, job: str, round: int, site: str) -> bytes:
    return json.dumps([LABEL, job, round, site, public]).encode()
