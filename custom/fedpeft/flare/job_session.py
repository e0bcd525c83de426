# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""An administrator's session with a consortium's server: the state of a job, and its progress while it runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.job_def_manager import SimpleJobDefManager
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
from nvflare.widgets.info_collector import InfoCollector

from fedpeft.core.errors import FedpeftError
from fedpeft.core.workspace import MANIFEST
from fedpeft.doctor.kit import ADMIN, read_kit
from fedpeft.flare.folders import NAME, run_folder
from fedpeft.report.status.progress import COMPLETED, FAILED, Progress, read_progress

GROUP = "fedpeft"


def report_progress(event_type: str, fl_ctx: FLContext) -> None:
    """Add the progress from history.json to FLARE's statistics."""
    if event_type != InfoCollector.EVENT_TYPE_GET_STATS:
        return
    if collector := fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR):
        collector.set_info(GROUP, asdict(read_progress(run_folder(fl_ctx))))


MAX_LENGTH = 2000  # characters of a reason in the job's metadata, which every list of jobs includes
MAX = 20  # rejected replies in the metadata


class JobStore(SimpleJobDefManager):
    """FLARE's store, with the manifest's outcome in the job's metadata under `fedpeft`."""

    def create(self, meta: dict, uploaded_content: str | bytes, fl_ctx: FLContext) -> dict[str, Any]:
        """Store a submitted job; remove an outcome from its metadata."""
        meta.pop(GROUP, None)
        return super().create(meta, uploaded_content, fl_ctx)

    def clone(self, from_jid: str, meta: dict, fl_ctx: FLContext) -> dict[str, Any]:
        """Store a copy of a job, without the outcome of the original."""
        meta.pop(GROUP, None)
        return super().clone(from_jid, meta, fl_ctx)

    def save_workspace(self, jid: str, data: bytes | str | list[str], fl_ctx: FLContext) -> Any:
        """Store a job's results and outcome; FLARE calls this before it sets the job to finished."""
        if isinstance(data, list):
            self.update_meta(jid, {GROUP: outcome([Path(folder) for folder in data])}, fl_ctx)
        return super().save_workspace(jid, data, fl_ctx)


def outcome(folders: list[Path]) -> dict[str, Any]:
    """The outcome in the manifest of one of these folders, as JSON; a job without one has failed."""
    run = next((path for folder in folders if (path := folder / NAME).is_dir()), None)
    try:
        progress = read_progress(run) if run else Progress()
        if not (run and (run / MANIFEST).is_file()):
            progress = replace(progress, state=FAILED, reason="the job ended before it wrote its manifest.")
    except FedpeftError:
        progress = Progress(state=FAILED, reason="its manifest or history is damaged.")
    shortened = replace(progress, reason=progress.reason[:MAX_LENGTH], rejected=progress.rejected[:MAX], ago=None)
    return asdict(replace(shortened, rejected=tuple(reason[:MAX_LENGTH] for reason in shortened.rejected)))


SECONDS = 10.0
ATTEMPTS = 3  # of a question: a busy server may take longer once, and the session still holds
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
        """Progress of an ended job: the manifest decides; FLARE's status is added if it differs."""
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
    """Ask again where the server did not answer in time."""
    for _ in range(ATTEMPTS - 1):
        try:
            return function(*arguments)
        except NoConnection:
            continue
    return function(*arguments)
