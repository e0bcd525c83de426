# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Write finished rounds as TensorBoard event files while the run goes on.

The server writes them from the replies that it has validated anyway. FLARE's own way, an `AnalyticsSender` at each site
and a `TBAnalyticsReceiver` on the server, would open a second channel out of the sites, whose values are not checked.

One folder for each site, so that TensorBoard draws a metric of all sites into one chart, and `server` for the round.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.core.metrics import ACCURACY

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

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
    """Writes each round once and skips rounds that it has written; a resumed run writes its earlier rounds too.

    Args:
        folder: of the run; the event files go into `tensorboard/` below it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._writers: dict[str, SummaryWriter] = {}
        self._last = 0

    def update(self, rounds: Sequence[Mapping[str, Any]], metrics: Mapping[str, str]) -> None:
        """Write the rounds that are new, to disk at once; a missing TensorBoard is logged once."""
        first, new = self._last == 0, [one for one in rounds if one["round"] > self._last]
        self._last = max((one["round"] for one in new), default=self._last)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            if first and new:
                logging.getLogger(__name__).info(ABSENT)
            return
        for one in new:
            for run, tag, value in scalars(one, metrics):
                if run not in self._writers:
                    self._writers[run] = SummaryWriter(str(self._folder / run))
                self._writers[run].add_scalar(tag, value, one["round"])
        for writer in self._writers.values():
            writer.flush()


def scalars(one: Mapping[str, Any], metrics: Mapping[str, str]) -> Iterator[tuple[str, str, float]]:
    """Yield folder, tag and value of everything measured in a round of history.json.

    Args:
        one: the round.
        metrics: by site, what it is measured by; accuracy, where nothing is said.
    """
    overall: dict[str, list[float]] = {}
    for site, figures in one["sites"].items():
        metric = metrics.get(site, ACCURACY)
        for name, tag in NAMES.items():
            if figures.get(name) is not None:
                yield site, tag.format(metric=metric), figures[name]
        if figures.get("overall") is not None:
            overall.setdefault(metric, []).append(figures["overall"])
    for site, distance in one.get("alignment", {}).items():
        if distance is not None:
            yield site, "alignment/distance", distance
    schedule = one.get("schedule") or {}
    for site, scores in schedule.get("scores", {}).items():
        for layer, score in zip(schedule.get("numbers") or range(len(scores)), scores, strict=True):
            yield site, f"layer scores/{layer:02}", score
    for metric, values in overall.items():
        yield SERVER, f"{metric}/overall", sum(values) / len(values)
    if one.get("seconds") is not None:
        yield SERVER, "seconds/round", one["seconds"]
    yield SERVER, "replies/accepted", len(one["sites"])
    yield SERVER, "replies/rejected", len(one.get("rejected", {}))
