# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Restart a site's process of a job after it was killed by the system or by mistake.

FLARE would report its death to the server, which would end the whole job, whatever the quorum. The new process has the
same token and gets the unanswered task again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator

from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle

from fedpeft.core.settings import at_least

GPUS = "CUDA_VISIBLE_DEVICES"
_starting = threading.Lock()  # of the processes of several jobs
# SIGTERM, SIGINT and SIGHUP are sent to end the process
ACCIDENTS = tuple(-number for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT))


class JobProcess(JobHandleSpec):
    """The process of one job at a site, with its restarts."""

    def __init__(self, start: Callable[[], ProcessHandle], restarts: int) -> None:
        self._start, self._left, self._ended = start, restarts, False
        self._lock = threading.Lock()
        self._process = start()

    def terminate(self) -> None:
        """End it for good."""
        with self._lock:
            self._ended = True
            self._process.terminate()

    def poll(self) -> int:
        """FLARE's return code of the process."""
        return self._process.poll()

    def wait(self) -> None:
        """Wait until it ends by itself, is terminated, or was killed too often."""
        while True:
            self._process.wait()
            with self._lock:
                if self._ended or not self._left or self._process.adapter.poll() not in ACCIDENTS:
                    return
                self._left -= 1
                try:
                    self._process = self._start()
                except Exception:  # such as no memory left: FLARE then reports the end of the first one
                    logging.getLogger(__name__).exception("the process of a job was killed and cannot start again")
                    return
            logging.getLogger(__name__).warning("the process of a job was killed and is started again")


class RestartingLauncher(ClientProcessJobLauncher):
    """FLARE's launcher of a site's jobs, which restarts a killed process at most `restarts` times within one job."""

    def __init__(self, restarts: int = 3) -> None:
        super().__init__()
        at_least("restarts", restarts, 0)
        self._restarts = restarts

    def launch_job(self, job_meta: dict, fl_ctx: FLContext) -> JobProcess:
        """Start the site's part of a job."""
        launch = super().launch_job
        with _starting:  # a job that starts again shows its own meanwhile
            gpus = os.environ.get(GPUS)  # FLARE sets them for this job, and others for the next one

        def start() -> JobHandleSpec:
            with _starting, _environment(gpus):
                return launch(job_meta, fl_ctx)

        return JobProcess(start, self._restarts)


@contextlib.contextmanager
def _environment(gpus: str | None) -> Iterator[None]:
    """Show these GPUs to a process that starts in this block; None: all."""
    before = os.environ.get(GPUS)
    if before == gpus:
        yield
        return
    _set_gpus(gpus)
    try:
        yield
    finally:
        if os.environ.get(GPUS) == gpus:  # else FLARE has set those of another job meanwhile
            _set_gpus(before)


def _set_gpus(gpus: str | None) -> None:
    if gpus is None:
        os.environ.pop(GPUS, None)
    else:
        os.environ[GPUS] = gpus
