# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Send requests to a site's learner in its own process, and restart that process when it dies."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedpeft.job.site_policy import SitePolicy
from fedpeft.protocol.fields import MAX_ATTEMPTS
from fedpeft.site.connection import WORKER, Aborted, Failure, Lost, WorkerProcess
from fedpeft.site.training_process import OPEN

LOG = "training.log"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The learner's answer, the number of attempts it took, and the seconds."""

    values: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)
    attempts: int = 1
    seconds: float = 0.0


class RequestFailed(Exception):
    """No attempt succeeded."""

    def __init__(self, failure: Failure, *, attempts: int = 1, seconds: float = 0.0) -> None:
        super().__init__(failure.detail)
        self.failure, self.attempts, self.seconds = failure, attempts, seconds


class WorkerSupervisor:
    """Sends requests to a site's learner, and repeats one once if it failed for another reason than bad input.

    Everything that a round needs is on the site's disk, so a repeated round gives the same result.

    Args:
        sections: the job's sections, see `Learner.from_sections`.
        module: the Python module that the training process runs.
    """

    def __init__(self, sections: Mapping[str, Any], *, module: str = WORKER) -> None:
        self._sections, self._module = dict(sections), module
        self._opening: dict[str, Any] = {}
        self._is_open = self._closed = False
        self._process: WorkerProcess | None = None
        with contextlib.suppress(OSError):  # raised again when the process is needed
            self._process = WorkerProcess(module)

    @property
    def pid(self) -> int | None:
        """Id of the training process."""
        return self._process.pid if self._process else None

    def open_for_several(self) -> None:
        """Start the process for several sites in turn; every request then names a `site` and its `log`."""
        self._open({"sections": self._sections, "site": None, "log": None, "policy": None})

    def open(self, site: str, folder: Path, *, policy: SitePolicy | None) -> None:
        """Start building the learner in the background, with its log in `folder`; the simulator has no policy."""
        log = str(folder / LOG)
        own = asdict(policy) if policy else None
        self._open({"sections": self._sections, "site": site, "log": log, "policy": own})

    def _open(self, opening: dict[str, Any]) -> None:
        self._opening = opening
        with contextlib.suppress(Lost, OSError):  # raised again when the process is needed
            self._open_process()

    def request(
        self,
        header: Mapping[str, Any],
        state: Mapping[str, Any] | None = None,
        *,
        aborted: Callable[[], bool],
        report: Callable[[Failure], None],
        progress: Callable[[str], None] = lambda line: None,
    ) -> Answer:
        """Send one request and return its answer, see `training_process.HANDLERS`.

        Args:
            header: `do` and its arguments.
            state: the tensors sent with it.
            aborted: whether the answer is no longer needed.
            report: called with the failure of an attempt before the next one.
            progress: called with each line about the learner's progress.

        Raises:
            RequestFailed: no attempt succeeded, or the first one failed because of bad input.
            Aborted: the answer is no longer needed.
        """
        began = time.monotonic()
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                answer, tensors = self._attempt(header, state, lambda: self._closed or aborted(), progress)
                if "values" in answer:
                    return Answer(
                        values=answer["values"], state=tensors, attempts=attempt, seconds=_seconds_since(began)
                    )
                failure = Failure(**answer["failure"])
            except (Lost, OSError) as error:
                failure = self._lost(error, header.get("log") or self._opening.get("log"))
            if not failure.retryable:
                raise RequestFailed(failure, attempts=attempt, seconds=_seconds_since(began))
            self._discard()
            if attempt < MAX_ATTEMPTS:
                report(failure)
        raise RequestFailed(failure, attempts=MAX_ATTEMPTS, seconds=_seconds_since(began))

    def close(self) -> None:
        """End the training process for good; a pending request raises `Aborted`."""
        self._closed = True
        if self._process:
            self._process.kill()

    def _attempt(
        self,
        header: Mapping[str, Any],
        state: Mapping[str, Any] | None,
        aborted: Callable[[], bool],
        progress: Callable[[str], None],
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Send a request once and wait for the answer; end the process if the task is aborted."""
        try:
            if aborted():
                raise Aborted
            process = self._open_process()
            process.send(header, state)
            return process.receive(aborted, progress)
        except Aborted:
            self._discard()
            raise
        except Lost as error:
            if aborted():
                self._discard()
                raise Aborted from error
            raise

    def _open_process(self) -> WorkerProcess:
        """Return the training process, started and with its `open` request sent."""
        process = self._process = self._process or WorkerProcess(self._module)
        if self._opening and not self._is_open:
            process.send({"do": OPEN, **self._opening})
            self._is_open = True
        return process

    def _discard(self) -> None:
        if self._process:
            self._process.end()
        self._process, self._is_open = None, False

    def _lost(self, error: Exception, log: str | None) -> Failure:
        if isinstance(error, Lost):
            detail = f"its training process {error}; what it printed is in {log}"
        else:
            detail = f"its training process could not be started: {error}"
        return Failure(detail=detail, code="training-process-lost", retryable=True)


def _seconds_since(began: float) -> float:
    return round(time.monotonic() - began, 3)
