# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Public keys that pass through the server, signed with the certificate of a site's start-up kit.

The server could replace a key by its own, but it cannot forge a signature over job, round, site and key by the
certificate that the consortium's authority issued to that site. Only the holder of the authority's private key can.

Where adapters leave only in a secure sum, a site trains with randomness that the server does not know. If the server
knew it, a second job would give every other site the same bits, and the difference of the two sums would be what
changed at one site: its data, or what a setting does to them.

    secret       32 random bytes for a site and a lineage, on the site's disk
    start        HMAC(secret, what the site's training depends on there), public, signed with the key for a round
    salt         HMAC(secret, lineage, round, start of every member, the global adapter): goes into every seed

A resumed job thus repeats a round to the bit, but only if every member begins it as before. Where one of them has other
data, another policy or no state, all members draw anew, so that no sums cancel.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from fedpeft.core.errors import LocalError, SecureSumError
from fedpeft.core.files import replacing

LABEL = "fedpeft secure sum key 2"
PADDING = padding.PSS(mgf=padding.MGF1(SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)
FIELDS = ("public", "start", "certificate", "signature")
START_BYTES = (0, 32)  # in the simulator there is none
LINE, MAX_LINES = 128, 64  # a certificate of FLARE's has about 1,700 hexadecimal digits
SignedKey = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Kit:
    """A site's private key and certificate, and the authority that it trusts, from `startup/` of its kit."""

    key: rsa.RSAPrivateKey
    certificate: x509.Certificate
    root: x509.Certificate

    @classmethod
    def load(cls, startup: Path) -> Kit:
        """Read client.key, client.crt and rootCA.pem."""
        try:
            key = load_pem_private_key((startup / "client.key").read_bytes(), password=None)
            certificate = x509.load_pem_x509_certificate((startup / "client.crt").read_bytes())
            root = x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise SecureSumError(
                f"the site's certificate cannot be read from {startup} ({error}): a secure sum needs the start-up kit."
            ) from error
        if not isinstance(key, rsa.RSAPrivateKey):
            raise SecureSumError(
                f"{startup / 'client.key'} is not an RSA key: provision the kit with FLARE's CertBuilder."
            )
        return cls(key, certificate, root)


@dataclass(frozen=True, slots=True)
class Offer:
    """A public key, and the digest of what its site's training starts from (`fedpeft.protocol.signed_keys`)."""

    public: bytes
    start: bytes = b""


def signed(offer: Offer, kit: Kit | None, *, job: str, round: int, site: str) -> SignedKey:
    """Sign an offer and encode it in lines of hexadecimal digits; without a kit (simulator) it is unsigned."""
    values = {"public": offer.public, "start": offer.start, "certificate": b"", "signature": b""}
    if kit is not None:
        values["certificate"] = kit.certificate.public_bytes(Encoding.DER)
        values["signature"] = kit.key.sign(_statement(offer, job, round, site), PADDING, SHA256())
    digits = {name: value.hex() for name, value in values.items()}
    return {name: [text[at : at + LINE] for at in range(0, len(text), LINE)] for name, text in digits.items()}


def verified(offered: Mapping[str, list[str]], kit: Kit | None, *, job: str, round: int, site: str) -> Offer:
    """Verify that a site offered a public key for this round of this job, and return its offer; no kit: simulator."""
    public, start, certificate, signature = (read(offered, site=site)[name] for name in FIELDS)
    offer = Offer(public, start)
    if kit is None:
        return offer
    key = _key_of(certificate, kit.root, site)
    try:
        key.verify(signature, _statement(offer, job, round, site), PADDING, SHA256())
    except InvalidSignature as error:
        raise SecureSumError(
            f"the key of site {site} is not signed by it for round {round} of this job: do not trust this server."
        ) from error
    return offer


def read(offered: Mapping[str, list[str]], *, site: str) -> dict[str, bytes]:
    """Decode the fields of a key on the wire, each of bounded length; the public key must not be of low order."""
    try:
        if set(offered) != set(FIELDS) or any(len(lines) > MAX_LINES for lines in offered.values()):
            raise ValueError
        values = {name: bytes.fromhex("".join(lines)) for name, lines in offered.items()}
        if len(values["start"]) not in START_BYTES:
            raise ValueError
        if len(values["public"]) != 32 or any(len(line) > LINE for lines in offered.values() for line in lines):
            raise ValueError
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(values["public"]))  # none of low order
    except (ValueError, TypeError, AttributeError) as error:
        raise SecureSumError(
            f"the key of site {site} is malformed: install the same fedpeft version everywhere."
        ) from error
    return values


def _key_of(encoded: bytes, root: x509.Certificate, site: str) -> rsa.RSAPublicKey:
    """Verify that the consortium's authority issued a certificate to this site, and return its key."""
    try:
        certificate = x509.load_der_x509_certificate(encoded)
        certificate.verify_directly_issued_by(root)
        names = [name.value for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        roles = certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise SecureSumError(
            f"the certificate of site {site} was not issued by this consortium's authority: do not trust this server."
        ) from error
    key = certificate.public_key()
    if names != [site] or any(role.value != SITE for role in roles) or not isinstance(key, rsa.RSAPublicKey):
        raise SecureSumError(
            f"the certificate of site {site} belongs to another participant: do not trust this server."
        )
    if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
        raise SecureSumError(f"the certificate of site {site} is not valid now: renew its kit, or set the clock.")
    return key


def _statement(offer: Offer, job: str, round: int, site: str) -> bytes:
    return json.dumps([LABEL, job, round, site, offer.public.hex(), offer.start.hex()]).encode()


SITE = "client"  # what `nvflare cert` writes into a site's certificate where those of people have a role
SEED_FILE = "secret_seed"
BYTES = 32


def secret_of(folder: Path) -> bytes:
    """Return the secret in a lineage's state folder, for the site's user alone; it is drawn if there is none yet."""
    file = folder / SEED_FILE
    if not file.exists():
        with replacing(file) as draft, open(draft, "wb", opener=open_privately) as written:
            written.write(os.urandom(BYTES))
    try:
        secret = file.read_bytes()
    except OSError as error:
        raise LocalError(f"the secret seed {file} cannot be read ({error}): remove that file.") from error
    if len(secret) != BYTES:
        raise LocalError(f"the secret seed {file} has {len(secret)} bytes, not {BYTES}: remove that file.")
    return secret


def start_of(secret: bytes, facts: Mapping[str, Any]) -> bytes:
    """Return a digest of what a site's training depends on; without the secret it reveals nothing."""
    return _keyed(secret, "start", facts)


def salt_of(secret: bytes, *, job: str, round: int, starts: Mapping[str, bytes], received: str) -> str:
    """Return the salt of a site's seeds in a round, from all members' starts and the global adapter."""
    named = {site: start.hex() for site, start in starts.items()}
    return _keyed(secret, "salt", {"job": job, "round": round, "starts": named, "received": received}).hex()


def open_privately(path: str, flags: int) -> int:
    """Open a file that only its user may read; an `opener` for `open`."""
    return os.open(path, flags, 0o600)


def _keyed(secret: bytes, purpose: str, facts: Mapping[str, Any]) -> bytes:
    return hmac.digest(secret, json.dumps([purpose, facts], sort_keys=True).encode(), hashlib.sha256)
