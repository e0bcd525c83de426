# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The ledger of a site's noised releases over all its jobs: one JSON line each, written before the release leaves.

A release that is recorded and then lost on the way still counts: an unrecorded release would break the guarantee.

The (epsilon, delta) guarantee of everything that a site has released.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.files import DISK_FULL, is_full

ORDERS = tuple(1 + 10 ** (k / 40) for k in range(-200, 161))


def epsilon(noise: Sequence[float], delta: float) -> float:
    """Epsilon of a sequence of Gaussian releases, each chosen adaptively after the ones before.

    A release with noise z (standard deviation over sensitivity) has the Renyi divergence a / (2 z^2) at every order a;
    divergences of releases add; the best order gives epsilon (Mironov 2017; Balle et al. 2020, theorem 21), an upper
    bound. Every release is of the whole site: nothing is subsampled, so nothing is amplified.

    Args:
        noise: z of every release, in any order.
        delta: the delta at which epsilon is given.

    Raises:
        FedpeftError: opacus, which computes epsilon, is not installed; or a release has no noise.
    """
    if not all(z > 0 for z in noise):
        raise FedpeftError(f"a release with noise {min(noise)!r} has no epsilon: noise must be above 0.")
    try:
        from opacus.accountants import RDPAccountant
    except ImportError as error:
        raise FedpeftError(
            f"the privacy accountant cannot be loaded ({error}): pip install 'flare-fedpeft[privacy]' at this site."
        ) from error
    accountant = RDPAccountant()
    for z in sorted(noise):
        accountant.step(noise_multiplier=z, sample_rate=1.0)
    return accountant.get_epsilon(delta, alphas=list(ORDERS)) if noise else 0.0


BOOK = "book.jsonl"  # in the folder of all lineages


@dataclass(frozen=True, slots=True)
class Spent:
    """Epsilon and number of the releases of one job and of all jobs."""

    epsilon_of_job: float
    releases_of_job: int
    epsilon: float
    releases: int


def enter(file: Path, lineage: str, releases: Sequence[dict], *, delta: float, limit: float) -> Spent:
    """Record releases and return epsilon of all releases in the ledger.

    Args:
        file: the ledger; jobs that run at the same time may share it.
        lineage: name of the job, and of jobs that resume it, that makes the releases.
        releases: each with `noise`, its standard deviation over its sensitivity, and fields that identify it.
        delta: the delta at which epsilon is given.
        limit: the largest epsilon of all releases together; 0: no limit.

    Raises:
        FedpeftError: the accountant is missing, the ledger cannot be read or written, or the limit would be exceeded;
            nothing is recorded then, and nothing may leave.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+") as book:
            fcntl.flock(book, fcntl.LOCK_EX)
            added = [{"job": lineage, **release} for release in releases]
            entries = [*map(json.loads, book), *added]
            noise = [entry["noise"] for entry in entries]
            own = [z for z, entry in zip(noise, entries, strict=True) if entry["job"] == lineage]
            if not all(type(z) in (int, float) and math.isfinite(z) and z > 0 for z in noise):
                raise ValueError("a release without noise, or with noise that is no number")
            spent = Spent(epsilon(own, delta), len(own), epsilon(noise, delta), len(noise))
            if not spent.epsilon < math.inf:
                raise LocalError(f"{len(noise)} releases with noise as low as {min(noise)} have no finite epsilon.")
            if limit and spent.epsilon > limit:
                raise LocalError(
                    f"this release would take the epsilon of all jobs to {spent.epsilon:.3g} at delta {delta:g}, over "
                    f"the limit of {limit:g}."
                )
            _append(book, "".join(json.dumps(entry) + "\n" for entry in added))
    except FedpeftError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "make room on its disk" if is_full(error) else "repair it"
        raise LocalError(
            f"the ledger of releases {file} cannot be used ({error}): {remedy}; until then nothing leaves the site.",
            code=DISK_FULL if is_full(error) else "",
        ) from error
    return spent


def _append(book: TextIO, text: str) -> None:
    """Write all of a text at the end of a file, or nothing: half a line would make the ledger unusable."""
    end = os.fstat(book.fileno()).st_size
    try:
        book.write(text)
        book.flush()
        os.fsync(book.fileno())
    except OSError:
        os.ftruncate(book.fileno(), end)
        raise
