# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Give every finished round to a receiver of FLARE's: the figures of history.json, nothing else, from the server only.

FLARE's own way, an `AnalyticsSender` at each site, would open a second channel out of the sites. Nor are the receivers
run as components: where a run should not begin, they would log an error and continue without metrics. MLflow's receiver
is here; the server's environment says where it sends.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.analytix import AnalyticsDataType, LogWriterName
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.analytix_utils import create_analytic_dxo

import fedpeft
from fedpeft.core.errors import FedpeftError
from fedpeft.job.federation import LEAVE_OUT, NONE, SETTING, Tracker, reason_of, unusable, usable
from fedpeft.server.run_recorder import SERVER, scalars

if TYPE_CHECKING:
    from nvflare.app_common.widgets.streaming import AnalyticsReceiver


MAX_AT_ONCE = 500  # MLflow takes at most 1000 metrics in one request
_NOT_IN_A_NAME = re.compile(r"[^\w.-]|^\.+", re.ASCII)
_log = logging.getLogger(__name__)


def start_tracking(name: str, job: str, folder: Path, fl_ctx: FLContext) -> Tracking | None:
    """Begin a run at the tracker that a job names, for the job's name and its run's folder; None for `none`."""
    if name == NONE:
        return None
    return Tracking(usable(name), job, folder, fl_ctx)


class Tracking:
    """Gives each round to the receiver once, a resumed run's earlier ones too; a round that fails is given again."""

    def __init__(self, tracker: Tracker, job: str, folder: Path, fl_ctx: FLContext) -> None:
        self._tracker, self._folder = tracker, folder
        self._context = _context(job, fl_ctx)
        self._last = 0
        self._problem = ""
        self._closed = False
        self._receiver: Any = None
        try:
            self._receiver = tracker.receiver(job, folder)
            self._receiver.initialize(self._context)
            self._raise_if_failed()
        except Exception as error:  # each service has its own kinds
            with suppress(Exception):
                self._receiver.finalize(self._context)  # W&B's process would not end by itself
            raise unusable(tracker.title, error, f"correct the server's environment, {LEAVE_OUT}") from error

    def update(self, rounds: Sequence[Mapping[str, Any]], metrics: Mapping[str, str]) -> None:
        """Give the new rounds of history.json to the receiver; a failure is logged once and costs nothing else."""
        try:
            for finished in rounds:
                if finished["round"] > self._last:
                    self._give(finished["round"], named(finished, metrics))
                    self._last = finished["round"]
            self._problem = ""
        except Exception as error:
            if not self._problem:
                _log.warning("%s", self._missing(reason_of(error)))
            self._problem = reason_of(error)

    def close(self, *, completed: bool) -> None:
        """End the run at the tracker, once, and say whether the job completed; a failure is logged."""
        if self._closed:
            return
        self._closed = True
        try:
            self._give(self._last, {"completed": float(completed)})
        except Exception as error:
            self._problem = reason_of(error)
        try:
            self._receiver.finalize(self._context)
            self._raise_if_failed()
            notice = self._tracker.finish(self._folder)
        except Exception as error:
            self._problem = reason_of(error)
        if self._problem:
            _log.warning("%s", self._missing(self._problem))
        elif notice:
            _log.info("%s has the figures of all rounds: %s.", self._tracker.title, notice)

    def _give(self, number: int, values: Mapping[str, float]) -> None:
        names = list(values)
        for start in range(0, len(names), MAX_AT_ONCE):
            some = {name: values[name] for name in names[start : start + MAX_AT_ONCE]}
            self._receiver.save(self._context, _message(number, some), SERVER)
        self._raise_if_failed()

    def _raise_if_failed(self) -> None:
        if failed := self._tracker.failed(self._receiver):
            raise ConnectionError(failed)

    def _missing(self, reason: str) -> str:
        return (
            f"{self._tracker.title} may lack the rounds after {self._last} ({reason}): the job goes on, and "
            f"history.json has the same figures."
        )


def named(one: Mapping[str, Any], metrics: Mapping[str, str]) -> dict[str, float]:
    """Return the figures of a round of history.json by name, `accuracy/overall/SITE`; the mean is `…/server`."""
    return {f"{tag}/{_NOT_IN_A_NAME.sub('_', run)}": value for run, tag, value in scalars(one, metrics)}


def _message(number: int, values: dict[str, float]) -> Shareable:
    return create_analytic_dxo(
        tag="round",
        value=values,
        data_type=AnalyticsDataType.METRICS,
        writer=LogWriterName.MLFLOW,
        global_step=number,
    ).to_shareable()


def _context(job: str, fl_ctx: FLContext) -> FLContext:
    """Return a context without the type of the process: with a server's, a receiver begins one run for each client."""
    made = FLContext()
    made.set_prop(ReservedKey.ENGINE, fl_ctx.get_engine())
    made.set_prop(ReservedKey.IDENTITY_NAME, SERVER)
    made.set_prop(ReservedKey.RUN_NUM, fl_ctx.get_job_id())
    made.set_prop(ReservedKey.JOB_META, {JobMetaKey.JOB_NAME: job})
    return made


URI, EXPERIMENT = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
# by default MLflow prints its address with any password in it, reports its use to its makers, and repeats requests to
# an absent server for four minutes
DEFAULTS = {
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


def _check() -> None:
    if not os.environ.get(URI):
        raise FedpeftError(
            f"{SETTING} is 'mlflow', but the server's environment has no {URI}: set it there, for instance to "
            f"sqlite:////path/to/mlflow.db or the address of an MLflow server, {LEAVE_OUT}.",
            setting=SETTING,
        )


def _receiver(job: str, folder: Path) -> AnalyticsReceiver:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient
    from nvflare.app_opt.tracking.mlflow.mlflow_receiver import MLflowReceiver

    uri, experiment = os.environ[URI], os.environ.get(EXPERIMENT) or "fedpeft"
    client = MlflowClient(tracking_uri=uri)
    if client.get_experiment_by_name(experiment) is None:
        client.create_experiment(experiment)  # FLARE would send the path of this run's folder with it
    names = {"experiment_name": experiment, "run_name": f"fedpeft {fedpeft.__version__}"}
    tags: dict[str, dict[str, str]] = {"experiment_tags": {}, "run_tags": {}}
    return MLflowReceiver(tracking_uri=uri, kw_args=names | tags, buffer_flush_time=0)


MLFLOW = Tracker(title="MLflow", library="mlflow", extra="mlflow", check=_check, receiver=_receiver)
