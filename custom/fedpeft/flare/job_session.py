# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""An administrator's session with a consortium's server: the state of a job, and its progress while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    InternalError,
    JobNotFound,
    JobNotRunning,
    NoConnection,
    SessionClosed,
)
from nvflare.fuel.flare_api.flare_api import new_secure_session

from fedpeft.core.errors import FedpeftError
from fedpeft.core.workspace import ADMIN, read_kit
from fedpeft.flare.job_store import GROUP
from fedpeft.report.status import COMPLETED, FAILED, Progress

SECONDS = 10.0
PAUSES = (1, 2, 4, 8)  # seconds before a question is asked again: a server may be busy, and the session still holds
FINISHED = "FINISHED:"
ENDING, STARTING_OR_ENDING = "ending", "starting or ending"


class JobSession:
    """A session with an administrator's kit that queries one server about one job; a context manager."""

    def __init__(self, startup_kit: Path, job: str) -> None:
        kit = read_kit(startup_kit.absolute())
        if kit.role != ADMIN:
            raise FedpeftError(
                f"{startup_kit} is the kit of a {kit.role}: name that of an administrator, e.g. a lead's."
            )
        self._job, self._last = job, Progress()
        self._place = f"{kit.host}:{kit.port}"
        with redirect_stdout(sys.stderr):  # FLARE prints a line when it connects
            self._session = self._query(new_secure_session, kit.name, str(kit.folder), timeout=SECONDS)

    def __enter__(self) -> JobSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()

    def progress(self) -> Progress:
        """Query the job's progress; for a job that has ended, its outcome."""
        meta = self._query(_repeated, self._session.get_job_meta, self._job)
        state, name = str(meta["status"]), str(meta.get("name", ""))
        if state.startswith(FINISHED):
            self._last = self._ended(meta, name, state)
        elif state == "RUNNING":
            self._last = replace(self._running(), job=name)
        else:
            self._last = Progress(job=name, state=state.lower())
        return self._last

    def _running(self) -> Progress:
        try:
            stats = _repeated(self._session.show_stats, self._job, "server")
        except (AuthenticationError, AuthorizationError, NoConnection, SessionClosed) as error:
            raise self._silent(error) from error
        except (JobNotFound, JobNotRunning, InternalError):
            # its process starts or has ended: for FLARE the job runs until every site has ended its part
            return replace(self._last, state=ENDING if self._last.round else STARTING_OR_ENDING)
        values = stats.get("server", {}).get(GROUP) if isinstance(stats.get("server"), dict) else None
        return Progress.from_json(values) if values else self._last

    def _ended(self, meta: Mapping[str, Any], job: str, state: str) -> Progress:
        """Return the progress of an ended job: the manifest decides; FLARE's status is added if it differs."""
        more = f"`nvflare job download {self._job}`, then `fedpeft status` on its folder, says more."
        if isinstance(kept := meta.get(GROUP), Mapping):
            progress = replace(Progress.from_json(kept), job=job)
            if progress.state != COMPLETED:
                reason = progress.reason or "its manifest gives no reason."
                return replace(progress, state=FAILED, reason=f"{reason} FLARE says {state}; {more}")
            if state == FINISHED + "COMPLETED":
                return progress
            return replace(progress, reason=f"the manifest says completed, FLARE says {state}; {more}")
        if state != FINISHED + "COMPLETED":
            return replace(self._last, job=job, state=FAILED, reason=f"FLARE says {state}; {more}")
        rounds = self._last.rounds
        if rounds and self._last.round == rounds:
            return replace(self._last, job=job, state=COMPLETED)
        # the last rounds were finished between two queries
        return Progress(job=job, state=COMPLETED, round=rounds or 0, rounds=rounds, reason=more)

    def _query(self, function: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except JobNotFound as error:
            raise FedpeftError(f"the server at {self._place} has no job {self._job}: nvflare job list.") from error
        except (AuthenticationError, AuthorizationError) as error:
            raise FedpeftError(
                f"the server at {self._place} refuses this kit ({error}): use one that may view jobs."
            ) from error
        except (NoConnection, SessionClosed) as error:
            raise self._silent(error) from error
        except (InternalError, RuntimeError) as error:
            raise FedpeftError(f"the server at {self._place} could not answer ({error}): look at its log.") from error

    def _silent(self, error: Exception) -> FedpeftError:
        return FedpeftError(
            f"the server at {self._place} does not answer ({error}): fedpeft doctor --startup-kit says more."
        )


def _repeated(function: Any, *arguments: Any) -> Any:
    """Call a function, again after pauses where the server did not answer in time."""
    for pause in PAUSES:
        try:
            return function(*arguments)
        except NoConnection:
            time.sleep(pause)
    return function(*arguments)
