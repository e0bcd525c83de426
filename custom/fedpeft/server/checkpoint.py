# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's checkpoints: after every round, everything that is needed to resume the job.

    <lineages>/<lineage>/round-00003/global.safetensors, checkpoint.json
    <lineages>/<lineage>/round-00003/own.safetensors    the adapters that sites sent, if they keep a part of their own
    <lineages>/<lineage>/round-00003/moments.safetensors    of the server's optimizer, if there is one
    <lineages>/<lineage>/completed.json                 the last round of a job that has its results
    <lineages>/<lineage>/set-aside/<when>-round-00004/  later rounds, set aside when a job resumed from an earlier one

A folder under its final name is complete (`fedpeft.core.files`).
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import (
    MAX_HISTORY,
    check_regular,
    drop,
    number_of,
    read_json,
    replacing,
    round_name,
    rounds_in,
    set_aside_after,
    write_json,
)
from fedpeft.core.locks import lineage_folder
from fedpeft.core.settings import differing, value_at
from fedpeft.job.federation import LATEST, checkpoint_of
from fedpeft.methods.settings import MethodSettings
from fedpeft.scheduling.settings import ScheduleSettings

ADAPTER, OWN, FACTS = "global.safetensors", "own.safetensors", "checkpoint.json"
COMPLETED = "completed.json"
PARTS = {"own": OWN, "moments": "moments.safetensors"}  # fields with tensors by two names, and their files
BETWEEN = "/"  # separates the two names of a tensor; the second contains none


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The server's state after one round.

    Args:
        job: the job's name.
        submitter: who submitted it, empty in the simulator.
        lineage: name that the job shares with those that resume it.
        round: the last finished round.
        state: the global adapter, empty where nothing is exchanged.
        scores: the last layer scores by site.
        settings: the sections that a resumed job must share.
        history: content of `history.json`.
        own, median, excess: of the check of updates, as in `UpdateCheck`.
        moments: of the server's optimizer, as in `ServerSteps`.
        sessions: the jobs that made the rounds so far, with the last round of each that counts; empty: unknown.
    """

    job: str
    submitter: str
    lineage: str
    round: int
    state: dict[str, torch.Tensor]
    scores: dict[str, list[float]]
    settings: dict[str, Any]
    history: dict[str, Any]
    own: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    median: float = 0.0
    excess: dict[str, float] = field(default_factory=dict)
    moments: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)


def new_lineage(job: str, submitter: str) -> str:
    """Make a lineage name for a new job: the job's name, the submitter's digest, the time and random digits."""
    return f"{_prefix(job, submitter)}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def _prefix(job: str, submitter: str) -> str:
    """Return the common prefix of the lineages of one submitter's job; no other submitter's have it."""
    digest = f"-{hashlib.sha256(submitter.encode()).hexdigest()[:8]}" if submitter else ""
    return _plain(job) + digest


def _plain(job: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", job.lower()).strip("-_")[:60] or "job"


def lasting_settings(method: MethodSettings, training: TrainingSettings, schedule: ScheduleSettings) -> dict[str, Any]:
    """Return the settings that a resumed job must share with the original one."""
    return {"method": asdict(method), "training": asdict(training), "schedule": asdict(schedule)}


def save(folder: Path, checkpoint: Checkpoint, *, keep: int) -> None:
    """Write one round atomically into the lineage's folder and remove all but the newest `keep`.

    This and later rounds that are there from before the job was resumed at an earlier one are set aside.
    """
    (folder / COMPLETED).unlink(missing_ok=True)
    final = folder / round_name(checkpoint.round)
    set_aside_after(folder, checkpoint.round - 1)
    facts = {name: value for name, value in vars(checkpoint).items() if name not in ("state", *PARTS)}
    facts["parts"] = [name for name in PARTS if getattr(checkpoint, name)]
    with replacing(final) as draft:
        draft.mkdir()
        save_file({key: tensor.contiguous() for key, tensor in checkpoint.state.items()}, draft / ADAPTER)
        for name in facts["parts"]:
            save_file(_flat_tensors(getattr(checkpoint, name)), draft / PARTS[name])
        (draft / FACTS).write_text(json.dumps(facts))
    for old in rounds_in(folder)[:-keep]:
        drop(old)


def load_to_resume(
    lineages: Path, resume_from: str, *, job: str, submitter: str, settings: Mapping[str, Any]
) -> Checkpoint | None:
    """Load the checkpoint that a job resumes from; None for a new job.

    Refuse a checkpoint that does not exist, belongs to another job or submitter, was made with other settings, or is
    the last one of a job that has its results.
    """
    if not resume_from:
        return None
    checkpoint = find(lineages, resume_from, job=job, submitter=submitter)
    check_same(checkpoint, settings)
    if _is_completed(checkpoint, lineages):
        raise FedpeftError(
            f"{checkpoint.lineage} has its results, after round {checkpoint.round}: nothing is left to resume. If you "
            f"mean another run of this job, name it in resume_from."
        )
    return checkpoint


def complete(folder: Path) -> None:
    """Note in a lineage's folder that its job has the results of its last round."""
    if rounds := rounds_in(folder):
        write_json(folder / COMPLETED, {"round": number_of(rounds[-1])})


def _is_completed(checkpoint: Checkpoint, lineages: Path) -> bool:
    try:
        return read_json(lineage_folder(lineages, checkpoint.lineage) / COMPLETED)["round"] == checkpoint.round
    except (OSError, ValueError, KeyError, TypeError):
        return False  # killed before, or of an earlier version: writing the results again does no harm


def find(lineages: Path, name: str, *, job: str, submitter: str) -> Checkpoint:
    """Read the checkpoint with this name (`latest`, a lineage, `<lineage>/round-<number>`), job and submitter."""
    if name == LATEST:
        own = re.compile(re.escape(_prefix(job, submitter)) + r"-\d{8}-\d{6}-[0-9a-f]{6}")
        named = [rounds for path in lineages.glob("*") if own.fullmatch(path.name) and (rounds := rounds_in(path))]
        last = sorted((rounds[-1] for rounds in named), key=lambda path: (path.stat().st_mtime_ns, path.parent.name))
        # jobs with similar names, such as in another letter case, share a prefix
        chosen = next((path for path in reversed(last) if _is_of(path, job)), last[-1] if last else None)
    else:
        lineage, number = checkpoint_of(name)
        rounds = [one for one in rounds_in(lineages / lineage) if number in (None, number_of(one))]
        chosen = rounds[-1] if rounds else None
    if chosen is None:
        raise FedpeftError(
            f"there is no checkpoint of {job} for resume_from={name} under {lineages} on the server: submit the job "
            f"without resume_from."
        )
    facts = _facts(chosen)
    if facts["submitter"] != submitter:
        raise FedpeftError(
            f"the checkpoint resume_from={name} belongs to another submitter than {submitter or 'the simulator'}: only "
            f"its submitter can resume a job, submit yours without resume_from."
        )
    if facts["job"] != job:
        raise FedpeftError(
            f"the checkpoint {chosen} is one of the job {facts['job']}, not of {job}: name one of {job}."
        )
    try:
        written = facts.pop("parts")
        parts: dict[str, Any] = {name: _tensors(chosen / PARTS[name]) for name in PARTS if name in written}
        return Checkpoint(state=load_file(check_regular(chosen / ADAPTER)), **parts, **facts)
    except (OSError, SafetensorError, TypeError) as error:
        raise FedpeftError(_unreadable(chosen, error)) from error


def _is_of(folder: Path, job: str) -> bool:
    try:
        return _facts(folder)["job"] == job
    except FedpeftError:  # to pass it over could mean to go on with an older run: the caller's error names it
        return True


def check_same(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> None:
    """Refuse to resume with settings that differ from the checkpoint's; the error names the setting."""
    defaults = lasting_settings(MethodSettings(), TrainingSettings(rounds=1), ScheduleSettings())
    for name in differing(checkpoint.settings, settings, defaults):
        was = value_at(checkpoint.settings, name)
        before = value_at(defaults, name) if was is None else was
        raise FedpeftError(
            f"{name} is {value_at(settings, name)!r:.60}, it was {before!r:.60} in the job to resume: submit it with "
            f"its former settings, or without resume_from."
        )


def _facts(folder: Path) -> dict[str, Any]:
    try:
        there = [name for name, file in PARTS.items() if (folder / file).is_file()]  # where no parts are listed
        defaults = {"submitter": "", "median": 0.0, "excess": {}, "parts": there, "sessions": {}}
        facts = defaults | read_json(folder / FACTS, max_bytes=MAX_HISTORY)
        names = ("job", "lineage", "round", "scores", "settings", "history", *defaults)
        return {name: facts[name] for name in names}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedpeftError(_unreadable(folder, error)) from error


def _flat_tensors(named: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {f"{one}{BETWEEN}{other}": t.contiguous() for one, state in named.items() for other, t in state.items()}


def _tensors(file: Path) -> dict[str, dict[str, torch.Tensor]]:
    named: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in load_file(check_regular(file)).items():
        one, _, other = name.rpartition(BETWEEN)
        named.setdefault(one, {})[other] = tensor
    return named


def _unreadable(folder: Path, error: Exception) -> str:
    return f"the checkpoint {folder} cannot be read ({error}): remove that folder to continue from the round before."
