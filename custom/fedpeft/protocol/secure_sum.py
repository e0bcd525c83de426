# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Secure sum of adapters: the server sees only the sum, not the adapter of any site.

    before the round   offer    a one-time public key, signed, sent with the previous message
    in the round       upload   check every member's key, encode, mask, and delete the private key
    server             mean     add up, decode

The members of the sum are fixed: a server that could leave one out of a second sum would see the difference. So every
sum needs every member, and a round in which one is missing is lost.

Pairwise masks that cancel in the sum: what each site sends is uniformly random to everybody else.

    masked_i = e_i + sum_{j > i} m_ij - sum_{j < i} m_ij   (mod 2^64)        m_ij = ChaCha20(k_ij)
    k_ij = HKDF-SHA256(X25519(secret_i, public_j), salt = context)

Adapters travel as integers modulo 2^64: their sum is exact, and a uniform mask hides each of them completely.

    encode    e = n round(2^32 x) mod 2^64        n: the site's weight, an integer
    decode    sum_k n_k x_k / sum_k n_k

Rounding costs at most 2^-33 in each number, whatever the number of sites.

A key pair is used for one upload: the same mask on two uploads would reveal their difference. The context holds what
the sites must agree on; if two sites have different contexts, their masks do not cancel, and nothing is revealed.

Source: Bonawitz et al., Practical Secure Aggregation, CCS 2017, without the recovery of sites that drop out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedpeft.core.errors import FedpeftError, SecureSumError
from fedpeft.core.files import replacing
from fedpeft.core.states import State, Store, digest, in_memory
from fedpeft.job.site_policy import MIN_MEMBERS
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.signed_keys import Kit, Offer, SignedKey, open_privately, signed, verified

FRACTION_BITS = 32
MAX_SUM = 2**62  # of the encodings of all sites
Numbers = dict[str, np.ndarray]


def encode(state: State, weight: int, sites: int) -> Numbers:
    """Encode a site's weighted tensors as uint64 arrays of the same shapes.

    Each is below 2^62 / K for K encodings to be added, so that the sum cannot overflow.
    """
    max_number = MAX_SUM / (sites * weight)
    numbers = {}
    for key, tensor in state.items():
        scaled = np.rint(tensor.detach().to("cpu", torch.float64).numpy() * 2.0**FRACTION_BITS)
        if not (np.abs(scaled) <= max_number).all():  # NaN compares false
            raise _too_large(key, weight, sites)
        numbers[key] = np.asarray((scaled.astype(np.int64) * np.int64(weight)).view(np.uint64))  # no scalar
    return numbers


def check_fits(state: State, *, weight: int, sites: int) -> None:
    """Refuse finite tensors that `encode` would refuse, without encoding them."""
    for key, tensor in state.items():
        if tensor.numel() and float(tensor.abs().max()) * 2.0**FRACTION_BITS > MAX_SUM / (sites * weight) - 1:
            raise _too_large(key, weight, sites)


def _too_large(key: str, weight: int, sites: int) -> FedpeftError:
    return FedpeftError(
        f"{key} has a number that a sum of {sites} sites cannot hold with a weight of {weight}: the "
        f"site's training diverged, or use method.pia.weighting='uniform'.",
        code="training-diverged",
    )


def wrapped_sum(states: Sequence[State]) -> Numbers:
    """Add int64 wire tensors modulo 2^64; all states have the same keys and shapes."""
    first, *others = states
    totals = {key: from_wire(tensor).copy() for key, tensor in first.items()}
    for state in others:
        for key, total in totals.items():
            total += from_wire(state[key])
    return totals


def check_cancelled(totals: Mapping[str, np.ndarray]) -> None:
    """Refuse a sum beyond what encodings can have.

    Masks that do not cancel leave uniform numbers, half of which are that large.
    """
    for total in totals.values():
        if total.size and not np.abs(total.view(np.int64), dtype=np.float64).max() <= MAX_SUM:
            raise FedpeftError(
                "the sites' masks do not cancel in their sum: a member sent something else, or was given another job, "
                "other keys or another global adapter. The earlier rounds are kept: compare what fedpeft doctor says "
                "at the members, then continue with federation.resume_from."
            )


def decode(totals: Mapping[str, np.ndarray], weight: int, dtypes: Mapping[str, torch.dtype]) -> dict[str, torch.Tensor]:
    """Decode a sum of encodings into the weighted mean; the weight is the sum of all n_k."""
    divisor = 2.0**FRACTION_BITS * weight
    return {
        key: torch.from_numpy(np.asarray(total.view(np.int64).astype(np.float64) / divisor)).to(dtypes[key])
        for key, total in totals.items()
    }


def to_wire(numbers: np.ndarray) -> torch.Tensor:
    """View a uint64 array as an int64 tensor with the same bits, which every version of torch can send."""
    return torch.from_numpy(np.ascontiguousarray(numbers).view(np.int64).reshape(np.shape(numbers)))


def from_wire(tensor: torch.Tensor) -> np.ndarray:
    """View an int64 tensor as a uint64 array with the same bits."""
    return tensor.detach().cpu().contiguous().numpy().view(np.uint64)


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
    """Return a digest of what all sites of a sum must agree on; with different digests their masks do not cancel.

    Args:
        job: the job's lineage.
        settings: digest of the job as deployed (`fedpeft.job.settings.digest_of`): else a server could let all sites
            but one train with a learning rate of zero, and read the update of that one from the sum.
        round: counted from 1.
        keys: public key of every site of the sum, by name.
        shapes: of the tensors to be summed, by wire key.
        received: digest of the global adapter that the round starts from: with different adapters a server could
            cancel all updates but one, and read that one from the sum.
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
    """Add a site's masks to its uint64 arrays by wire key; return int64 tensors of the same shapes.

    `secret` is the site's private key for this upload only, `keys` has the public key of every site of the sum,
    `context` is the result of `context_of`.
    """
    totals = {key: np.array(numbers[key]) for key in sorted(numbers)}
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


KEY_FILE = "secure_sum.json"


@dataclass(frozen=True, kw_only=True)
class SumRound:
    """One round of a job's secure sum, at one of its members."""

    job: str  # the job's lineage
    round: int  # counted from 1
    site: str
    kit: Kit | None = None  # signs its keys; None in the simulator
    # the sites of the sum, from the site policy; None in the simulator: all that offer a key
    members: Sequence[str] | None = None

    def offer(self, folder: Path, start: bytes = b"") -> SignedKey:
        """Create a key pair for one upload; the private key stays in `folder` and replaces any earlier one.

        `start` says what the training starts from (`fedpeft.protocol.signed_keys`).
        """
        secret = new_secret()
        with replacing(folder / KEY_FILE) as draft, open(draft, "w", opener=open_privately) as file:
            json.dump({"job": self.job, "round": self.round, "secret": secret.hex()}, file)
        return signed(Offer(public_key(secret), start), self.kit, job=self.job, round=self.round, site=self.site)

    def verified(self, offered: Mapping[str, SignedKey]) -> dict[str, Offer]:
        """Verify that these are the members of the sum, and the key of each."""
        self._check_members(offered)
        return {
            name: verified(key, self.kit, job=self.job, round=self.round, site=name) for name, key in offered.items()
        }

    def upload(
        self,
        trained: State,
        folder: Path,
        *,
        settings: str,
        weight: int,
        offered: Mapping[str, SignedKey],
        received: State,
        noised: Callable[[State], State] = lambda adapter: adapter,
    ) -> dict[str, torch.Tensor]:
        """Mask a site's adapter as int64 tensors, which reveal nothing without those of all others.

        `settings` is the digest of the job as deployed to this site, `offered` the key of every member as passed on by
        the server, `received` the global adapter that the round started from. `noised` is called once everything else
        is right, because a release counts against the site's limit as soon as it is noised.
        """
        keys = {name: offer.public for name, offer in self.verified(offered).items()}
        secret = self._take(folder / KEY_FILE)
        if keys[self.site] != public_key(secret):
            raise SecureSumError(
                f"the server passes on another key of site {self.site} than it offered for round {self.round}."
            )
        if len(set(keys.values())) != len(keys):
            raise SecureSumError(f"two sites have the same key in round {self.round}: a secure sum needs one for each.")
        shapes = {key: list(tensor.shape) for key, tensor in trained.items()}
        context = context_of(
            job=self.job, settings=settings, round=self.round, keys=keys, shapes=shapes, received=digest(received)
        )
        numbers = encode(noised(trained), weight, len(keys))
        return masked(numbers, site=self.site, secret=secret, keys=keys, context=context)

    def _check_members(self, offered: Mapping[str, SignedKey]) -> None:
        if self.members is not None and set(offered) != set(self.members):
            missing, extra = sorted(set(self.members) - set(offered)), sorted(set(offered) - set(self.members))
            raise SecureSumError(
                f"the server wants a sum without {missing} and with {extra}, compared with the site policy: "
                f"another group of sites would reveal differences between sums."
            )
        if self.site not in offered or len(offered) < MIN_MEMBERS:
            raise SecureSumError(
                f"the server wants a sum of {sorted(offered)}: it needs this site and at least {MIN_MEMBERS} sites, "
                f"because each of two learns the other's adapter."
            )

    def _take(self, file: Path) -> bytes:
        """Read and delete the private key of this round."""
        try:
            kept = json.loads(file.read_text())
            os.unlink(file)
        except (OSError, ValueError) as error:
            raise SecureSumError(
                f"this site has no unused key for round {self.round} ({type(error).__name__}): a key is valid for one "
                f"upload, start the job again with federation.resume_from."
            ) from error
        if (kept["job"], kept["round"]) != (self.job, self.round):
            raise SecureSumError(
                f"this site offered a key for round {kept['round']} of {kept['job']}, not for round {self.round}."
            )
        return bytes.fromhex(kept["secret"])


def mean(
    uploads: Sequence[Mapping[str, torch.Tensor]],
    weights: Sequence[int],
    dtypes: Mapping[str, torch.dtype],
    *,
    store: Store = in_memory,
) -> State:
    """Return the weighted mean of the members' adapters from their masked uploads, one tensor after the other."""
    result: State = {}
    for key in uploads[0]:
        total = wrapped_sum([{key: upload[key]} for upload in uploads])
        check_cancelled(total)
        result |= store(decode(total, sum(weights), dtypes))
    return result


def weight_of(samples: int, method: MethodSettings) -> int:
    """Return the integer weight of a site: its training samples, or 1 for a plain mean."""
    return 1 if method.pia.weighting == "uniform" else samples


def encode_unmasked(state: State, samples: int, method: MethodSettings, *, sites: int) -> State:
    """Encode an adapter as a site would, without masks: for a federation in one process, with the same result."""
    return {key: to_wire(numbers) for key, numbers in encode(state, weight_of(samples, method), sites).items()}


def secure_mean(
    replies: Mapping[str, tuple[Mapping[str, torch.Tensor], int]],
    method: MethodSettings,
    *,
    previous: State,
    store: Store = in_memory,
) -> State:
    """Return the new global adapter from masked uploads and sample counts by site, in the dtypes of `previous`."""
    uploads, counts = zip(*(replies[site] for site in sorted(replies)), strict=True)
    dtypes = {key: tensor.dtype for key, tensor in previous.items()}
    return mean(uploads, [weight_of(count, method) for count in counts], dtypes, store=store)
