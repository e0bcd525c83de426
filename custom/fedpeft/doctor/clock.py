# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check that the certificates are valid by this machine's clock, and that the clock is synchronized.

The server's certificate and the difference between the two clocks are checked in `ports`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed, warned

SOON = timedelta(days=30)


def check(context: Context) -> Iterator[Finding]:
    """Check the kit's certificates and the operating system's clock synchronization."""
    if context.kit is None:
        return
    now = datetime.now(UTC)
    yield validity(context.kit.certificate, now)
    yield validity(context.kit.root, now)
    yield from synchronized()


def validity(file: Path, now: datetime) -> Finding:
    """Check the period of one certificate."""
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        return failed(f"{file} is not a readable certificate ({error}): unpack the kit again.")
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return failed(
            f"{file.name} is valid from {_date(begins)}, and this clock is at {_date(now)}: set the clock (NTP)."
        )
    if now > ends:
        return failed(f"{file.name} expired on {_date(ends)}, and this clock is at {_date(now)}: request a new kit.")
    if ends - now < SOON:
        return warned(f"{file.name} expires on {_date(ends)}, in {(ends - now).days} days: request a new kit in time.")
    return passed(f"{file.name} is valid until {_date(ends)}.")


def synchronized() -> Iterator[Finding]:
    """Check what systemd reports; without systemd, as in a container with its host's clock, nothing."""
    if (command := shutil.which("timedatectl")) is None:
        return
    arguments = [command, "show", "--property=NTPSynchronized", "--value"]
    try:
        answer = subprocess.run(arguments, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return
    if answer == "yes":
        yield passed("the clock is synchronized.")
    elif answer == "no":
        yield warned("the clock is not synchronized, and certificates depend on it: timedatectl set-ntp true.")


def _date(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
