# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's learner in a process of its own, which is started anew when it is lost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedpeft.privacy.site_policy import SitePolicy
from fedpeft.worker.connection import WORKER, Aborted, Lost, WorkerProcess
from fedpeft.worker.failure import Failure
from fedpeft.worker.training_process import OPEN

ATTEMPTS = 2
LOG = "training.log"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the learner answered, in which attempt, and after how many seconds."""

    values: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)
    attempts: int = 1
    seconds: float = 0.0


class RequestFailed(Exception):
    """No attempt ended well."""

    def __init__(self, failure: Failure, *, attempts: int = 1, seconds: float = 0.0) -> None:
        super().__init__(failure.detail)
        self.failure, self.attempts, self.seconds = failure, attempts, seconds


class WorkerSupervisor:
    """Asks a site's learner, twice where the first attempt ended in something else than bad input.

    What a site needs for a round is on its disk, so a repeated round repeats its result.

    Args:
        sections: the job's sections, see `Learner.from_sections`.
        module: what Python runs in the training process.
    """

    def __init__(self, sections: Mapping[str, Any], *, module: str = WORKER) -> None:
        self._sections, self._module = dict(sections), module
        self._opening: dict[str, Any] = {}
        self._is_open = self._closed = False
        self._process: WorkerProcess | None = None
        with contextlib.suppress(OSError):  # it comes again, and is told, when the process is needed
            self._process = WorkerProcess(module)

    @property
    def pid(self) -> int | None:
        """Id of the training process."""
        return self._process.pid if self._process else None

    def open(self, site: str, folder: Path, *, policy: SitePolicy | None) -> None:
        """Let the learner be built, beside whatever else happens.

        Args:
            site: the site's name.
            folder: where a log of what its training prints lies.
            policy: the site's own file; None in the simulator alone, where the job's settings hold.
        """
        log = str(folder / LOG)
        own = asdict(policy) if policy else None
        self._opening = {"sections": self._sections, "site": site, "log": log, "policy": own}
        with contextlib.suppress(Lost, OSError):  # likewise
            self._opened()

    def ask(
        self,
        request: Mapping[str, Any],
        state: Mapping[str, Any] | None = None,
        *,
        aborted: Callable[[], bool],
        report: Callable[[Failure], None],
    ) -> Answer:
        """One request, see `worker.ANSWERS`.

        Args:
            request: `do` and its arguments.
            state: the tensors that go with it.
            aborted: whether anybody still waits for the answer.
            report: told of an attempt that failed and is followed by another.

        Raises:
            RequestFailed: no attempt ended well, or the first one ended in bad input.
            Aborted: nobody waits any more.
        """
        began = time.monotonic()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                header, tensors = self._attempt(request, state, lambda: self._closed or aborted())
                if "values" in header:
                    return Answer(
                        values=header["values"], state=tensors, attempts=attempt, seconds=_seconds_since(began)
                    )
                failure = Failure(**header["failure"])
            except (Lost, OSError) as error:
                failure = self._lost(error)
            if not failure.retryable:
                raise RequestFailed(failure, attempts=attempt, seconds=_seconds_since(began))
            self._discard()
            if attempt < ATTEMPTS:
                report(failure)
        raise RequestFailed(failure, attempts=ATTEMPTS, seconds=_seconds_since(began))

    def close(self) -> None:
        """End the training process for good; a request under way ends as aborted."""
        self._closed = True
        if self._process:
            self._process.kill()

    def _attempt(
        self, request: Mapping[str, Any], state: Mapping[str, Any] | None, aborted: Callable[[], bool]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            if aborted():
                raise Aborted
            process = self._opened()
            process.tell(request, state)
            return process.answer(aborted)
        except Aborted:
            self._discard()
            raise
        except Lost as error:
            if aborted():
                self._discard()
                raise Aborted from error
            raise

    def _opened(self) -> WorkerProcess:
        """A process whose learner is being built."""
        process = self._process = self._process or WorkerProcess(self._module)
        if self._opening and not self._is_open:
            process.tell({"do": OPEN, **self._opening})
            self._is_open = True
        return process

    def _discard(self) -> None:
        if self._process:
            self._process.end()
        self._process, self._is_open = None, False

    def _lost(self, error: Exception) -> Failure:
        if isinstance(error, Lost):
            full = f"its training process {error}; what it printed is in {self._opening.get('log')}"
        else:
            full = f"its training process could not be started: {error}"
        return Failure(detail=full, code="training-process-lost", retryable=True)


def _seconds_since(began: float) -> float:
    return round(time.monotonic() - began, 3)
