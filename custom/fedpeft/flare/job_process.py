# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's part of a job is started again where its process was killed, by the system or by mistake.

FLARE reports such a death to the server, which ends the whole job, whatever the quorum. The new process has the same
token and gets the task that has no reply yet again.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable

from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle

from fedpeft.settings import at_least

# whoever sends SIGTERM, SIGINT or SIGHUP wants the process to end
ACCIDENTS = tuple(-number for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT))


class JobProcess(JobHandleSpec):
    """The process of one job at a site, over its restarts.

    Args:
        start: starts the process.
        restarts: how often it may be started again.
    """

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
        """FLARE's code for how it ended."""
        return self._process.poll()

    def wait(self) -> None:
        """Until it has ended by itself, was ended, or was killed once too often."""
        while True:
            self._process.wait()
            with self._lock:
                if self._ended or not self._left or self._process.adapter.poll() not in ACCIDENTS:
                    return
                self._left -= 1
                self._process = self._start()
            logging.getLogger(__name__).warning("the process of a job was killed and is started again")


class RestartingLauncher(ClientProcessJobLauncher):
    """FLARE's own launcher of a site's jobs; it starts a killed process again.

    Args:
        restarts: how often within one job.
    """

    def __init__(self, restarts: int = 3) -> None:
        super().__init__()
        at_least("restarts", restarts, 0)
        self._restarts = restarts

    def launch_job(self, job_meta: dict, fl_ctx: FLContext) -> JobProcess:
        """Start the site's part of a job."""
        launch = super().launch_job
        return JobProcess(lambda: launch(job_meta, fl_ctx), self._restarts)
