# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's checkpoints: after every round all that the next one needs, so that a job can be resumed.

    <lineages>/<lineage>/round-00003/global.safetensors, checkpoint.json

A folder that has its name is complete (`fedpeft.files`).
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedpeft.errors import FedpeftError
from fedpeft.federation import LATEST, checkpoint_of
from fedpeft.files import drop, replacing
from fedpeft.methods.settings import MethodSettings
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.training_settings import TrainingSettings

ADAPTER, FACTS = "global.safetensors", "checkpoint.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The server after one round.

    Args:
        job: the job's name.
        lineage: what it has in common with the jobs that resume it.
        round: the last finished round.
        state: the global adapter, empty where nothing is exchanged.
        scores: the last layer scores by site.
        settings: the sections that a resumed job must have too.
        history: what `history.json` held.
    """

    job: str
    lineage: str
    round: int
    state: dict[str, torch.Tensor]
    scores: dict[str, list[float]]
    settings: dict[str, Any]
    history: dict[str, Any]


def new_lineage(job: str) -> str:
    """A name for a job that starts afresh: the job's, the time, and a few random letters."""
    return f"{_plain(job)}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def _plain(job: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", job.lower()).strip("-_")[:60] or "job"


def lasting(method: MethodSettings, training: TrainingSettings, schedule: ScheduleSettings) -> dict[str, Any]:
    """The settings that a resumed job must share with the one before."""
    return {"method": asdict(method), "training": asdict(training), "schedule": asdict(schedule)}


def save(folder: Path, checkpoint: Checkpoint, *, keep: int) -> None:
    """Write one round atomically into the lineage's folder and drop all but the newest `keep`."""
    final = folder / f"round-{checkpoint.round:05d}"
    facts = {name: value for name, value in vars(checkpoint).items() if name != "state"}
    with replacing(final) as draft:
        draft.mkdir()
        save_file({key: tensor.contiguous() for key, tensor in checkpoint.state.items()}, draft / ADAPTER)
        (draft / FACTS).write_text(json.dumps(facts))
    for given_up in folder.glob("round-*"):  # a job that went back to an older round has left these
        if given_up.name > final.name:
            drop(given_up)
    for old in sorted(folder.glob("round-*"))[:-keep]:
        drop(old)


def to_resume(
    lineages: Path, resume_from: str, *, job: str, settings: Mapping[str, Any], rounds: int
) -> Checkpoint | None:
    """The checkpoint that a job goes on from; None where it starts afresh.

    Args:
        lineages: the folder of all lineages.
        resume_from: as in `FederationSettings`.
        job: the job's name.
        settings: the sections that it must share with the one before.
        rounds: that it is to have.

    Raises:
        FedpeftError: there is no such checkpoint, it was made with other settings, or nothing is left to do.
    """
    if not resume_from:
        return None
    found = find(lineages, resume_from, job=job)
    check_same(found, settings)
    if found.round >= rounds:
        raise FedpeftError(f"{found.lineage} has finished all its {found.round} rounds: nothing is left to resume.")
    return found


def find(lineages: Path, wanted: str, *, job: str) -> Checkpoint:
    """Read the checkpoint that a job names.

    Args:
        lineages: the folder of all lineages.
        wanted: `latest` (of this job), a lineage, or `<lineage>/round-<number>`.
        job: the job's name.

    Raises:
        FedpeftError: there is none, it cannot be read, or it is another job's.
    """
    if wanted == LATEST:
        own = re.compile(re.escape(_plain(job)) + r"-\d{8}-\d{6}-[0-9a-f]{6}")
        rounds = [path for path in lineages.glob("*/round-*") if own.fullmatch(path.parent.name)]
        rounds.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
    else:
        lineage, number = checkpoint_of(wanted)
        rounds = sorted((lineages / lineage).glob("round-*" if number is None else f"round-{number:05d}"))
    if not rounds:
        raise FedpeftError(
            f"there is no checkpoint of {job} for resume_from={wanted} under {lineages} on the server: submit the job "
            f"without resume_from."
        )
    facts = _facts(rounds[-1])
    if facts["job"] != job:
        raise FedpeftError(f"the checkpoint {rounds[-1]} is one of the job {facts['job']}, not of {job}.")
    try:
        return Checkpoint(state=load_file(rounds[-1] / ADAPTER), **facts)
    except (OSError, SafetensorError, TypeError) as error:
        raise FedpeftError(_unreadable(rounds[-1], error)) from error


def check_same(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> None:
    """Refuse to resume with other settings than those that the checkpoint was made with; the setting is named."""
    before, now = _flat(checkpoint.settings), _flat(json.loads(json.dumps(settings)))
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            raise FedpeftError(
                f"{name} is {now.get(name)!r:.60}, it was {before.get(name)!r:.60} in the job to resume: submit it "
                f"with the settings that it had, or without resume_from."
            )


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / FACTS).read_text())
        return {name: facts[name] for name in ("job", "lineage", "round", "scores", "settings", "history")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedpeftError(_unreadable(folder, error)) from error


def _unreadable(folder: Path, error: Exception) -> str:
    return f"the checkpoint {folder} cannot be read ({error}): remove that folder to go on from the round before."


def _flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(settings, Mapping):
        return {prefix: settings}
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{prefix}.{name}" if prefix else name)
    return found
