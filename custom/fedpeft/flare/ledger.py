# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The book of a site's noised releases, on its own disk: one JSON line each, written before the release leaves.

A release that is entered and then lost on the way counts: the other error would be the dangerous one.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

from fedpeft.errors import FedpeftError, LocalError
from fedpeft.privacy import epsilon


def enter(file: Path, releases: Sequence[dict], *, delta: float, limit: float) -> tuple[float, int]:
    """Enter releases and return what all of the book's amount to.

    Args:
        file: the book; several jobs may share one.
        releases: each with `noise`, its standard deviation over its sensitivity, and what says which release it was.
        delta: the delta at which epsilon is told.
        limit: the largest epsilon of all together; 0: none.

    Returns:
        epsilon, and the number of releases.

    Raises:
        FedpeftError: the accountant is missing, the book cannot be read or written, or the limit would be exceeded;
            nothing was entered then, and nothing may leave.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+") as book:
            fcntl.flock(book, fcntl.LOCK_EX)
            noise = [float(json.loads(line)["noise"]) for line in book]
            if not all(math.isfinite(z) and z > 0 for z in noise):
                raise ValueError("a release without noise")
            noise += [release["noise"] for release in releases]
            spent = epsilon(noise, delta)
            if not spent < math.inf:
                raise LocalError(f"{len(noise)} releases with noise as low as {min(noise)} have no finite epsilon.")
            if limit and spent > limit:
                raise LocalError(
                    f"this release would take epsilon to {spent:.3g} at delta {delta:g}, over the limit of {limit:g}."
                )
            book.writelines(json.dumps(release) + "\n" for release in releases)
            book.flush()
            os.fsync(book.fileno())
    except FedpeftError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalError(
            f"the book of releases {file} cannot be used ({error}): mend it, nothing may leave."
        ) from error
    return spent, len(noise)
