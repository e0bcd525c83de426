# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Components that only tests put into a job: one that records every frame a process sends, and sites that misbehave."""

import os
import signal
from pathlib import Path

import torch
from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

from fedpeft.flare.aggregator import PIAAggregator
from fedpeft.flare.executor import SiteExecutor
from fedpeft.training.learner import Learner


class Recorder(FLComponent):
    """Appends the headers and payload of every frame that this process sends to a file of its own."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        file = open(Path(folder) / f"{os.getpid()}.frames", "ab")  # noqa: SIM115
        send = SfmConnection.send_frame

        def recorded(connection, prefix, headers, payload):
            file.write(connection.headers_to_bytes(headers) or b"")
            file.write(bytes(payload) if payload else b"")
            file.flush()
            return send(connection, prefix, headers, payload)

        SfmConnection.send_frame = recorded


class MortalAggregator(PIAAggregator):
    """The server's process is killed while it integrates a round, once."""

    def __init__(self, round: int, marker: str, **settings) -> None:
        super().__init__(**settings)
        self._round, self._marker, self._integrated = round, Path(marker), 0

    def aggregate_model(self):
        self._integrated += 1
        if self._integrated == self._round and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().aggregate_model()


class Saboteur(SiteExecutor):
    """One site does something wrong in one round."""

    def __init__(self, deed: str, culprit: str, round: int, **settings) -> None:
        super().__init__(**settings)
        original = Learner.train_round

        def train_round(learner, number, received, layers=None):
            update = original(learner, number, received, layers)
            if learner.site == culprit and number == round:
                DEEDS[deed](update.state)
            return update

        Learner.train_round = train_round


def _nan(state):
    next(iter(state.values())).fill_(float("nan"))


def _raise(state):
    raise RuntimeError("secret question text")


def _kill(state):
    os.kill(os.getpid(), signal.SIGKILL)


def _extra(state):
    state["head.weight"] = torch.ones(2)


DEEDS = {"nan": _nan, "raise": _raise, "kill": _kill, "extra": _extra}
