# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The replies to one task, each checked as it arrives: usable ones, and the reasons why others are not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from nvflare.app_common.abstract.fl_model import FLModel

from fedpeft.core.errors import FedpeftError

R = TypeVar("R")


class Inbox(Generic[R]):
    """Takes replies from FLARE's threads, of which only those count that `read` accepts; nothing raises."""

    def __init__(self, read: Callable[[FLModel, str], R]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._accepted: dict[str, R] = {}
        self._refused: dict[str, str] = {}

    def receive(self, model: FLModel) -> None:
        """Check a reply; its sender is the site that FLARE gave the task to, whatever the reply says."""
        site = model.meta["client_name"]
        try:
            reply = self._read(model, site)
        except FedpeftError as error:
            self._note(self._refused, site, str(error))
        except Exception as error:  # whatever a site sends may cost that site the round, and nobody else
            self._note(self._refused, site, f"site {site} sent a reply that cannot be read ({type(error).__name__}).")
        else:
            self._note(self._accepted, site, reply)

    def refuse(self, site: str, reason: str) -> None:
        """Record that a site's reply was refused before it was received."""
        self._note(self._refused, site, reason)

    def _note(self, replies: dict[str, Any], site: str, value: Any) -> None:
        with self._lock:
            replies[site] = value

    @property
    def accepted(self) -> dict[str, R]:
        """Checked replies by site, so far."""
        with self._lock:
            return dict(self._accepted)

    def silent(self, sites: Iterable[str]) -> list[str]:
        """Those of the sites whose reply has been neither accepted nor refused so far."""
        with self._lock:
            return [site for site in sites if site not in self._accepted and site not in self._refused]

    @property
    def refused(self) -> dict[str, str]:
        """Reasons by site, so far."""
        with self._lock:
            return dict(self._refused)
