# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Who does something wrong in one round: a site's executor with its training process, or the server.

`faults.py` and the simulator's tests put them into a job; this folder must then be on PYTHONPATH, and
`faulty_executor.` on the workspace's allow-list.
"""

import contextlib
import json
import os
import resource
import signal
import threading
from pathlib import Path

import torch
from nvflare.apis.shareable import Shareable

from fedpeft.flare import messages
from fedpeft.flare.aggregator import PIAAggregator
from fedpeft.flare.executor import SiteExecutor
from fedpeft.site import training_process as worker

SABOTAGE = "FEDPEFT_SABOTAGE"
GIANT = int(os.environ.get("FEDPEFT_GIANT_MB", "256")) * 10**6  # bytes


class FaultyExecutor(SiteExecutor):
    """A site's executor that does one of `FAULTS` or `EXECUTOR_FAULTS` in some rounds.

    Args:
        faults: what it does, by round; in round 0 it introduces itself.
        faulty_site: the site that does it; all others are as good as ever.
        settings: those of `SiteExecutor`.
    """

    worker = "faulty_executor"

    def __init__(self, faults: dict[str, str], faulty_site: str, **settings) -> None:
        self._faults, self._faulty_site = faults, faulty_site
        os.environ[SABOTAGE] = json.dumps({"faults": faults, "faulty_site": faulty_site})
        super().__init__(**settings)

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        """Answer, or with the fault."""
        reply = super().execute(task_name, shareable, fl_ctx, abort_signal)
        guilty = fl_ctx.get_identity_name() == self._faulty_site and task_name in ("hello", "train")
        fault = EXECUTOR_FAULTS.get(self._faults.get(str(shareable.get_header("current_round"))))
        return fault(reply, shareable) if guilty and fault else reply


class CrashingAggregator(PIAAggregator):
    """The server's process is killed while it integrates a round, once; its replies are on disk, however small."""

    def __init__(self, round: int, marker: str, **settings) -> None:
        super().__init__(**settings)
        messages.MAX_IN_MEMORY = -1
        self._round, self._marker, self._integrated = round, Path(marker), 0

    def aggregate_model(self):
        self._integrated += 1
        if self._integrated == self._round and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().aggregate_model()


class FullDiskAggregator(PIAAggregator):
    """From a round on the server's disk takes no more: its process may write no file beyond 64 KiB."""

    def __init__(self, round: int, marker: str, **settings) -> None:
        super().__init__(**settings)
        self._round, self._marker, self._integrated = round, Path(marker), 0

    def aggregate_model(self):
        self._integrated += 1
        if self._integrated == self._round and not self._marker.exists():
            self._marker.touch()
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return super().aggregate_model()


def _kill(learner, state):
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_once(learner, state):
    mark = learner.folder / "killed"
    if not mark.exists():
        mark.touch()
        _kill(learner, state)


def _hang(learner, state):
    threading.Event().wait()


def _raise(learner, state):
    raise RuntimeError("secret question text")


def _out_of_memory(learner, state):
    raise torch.OutOfMemoryError("CUDA out of memory")


def _nan(learner, state):
    next(iter(state.values())).fill_(float("nan"))


def _shape(learner, state):
    name = next(iter(state))
    state[name] = state[name][:1].clone()


def _extra(learner, state):
    state["head.weight"] = torch.ones(2)


def _no_tensors(learner, state):
    state.clear()


@contextlib.contextmanager
def _full_disk():
    """The training process may write no file beyond a few bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


DURING = {"full disk": _full_disk}  # while it trains and writes what it keeps
FAULTS = {
    "kill": _kill,
    "kill once": _kill_once,
    "hang": _hang,
    "raise": _raise,
    "out of memory": _out_of_memory,
    "nan": _nan,
    "shape": _shape,
    "extra": _extra,
    "no tensors": _no_tensors,
}


def _empty(reply, order):
    return Shareable()


def _kill_flare(reply, order):
    os.kill(os.getpid(), signal.SIGKILL)


def _giant(reply, order):
    reply["DXO"]["data"]["giant"] = torch.zeros(GIANT // 4)
    return reply


def _many(reply, order):
    reply["DXO"]["data"] |= {f"giant.{number}": torch.zeros(250_000) for number in range(GIANT // 10**6)}
    return reply


def _start(reply, order):
    for tensor in reply["DXO"]["data"].values():
        tensor.fill_(0.02)  # the standard deviation of what it begins with
    return reply


def _giant_text(reply, order):
    reply["giant"] = "0" * GIANT
    return reply


def _hardly_moves(reply, order):
    start = order["DXO"]["data"]
    reply["DXO"]["data"] = {key: start[key] + 1e-6 * (t - start[key]) for key, t in reply["DXO"]["data"].items()}
    return reply


EXECUTOR_FAULTS = {
    "empty": _empty,
    "kill FLARE's process": _kill_flare,
    "giant": _giant,
    "many tensors": _many,
    "giant text": _giant_text,
    "start": _start,
    "hardly moves": _hardly_moves,
}


def main() -> None:
    """Be the training process: train as the order says, then add the fault."""
    from fedpeft.site.learner import Learner

    order = json.loads(os.environ[SABOTAGE])
    original = Learner.train_round

    def train_round(learner, number, *rest, **more):
        name = order["faults"].get(str(number)) if learner.site == order["faulty_site"] else None
        with DURING.get(name, contextlib.nullcontext)():
            update = original(learner, number, *rest, **more)
        if fault := FAULTS.get(name):
            fault(learner, update.state)
        return update

    Learner.train_round = train_round
    worker.main()


if __name__ == "__main__":
    main()
