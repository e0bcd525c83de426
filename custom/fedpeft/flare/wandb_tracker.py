# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Weights & Biases follows a run, through FLARE's WandBReceiver; the server's environment has mode, project and key."""

from __future__ import annotations

import os
import signal
from multiprocessing import Queue
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.fl_context import FLContext
from nvflare.app_opt.tracking.wandb.wandb_receiver import WandBReceiver

from fedpeft.core.errors import FedpeftError
from fedpeft.core.processes import end_with_parent_later
from fedpeft.job.federation import LEAVE_OUT, SETTING, Tracker, unusable

if TYPE_CHECKING:
    from nvflare.app_common.widgets.streaming import AnalyticsReceiver


class BoundReceiver(WandBReceiver):
    """FLARE's receiver, with a process that ends with the server's, however that ends.

    FLARE's own waits forever after a `kill -9` of the server, with a copy of the server's connections.
    """

    ended = False

    def _process_queue_tasks(self, queue: Queue) -> None:
        end_with_parent_later(os.getppid())
        super()._process_queue_tasks(queue)

    def finalize(self, fl_ctx: FLContext) -> None:
        """End the run; FLARE ends a process that has not sent all in time, and does not wait for that."""
        super().finalize(fl_ctx)
        for process in self.processes.values():
            process.join(SECONDS_TO_END)
        self.ended = True


MODE, PROJECT, FOLDER = "WANDB_MODE", "WANDB_PROJECT", "WANDB_DIR"
ONLINE, OFFLINE = "online", "offline"
SECONDS, SECONDS_TO_END = 60, 5  # for what is left to be sent at the end, and then for the end of the process
ONLY_METRICS = {  # by default it records the program, its output and arguments, the machine, its load and its user
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "host": "server",
    "program": "fedpeft",
    "save_code": False,
    "silent": True,
    "symlink": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


def _mode() -> str:
    return os.environ.get(MODE) or ONLINE


def _check() -> None:
    if _mode() not in (ONLINE, OFFLINE):
        raise FedpeftError(f"{MODE} is {_mode()!r:.80} at the server: set it to {ONLINE} or {OFFLINE}.")
    if _mode() == OFFLINE:
        return
    import wandb

    try:
        has_key = wandb.login(prompt=False)
    except Exception as error:  # of several kinds: a wrong key, no connection
        remedy = f"check its key and its network, set {MODE}={OFFLINE} there, {LEAVE_OUT}"
        raise unusable("W&B", error, remedy) from error
    if not has_key:
        raise FedpeftError(
            f"{SETTING} is 'wandb', but the server has no key of W&B: set WANDB_API_KEY in its environment, or "
            f"{MODE}={OFFLINE} to store the run there, {LEAVE_OUT}.",
            setting=SETTING,
        )


def _receiver(job: str, folder: Path) -> AnalyticsReceiver:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

    run: dict[str, Any] = {
        "project": os.environ.get(PROJECT) or "fedpeft",
        "name": job[:60],
        "group": job[:60],
        "job_type": "federation",
        "dir": os.environ.get(FOLDER) or str(folder),
        "settings": ONLY_METRICS,
    }
    return BoundReceiver(wandb_args=run, mode=_mode(), process_timeout=SECONDS)


def _failed(receiver: Any) -> str:
    """Return why the run failed; empty: it did not. FLARE's receiver has its own process, and may go offline."""
    if receiver.mode != _mode():
        return "it refused the key, or could not be reached"
    codes = {process.exitcode for process in receiver.processes.values()}
    if -signal.SIGTERM in codes and receiver.ended:
        return f"it had not taken all figures {SECONDS} s after the end"
    if any(codes):
        return "its process has ended; the log has the traceback"
    return ""


def _finish(folder: Path) -> str:
    for link in folder.glob("wandb/*/logs/*"):
        if link.is_symlink():  # to a log of its server in the home folder, which is no part of the run's results
            link.unlink()
    place = os.environ.get(FOLDER) or folder
    return f"`wandb sync {place}/wandb/offline-run-*` sends them" if _mode() == OFFLINE else ""


TRACKER = Tracker(
    title="W&B", library="wandb", extra="wandb", check=_check, receiver=_receiver, failed=_failed, finish=_finish
)
