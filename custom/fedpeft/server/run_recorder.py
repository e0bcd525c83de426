# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Record the rounds of a run at its server: the history, the manifest with its final status, and the faults.

TensorBoard's files are written during the run, from replies that the server has checked. FLARE's own way, an
`AnalyticsSender` at each site and a `TBAnalyticsReceiver` on the server, would open a second channel out of the sites,
with unchecked values. Each site has a folder, so that TensorBoard draws all into one chart; `server` has the rest.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedpeft
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.files import write_json
from fedpeft.core.keys import layers_of
from fedpeft.core.locks import FILE as LOCK
from fedpeft.core.metrics import ACCURACY, BELOW_CONSTANT, NO_BETTER, describe_means, means_of, of_fewer_sites, title_of
from fedpeft.core.text import RECENT, duration
from fedpeft.core.workspace import HISTORY, MANIFEST
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.types import ACCURACIES, Introduction, TrainReply
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.server.checkpoint import Checkpoint
from fedpeft.server.first_adapter import Sender
from fedpeft.server.planner import Assignment, best_before_end

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from fedpeft.job.federation import RunTracking


RUN_FIELDS, SITE_FIELDS = ("method", "procedural", "tiny", "source"), ("metrics", "tested")  # keys of a run's history


def origin(datasets: Iterable[str], backbones: Iterable[str], *, procedural: bool) -> str:
    """Describe the data sets and backbones of a run's sites; `procedural`: a data set is computed."""
    data, models = sorted(set(datasets)), sorted(set(backbones))
    return f"data: {', '.join(data)}{' (procedural)' * procedural}; backbone: {', '.join(models)}"


def _origin_of(source: str) -> tuple[list[str], list[str]]:
    """Return the data sets and the backbones in a description by `origin`."""
    data, _, models = source.partition("; backbone: ")
    both = data.removeprefix("data: ").removesuffix(" (procedural)"), models
    datasets, backbones = ([name for name in names.split(", ") if name] for names in both)
    return datasets, backbones


def settings_of(method: MethodSettings, training: TrainingSettings, schedule: ScheduleSettings) -> dict[str, Any]:
    """Return the settings for a run's history; those of the schedule only if they have an effect."""
    acting = schedule.acting()
    return {"method": asdict(method), "training": asdict(training)} | ({"schedule": acting} if acting else {})


class RunRecorder:
    """Writes each round as soon as it is finished, so that a job that breaks off loses no finished round."""

    def __init__(self, folder: Path, *, job: str) -> None:
        self.folder = folder
        self._began, self._earlier = time.time(), 0.0
        self._manifest: dict[str, Any] = {"job": job, "fedpeft": fedpeft.__version__, "faults": []}
        self._history: dict[str, Any] = {"job": job, "rounds": []}
        self._board = Board(folder)
        self.tracking: RunTracking | None = None  # gets the rounds as well

    def record_handshake(
        self,
        method: MethodSettings,
        training: TrainingSettings,
        introductions: Mapping[str, Introduction],
        problems: Mapping[str, str],
        schedule: ScheduleSettings | None = None,
    ) -> None:
        """Record the settings of server and sites, and the result of the handshake."""
        backbones = sorted({i.backbone for i in introductions.values()})
        procedural = any(i.procedural for i in introductions.values())
        before = self._history  # of a resumed job, whose finished rounds may have sites that are away now
        tested = {site: {"samples": i.samples["test"], "baseline": i.baseline} for site, i in introductions.items()}
        self._history = before | {
            "method": f"{method.label}, {', '.join(backbones)}",
            "procedural": procedural,
            "tiny": any(i.tiny for i in introductions.values()),
            "source": origin((i.dataset for i in introductions.values()), backbones, procedural=procedural),
            "settings": settings_of(method, training, schedule or ScheduleSettings()),
            "metrics": before.get("metrics", {}) | {site: i.metric for site, i in introductions.items()},
            "tested": before.get("tested", {}) | tested,
        }
        if before.get("metrics", {}).keys() - introductions.keys():
            self._keep_origin(method, before)
        self._manifest["sites"] = {
            site: {"classes": i.classes, "samples": i.samples, "dataset": i.dataset, "backbone": i.backbone}
            | ({} if method.matched_layers is None else {"layers": len(layers_of(i.schema))})
            for site, i in introductions.items()
        } | {site: {"problem": problem} for site, problem in problems.items()}
        write_json(self.folder / HISTORY, self._history)
        if self._history["rounds"]:  # of the job that this one continues
            self._publish()

    def _keep_origin(self, method: MethodSettings, before: Mapping[str, Any]) -> None:
        """Keep the data sets and backbones of absent sites, whose earlier rounds are in the history."""
        for name in ("procedural", "tiny"):
            self._history[name] |= before.get(name, False)
        both = [_origin_of(one.get("source", "")) for one in (before, self._history)]
        datasets, backbones = (sorted({*first, *second}) for first, second in zip(*both, strict=True))
        self._history |= {
            "method": f"{method.label}, {', '.join(backbones)}",
            "source": origin(datasets, backbones, procedural=self._history["procedural"]),
        }

    def record_lineage(self, name: str, before: Checkpoint | None) -> None:
        """Record the lineage; of a resumed job also copy the history, faults and seconds of the rounds before."""
        self._manifest["lineage"] = name
        if before:
            self._manifest["resumed"] = {"after_round": before.round, "sites_with_other_state": {}}
            fields = (*RUN_FIELDS, *SITE_FIELDS, "settings")
            kept = {name: before.history[name] for name in fields if name in before.history}
            self._history |= kept | {"rounds": list(before.history["rounds"])}
            self._earlier = sum(one.get("seconds") or 0 for one in before.history["rounds"])
            for finished in before.history["rounds"]:
                self._add_faults(finished)
            write_json(self.folder / HISTORY, self._history)  # the handshake may fail, or take long

    def record_behind(self, behind: Mapping[str, int]) -> None:
        """Record by site the round of its own state if it differs from that of the checkpoint."""
        if "resumed" in self._manifest:
            self._manifest["resumed"]["sites_with_other_state"] = dict(behind)

    def record_first_adapter(self, sender: Sender) -> None:
        """Record which site's first adapter all sites get, and which sites computed another one."""
        self._manifest["start"] = {"site": sender.site, "digest": sender.digest}
        self._manifest["faults"] += [
            {"site": site, "round": 0, "what": what} for site, what in sender.differing.items()
        ]

    @property
    def history(self) -> dict[str, Any]:
        """The content of history.json."""
        return self._history

    def add_round(
        self,
        number: int,
        accepted: Mapping[str, TrainReply],
        rejected: Mapping[str, str],
        report: Mapping[str, Any],
        assignment: Assignment | None = None,
        *,
        seconds: float,
        sent: int | None = None,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        """Append one round to history.json.

        `accepted` has by site the replies that were averaged, `rejected` why there is none. `sent` is the bytes of each
        site's adapter if relays may have it; None: count those in the replies. `keep` writes the checkpoint; a round
        whose checkpoint cannot be written does not count as finished.
        """
        sites = {
            site: {
                **reply.metrics,
                "samples": reply.samples,
                "seconds": reply.seconds,
                "attempts": reply.attempts,
                "sent": sum(tensor.nbytes for tensor in reply.state.values()) if sent is None else sent,
            }
            for site, reply in accepted.items()
        }
        finished = {
            "round": number,
            "sites": sites,
            "rejected": dict(rejected),
            "alignment": dict(report.get("transport", {})),
            "alignment_report": dict(report),
            "schedule": asdict(assignment) if assignment else {},
            "seconds": round(seconds, 3),
        }
        self._history["rounds"].append(finished)
        try:
            keep()
        except BaseException:
            self._history["rounds"].pop()
            raise
        self._add_faults(finished)
        write_json(self.folder / HISTORY, self._history)
        self._publish()

    def _publish(self) -> None:
        """Bring TensorBoard's files and the tracker up to the history."""
        try:
            self._board.update(self._history["rounds"], self._history.get("metrics", {}))
        except Exception:  # a failure of TensorBoard must not end the job
            logging.getLogger(__name__).exception("the TensorBoard files could not be written")
        if self.tracking:
            self.tracking.update(self._history["rounds"], self._history.get("metrics", {}))

    def _add_faults(self, finished: Mapping[str, Any]) -> None:
        """Add the faults of a round of the history to the manifest."""
        faults = {
            site: f"its training was begun {one['attempts']} times; its own log says why"
            for site, one in finished["sites"].items()
            if one.get("attempts", 1) > 1
        } | finished.get("rejected", {})
        self._manifest["faults"] += [
            {"site": site, "round": finished["round"], "what": what} for site, what in faults.items()
        ]

    def ends_early(self, patience: int) -> int | None:
        """Return the best round if the job ends now because none since was better; else None."""
        done = self._history["rounds"]
        best = best_before_end([one["sites"] for one in done], patience)
        if best:
            self._manifest["ended_early"] = {"after_round": len(done), "best_round": best, "patience": patience}
        return best

    def progress(self, number: int, rounds: int) -> str:
        """Return a line for the log: round, mean, seconds, time left, moved places, each site's scheduled layers."""
        last = self._history["rounds"][-1]
        metrics = self._history.get("metrics", {})
        overall = means_of(metrics, {site: figures["overall"] for site, figures in last["sites"].items()})
        told = [
            ({site: figures["overall"] for site, figures in one["sites"].items()}, one["rejected"])
            for one in self._history["rounds"]
        ]
        reached = describe_means(overall, of_fewer_sites(metrics, told)) or f"{title_of(metrics.values())} not measured"
        assigned = last["schedule"].get("layers", {})
        layers = "; ".join(
            f"{site} trained layers {', '.join(map(str, chosen))}" if chosen else f"{site} trained no layer"
            for site, chosen in assigned.items()
            if site in last["sites"]
        )
        stuck = "; ".join(f"{s}: {NO_BETTER}" for s, site in last["sites"].items() if site.get(BELOW_CONSTANT) == 1)
        recent = [one["seconds"] for one in self._history["rounds"][-RECENT:]]
        left = (rounds - number) * sum(recent) / len(recent)
        parts = [
            f"round {number} of {rounds}: mean {reached}, {duration(last['seconds'])}",
            f"about {duration(left)} left" * (number < rounds),
            _moved(last["alignment_report"].get("decisions", {})),
            layers,
            stuck,
        ]
        return "; ".join(filter(None, parts))

    def fail(self, reason: str) -> None:
        """Write the manifest of a job that failed, before and after the tracker's end; finished rounds are kept.

        The tracker may wait for its service longer than FLARE waits for the end of an aborted job.
        """
        tracking, self.tracking = self.tracking, None
        self._write_failure(reason)
        if tracking:
            tracking.close(completed=False)
            self._write_failure(reason)

    def _write_failure(self, reason: str) -> None:
        """Write the manifest; an error, such as a full disk, is only logged, so that it does not hide the reason."""
        try:
            self._write_manifest("failed", reason=reason)
        except (LocalError, OSError) as error:  # a tracker may remove a file of its own meanwhile
            logging.getLogger(__name__).error("%s", error)

    def complete(self) -> list[str]:
        """Render the report, write the manifest, and return lines for the log with the results folder."""
        from fedpeft.report import render, show

        lines = [f"finished: results in {self.folder}"]
        again = f"`fedpeft report {self.folder}` writes it again"
        try:
            render(self.folder, self.folder / "report")
        except Exception as error:  # what was trained is there all the same
            logging.getLogger(__name__).exception("the report could not be written")
            lines.append(f"no report: {error if isinstance(error, FedpeftError) else 'the log says why'}; {again}")
        self._write_manifest("completed")
        try:
            show(self.folder, metrics=ACCURACIES)
        except Exception:
            logging.getLogger(__name__).exception("the tables could not be printed")
        return lines

    def _write_manifest(self, status: str, **more: str) -> None:
        if self.tracking:
            self.tracking.close(completed=status == "completed")  # may write into the folder
        files = sorted(p for p in self.folder.rglob("*") if p.is_file() and p.name not in (MANIFEST, LOCK))
        self._manifest |= {
            "status": status,
            **more,
            "rounds": len(self._history["rounds"]),
            "seconds": round(self._earlier + time.time() - self._began, 1),
            "files": {str(p.relative_to(self.folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files},
        }
        write_json(self.folder / MANIFEST, self._manifest)


def _moved(decisions: Mapping[str, Mapping[str, int]]) -> str:
    """Return how many places of all sites a round's alignment moved; empty if none was aligned."""
    moved, stayed = (sum(one[name] for one in decisions.values()) for name in ("moved", "stayed"))
    return f"{moved} of {moved + stayed} places moved" * bool(moved + stayed)


FOLDER, SERVER = "tensorboard", "server"
ABSENT = (
    "no TensorBoard files are written, because TensorBoard is not installed here: "
    "pip install 'flare-fedpeft[tensorboard]'; history.json holds the same figures"
)
NAMES = {
    "overall": "{metric}/overall",
    "validation": "{metric}/validation",
    "open": "accuracy/open",
    "closed": "accuracy/closed",
    "loss": "loss/last epoch",
    "loss_first": "loss/first epoch",
    "loss_start": "loss/start of round",
    "loss_end": "loss/end of round",
    "seconds": "seconds/site",
    "sent": "communication/bytes sent",
}


class Board:
    """Writes each round once into `tensorboard/` in the run's folder, a resumed run's earlier ones too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._writers: dict[str, SummaryWriter] = {}
        self._last = 0

    def update(self, rounds: Sequence[Mapping[str, Any]], metrics: Mapping[str, str]) -> None:
        """Write the new rounds to disk; a missing TensorBoard is logged once."""
        first, new = self._last == 0, [one for one in rounds if one["round"] > self._last]
        self._last = max((one["round"] for one in new), default=self._last)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            if first and new:
                logging.getLogger(__name__).info(ABSENT)
            return
        for finished in new:
            for run, tag, value in scalars(finished, metrics):
                if run not in self._writers:
                    self._writers[run] = SummaryWriter(str(self._folder / run))
                self._writers[run].add_scalar(tag, value, finished["round"])
        for writer in self._writers.values():
            writer.flush()


def scalars(one: Mapping[str, Any], metrics: Mapping[str, str]) -> Iterator[tuple[str, str, float]]:
    """Yield folder, tag and value of every figure in a round of history.json; sites measure accuracy by default."""
    for site, figures in one["sites"].items():
        metric = metrics.get(site, ACCURACY)
        for name, tag in NAMES.items():
            if figures.get(name) is not None:
                yield site, tag.format(metric=metric), figures[name]
    for site, distance in one.get("alignment", {}).items():
        if distance is not None:
            yield site, "alignment/distance", distance
    schedule = one.get("schedule") or {}
    for site, scores in schedule.get("scores", {}).items():
        for layer, score in zip(schedule.get("numbers") or range(len(scores)), scores, strict=True):
            yield site, f"layer scores/{layer:02}", score
    overall = {site: figures.get("overall") for site, figures in one["sites"].items()}
    for metric, mean in means_of(metrics, overall).items():
        yield SERVER, f"{metric}/overall", mean
    if one.get("seconds") is not None:
        yield SERVER, "seconds/round", one["seconds"]
    yield SERVER, "replies/accepted", len(one["sites"])
    yield SERVER, "replies/rejected", len(one.get("rejected", {}))
