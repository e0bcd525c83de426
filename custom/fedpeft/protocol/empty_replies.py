# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The reply that tells the server of a problem and of nothing else."""

from __future__ import annotations

import fedpeft
from fedpeft.protocol.types import METRICS, Introduction, Reply, ScoreReply, TrainReply


def empty_reply(
    kind: type[Reply], *, round: int, problem: str, setting: str = "", seconds: float = 0.0, attempts: int = 1
) -> Reply:
    """A reply without a result.

    Args:
        kind: the message that answers the task.
        round: of the order; an introduction has none.
        problem: why there is no result, a code of `fedpeft.protocol.problem_codes`.
        setting: the name of the job's setting that the problem is about, if it is about one.
        seconds: wall time that was lost; an introduction has none.
        attempts: how often the site began the round, where it was to train.
    """
    if kind is Introduction:
        return Introduction(version=fedpeft.__version__, problem=problem, setting=setting)
    if kind is ScoreReply:
        return ScoreReply(round=round, scores=[], seconds=seconds, problem=problem, setting=setting)
    return TrainReply(
        round=round,
        samples=0,
        metrics=dict.fromkeys(METRICS),
        scores=[],
        seconds=seconds,
        problem=problem,
        setting=setting,
        attempts=attempts,
        state={},
    )
