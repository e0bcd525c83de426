# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""MLflow follows a run, through FLARE's MLflowReceiver; the server's environment says where."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import fedpeft
from fedpeft.core.errors import FedpeftError
from fedpeft.job.federation import LEAVE_OUT, SETTING, Tracker

if TYPE_CHECKING:
    from nvflare.app_common.widgets.streaming import AnalyticsReceiver

URI, EXPERIMENT = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
# MLflow prints its address, with a password that is in it, reports its use to its makers, and repeats a request to a
# server that is away for four minutes
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


TRACKER = Tracker(title="MLflow", library="mlflow", extra="mlflow", check=_check, receiver=_receiver)
