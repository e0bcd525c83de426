# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read a run's progress from history.json and, once it has ended, manifest.json."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedpeft.errors import FedpeftError
from fedpeft.metrics import title_of
from fedpeft.run_names import HISTORY, MANIFEST

RUNNING, COMPLETED, FAILED = "running", "completed", "failed"
RECENT = 3  # rounds whose mean duration is expected of the next ones


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run.

    Args:
        job: its name, empty where it is not known yet.
        state: "running", "completed" or "failed"; FLARE's own word for a job that waits.
        round: finished rounds.
        rounds: rounds that the job has; None: not known yet.
        mean: of what the sites are measured by, over those of the last round, a fraction.
        measured_by: that, in words.
        seconds: the last round's duration.
        pace: mean seconds of the last rounds.
        ago: seconds since the last round ended.
        rejected: by site, the rounds in which its reply was left out, and the last reason.
        reason: why the run failed.
    """

    job: str = ""
    state: str = RUNNING
    round: int = 0
    rounds: int | None = None
    mean: float | None = None
    measured_by: str = title_of(())
    seconds: float | None = None
    pace: float | None = None
    ago: float | None = None
    rejected: tuple[str, ...] = ()
    reason: str = ""

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.state in (COMPLETED, FAILED)

    @property
    def left(self) -> float | None:
        """Seconds until the end at the pace of the last rounds; None if that is not known."""
        if self.ended or None in (self.rounds, self.pace, self.ago):
            return None
        return max(0.0, (self.rounds - self.round) * self.pace - self.ago)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        """Build from a decoded `asdict`; keys that another version added are ignored."""
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        return cls(**{**known, "rejected": tuple(known.get("rejected", ()))})


def read_progress(folder: Path, *, now: float | None = None) -> Progress:
    """Read a run's folder at any time, also before the first round.

    Args:
        folder: of the run on the server; it may lack both files.
        now: seconds since 1970; None: this moment.

    Raises:
        FedpeftError: a file is damaged.
    """
    history, manifest = _read(folder / HISTORY), _read(folder / MANIFEST)
    try:
        return _progress(history, manifest, _age(folder / HISTORY, now))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FedpeftError(
            f"{folder} holds no run that can be read ({error!r}): copy it from the server again."
        ) from error


def _progress(history: Mapping[str, Any], manifest: Mapping[str, Any], age: float | None) -> Progress:
    done = history.get("rounds", [])
    last = done[-1] if done else {}
    overall = [site["overall"] for site in last.get("sites", {}).values() if site.get("overall") is not None]
    recent = [one["seconds"] for one in done[-RECENT:] if one.get("seconds") is not None]
    return Progress(
        job=history.get("job") or manifest.get("job", ""),
        state=manifest.get("status", RUNNING),
        round=len(done),
        rounds=history.get("settings", {}).get("training", {}).get("rounds"),
        mean=sum(overall) / len(overall) if overall else None,
        measured_by=title_of(dict(history.get("metrics", {})).values()),
        seconds=last.get("seconds"),
        pace=sum(recent) / len(recent) if recent else None,
        ago=age if done else None,
        rejected=tuple(_rejections(done)),
        reason=manifest.get("reason", ""),
    )


def _rejections(done: list[Mapping[str, Any]]) -> list[str]:
    rounds_of: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}
    for one in done:
        for site, reason in one.get("rejected", {}).items():
            rounds_of.setdefault(site, []).append(one["round"])
            reasons[site] = reason
    return [
        f"{site}, round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}: {reasons[site]}"
        for site, rounds in rounds_of.items()
    ]


def _age(file: Path, now: float | None) -> float | None:
    try:
        return max(0.0, (time.time() if now is None else now) - file.stat().st_mtime)
    except OSError:
        return None


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FedpeftError(f"{file} cannot be read as JSON ({error}): copy it from the server again.") from error
    if not isinstance(content, dict):
        raise FedpeftError(f"{file} must hold a JSON object, it holds {type(content).__name__}: copy it again.")
    return content
