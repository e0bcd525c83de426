# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""When a killed server starts again, finish the jobs that it left running and remove the replies on its disk.

FLARE stores the status and never checks it again: such a job could be neither aborted nor deleted.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.job_def import RunStatus

from fedpeft.core.errors import LocalError
from fedpeft.core.files import remove_leftovers
from fedpeft.core.locks import IN_USE, StateLock
from fedpeft.flare.folders import lineages_folder

ARCHIVE = "workspace"  # FLARE's name of the stored run folder, which is there only once it is complete


class StaleJobs(FLComponent):
    """A component of the server itself; waits `patience` seconds for another server with these jobs to end."""

    def __init__(self, patience: float = 30.0) -> None:
        super().__init__()
        self._patience, self._lock = patience, StateLock()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Finish stale jobs before the first job is started, when none can be running.

        Another server that works with these jobs, or an unknown folder of jobs, ends FLARE's server with an
        UnsafeComponentError.
        """
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            store = fl_ctx.get_engine().get_component(SystemComponents.JOB_MANAGER)
            if not (folder := getattr(store, "uri_root", None)):
                raise UnsafeComponentError(
                    f"job_manager is a {type(store).__name__}, which names no folder of jobs to lock: use "
                    f"fedpeft.flare.job_store.JobStore in resources.json, or leave out stale_jobs there."
                )
            self._take(Path(folder))
            # in a job's process FLARE's name of the server is the project's
            server = fl_ctx.get_prop(FLContextKey.SITE_OBJ)
            remove_leftovers(lineages_folder(fl_ctx, getattr(server, "project_name", "")))
            self._finish(fl_ctx)

    def _take(self, jobs: Path) -> None:
        try:
            self._lock.take(jobs, "none", patience=self._patience)
        except LocalError as error:
            if error.code != IN_USE:
                raise UnsafeComponentError(str(error)) from error
            raise UnsafeComponentError(
                f"another server works with the jobs in {jobs}: end it, or give this one a storage of its own."
            ) from error

    def _finish(self, fl_ctx: FLContext) -> None:
        engine = fl_ctx.get_engine()
        store = engine.get_component(SystemComponents.JOB_MANAGER)
        for job in store.get_jobs_by_status([RunStatus.RUNNING, RunStatus.DISPATCHED], fl_ctx):
            folder = Path(engine.get_workspace().get_run_dir(job.job_id))
            try:
                if folder.is_dir():
                    if ARCHIVE not in store.list_components(job.job_id, fl_ctx):  # else the folder was being removed
                        store.save_workspace(job.job_id, [str(folder)], fl_ctx)
                    shutil.rmtree(folder, ignore_errors=True)  # as FLARE does once a job has ended
            except Exception:  # not even a full disk may leave the job running
                self.log_exception(fl_ctx, f"what job {job.job_id} left in {folder} could not be stored")
            store.set_status(job.job_id, RunStatus.FINISHED_ABNORMAL, fl_ctx)
            self.log_warning(
                fl_ctx, f"job {job.job_id} was running when the server ended: {RunStatus.FINISHED_ABNORMAL.value}"
            )
