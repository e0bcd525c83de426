# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Checks of the machine: versions, clock, folders and disk, ports.

The server's port must be free on the server, and reachable with the kit's certificate from elsewhere. There the
certificate and the difference between the two clocks are checked too: FLARE has no command for the server's time, but
with HTTP, its default, every answer has a Date header.
"""

from __future__ import annotations

import contextlib
import http.client
import platform
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from cryptography import x509
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import fedpeft
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import MAX_BYTES, check_regular, read_text
from fedpeft.core.locks import kept_folder, runs_folder
from fedpeft.core.processes import TEMPORARY, no_sockets, socket_folder
from fedpeft.core.workspace import ADMIN, SERVER, Kit, check_place, chosen_state, components_of
from fedpeft.doctor.context import Context, Finding, failed, passed, warned

DISTRIBUTION, TENSORBOARD = "flare-fedpeft", "tensorboard"
CONSTRAINTS = Path(fedpeft.__file__).parents[2] / "constraints.txt"


def check_versions(context: Context) -> Iterator[Finding]:
    """Check Python and libraries against the package's requirements and, in a clone, against constraints.txt."""
    try:
        package = metadata.metadata(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        yield failed(
            f"{DISTRIBUTION} is not installed in this environment: pip install -c constraints.txt -e . in a clone."
        )
        return
    installed: dict[str, str] = {canonicalize_name(d.name): d.version for d in metadata.distributions() if d.name}
    yield python(package["Requires-Python"] or "", platform.python_version())
    yield required(package.get_all("Requires-Dist") or [], installed)
    if CONSTRAINTS.is_file():
        yield tested(CONSTRAINTS.read_text(), installed)
    if context.kit and context.kit.role == SERVER and TENSORBOARD not in installed:
        yield warned(f"no live metrics, TensorBoard is not installed: pip install '{DISTRIBUTION}[{TENSORBOARD}]'.")


def python(required: str, installed: str) -> Finding:
    """Check the interpreter's version."""
    if installed in SpecifierSet(required, prereleases=True):
        return passed(f"Python {installed}, fedpeft {fedpeft.__version__}.")
    return failed(f"Python is {installed}, fedpeft {fedpeft.__version__} needs {required}: use another environment.")


def required(requirements: Iterable[str], installed: Mapping[str, str]) -> Finding:
    """Check that every required library is installed in an accepted version."""
    parsed = [Requirement(text) for text in requirements]
    needed = [one for one in parsed if one.marker is None or one.marker.evaluate({"extra": ""})]
    wrong = []
    for library in needed:
        version = installed.get(canonicalize_name(library.name))
        if version is None:
            wrong.append(f"{library.name} is missing")
        elif not library.specifier.contains(version, prereleases=True):
            wrong.append(f"{library.name} is {version}, {library.specifier} is needed")
    if wrong:
        return failed(f"{'; '.join(wrong)}: pip install -c constraints.txt -e . in a clone.")
    return passed(f"all {len(needed)} required libraries are installed in accepted versions.")


def tested(constraints: str, installed: Mapping[str, str]) -> Finding:
    """Warn of libraries in another version than the tested one; local labels such as +cpu are ignored."""
    lines = (line.partition("#")[0].strip() for line in constraints.splitlines())
    pinned = {canonicalize_name(one.name): one.specifier for one in map(Requirement, filter(None, lines))}
    present = {name: installed[name] for name in pinned if name in installed}
    other = [f"{name} {version} ({pinned[name]})" for name, version in present.items() if version not in pinned[name]]
    if other:
        return warned(
            f"not the versions that this release was tested with: {', '.join(other)}; if a job fails, "
            f"pip install -c constraints.txt -e ."
        )
    return passed(f"{len(present)} libraries have exactly the tested versions.")


SOON = timedelta(days=30)


def check_clock(context: Context) -> Iterator[Finding]:
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
        certificate = x509.load_pem_x509_certificate(read_text(file).encode())
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
    """Check the clock as systemd reports it; nothing without systemd, as in a container with its host's clock."""
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


GB = 10**9
SPARE = GB  # logs, FLARE's own files, the copy of the job


def check_disk(context: Context) -> Iterator[Finding]:
    """Check the simulator's workspace, or the kit's folder and the server's job store; and the temporary folder.

    Where FEDPEFT_STATE is set, what outlives a job is in that folder.
    """
    if context.kit is None or context.kit.role != ADMIN:
        kept = chosen_state()
        if kept:
            yield writable(kept, _state(context))
        if context.kit:
            yield writable(context.kit.folder, SPARE + (0 if kept else _state(context)))
        else:
            workspace = context.workspace
            if not workspace.name.strip(".") or workspace.is_symlink():  # what the run has beside it is elsewhere
                workspace = workspace.resolve()
            try:
                if context.job:
                    check_place(workspace.resolve(), context.job.folder)
            except FedpeftError as error:
                yield failed(str(error))
            for place in (workspace, runs_folder(workspace)):
                yield writable(place, SPARE)
            if not kept:
                yield writable(kept_folder(workspace), _state(context))
    if context.kit and context.kit.role == SERVER:
        for folder in stores(context.kit.resources()):
            yield writable(folder, SPARE)
            if folder.is_relative_to(tempfile.gettempdir()):
                yield warned(
                    f"the server stores jobs in {folder}, which is temporary: set uri_root of job_manager in "
                    f"{context.kit.resources_file} to a folder of its own."
                )
    yield from sockets(context)


def sockets(context: Context) -> Iterator[Finding]:
    """Check that the processes of a job can have sockets: those of the simulator, and workers that decode images."""
    problem = no_sockets()
    if not problem:
        return
    training = context.job.sections.get("training") if context.job else None
    if context.kit is None:
        try:
            with socket_folder() as other:
                yield passed(f"the path of {tempfile.gettempdir()} is too long for sockets, {other[TEMPORARY]} is not.")
        except FedpeftError as error:
            yield failed(str(error))
    elif context.sites and isinstance(training, Mapping) and training.get("workers"):
        yield failed(f"training.workers is {training['workers']}: {problem}")


def writable(folder: Path, needed: int) -> Finding:
    """Check that a folder, or its nearest existing parent, is writable and has space."""
    try:
        place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=place):
            free = shutil.disk_usage(place).free
    except OSError as error:
        return failed(f"{folder} cannot be written to ({error.strerror}): change its owner or choose another folder.")
    if free < needed:
        return failed(f"{folder} has {free / GB:.1f} GB free, {needed / GB:.1f} GB are needed: free some space.")
    return passed(f"{folder} can be written to; {free / GB:.0f} GB free, {needed / GB:.1f} GB are needed.")


def stores(resources: Mapping[str, Any]) -> list[Path]:
    """Return the folders in which a server's job manager stores jobs and results."""
    arguments = [entry.get("args") for entry in components_of(resources) if entry.get("id") == "job_manager"]
    roots = [own.get("uri_root") for own in arguments if isinstance(own, Mapping)]
    return [Path(root) for root in roots if isinstance(root, str) and root]


def _state(context: Context) -> int:
    """Return the bytes that the sites store here; 0 if that cannot be measured, which `memory` then reports."""
    try:
        return context.footprint.state * len(context.sites) if context.sites else 0
    except FedpeftError:
        return 0


SECONDS_TO_CONNECT, SECONDS_TO_LISTEN, MAX_SKEW = 5.0, 2.0, 60.0
HTTP = ("http", "https")


def check_ports(context: Context) -> Iterator[Finding]:
    """Bind the port on the server, or connect from a site or an administrator's machine; nothing without a kit."""
    if context.kit is None:
        return
    if context.kit.role == SERVER:
        yield free(context.kit.port)
    else:
        yield from reachable(context.kit)


def free(port: int) -> Finding:
    """Check that a server can listen on a port here."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(("", port))
    except OSError as error:
        return failed(
            f"port {port} cannot be listened on ({error.strerror}): end what uses it (this server, if it runs already)."
        )
    return passed(f"port {port} is free.")


def reachable(kit: Kit, *, seconds: float = SECONDS_TO_CONNECT) -> Iterator[Finding]:
    """Connect to the server or relay, check that it accepts the kit's certificate, and compare the clocks."""
    place = f"{kit.host}:{kit.port}"
    server_time: datetime | None = None
    try:
        if kit.secured:
            for file in (kit.root, kit.certificate, kit.key):
                check_regular(file, max_bytes=MAX_BYTES)
            context = ssl.create_default_context(cafile=str(kit.root))
            context.load_cert_chain(kit.certificate, kit.key)
            context.check_hostname = False  # like FLARE, which identifies its server by the certificate
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # of Python 3.13: FLARE's authority names no key identifier
    except (OSError, ssl.SSLError) as error:
        yield failed(f"certificate and key of the kit do not load ({error}): unpack the kit again.")
        return
    try:
        with socket.create_connection((kit.host, kit.port), timeout=seconds) as plain:
            if not kit.secured:
                yield warned(f"{place} answers, without encryption: provision the consortium with mTLS.")
                return
            with context.wrap_socket(plain, server_hostname=kit.host) as secured:
                ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(secured.getpeercert()["notAfter"])), UTC)
                if kit.scheme in HTTP:
                    server_time = _read_time(secured, kit)
                else:
                    _wait_for_refusal(secured)
    except ssl.SSLCertVerificationError as error:
        yield failed(
            f"the {kit.upstream} at {place} is not trusted ({error.verify_message}): compare kit and clock with those "
            f"there."
        )
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError) as error:
        why = getattr(error, "reason", None) or error
        yield failed(f"the {kit.upstream} at {place} refused this kit ({why}): request a kit of its consortium.")
    except socket.gaierror as error:
        yield failed(f"{kit.host} has no address here ({error.strerror}): correct DNS or /etc/hosts.")
    except OSError as error:
        remedy = f"start the {kit.upstream}, or let the port through the firewall"
        yield failed(f"{place} does not answer ({error}): {remedy}.")
    else:
        yield passed(f"the {kit.upstream} answers at {place}; its certificate is valid until {ends:%Y-%m-%d}.")
        if server_time:
            yield skew((datetime.now(UTC) - server_time).total_seconds(), kit.upstream)


def skew(seconds: float, upstream: str = SERVER) -> Finding:
    """Check the difference between this clock and the server's or relay's, whose answer has whole seconds."""
    if abs(seconds) <= MAX_SKEW:
        return passed(f"this clock and the {upstream}'s agree within {max(1.0, abs(seconds)):.0f} s.")
    late = "ahead of" if seconds > 0 else "behind"
    return warned(f"this clock is {abs(seconds):.0f} s {late} the {upstream}'s: switch NTP on at both.")


def _read_time(secured: ssl.SSLSocket, kit: Kit) -> datetime | None:
    secured.sendall(f"HEAD / HTTP/1.1\r\nHost: {kit.host}\r\nConnection: close\r\n\r\n".encode())
    answer = http.client.HTTPResponse(secured, method="HEAD")
    try:
        answer.begin()
        return parsedate_to_datetime(answer.getheader("Date")).astimezone(UTC)
    except http.client.RemoteDisconnected:  # the certificate was not accepted
        raise
    except (http.client.HTTPException, TypeError, ValueError):  # the server does not use HTTP
        return None


def _wait_for_refusal(secured: ssl.SSLSocket) -> None:
    """Wait for a refusal: with TLS 1.3 a server refuses a client's certificate only after the handshake."""
    secured.settimeout(SECONDS_TO_LISTEN)
    with contextlib.suppress(TimeoutError):
        if not secured.recv(1):
            raise ConnectionResetError("it closed the connection")
