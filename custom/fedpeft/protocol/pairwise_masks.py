# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Pairwise masks that cancel in the sum: what each site sends is uniformly random to everybody else.

    masked_i = e_i + sum_{j > i} m_ij - sum_{j < i} m_ij   (mod 2^64)        m_ij = ChaCha20(k_ij)
    k_ij = HKDF-SHA256(X25519(secret_i, public_j), salt = context)

A key pair is used for one upload: the same mask on two uploads would reveal their difference. The context holds what
the sites must agree on; if two sites have different contexts, their masks do not cancel, and nothing is revealed.

Source: Bonawitz et al., Practical Secure Aggregation, CCS 2017, without the recovery of sites that drop out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedpeft.core.errors import SecureSumError
from fedpeft.protocol.fixed_point import to_wire

LABEL = b"fedpeft pairwise mask 1"
KEY_BYTES = 32


def new_secret() -> bytes:
    """Generate an X25519 private key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(secret: bytes) -> bytes:
    """Return the public key of a private key."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def context_of(
    *, job: str, settings: str, round: int, keys: Mapping[str, bytes], shapes: Mapping[str, list[int]], received: str
) -> bytes:
    """Digest of what all sites of a sum must agree on; with different digests their masks do not cancel.

    Args:
        job: the job's lineage.
        settings: digest of the job as deployed, of `fedpeft.job.site_job.digest_of`: a server could have all sites but
            one train with a learning rate of zero, and read the update of that one from the sum.
        round: counted from 1.
        keys: public key of every site of the sum, by name.
        shapes: of the tensors to be summed, by wire key.
        received: digest of the global adapter that the round starts from: with different ones a server could cancel
            all updates but one, and read that one from the sum.
    """
    facts = {
        "job": job,
        "settings": settings,
        "round": round,
        "keys": {site: key.hex() for site, key in keys.items()},
        "shapes": {key: list(shape) for key, shape in shapes.items()},
        "received": received,
    }
    return hashlib.sha256(LABEL + json.dumps(facts, sort_keys=True).encode()).digest()


def masked(
    numbers: Mapping[str, np.ndarray], *, site: str, secret: bytes, keys: Mapping[str, bytes], context: bytes
) -> dict[str, torch.Tensor]:
    """Add a site's masks to its encoded tensors; return int64 tensors of the same shapes.

    Args:
        numbers: uint64 arrays by wire key.
        site: name of the site.
        secret: the site's private key, for this upload only.
        keys: public key of every site of the sum, including its own.
        context: result of `context_of`.

    Raises:
        SecureSumError: a site's public key is invalid; names the site.
    """
    totals = {key: numbers[key].copy() for key in sorted(numbers)}
    for peer in sorted(keys.keys() - {site}):
        stream = _stream(secret, site, peer, keys[peer], context)
        for total in totals.values():
            mask = np.frombuffer(stream.update(bytes(total.nbytes)), dtype="<u8").reshape(total.shape)
            if site < peer:
                total += mask
            else:
                total -= mask
    return {key: to_wire(totals[key]) for key in numbers}


def _stream(secret: bytes, site: str, peer: str, key: bytes, context: bytes):
    try:
        shared = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError as error:
        raise SecureSumError(
            f"the public key of site {peer} is not an X25519 key ({error}): start the job again."
        ) from error
    info = LABEL + json.dumps(sorted((site, peer))).encode()
    seed = HKDF(SHA256(), length=KEY_BYTES, salt=context, info=info).derive(shared)
    return Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
