# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Let a site that was disconnected rejoin the running job, and keep a lost site from delaying a round or the job's end.

A site whose client process is killed reconnects within seconds with a new token, which neither the job's list of
participants nor the job's process knows, and FLARE does not restart its part of the job. Here the server starts it
again as it did at the beginning, for that site only. FLARE sends an unanswered task again, by the site's name. The
server tells the job's process which of its sites are away, and which have returned.
"""

from __future__ import annotations

import math
import threading

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReturnCode, RunProcessKey, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_scheduler_spec import DispatchInfo
from nvflare.apis.utils.job_utils import get_event_job_id
from nvflare.private.defs import ERROR_MSG_PREFIX
from nvflare.utils.job_launcher_utils import get_resource_manager_spec

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import at_least

RETURNED, AWAY = "fedpeft.returned", "fedpeft.away"
PART_ENDED = "fedpeft.part_ended"  # an event in the server's own process; its data are job, site and reason
SECONDS = 10.0
NOT_AGAIN = "and was not started again"


class AwaySites:
    """In the job's process on the server: notes which sites are away, as the server reports it."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """At the start of the run, register for the server's messages."""
        if event_type == EventType.START_RUN:
            engine = fl_ctx.get_engine()
            engine.register_app_command(AWAY, self._note_absence)
            engine.register_app_command(RETURNED, self._note_return)

    def reason(self, site: str) -> str:
        """Return why a site is away; empty: it is not."""
        return self._reasons.get(site, "")

    def _note_absence(self, topic: str, data: dict[str, str], fl_ctx: FLContext) -> dict:
        self._reasons[data["site"]] = data["reason"]
        return {}

    def _note_return(self, topic: str, data: dict[str, str], fl_ctx: FLContext) -> dict:
        self._reasons.pop(data["site"], None)
        fl_ctx.get_engine().sync_clients_from_main_process()
        return {}


class ReturningSites(FLComponent):
    """A component of the server itself, in its `resources.json`.

    Args:
        attempts: how often the server tries to let one site rejoin one job.
        patience: seconds that a finished job waits for the end of its part at a site; with FLARE's default of 900 a job
            stays `RUNNING` that long after a site is lost.
    """

    def __init__(self, attempts: int = 5, patience: float = 30.0) -> None:
        super().__init__()
        at_least("attempts", attempts, 0)
        at_least("patience", patience, 0, exclusive=True)
        self._attempts, self._patience = attempts, patience
        self._tokens: dict[str, dict[str, str]] = {}  # by job and site: the token with which its part was started
        self._left: dict[tuple[str, str], int] = {}
        self._busy: set[tuple[str, str]] = set()
        self._unreported: dict[tuple[str, str], str] = {}  # by job and site: why it is away, not yet known to the job
        self._lock = threading.Lock()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Record the participants when a job starts, check their tokens at every heartbeat, and say who is away."""
        engine = fl_ctx.get_engine()
        if event_type == EventType.SYSTEM_START:
            engine.job_runner.client_outcome_wait_timeout = self._patience
            scheduler = engine.get_component(SystemComponents.JOB_SCHEDULER)
            if interval := getattr(scheduler, "min_schedule_interval", 0):  # in kits from before it was set there
                scheduler.min_schedule_interval = math.ceil(interval)  # FLARE doubles it beyond what a float holds
        elif event_type == EventType.JOB_STARTED:
            job = get_event_job_id(fl_ctx)
            participants = engine.run_processes.get(job, {}).get(RunProcessKey.PARTICIPANTS, {})
            with self._lock:
                self._tokens[job] = {client.name: token for token, client in participants.items()}
        elif event_type in (EventType.JOB_COMPLETED, EventType.JOB_ABORTED):
            job = get_event_job_id(fl_ctx)
            with self._lock:
                self._tokens.pop(job, None)
                self._left = {part: left for part, left in self._left.items() if part[0] != job}
                self._unreported = {part: why for part, why in self._unreported.items() if part[0] != job}
        elif event_type == PART_ENDED:
            ended = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
            with self._lock:
                self._unreported[ended["job"], ended["site"]] = ended["reason"]
            self._report(engine)
        elif event_type == EventType.CLIENT_HEARTBEAT_RECEIVED:
            self._find_returned_sites(engine)  # before FLARE notices that the job is missing at the site
            self._report(engine)

    def _report(self, engine) -> None:
        with self._lock:
            new = {part: why for part, why in self._unreported.items() if part not in self._busy}
            self._busy |= set(new)
        for part, why in new.items():
            threading.Thread(target=self._report_part, args=(engine, part, why), daemon=True).start()

    def _report_part(self, engine, part: tuple[str, str], reason: str) -> None:
        job, site = part
        try:
            # a job's process that is still starting does not answer yet: it is told at a later heartbeat
            news = {"site": site, "reason": reason}
            delivered = job not in engine.run_processes or _is_acknowledged(engine, job, AWAY, news)
            with self._lock:
                if delivered:
                    self._unreported.pop(part, None)
        finally:
            with self._lock:
                self._busy.discard(part)

    def _find_returned_sites(self, engine) -> None:
        with self._lock:
            known = [(job, site, token) for job, tokens in self._tokens.items() for site, token in tokens.items()]
        for job, site, token in known:
            client = engine.get_client_from_name(site)
            if client is None or client.token == token:
                continue
            with self._lock:
                started = self._tokens.get(job, {}).get(site) == client.token  # meanwhile
                if started or (job, site) in self._busy:  # its new part is being started; the end of that counts
                    continue
                self._busy.add((job, site))
            rejoins = False
            try:
                # the earlier part will never report its end, for which FLARE would set the whole job to abnormal
                engine.job_runner.resolve_client_outcome(job, site)
                rejoins = job in engine.run_processes and self._takes_attempt(job, site)
            finally:
                if not rejoins:
                    with self._lock:
                        self._busy.discard((job, site))
            if rejoins:
                threading.Thread(target=self._let_rejoin, args=(engine, job, client), daemon=True).start()

    def _takes_attempt(self, job: str, site: str) -> bool:
        """Return whether a site may be started again; after the last attempt it counts as away."""
        with self._lock:
            left = self._left.setdefault((job, site), self._attempts)
            self._left[job, site] = max(left - 1, -1)
            if not left:
                self._unreported[job, site] = NOT_AGAIN
            elif left > 0:
                self._unreported.pop((job, site), None)
            return left > 0

    def _let_rejoin(self, engine, job: str, client: Client) -> None:
        with engine.new_context() as fl_ctx:
            try:
                start_again(engine, job, client, fl_ctx)
                with self._lock:
                    if job in self._tokens:
                        self._tokens[job][client.name] = client.token
                self.log_info(fl_ctx, f"site {client.name} has returned and takes part in job {job} again")
            except FedpeftError as error:
                self.log_warning(fl_ctx, f"site {client.name} has returned and is not in job {job}: {error}")
            except Exception:
                self.log_exception(fl_ctx, f"site {client.name} has returned and is not in job {job}")
            finally:
                with self._lock:
                    self._busy.discard((job, client.name))


def start_again(engine, job_id: str, client: Client, fl_ctx: FLContext) -> None:
    """Start one site's part of a running job again."""
    job, process = engine.job_runner.running_jobs.get(job_id), engine.run_processes.get(job_id)
    if job is None or process is None:
        raise FedpeftError("the job has ended.")
    others = {t: c for t, c in process[RunProcessKey.PARTICIPANTS].items() if c.name != client.name}
    process[RunProcessKey.PARTICIPANTS] = {**others, client.token: client}
    if not _is_acknowledged(engine, job_id, RETURNED, {"site": client.name}):
        raise FedpeftError("the job's process on the server does not know of sites that return.")
    needs = get_resource_manager_spec({**job.meta, JobMetaKey.RESOURCE_SPEC.value: job.resource_spec}, client.name)
    enough, token = engine.check_client_resources(job, {client.name: needs}, fl_ctx).get(client.name, (False, ""))
    if not enough:
        raise FedpeftError("the site does not have what the job needs, or does not answer yet.")
    order = DispatchInfo(app_name="", resource_requirements=needs, token=token)
    with engine.job_runner.lock:  # FLARE ignores the report of a part whose end it does not wait for
        engine.job_runner._pending_client_outcomes.get(job_id, set()).add(client.name)
    replies = engine.start_client_job(job, {client.name: order}, fl_ctx)
    body = str(replies[0].reply.body) if replies and replies[0].reply else ERROR_MSG_PREFIX
    if body.startswith(ERROR_MSG_PREFIX):
        raise FedpeftError("the site could not start its part; its own log says why.")


def _is_acknowledged(engine, job_id: str, topic: str, data: dict[str, str]) -> bool:
    answer = engine.send_app_command(job_id, topic, data, SECONDS)
    return answer is not None and answer.get_return_code() == ReturnCode.OK
