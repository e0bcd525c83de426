# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The services that can follow a run (`federation.tracking`), each through a receiver of FLARE's.

A job names one of them. Where the figures go, and with which key, is read from the environment of the server's own
process: who writes a job cannot make the server connect anywhere.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import Registry

NONE, SETTING = "none", "federation.tracking"
LEAVE_OUT = f"or leave {SETTING} out"
_ADDRESS = re.compile(r"\S*(?:://|@)\S*|host=\S+")
_log = logging.getLogger(__name__)
_VARIABLES = ("MLFLOW_", "WANDB_")


@dataclass(frozen=True, kw_only=True)
class Tracker:
    """One service.

    Args:
        title: its name, for messages.
        library: the module that must be installed at the server.
        extra: the extra of this package that installs it.
        check: raises a FedpeftError if the environment does not say where the figures go.
        receiver: makes FLARE's receiver, from the job's name and the folder of the run.
        failed: returns why a receiver that has begun can write no more, empty if it can.
        finish: called when a run has ended; returns what the user can do with it, empty if nothing is to be said.
    """

    title: str
    library: str
    extra: str
    check: Callable[[], None]
    receiver: Callable[[str, Path], Any]
    failed: Callable[[Any], str] = lambda receiver: ""
    finish: Callable[[Path], str] = lambda folder: ""


class RunTracking(Protocol):
    """A run that a tracker follows: it takes the rounds of history.json, and is closed once."""

    def update(self, rounds: Sequence[Mapping[str, Any]], metrics: Mapping[str, str]) -> None: ...

    def close(self, *, completed: bool) -> None: ...


TRACKERS: Registry[Tracker] = Registry("tracker", "fedpeft.trackers", Tracker)
TRACKERS.register("mlflow", "fedpeft.flare.mlflow_tracker:TRACKER")
TRACKERS.register("wandb", "fedpeft.flare.wandb_tracker:TRACKER")


def usable(name: str) -> Tracker:
    """Return a tracker that is installed and configured on this machine.

    Raises:
        FedpeftError: it is not; the message has the remedy.
    """
    tracker = TRACKERS.get(name)
    spec = find_spec(tracker.library)
    if spec is None or spec.origin is None:  # a folder of that name, which W&B writes its runs to, is no library
        raise FedpeftError(
            f"{SETTING} is {name!r}, but {tracker.library} is not installed at the server: "
            f"pip install 'flare-fedpeft[{tracker.extra}]' there, {LEAVE_OUT}.",
            setting=SETTING,
        )
    tracker.check()
    return tracker


def reason_of(error: Exception) -> str:
    """Return kind and beginning of an error, for the server's log alone.

    Without addresses, which may contain a password, and without the values of the trackers' variables.
    """
    text = str(error)
    values = {value for name, value in os.environ.items() if name.startswith(_VARIABLES) and len(value) > 3}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "<variable>")
    lines = _ADDRESS.sub("<address>", text).split("\n")
    return f"{type(error).__name__}: {lines[0].strip():.200}".rstrip(" .:")


def unusable(title: str, error: Exception, remedy: str) -> FedpeftError:
    """Log the reason at the server, and return what the lead of the job may read of it: its kind.

    Args:
        title: of the service.
        error: that it raised.
        remedy: what to do, after a colon.
    """
    _log.error("%s: %s", title, reason_of(error))
    return FedpeftError(
        f"{title} cannot be used from the server ({type(error).__name__}, the server's log has more): {remedy}."
    )
