# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Whether the certificates are valid by this machine's clock, and whether that clock is kept right.

The server's own certificate, and how far its clock is from this one, are looked at in `ports`.
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
    """The kit's certificates, and the operating system's word on its own clock."""
    if context.kit is None:
        return
    now = datetime.now(UTC)
    yield validity(context.kit.certificate, now)
    yield validity(context.kit.root, now)
    yield from synchronised()


def validity(file: Path, now: datetime) -> Finding:
    """One certificate's period."""
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        return failed(f"{file} is no readable certificate ({error}): unpack the kit again.")
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return failed(
            f"{file.name} is valid from {_date(begins)}, this clock says {_date(now)}: set the clock (switch NTP on)."
        )
    if now > ends:
        return failed(f"{file.name} ended on {_date(ends)}, and this clock says {_date(now)}: ask for a new kit.")
    if ends - now < SOON:
        return warned(f"{file.name} ends on {_date(ends)}, in {(ends - now).days} days: ask for a new kit in time.")
    return passed(f"{file.name} is valid until {_date(ends)}.")


def synchronised() -> Iterator[Finding]:
    """What systemd says; nothing where there is none, as in a container, which has its host's clock."""
    if (command := shutil.which("timedatectl")) is None:
        return
    asked = [command, "show", "--property=NTPSynchronized", "--value"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return
    if said == "yes":
        yield passed("the clock is synchronised.")
    elif said == "no":
        yield warned("the clock is not synchronised, and certificates depend on it: timedatectl set-ntp true.")


def _date(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
