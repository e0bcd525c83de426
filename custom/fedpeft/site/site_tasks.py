# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Handle each task at a site: from the server's order to a request to the learner, and back to a reply.

This file also decides which job a state folder belongs to and how much state a site keeps; a server cannot use or
remove that of another job.

<lineages>/<lineage>/job.json                       whose job made it, its settings, the jobs that used it
<lineages>/<lineage>/made.json                      which of these jobs made each of the rounds
<lineages>/<lineage>/round-00003/                   `site_state`
<lineages>/<lineage>/set-aside/<when>-round-00003/  later rounds, set aside when a job resumed from an earlier one
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fedpeft
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones.registry import BackboneSettings
from fedpeft.core.errors import LocalError
from fedpeft.core.files import SET_ASIDE, drop, rounds_in, write_json
from fedpeft.core.locks import StateLock, lineage_folder, may_be_in_use, prune
from fedpeft.core.metrics import BELOW_CONSTANT, NO_BETTER
from fedpeft.core.settings import differing
from fedpeft.core.workspace import PROBLEM
from fedpeft.data.settings import DataSettings
from fedpeft.job.settings import SECTIONS, SiteJob
from fedpeft.job.site_policy import SitePolicy
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.job_against_policy import admitted
from fedpeft.protocol.outgoing_reply import (
    first_of_round,
    first_scores_of_round,
    probe_size,
    released_metrics,
    without_withheld,
)
from fedpeft.protocol.types import (
    HELLO,
    METRICS,
    SCORE,
    TASKS,
    TRAIN,
    Hello,
    Introduction,
    Order,
    Reply,
    ScoreOrder,
    ScoreReply,
    TrainOrder,
    TrainReply,
    empty_reply,
)
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.site import training_process
from fedpeft.site.connection import Failure
from fedpeft.site.orders import (
    accept,
    apply_delta,
    begin_round,
    check_accepted,
    check_order,
    lost_state,
    newest_round,
    note_order,
    note_own_round,
)
from fedpeft.site.sum_member import SumMember
from fedpeft.site.supervisor import Answer, RequestFailed

OWNER = "job.json"
OTHER, FULL = "state-of-another-job", "state-full"
DAY, GIB = 24 * 3600, 2**30
SHOWN = 3  # names of different settings in an error, at most


def claim(folder: Path, settings: Mapping[str, Any], job: str, *, submitter: str) -> None:
    """Claim a lineage's folder for a job: a new one, or one with the same settings and submitter.

    A resumed job must have the same JSON-serializable settings. In the simulator the submitter is empty. A setting that
    an earlier version did not store had its default.
    """
    file, settings = folder / OWNER, json.loads(json.dumps(settings))
    if not file.exists():
        if rounds_in(folder):
            raise _other_job(folder, f"its {OWNER} is missing")
        write_json(file, {"settings": settings, "submitter": submitter, "jobs": [job]})
        return
    try:
        owner = json.loads(file.read_text())
        made_with, made_for, jobs = owner["settings"], owner.get("submitter", ""), list(owner["jobs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _other_job(folder, f"{file} cannot be read: {error}") from error
    if made_for != submitter:
        raise _other_job(folder, f"it was made for {made_for or 'nobody'!r:.80}, this job is of {submitter!r:.80}")
    if names := differing(made_with, settings, _defaults()):
        raise _other_job(folder, f"it was made with another {', '.join(names[:SHOWN])}")
    if job not in jobs:
        write_json(file, {"settings": settings, "submitter": submitter, "jobs": [*jobs, job]})


def make_room(lineages: Path, current: str, *, days: float, gib: float, needed: int = 0) -> None:
    """Remove the oldest state that is not in use and older than `days`, until the total fits into `gib`.

    State that was set aside is removed first. A server that invents jobs can fill the space but cannot remove newer
    state. The rest, with the bytes `needed` for the lineage that a job is about to use, must fit.
    """
    total = _size(lineages) + needed
    before = time.time() - days * DAY
    for path in _removable(lineages, current):
        if total <= gib * GIB:
            return
        if _last_use(path) < before:
            total -= _size(path)
            drop(path)
    if total > gib * GIB:
        raise LocalError(
            f"{lineages} would hold {total / GIB:.1f} GiB of the state of jobs, kept_gib is {gib:g}, and nothing of it "
            f"has been unused for {days:g} days: remove what you no longer need, or raise kept_gib.",
            code=FULL,
        )


def _removable(lineages: Path, current: str) -> Iterator[Path]:
    yield from sorted(lineages.glob(f"*/{SET_ASIDE}/*"), key=_last_use)
    owned = (path.parent for path in lineages.glob(f"*/{OWNER}"))
    yield from sorted(
        (folder for folder in owned if folder.name != current and not may_be_in_use(folder)), key=_last_use
    )


def _last_use(path: Path) -> float:
    try:
        entries = [path, *rounds_in(path)]
    except FileNotFoundError:  # another job has removed it
        return math.inf
    return max((found.st_mtime for found in map(_stat, entries) if found), default=math.inf)


def _size(folder: Path) -> int:
    # `Path.rglob` fails if another job removes a round meanwhile
    files = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return sum(found.st_size for found in map(_stat, files) if found)


def _stat(path: Path) -> os.stat_result | None:
    """Return the status of a file; None: another job has removed it."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _other_job(folder: Path, why: str) -> LocalError:
    return LocalError(
        f"the state in {folder} belongs to another job ({why}): submit the job without resume_from.", code=OTHER
    )


Request = Callable[..., Answer]


@dataclass(frozen=True, kw_only=True)
class SitePlace:
    """The folders of a job at a site, and its submitter.

    Args:
        site: its name.
        run: the job's run folder.
        lineages: folder of the state of all jobs.
        job_id: FLARE's id of the job.
        submitter: who submitted it; empty in the simulator.
    """

    site: str
    run: Path
    lineages: Path
    job_id: str
    submitter: str = ""


class SiteTasks:
    """Handles the tasks of one job at a site.

    Args:
        sections: of the job, as deployed to this site.
        place: see `SitePlace`.
        policy: the site policy; None in the simulator.
        request: sends a request to the learner and returns its answer.
        lock: holds the lineages that this process uses.
        startup: folder of the site's certificate; None in the simulator.

    Raises:
        FedpeftError: a setting is wrong, or the site does not allow it.
    """

    def __init__(
        self,
        sections: Mapping[str, Any],
        place: SitePlace,
        policy: SitePolicy | None,
        *,
        request: Request,
        lock: StateLock,
        startup: Path | None = None,
    ) -> None:
        self._sections, self._place, self._lock, self._startup = sections, place, lock, startup
        self.policy, self.request, self.run = policy, request, place.run
        self._job = SiteJob.from_sections(sections, site=place.site, policy=policy)
        if policy:
            admitted(policy, self._job)  # the training process checks too; here before anything is stored for the job

    def answer(self, task: str, order: Order) -> tuple[Reply, str]:
        """Carry out an order; return the reply, limited to what the site releases, and a line for its log."""
        reply, line = WORK[task](order, self)
        return without_withheld(reply, self.policy), line

    def member(self) -> SumMember:
        """Return the site's part in the job's secure sums."""
        place = self._place
        return SumMember.of(
            place.site, self._job.method, self.policy, self._sections, job=place.job_id, startup=self._startup
        )

    def folder_of(self, order: Order) -> Path:
        """Check an order, claim the state of its lineage for the job, and return the state folder."""
        job, place, policy = self._job, self._place, self.policy
        check_order(order, job)
        folder = lineage_folder(place.lineages, order.lineage)
        needed = 0
        if not isinstance(order, Hello):
            check_accepted(order, place.run, any_width=bool(job.method.site_settings), stacked=job.method.rule.stacks)
            needed = sum(tensor.nbytes for tensor in order.state.values())
        note_order(order, place.run)
        if policy is None:
            prune(place.lineages, order.lineage)
        else:
            make_room(place.lineages, order.lineage, days=policy.kept_days, gib=policy.kept_gib, needed=needed)
        claim(folder, _lasting_settings(job), place.job_id, submitter=place.submitter)
        if policy is not None:  # the simulator has several processes, one after another, and its own lock
            self._lock.take(folder, place.job_id)
        if not isinstance(order, Hello):
            begin_round(folder, place.run, order.round)
        return folder


def _lasting_settings(job: SiteJob) -> dict[str, Any]:
    """Return the settings that jobs with the same state share; not the data folder, which may have moved."""
    sections = {name: asdict(getattr(job, name)) for name in SECTIONS}
    return {**sections, "data": {name: value for name, value in sections["data"].items() if name != "root"}}


def _defaults() -> dict[str, Any]:
    return {
        "backbone": asdict(BackboneSettings()),
        "method": asdict(MethodSettings()),
        "training": asdict(TrainingSettings(rounds=1)),
        "data": asdict(DataSettings()),
        "schedule": asdict(ScheduleSettings()),
    }


def problem_reply(
    task: str, round: int, error: Exception, place: SitePlace, log: Callable[[str, Failure], None]
) -> Reply:
    """Log why a task failed, note it in the run's `problem.json`, and return the reply that gives the server a code."""
    failed = error if isinstance(error, RequestFailed) else RequestFailed(Failure.of(error))
    failure = failed.failure
    log(failure.detail, failure)
    note_problem(place.run, place.site, failure.detail)
    return empty_reply(
        TASKS[task].reply,
        round=round,
        problem=failure.code,
        setting=failure.setting,
        seconds=failed.seconds,
        attempts=failed.attempts,
    )


def note_problem(folder: Path, site: str, problem: str) -> None:
    """Write the full message of a site's problem into its `problem.json`; a full disk must not stop the reply."""
    try:
        write_json(folder / PROBLEM, {"site": site, "problem": problem})
    except LocalError as error:
        logging.getLogger(__name__).error("%s", error)


def _introduce(hello: Hello, site: SiteTasks) -> tuple[Introduction, str]:
    """Introduce the site: claim its state, let the learner describe itself, and offer the first key."""
    member = site.member()
    folder = site.folder_of(hello)
    own = newest_round(folder, hello.finished, hello.sessions)
    request = {"do": training_process.INTRODUCE, "initial": hello.initial, "finished": hello.finished, "own": own}
    answer = site.request({**request, "folder": str(folder)})
    values = dict(answer.values)
    unanswerable, questions, facts = (values.pop(name) for name in ("unanswerable", "tested", "facts"))
    line = f"{unanswerable} of {questions} test answers are not in the training data; these questions count as wrong"
    facts = {"own": values["finished"], "data": facts}
    key = member.offer(folder, job=hello.lineage, round=hello.finished + 1, facts=facts)
    introduction = Introduction(version=fedpeft.__version__, **values, sum_key=key, state=answer.state)
    accept(introduction, site.run)
    note_own_round(introduction.finished, site.run)
    return introduction, line * bool(unanswerable)


def _score(order: ScoreOrder, site: SiteTasks) -> tuple[ScoreReply, str]:
    stacked, folder = site.member().method.rule.stacks, site.folder_of(order)
    state = apply_delta(folder, order.state, base=order.base, version=order.version, stacked=stacked)
    answer = site.request({"do": training_process.SCORE, "folder": str(folder), "round": order.round}, state)
    scores = answer.values["scores"]
    if site.policy:
        scores = first_scores_of_round(scores, SCORE, order.round, site.run)
    reply = ScoreReply(round=order.round, scores=scores, seconds=answer.seconds, problem="")
    return reply, f"round {order.round}: scored {len(reply.scores)} layers"


def _train(order: TrainOrder, site: SiteTasks) -> tuple[TrainReply, str]:
    """Train a round, and return only figures and tensors that the site releases."""
    member = site.member()
    stacked, folder = member.method.rule.stacks, site.folder_of(order)
    state = apply_delta(folder, order.state, base=order.base, version=order.version, stacked=stacked)
    request = {"do": training_process.TRAIN, "round": order.round, "layers": order.layers, "scored": order.scored}
    salt, gone = member.salt(folder, order, received=state), lost_state(folder, site.run, order.round)
    answer = site.request({**request, "part": order.part, "salt": salt, "folder": str(folder)}, state)
    note_own_round(order.round, site.run)
    facts = {"own": order.round, "data": answer.values["facts"]}
    measured, samples = answer.values["metrics"], answer.values["samples"]
    metrics: dict[str, float | None] = {name: measured.get(name) for name in METRICS}
    scores = answer.values["scores"]
    if site.policy:
        min_tested = site.policy.min_test_samples
        scores = first_scores_of_round(scores, TRAIN, order.round, site.run)
        metrics = released_metrics(
            metrics,
            answer.values["questions"],
            min_questions=min_tested,
            enough_validation=answer.values["validation"] >= site.policy.min_validation_samples,
            enough_probe=probe_size(member.method.probe_samples, samples) >= min_tested,
        )
        metrics = first_of_round(metrics, order.round, site.run)
    sent = member.upload(answer.state, folder, order, samples=samples, received=state)
    reply = TrainReply(
        round=order.round,
        samples=samples,
        metrics=metrics,
        scores=scores,
        seconds=answer.seconds,
        problem="",
        attempts=answer.attempts,
        sum_key=member.offer(folder, job=order.lineage, round=order.round + 1, facts=facts),
        state=sent,
    )
    remarks = filter(None, [NO_BETTER * (measured.get(BELOW_CONSTANT) == 1), gone])
    return reply, "; ".join([f"round {order.round}: training loss {measured['loss']:.3f}", *remarks])


# by task: functions of the order and the site that return the reply and a line for the site's log
WORK: dict[str, Callable[..., tuple[Reply, str]]] = {HELLO: _introduce, SCORE: _score, TRAIN: _train}
