# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A whole job at its server: handshake, rounds, checkpoints, history, exports and the completion manifest.

The global adapter is exported as a PEFT folder for `PeftModel.from_pretrained` and `fedpeft.load_adapter`.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors.torch import save_file

import fedpeft
from fedpeft import methods
from fedpeft.alignment.factors import of_equal_rank
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import replacing
from fedpeft.core.keys import only_connector, only_head, without_connector, without_head
from fedpeft.core.locks import StateLock, lineage_folder, prune
from fedpeft.core.states import State
from fedpeft.job.federation import LATEST, RunTracking
from fedpeft.job.settings import ServerJob
from fedpeft.methods.adapters import save_adapter
from fedpeft.methods.settings import MethodSettings
from fedpeft.methods.slot_tuning import SlotTuning
from fedpeft.protocol.fields import Limit
from fedpeft.protocol.reply_contract import check_introduction
from fedpeft.protocol.types import HELLO, Hello, Introduction
from fedpeft.server import checkpoint, first_adapter, handshake
from fedpeft.server.checkpoint import Checkpoint
from fedpeft.server.first_adapter import Sender
from fedpeft.server.relay_sums import Relays, RelaySums
from fedpeft.server.rounds import Integrator, Round, Rounds, Sites, check_enough
from fedpeft.server.run_recorder import RunRecorder


def import_peft() -> threading.Thread:
    """Begin to import PEFT, which takes seconds and is needed only at the end, while the sites work."""

    def load() -> None:
        import peft  # noqa: F401

    importing = threading.Thread(target=load, daemon=True)
    importing.start()
    return importing


def export_head(file: Path, state: State) -> None:
    """Write a federated head under its own names, for `load_state_dict`; nothing if the head is private."""
    if head := only_head(state):
        with replacing(file) as draft:
            save_file({name: tensor.contiguous() for name, tensor in head.items()}, draft)


def export_adapter(
    folder: Path,
    state: dict[str, torch.Tensor],
    method: MethodSettings,
    *,
    family: str,
    slots: Mapping[str, str] | None = None,
) -> Path:
    """Write `adapter_config.json` and `adapter_model.safetensors` of an adapter under wire keys, without a head.

    A connector is written into a file of its own. `slots` has the module path of each slot, if the backbone's family is
    not in `fedpeft.backbones.slots`.
    """
    settings, tuning = method.settings_of(""), cast(SlotTuning, methods.get(method.exported).tuning())
    connector, state = only_connector(state), without_head(without_connector(state))
    if method.rule.stacks or (method.rule.unequal_ranks and method.site_settings):
        state = of_equal_rank(state)
    if method.site_settings or method.rule.stacks:  # the global adapter's width is that of its tensors
        settings |= tuning.state_settings(state, settings)
    if slots:
        settings["target_modules"] = dict(slots)
    return save_adapter(folder, state | connector, tuning.config(tuning.peft_settings(settings)), family)


ADAPTER, HEAD_FILE = "adapter", "head.safetensors"


class Host(Sites, Integrator, Protocol):
    """What runs a job's server: FLARE's controller, or the pool of processes."""

    def prepare(self, job: ServerJob) -> None:
        """Take the settings of the job, now that they are checked."""

    def track(self, name: str, folder: Path) -> RunTracking | None:
        """Begin a run at the tracker that a job names (`federation.tracking`)."""

    def limit_replies(self, limit: Limit) -> None:
        """Refuse larger replies from now on."""

    def relays(self, *, seconds: float) -> Relays:
        """Return the relays of the job's sites, each of which may take so long for an answer."""

    def info(self, message: str) -> None:
        """Write a line to the server's log."""

    def warning(self, message: str) -> None:
        """Write a warning to the server's log."""


@dataclass(frozen=True, kw_only=True)
class ServerPlace:
    """Where a job's server keeps its files.

    Args:
        run: folder of the run, for history, report, adapters and manifest.
        lineages: folder of the checkpoints of all jobs.
        job_id: FLARE's id of the job.
        submitter: who submitted it; empty in the simulator.
        lock_run: whether to lock the run's folder too, if no lock of a workspace says whether the run is alive.
    """

    run: Path
    lineages: Path
    job_id: str
    submitter: str = ""
    lock_run: bool = False


class JobRun:
    """Runs a job at its server; `run` checks the sections, so that the manifest says what is wrong with them."""

    def __init__(self, name: str, sections: Mapping[str, Any], place: ServerPlace, host: Host) -> None:
        self._name, self._sections, self._place, self._host = name, sections, place, host
        self._lock = StateLock()
        self._job: ServerJob | None = None  # set once the sections are checked
        self._importing: threading.Thread | None = None  # of PEFT
        self._lineage, self._session = "", secrets.token_hex(4)
        self._sessions: dict[str, int] = {}  # of the checkpoint that the job resumes from

    def run(self) -> None:
        """Run the job to its end; if it fails the manifest has the reason."""
        recorder = RunRecorder(self._place.run, job=self._name)
        try:
            lines = self._run_to_end(recorder)
        except FedpeftError as error:
            recorder.fail(str(error))
            raise
        except Exception as error:
            recorder.fail(f"{type(error).__name__} on the server: {error}; its log has the traceback.")
            raise
        finally:
            self._lock.release()
        for line in lines:
            self._host.info(line)

    def _run_to_end(self, recorder: RunRecorder) -> list[str]:
        if self._place.lock_run:
            self._lock.take(recorder.folder, self._place.job_id)
        job = self._job = ServerJob.from_sections(self._sections)
        self._host.prepare(job)
        recorder.tracking = self._host.track(job.federation.tracking, recorder.folder)
        self._importing = import_peft()
        before = self._load_checkpoint()
        self._lineage = before.lineage if before else checkpoint.new_lineage(self._name, self._place.submitter)
        self._sessions = before.sessions if before else {}
        recorder.record_lineage(self._lineage, before)
        prune(self._place.lineages, self._lineage)
        introductions = self._handshake(recorder, before)
        state = self._rounds(recorder, introductions, before)
        export_head(recorder.folder / HEAD_FILE, state)
        if state and job.method.exported:
            first = next(iter(introductions.values()))
            self._importing.join()  # two threads must not import the same modules at once
            export_adapter(recorder.folder / ADAPTER, state, job.method, family=first.family, slots=first.slots)
        lines = recorder.complete()
        try:
            checkpoint.complete(lineage_folder(self._place.lineages, self._lineage))
        except FedpeftError as error:
            self._host.warning(f"the job is complete, and a job that resumes it will not be told so: {error}")
        return lines

    def _load_checkpoint(self) -> Checkpoint | None:
        """Load the checkpoint to resume from, if the job names one, and lock its lineage."""
        load = partial(
            checkpoint.load_to_resume,
            self._place.lineages,
            job=self._name,
            submitter=self._place.submitter,
            settings=self._lasting_settings,
        )
        name = self._job.federation.resume_from
        before = load(name)
        if before is None:
            return None
        self._lock_lineage(before.lineage)
        return load(before.lineage if name == LATEST else name)  # the job that held the lock may have continued

    def _lock_lineage(self, lineage: str) -> Path:
        folder = lineage_folder(self._place.lineages, lineage)
        self._lock.take(folder, self._place.job_id)
        return folder

    @property
    def _lasting_settings(self) -> dict[str, Any]:
        return checkpoint.lasting_settings(self._job.method, self._job.training, self._job.schedule)

    def _handshake(self, recorder: RunRecorder, before: Checkpoint | None) -> dict[str, Introduction]:
        """Request every site's introduction; return those that can take part, or raise an error with the reasons."""
        federation, method, schedule = self._job.federation, self._job.method, self._job.schedule
        finished = before.round if before else 0
        self._host.limit_replies(handshake.INTRODUCTION)
        able, problems = self._introduce(federation.sites, finished)
        self._importing.join()  # the method's code checks announced widths and the first adapter
        introductions, others = handshake.agree(able, version=fedpeft.__version__, method=method)
        problems |= others
        check_enough("the handshake", introductions, federation.needed, problems)
        sending = introductions.values() if method.exchanges else ()
        masked = method.secure_sum or federation.sums_at_relays
        self._host.limit_replies(handshake.limit_of_replies(sending, max_mb=federation.largest_reply_mb, masked=masked))
        needed = first_adapter.is_needed(method, schedule) or federation.sums_at_relays
        fresh = needed and not before
        while fresh:
            sender = self._choose_sender(introductions, problems)
            again, others = self._introduce([sender.site], finished, sender, introductions[sender.site])
            introductions = {site: again.get(site, i) for site, i in introductions.items() if site not in others}
            problems |= others
            check_enough("the handshake", introductions, federation.needed, problems)
            fresh = sender.site not in introductions
            if not fresh:
                recorder.record_first_adapter(sender)
                for difference in sender.differing.values():
                    self._host.warning(difference)
        for site, problem in problems.items():
            self._host.warning(f"site {site} does not take part: {problem}")
        recorder.record_behind(self._sites_behind(introductions, before))
        recorder.record_handshake(method, self._job.training, introductions, problems, schedule)
        return introductions

    def _sites_behind(self, introductions: Mapping[str, Introduction], before: Checkpoint | None) -> dict[str, int]:
        """Warn of sites that lack rounds of the checkpoint; return by site the round of its own state."""
        if before is None:
            return {}
        behind = {
            site: introduction.finished
            for site, introduction in introductions.items()
            if any(
                entry["round"] > introduction.finished for entry in before.history["rounds"] if site in entry["sites"]
            )
        }
        for site, finished in behind.items():
            self._host.warning(
                f"site {site} resumes after round {before.round} with its own state of round {finished}: its part "
                f"differs from that of an uninterrupted job"
            )
        return behind

    def _choose_sender(self, introductions: dict[str, Introduction], problems: dict[str, str]) -> Sender:
        """Choose the site whose first adapter all sites get."""
        announced = {site: (i.schema, i.start_digest) for site, i in introductions.items()}
        joins = self._job.schedule.joins
        return first_adapter.choose_sender(announced, self._job.method, joins=joins, problems=problems)

    def _introduce(
        self,
        sites: Sequence[str],
        finished: int,
        sender: Sender | None = None,
        announced: Introduction | None = None,
    ) -> tuple[dict[str, Introduction], dict[str, str]]:
        """Ask sites to introduce themselves; return the introductions, and why others have none, by site.

        `finished` is the number of rounds that are finished already. With a `sender` only that site is asked again, for
        its first adapter: of what it had `announced` only its key for secure sums may change.
        """
        initial, job = sender is not None, self._job
        hello = Hello(
            version=fedpeft.__version__,
            initial=initial,
            lineage=self._lineage,
            finished=finished,
            session=self._session,
            sessions=self._sessions,
        )

        def read(introduction: Introduction, site: str) -> Introduction:
            checked = job.schedule.active and not initial  # the budget of a second introduction does not count
            budget = job.schedule.budget_of(site, seed=job.training.seed) if checked else None
            limit = job.federation.max_samples
            check_introduction(introduction, site=site, initial=initial, max_samples=limit, budget=budget)
            if sender is None or announced is None:
                return introduction
            state, answering = introduction.state, job.training.answering
            first_adapter.check(state, sender, announced, job.method, answering=answering)
            return replace(announced, state=self._host.stored(state), sum_key=introduction.sum_key)

        return self._host.collect(HELLO, dict.fromkeys(sites, hello), read, round=0, needed=len(sites))

    def _rounds(
        self, recorder: RunRecorder, introductions: dict[str, Introduction], before: Checkpoint | None
    ) -> State:
        """Run and record the remaining rounds; return the final global adapter, empty if nothing is exchanged."""
        job = self._job
        sums = None
        if job.federation.sums_at_relays:
            relays = self._host.relays(seconds=job.federation.round_timeout)
            sums = RelaySums(relays, job.method, introductions)
        rounds = Rounds(
            job,
            introductions,
            self._host,
            self._host,
            lineage=self._lineage,
            needed=job.federation.needed,
            before=before,
            sums=sums,
        )
        ended = before and (before.round == job.training.rounds or recorder.ends_early(job.training.patience))
        if before and rounds.state:  # of the round that it goes on from, should none follow
            self._host.keep(rounds.state)
        for round_done in () if ended else rounds:
            recorder.add_round(
                round_done.number,
                round_done.accepted,
                round_done.rejected,
                round_done.report,
                round_done.assignment,
                seconds=round_done.seconds,
                sent=sums.size if sums else None,
                keep=self._checkpoint_writer(recorder, rounds, round_done),
            )
            for site, reason in round_done.rejected.items():
                self._host.warning(f"round {round_done.number}: {reason} (site {site} is left out of this round)")
            self._host.info(recorder.progress(round_done.number, job.training.rounds))
            left = job.training.rounds - round_done.number
            if left and (best := recorder.ends_early(job.training.patience)):
                self._host.info(f"ended early: no round since round {best} was better on the validation splits")
                break
            del round_done  # else its replies would stay in memory through the next round
        return rounds.state

    def _checkpoint_writer(self, recorder: RunRecorder, rounds: Rounds, round_done: Round) -> Callable[[], None]:
        """Return a function that writes the checkpoint of a finished round."""

        def keep() -> None:
            written = Checkpoint(
                job=self._name,
                submitter=self._place.submitter,
                lineage=self._lineage,
                round=round_done.number,
                state=round_done.state,
                scores=rounds.planner.scores,
                settings=self._lasting_settings,
                history=recorder.history,
                own=rounds.check.own,
                median=rounds.check.median,
                excess=rounds.check.excess,
                moments=rounds.steps.moments,
                sessions={**self._sessions, self._session: round_done.number},
            )
            folder = self._lock_lineage(self._lineage)
            checkpoint.save(folder, written, keep=self._job.federation.checkpoints)

        return keep
