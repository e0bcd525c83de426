# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Randomness of a site's training that the server does not know, for jobs whose adapters leave in a secure sum only.

If the server knew it, a second job would give every other site the same bits, and the difference of the two sums
would be what changed at one site: its data, or what a setting does to them.

    secret       32 random bytes for a site and a lineage, on the site's disk
    start        HMAC(secret, what the site's training depends on there), public, signed with the key for a round
    salt         HMAC(secret, lineage, round, start of every member, the global adapter): goes into every seed

A resumed job thus repeats a round to the bit, but only if every member begins it with what it had. Where one of them
has other data, another file or no state, all members draw anew, so that no sums cancel.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpeft.core.errors import LocalError
from fedpeft.core.files import replacing

FILE = "secret_seed"
BYTES = 32


def secret_of(folder: Path) -> bytes:
    """Return the secret in a lineage's state folder, for the site's user alone; it is drawn if there is none yet.

    Raises:
        LocalError: it cannot be read.
    """
    file = folder / FILE
    if not file.exists():
        with replacing(file) as draft, open(draft, "wb", opener=private) as written:
            written.write(os.urandom(BYTES))
    try:
        secret = file.read_bytes()
    except OSError as error:
        raise LocalError(f"the secret seed {file} cannot be read ({error}): remove that file.") from error
    if len(secret) != BYTES:
        raise LocalError(f"the secret seed {file} has {len(secret)} bytes, not {BYTES}: remove that file.")
    return secret


def start_of(secret: bytes, facts: Mapping[str, Any]) -> bytes:
    """Return a digest of what a site's training depends on, which tells nobody without the secret what that is.

    Args:
        secret: of the site and the lineage.
        facts: JSON-serializable, e.g. the digest of its data.
    """
    return _keyed(secret, "start", facts)


def salt_of(secret: bytes, *, job: str, round: int, starts: Mapping[str, bytes], received: str) -> str:
    """Return what goes into every seed of a site's training in a round.

    Args:
        secret: of the site and the lineage.
        job: the lineage.
        round: counted from 1.
        starts: of every member of the sum, by name.
        received: digest of the global adapter that the round starts from.
    """
    named = {site: start.hex() for site, start in starts.items()}
    return _keyed(secret, "salt", {"job": job, "round": round, "starts": named, "received": received}).hex()


def private(path: str, flags: int) -> int:
    """Open a file that its user alone may read, as `opener` of `open`."""
    return os.open(path, flags, 0o600)


def _keyed(secret: bytes, purpose: str, facts: Mapping[str, Any]) -> bytes:
    return hmac.digest(secret, json.dumps([purpose, facts], sort_keys=True).encode(), hashlib.sha256)
